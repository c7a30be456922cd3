"""JSON Schema of the structs that requests decode to and answers are made of.

One schema per struct, by reference. What a type cannot say (meanings, bounds that settings give) is added by the
caller, by the name of the field.
"""

from collections.abc import Mapping
from typing import Any, Final

from msgspec import inspect

Schema = dict[str, Any]

REFERENCE: Final = "#/components/schemas/"
JSON_KINDS: Final = {str: "string", bool: "boolean", int: "integer", type(None): "null"}


class Schemas:
    """Collects the schemas of all structs that are asked for. `fields`: what to add, by field name."""

    def __init__(self, names: Mapping[Any, str], fields: Mapping[str, Schema]) -> None:
        self._names = names
        self._fields = fields
        self.components: dict[str, Schema] = {}

    def of(self, kind: Any) -> Schema:
        return self._schema(inspect.type_info(kind))

    def _schema(self, info: inspect.Type) -> Schema:
        if isinstance(info, inspect.Metadata):
            return self._schema(info.type)
        if isinstance(info, inspect.StructType):
            return self._struct(info)
        if isinstance(info, inspect.UnionType):
            return self._union(info)
        if isinstance(info, inspect.ListType | inspect.FrozenSetType):
            return {"type": "array", "items": self._schema(info.item_type)}
        if isinstance(info, inspect.DictType):
            return {"type": "object", "additionalProperties": self._schema(info.value_type)}
        if isinstance(info, inspect.LiteralType):
            kinds = {JSON_KINDS[type(value)] for value in info.values}
            return {"type": kinds.pop(), "enum": list(info.values)} if len(kinds) == 1 else {"enum": list(info.values)}
        if isinstance(info, inspect.IntType):
            return {"type": "integer", "minimum": info.ge} if info.ge is not None else {"type": "integer"}
        return dict(PLAIN[type(info)])

    def _union(self, info: inspect.UnionType) -> Schema:
        options = [self._schema(one) for one in info.types]
        return options[0] if len(options) == 1 else {"anyOf": options}

    def _struct(self, info: inspect.StructType) -> Schema:
        name = self._names.get(info.cls, info.cls.__name__)
        if name not in self.components:
            self.components[name] = {}  # stops a struct that holds itself
            self.components[name] = self._object(info)
        return {"$ref": REFERENCE + name}

    def _object(self, info: inspect.StructType) -> Schema:
        properties = {field.encode_name: self._property(field) for field in info.fields}
        required = [field.encode_name for field in info.fields if field.required]
        summary = (info.cls.__doc__ or "").strip()
        whole: Schema = {"type": "object", "properties": properties}
        if not summary.startswith(f"{info.cls.__name__}("):
            whole["description"] = summary
        return whole | {"required": required} if required else whole

    def _property(self, field: inspect.Field) -> Schema:
        schema = self._schema(field.type) | self._fields.get(field.encode_name, {})
        default = field.default
        if isinstance(default, bool | int | str):
            schema["default"] = default
        return schema


PLAIN: Final[dict[type, Schema]] = {
    inspect.AnyType: {},
    inspect.RawType: {},
    inspect.NoneType: {"type": "null"},
    inspect.BoolType: {"type": "boolean"},
    inspect.FloatType: {"type": "number"},
    inspect.StrType: {"type": "string"},
}

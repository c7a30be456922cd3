"""Writes what is generated of the TypeScript client, in clients/typescript; run it after each change of the API or of
the client's sources.

    python -m tools.typescript_client            src/api.ts from the OpenAPI document, then dist by tsc, from npm
    python -m tools.typescript_client --types    src/api.ts only, without npm

src/api.ts has the types of all schemas, and a row for each operation whose answer is JSON. dist is what browsers and
node load; it is kept in the repository so that nobody has to build it.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from topics.testing.server import ServerThread

HOME: Final = Path(__file__).parent.parent / "clients" / "typescript"
TYPES: Final = HOME / "src" / "api.ts"
TYPESCRIPT: Final = "typescript@5.9.3"
COMPILE: Final = ("npx", "--yes", "-p", TYPESCRIPT, "tsc", "--project", "tsconfig.json")
METHODS: Final = ("get", "put", "post", "delete")
SIMPLE: Final = {"integer": "number", "number": "number", "string": "string", "boolean": "boolean", "null": "null"}
LEFT_OUT: Final = ("healthz", "readyz", "show_openapi")  # twins of others, and what this is made of
# Operations that are not GET, PUT or DELETE and may be repeated all the same: twice leaves the same as once.
HARMLESS: Final = frozenset(("diff", "ack", "nack", "extend", "delete_records", "give_ticket", "pause", "resume"))
# Parameters that the document says in words: booleans are words on the wire, and any page_size is taken.
SWITCHES: Final = ("touch", "epochs", "detail", "return_seqs", "if_empty", "lenient", "include_tags", "include_meta")
ARGUMENTS: Final = {"page_size": "number", **dict.fromkeys(SWITCHES, "boolean")}


def document() -> Any:
    """The OpenAPI document, as a server gives it."""
    import http.client

    with ServerThread() as server:
        connection = http.client.HTTPConnection(*server.address)
        connection.request("GET", "/v0/openapi.json")
        found = json.loads(connection.getresponse().read())
        connection.close()
    return found


def types_of(api: Any) -> str:
    """The text of src/api.ts."""
    return "\n".join(lines_of(api)) + "\n"


def lines_of(api: Any) -> Iterator[str]:
    yield "// Generated from the OpenAPI document by `python -m tools.typescript_client`. Do not edit.\n"
    for name, schema in sorted(api["components"]["schemas"].items()):
        yield from said(schema, "")
        yield f"export type {name} = {type_of(schema)};\n"
    rows = sorted(operations_in(api), key=lambda row: row[0])
    yield "/** What each operation takes, and what it answers. */\nexport interface Operations {"
    for name, _, _, operation in rows:
        yield from said({"description": operation.get("summary", "")}, "  ")
        yield f"  {name}: {{ given: {given_to(api, operation)}; result: {result_of(operation)} }};"
    yield "}\n"
    yield "/** How each operation is called: method, path, may it be repeated after a failure, what is in the query. */"
    row = "readonly [method: string, path: string, repeats: boolean, query: readonly string[]]"
    yield f"export const operations: {{ [K in keyof Operations]: {row} }} = {{"
    for name, method, path, operation in rows:
        repeats = method != "post" or name in HARMLESS
        values = (method.upper(), path, repeats, query_of(api, operation))
        yield f"  {name}: [{', '.join(map(json.dumps, values))}],"
    yield "};"


def operations_in(api: Any) -> Iterator[tuple[str, str, str, Any]]:
    """Name, method, path and description of the operations that answer with JSON."""
    for path, methods in api["paths"].items():
        for method, operation in methods.items():
            if method in METHODS and operation["operationId"] not in LEFT_OUT and result_of(operation):
                yield operation["operationId"], method, path, operation


def result_of(operation: Any) -> str:
    content = operation["responses"].get("200", {}).get("content", {}).get("application/json", {})
    schema = content.get("schema", {})
    return type_of(schema) if "$ref" in schema else ""


def given_to(api: Any, operation: Any) -> str:
    """The parameters of path and query, and the fields of the body, as one object."""
    body = body_of(operation)
    fields = []
    for parameter in operation.get("parameters", []):
        if parameter["in"] == "path" or parameter["name"] in query_of(api, operation):
            mark = "" if parameter["in"] == "path" else "?"
            fields.append(f"{key(parameter['name'])}{mark}: {argument_of(parameter)}")
    parts = [f"{{ {'; '.join(fields)} }}"] if fields else []
    return " & ".join(parts + ([body] if body else [])) or "{}"


def body_of(operation: Any) -> str:
    """The name of the schema of the body, if it has one."""
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    return type_of(content["schema"]) if content else ""


def query_of(api: Any, operation: Any) -> list[str]:
    """The parameters of the query that are not fields of the body, too."""
    fields = api["components"]["schemas"].get(body_of(operation), {}).get("properties", {})
    return [p["name"] for p in operation.get("parameters", []) if p["in"] == "query" and p["name"] not in fields]


def argument_of(parameter: Any) -> str:
    return ARGUMENTS.get(parameter["name"]) or type_of(parameter["schema"])


def type_of(schema: Any) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "enum" in schema:
        return " | ".join(json.dumps(value) for value in schema["enum"])
    if "properties" in schema:
        required = schema.get("required", ())
        fields = (f"{key(n)}{'' if n in required else '?'}: {type_of(s)}" for n, s in schema["properties"].items())
        return f"{{ {'; '.join(fields)} }}"
    if "anyOf" in schema:
        return " | ".join(dict.fromkeys(type_of(one) for one in schema["anyOf"]))
    kind = schema.get("type")
    if isinstance(kind, list):
        return " | ".join(type_of({**schema, "type": one}) for one in kind)
    if kind == "array":
        if "prefixItems" in schema:
            return f"[{', '.join(type_of(one) for one in schema['prefixItems'])}]"
        return f"({type_of(schema.get('items', {}))})[]"
    if kind == "object":
        return f"{{ [key: string]: {type_of(schema.get('additionalProperties', {}))} }}"
    return SIMPLE.get(str(kind), "any")


def key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z_$][\w$]*", name) else json.dumps(name)


def said(schema: Any, indent: str) -> Iterator[str]:
    if text := " ".join(schema.get("description", "").split()).replace("*/", "* /"):
        yield f"{indent}/** {text} */"


def main(arguments: list[str]) -> int:
    TYPES.write_text(types_of(document()))
    return 0 if "--types" in arguments else subprocess.run(COMPILE, cwd=HOME).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The lake's files as an Iceberg table, for whoever reads Iceberg. The manifest stays the lake's own truth.

The table is that of pyiceberg's catalog `topics` if one is configured under this name (`.pyiceberg.yaml`), else of
one in the lake itself, LAKE/iceberg, in SQLite. A file is added once it is in the manifest, and once only: a run that
was killed in between is caught up with by the next one.
"""

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from topics.errors import ConfigurationError, InvalidRequest
from topics.spark.tables.lake import Lake, shown
from topics.spark.tables.outputs import Place

if TYPE_CHECKING:
    import pyarrow as pa

CATALOG: Final = "topics"
MISSING: Final = "--iceberg needs pyiceberg: pip install 'topics-engine[iceberg]'"


@dataclass
class Table:
    """A table that follows a lake."""

    place: Place
    table: Any
    known: set[str] = field(default_factory=set)  # files that it has, as URIs

    @classmethod
    def open(cls, place: Place, name: str) -> "Table":
        """The table `name` or `namespace.name`, created if there is none."""
        try:
            from pyiceberg.catalog import load_catalog
            from pyiceberg.exceptions import NamespaceAlreadyExistsError, NoSuchTableError
            from pyiceberg.utils.config import Config
        except ImportError:
            raise ConfigurationError(MISSING) from None
        properties = {} if Config().get_catalog_config(CATALOG) else _own_catalog(place)
        catalog = load_catalog(CATALOG, **properties)
        identifier = name if "." in name else f"topics.{name}"
        try:
            table = catalog.load_table(identifier)
        except NoSuchTableError:
            try:
                catalog.create_namespace(identifier.rpartition(".")[0])
            except NamespaceAlreadyExistsError:
                pass
            table = catalog.create_table(identifier, _schema())
        known = set(table.inspect.files()["file_path"].to_pylist())
        return cls(place, table, known)

    def add(self, lake: Lake) -> int:
        """Add the files of the lake that the table lacks, in one commit; how many."""
        named = [file.path for entries in lake.entries.values() for entry in entries for file in entry.files]
        if merged := self.known & {self.place.uri(path) for path in lake.replaced}:
            raise InvalidRequest(
                f"{len(merged)} files of the Iceberg table were merged by archive --compact: its rows would double. "
                "Drop the table; --iceberg then makes it anew"
            )
        missing = [uri for path in named if (uri := self.place.uri(path)) not in self.known]
        if missing:
            self.table.add_files(missing, check_duplicate_files=False)
            self.known.update(missing)
        return len(missing)


def _own_catalog(place: Place) -> dict[str, str]:
    if not place.is_local:
        raise InvalidRequest(
            f"{shown(place.root)} is not on a local disk, so its Iceberg table needs a catalog: configure one with the "
            f"name {CATALOG!r} for pyiceberg"
        )
    os.makedirs(f"{place.path}/iceberg", exist_ok=True)
    return {
        "type": "sql",
        "uri": f"sqlite:///{place.path}/iceberg/catalog.db",
        "warehouse": f"file://{place.path}/iceberg",
    }


def _schema() -> "pa.Schema":
    import pyarrow as pa

    return pa.schema(
        [
            ("topic", pa.string()),
            ("epoch", pa.int64()),
            ("seq", pa.int64()),
            ("ts", pa.timestamp("us", "UTC")),
            ("node", pa.string()),
            ("tag", pa.string()),
            ("meta", pa.string()),
            ("data", pa.string()),
        ]
    )

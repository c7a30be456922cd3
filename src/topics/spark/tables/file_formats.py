"""The formats of files that records are imported from and exported to, and how their names tell them."""

from collections.abc import Mapping
from typing import Final, Literal

ImportFormat = Literal["ndjson", "json", "csv", "parquet"]
ExportFormat = Literal["parquet", "ndjson", "csv"]

ENDINGS: Final[Mapping[str, ImportFormat]] = {
    ".ndjson": "ndjson",
    ".jsonl": "ndjson",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
}
EXPORT_ENDINGS: Final[Mapping[str, ExportFormat]] = {
    ".ndjson": "ndjson",
    ".jsonl": "ndjson",
    ".csv": "csv",
    ".parquet": "parquet",
}

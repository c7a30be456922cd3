"""A few rows for a DataFrame, read by the driver and handed to Spark with the plan.

A source in Python costs each query the planning of its partitions in one Python and its tasks in others: a tenth of a
second on two cores, and half as much processor time again per row. What is few enough is read by the driver instead, in
the same way as tasks read it, and becomes rows that Spark has.

Must not know: lakes, or why these rows are wanted.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Final

from topics.spark.options import read_options
from topics.spark.reader import PartReader
from topics.spark.schema import TYPES, Projection
from topics.spark.session import under
from topics.spark.source import TopicsReader

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

ROWS_MAX: Final = 500_000  # seqs that the driver reads
BYTES_MAX: Final = 64 * 1024 * 1024  # of Arrow, which the driver holds and tasks are sent: a task may have 128 MiB
ARROW: Final = "spark.sql.execution.arrow"


def fetched(options: Mapping[str, str], columns: Sequence[str]) -> "pa.Table | None":
    """The rows of a read with these options, as they are now; None: they are too large for the driver."""
    import pyarrow as pa

    parsed = read_options(options, is_stream=False)
    projection = Projection.of(_struct(columns), parsed.includes_meta)
    found: list[pa.RecordBatch] = []
    size_bytes = 0
    for partition in TopicsReader(parsed, projection).partitions():
        with closing(PartReader(partition.value, parsed, projection).batches()) as batches:
            for batch in batches:
                found.append(batch)
                size_bytes += batch.nbytes
                if size_bytes > BYTES_MAX:
                    return None
    return pa.Table.from_batches(found, projection.schema)


def handed_over(spark: "SparkSession", rows: "pa.Table", partitions: int) -> "DataFrame":
    """Rows as a DataFrame of so many partitions, each a batch of Arrow.

    By default Spark would make objects of each row on the driver, or a task of each 10,000.
    """
    size = max(1, -(-rows.num_rows // partitions))
    settings = {f"{ARROW}.localRelationThreshold": "0", f"{ARROW}.maxRecordsPerBatch": str(size)}
    with under(spark, settings):
        return spark.createDataFrame(rows.combine_chunks(), _struct(rows.column_names))


def _struct(columns: Sequence[str]) -> "StructType":
    from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

    kinds = {"string": StringType(), "bigint": LongType(), "timestamp": TimestampType()}
    return StructType([StructField(name, kinds[TYPES[name]]) for name in columns])

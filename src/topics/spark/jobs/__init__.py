"""The jobs: what moves or checks records in bulk, made of `format("topics")`.

Each is a function, a `topics` subcommand, and runs under spark-submit (`python -m topics.spark.jobs NAME …`). A job
that was killed is run again with the same arguments, and the result is the same as if it had not been.
"""

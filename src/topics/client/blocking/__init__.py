"""The blocking client.

`sockets` and `concurrency` are written by hand; `python -m tools.blocking_client` writes the rest from `aio`.
"""

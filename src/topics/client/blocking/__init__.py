"""The blocking client: `sockets` and `concurrency` by hand, the rest by `python -m tools.blocking_client` from `aio`."""

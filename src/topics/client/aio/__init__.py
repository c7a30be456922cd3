"""The asyncio client. The blocking one is generated from it, but for `sockets` and `concurrency`."""

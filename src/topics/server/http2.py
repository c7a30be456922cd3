import asyncio

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


class Http2(asyncio.Protocol):
    def __init__(self, shared): ...

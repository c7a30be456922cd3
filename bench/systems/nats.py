"""NATS on the wire: connections, and requests of the JetStream API."""

import json
import re
import socket

from bench.peers import Address
from bench.wire import http

INBOX = "_INBOX.b"
MESSAGE = re.compile(rb"MSG \S+ \S+ +(?:\S+ +)?(\d+)\r\n")


def connect(address: Address) -> socket.socket:
    connection = http.connect(address)
    options = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true}\r\nPING\r\n'
    http.until_whole(connection, options, lambda answer: b"PONG\r\n" in answer)
    return connection


def listening(address: Address, inbox: str) -> socket.socket:
    """A connection that gets what is answered to this inbox."""
    connection = connect(address)
    asked = f"SUB {inbox} 1\r\nPING\r\n".encode()
    http.until_whole(connection, asked, lambda answer: b"PONG\r\n" in answer)
    return connection


def publish(subject: bytes, data: bytes, reply: bytes = b"") -> bytes:
    return b"PUB %s %s %d\r\n%s\r\n" % (subject, reply, len(data), data)


def is_message(answer: bytes) -> bool:
    """Has one message come as a whole?"""
    head = MESSAGE.search(answer)  # a PING may stand before it
    return head is not None and len(answer) >= head.end() + int(head[1]) + 2


def ask(address: Address, subject: str, body: object) -> bytes:
    """One request of the JetStream API, which must not be refused."""
    with listening(address, INBOX) as connection:
        request = publish(subject.encode(), json.dumps(body).encode(), INBOX.encode())
        answer = http.until_whole(connection, request, is_message)
    if b'"error"' in answer:
        raise RuntimeError(f"NATS refuses {subject}: {answer!r}")
    return answer

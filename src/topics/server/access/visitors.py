"""Where a request may come from while there are no keys: which Host it asks for, which page sent it (AU19).

A browser lets any page send requests to any address, also to this machine's own; without keys nothing else tells
those apart from the owner's. A page cannot choose its Origin, its Host or Sec-Fetch-Site, so these say what it is.

Owns how a Host and an Origin are compared. Must not know: routes, keys, what a request wants.
"""

import ipaddress
import socket
from collections.abc import Iterable
from typing import Final

from topics.errors import ConfigurationError, Forbidden
from topics.server.cors import Cors
from topics.server.transport.exchange import Request

VARIABLE: Final = "TOPICS_ALLOWED_HOSTS"
DEFAULT_PORTS: Final = {"http": "80", "https": "443"}
HOSTS_KEPT_MAX: Final = 256  # Hosts that were found to be good, as they came
SHOWN_MAX: Final = 200  # characters of a refused Host or Origin that are repeated


class Visitors:
    """Who may ask a server without keys."""

    def __init__(self, bind: str, allowed_hosts: str, cors: Cors | None) -> None:
        self._checks_host = is_loopback(bind)
        self._names = {bind.lower(), *parse_hosts(allowed_hosts)}
        self._cors = cors
        self.good: set[bytes | None] = set()  # Hosts that passed

    def check(self, request: Request) -> None:
        """Refuse a request for another host, and one that a page of another site sent."""
        headers = request.headers
        host = headers.get(b"host")
        if self._checks_host and host not in self.good:
            self._check_host(host)
        if b"origin" in headers:
            check_origin(request, self._cors)
        elif b"sec-fetch-site" in headers and headers[b"sec-fetch-site"].strip().lower() == b"cross-site":
            raise Forbidden("a page of another site sent this request; set keys to let pages of other sites ask")

    def _check_host(self, host: bytes | None) -> None:
        name = "" if host is None else host_of(host)[0]
        if not (name and (name in self._names or _is_local(name))):
            shown = "nothing" if host is None else f'"{host.decode("latin-1")[:SHOWN_MAX]}"'
            raise Forbidden(
                f"the Host is {shown}; without keys this server answers to loopback names and addresses, its own "
                f"address, and the names in {VARIABLE}"
            )
        if len(self.good) >= HOSTS_KEPT_MAX:
            self.good.clear()
        self.good.add(host)


def check_origin(request: Request, cors: Cors | None) -> None:
    """Refuse what a page of another origin sent, unless TOPICS_CORS_ORIGINS allows that origin."""
    origin = request.headers.get(b"origin")
    if origin is None or _is_own(origin, request.headers.get(b"host")) or (cors is not None and cors.admits(origin)):
        return
    shown = origin.decode("latin-1")[:SHOWN_MAX]
    raise Forbidden(f'the Origin is "{shown}", which is another one; TOPICS_CORS_ORIGINS names those that may ask')


def _is_own(origin: bytes, host: bytes | None) -> bool:
    scheme, is_url, rest = origin.lower().partition(b"://")
    port = DEFAULT_PORTS.get(scheme.decode("latin-1"), "")
    if not is_url or not port or host is None:
        return False
    (own, own_port), (asked, asked_port) = host_of(host), host_of(rest)
    return own != "" and (own, own_port or port) == (asked, asked_port or port)


def host_of(value: bytes) -> tuple[str, str]:
    """The name or address in a Host, in lower case and without brackets, and its port; both empty if it is none."""
    text = value.decode("latin-1").strip().lower()
    if text.startswith("["):
        name, bracket, rest = text[1:].partition("]")
        is_good = bracket != "" and ":" in name and (not rest or rest.startswith(":"))
        port = rest[1:]
    else:
        name, _, port = text.partition(":")
        name, is_good = name.removesuffix("."), True
    if not is_good or (port and not (port.isascii() and port.isdigit())):
        return "", ""
    return name, port


def parse_hosts(text: str) -> Iterable[str]:
    """Read TOPICS_ALLOWED_HOSTS: names and addresses, without ports."""
    for entry in filter(None, map(str.strip, text.split(","))):
        name = entry.lower().removesuffix(".")
        if name.startswith("[") and name.endswith("]"):
            name = name[1:-1]
        is_address = ":" in name and _address(name) is not None
        if (
            not name.isascii()
            or not name.isprintable()
            or set(name) & set(" /*@[]")
            or (":" in name and not is_address)
        ):
            raise ConfigurationError(
                f"{VARIABLE} holds {entry!r}; use host names or addresses, without scheme and port"
            )
        yield name


def is_loopback(host: str) -> bool:
    """Whether a host stands for loopback addresses only; False if it cannot be resolved."""
    address = _address(host)
    if address is not None:
        return address.is_loopback
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return bool(found) and all(ipaddress.ip_address(str(one[4][0]).partition("%")[0]).is_loopback for one in found)


def _is_local(name: str) -> bool:
    """Whether a name or address always means this machine; nothing is looked up."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    address = _address(name)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address is not None and address.is_loopback


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None

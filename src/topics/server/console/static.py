"""GET /console and its files: the page of the console, for browsers also at /.

Owns how the files in `page` and `vendor` beside this module are served: read and compressed once, off the loop, with
an ETag and a policy that lets the page load from this server only and lets nobody frame it. The files hold nothing of
any server's data, so they need no key; what the page shows it asks the API for, with the key it was given. Must not
know: what the page does.

Invariants: only files that were listed at the first request are served, by their names; nothing of a request becomes a
path. The one script within the page is its import map, whose hash is in the policy.
"""

import asyncio
import re
from base64 import b64encode
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Final

from topics.errors import NotFound
from topics.server.call import PACKED, Call, wants_gzip
from topics.server.transport.encoding import compress
from topics.server.transport.exchange import Headers, Request

HERE: Final = Path(__file__).parent
PAGE: Final = "index.html"
TYPES: Final = {
    ".html": b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".svg": b"image/svg+xml",
}
INLINE: Final = re.compile(r"<script[^>]*>([^<]+)</script>")
VARY: Final = (b"vary", b"accept-encoding")


@dataclass(frozen=True)
class File:
    body: bytes
    packed: bytes
    content_type: bytes
    etag: bytes
    headers: Headers


@cache
def files() -> dict[str, File]:
    """All files, by name."""
    found = [path for part in ("page", "vendor") for path in sorted((HERE / part).iterdir())]
    return {path.name: _file(path) for path in found if path.suffix in TYPES}


def _file(path: Path) -> File:
    body = path.read_bytes()
    etag = b'"%b"' % sha256(body).hexdigest()[:32].encode()
    headers: Headers = (
        (b"content-security-policy", policy(body.decode() if path.suffix == ".html" else "").encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"no-referrer"),
        (b"cross-origin-resource-policy", b"same-origin"),
        (b"cache-control", b"no-cache"),
        (b"etag", etag),
    )
    return File(body, compress(body), TYPES[path.suffix], etag, headers)


def policy(page: str) -> str:
    """What a page may do: load from here, ask here. A script within it is admitted by its hash."""
    digests = [b64encode(sha256(script.encode()).digest()).decode() for script in INLINE.findall(page)]
    scripts = " ".join(("'self'", *(f"'sha256-{digest}'" for digest in digests)))
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {scripts}",
            *(f"{kind}-src 'self'" for kind in ("style", "img", "connect")),
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )


def is_for_browser(request: Request) -> bool:
    """Whether a request for / is a browser's: it asks for a page."""
    accepted = b",".join(request.header_values(b"accept"))
    return request.method in ("GET", "HEAD") and b"text/html" in accepted.lower()


async def show_console(call: Call) -> None:
    await _send(call, PAGE)


async def show_file(call: Call) -> None:
    await _send(call, call.item)


async def _send(call: Call, name: str) -> None:
    known = files() if files.cache_info().currsize else await asyncio.get_running_loop().run_in_executor(None, files)
    file = known.get(name)
    if file is None:
        raise NotFound("the console has no such file")
    request = call.request
    if file.etag in b",".join(request.header_values(b"if-none-match")):
        call.respond(304, b"", (*file.headers, VARY), file.content_type)
    elif wants_gzip(request):
        call.respond(200, file.packed, (*file.headers, *PACKED), file.content_type)
    else:
        call.respond(200, file.body, (*file.headers, VARY), file.content_type)

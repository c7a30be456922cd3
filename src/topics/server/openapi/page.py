"""GET /docs: the OpenAPI document as a page, made on the server.

The page is whole in one answer: its style and its one script are in it, and their hashes are in its policy, so it
loads nothing, from here or elsewhere, and works without the script, which only filters. Every text of the document is
escaped. Must not know: what routes do beyond the document.
"""

from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256
from html import escape
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote
from weakref import WeakKeyDictionary

import msgspec

from topics.server.call import PACKED, Call, wants_gzip
from topics.server.openapi.document import document
from topics.server.openapi.guide import TAGS
from topics.server.openapi.schemas import REFERENCE, Schema
from topics.server.transport.encoding import compress

if TYPE_CHECKING:
    from topics.server.app import App

HTML: Final = b"text/html; charset=utf-8"
DEPTH_MAX: Final = 3  # of structs within structs that are shown in place
HOST: Final = "HOST_OF_THIS_SERVER"
NEEDED: Final = {"topics": "orders", "node": "worker-1"}  # values of query fields that are required
METHODS: Final = ("get", "put", "post", "delete")

STYLE: Final = """
:root{color-scheme:light dark;--line:#8884;--soft:#8881;--note:#666}
@media(prefers-color-scheme:dark){:root{--note:#aaa}}
body{font:16px/1.5 system-ui,sans-serif;margin:0 auto;max-width:62rem;padding:1rem 1.2rem 4rem}
h1{margin:.4rem 0}h2{margin:2.2rem 0 .2rem}h4{margin:1rem 0 .3rem}p{margin:.4rem 0}
code,pre{font:14px/1.45 ui-monospace,monospace}
pre{background:var(--soft);border:1px solid var(--line);border-radius:6px;overflow:auto;padding:.6rem .8rem}
#search{box-sizing:border-box;font:inherit;padding:.5rem .7rem;position:sticky;top:.5rem;width:100%}
details,h2{scroll-margin-top:4rem}details{border:1px solid var(--line);border-radius:6px;margin:.5rem 0}
summary{cursor:pointer;padding:.45rem .8rem}details>div{padding:0 .8rem .6rem}
summary b{display:inline-block;min-width:4.2rem}summary span,.note{color:var(--note)}
table{border-collapse:collapse;width:100%}
td{border-top:1px solid var(--line);padding:.3rem .5rem .3rem 0;vertical-align:top}
[hidden]{display:none}
"""
SCRIPT: Final = """
const search = document.getElementById("search");
search.hidden = false;
search.addEventListener("input", () => {
  const words = search.value.toLowerCase().split(/\\s+/).filter(Boolean);
  for (const one of document.querySelectorAll("details[data-text]")) {
    one.hidden = !words.every((word) => one.dataset.text.includes(word));
  }
  for (const part of document.querySelectorAll("section")) {
    part.hidden = !part.querySelector("details:not([hidden])");
  }
});
const show = () => {
  const one = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (one && one.tagName === "DETAILS") one.open = true;
};
addEventListener("hashchange", show);
show();
"""


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        f"style-src {_hash(STYLE)}",
        f"script-src {_hash(SCRIPT)}",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS: Final = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-cache"),
)


_pages: "WeakKeyDictionary[App, str]" = WeakKeyDictionary()  # each is made once, and asks HOST


def show_page(call: Call) -> None:
    app, request = call.app, call.request
    text = _pages.get(app)
    if text is None:
        text = _pages[app] = page(document(app), f"http://{HOST}", has_keys=bool(app.keyring))
    host = request.headers.get(b"host", b"127.0.0.1:4000").decode("latin-1")
    body = text.replace(HOST, escape(host)).encode()
    if wants_gzip(request):
        call.respond(200, compress(body), (*HEADERS, *PACKED), HTML)
    else:
        call.respond(200, body, HEADERS, HTML)


def page(whole: Schema, server: str, *, has_keys: bool) -> str:
    """The page of a document; `server` is where its examples ask."""
    info = whole["info"]
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        '<meta name=viewport content="width=device-width,initial-scale=1"><link rel=icon href="data:,">',
        f"<title>{escape(info['title'])} API</title><style>{STYLE}</style>",
        f"<h1>{escape(info['title'])} <small>{escape(info['version'])}</small></h1>",
        *(f"<p>{_code(text)}</p>" for text in info["description"].split("\n\n")),
        '<p class=note>As <a href="/v0/openapi.json">OpenAPI 3.1</a>, for generators of clients.</p>',
        '<input id=search type=search hidden placeholder="Search: a path, a field, an error" aria-label="Search">',
        "<main>",
    ]
    for tag, about in TAGS.items():
        operations = [
            _operation(whole, path, method, item[method], _Curl(server, has_keys))
            for path, item in whole["paths"].items()
            for method in METHODS
            if method in item and tag in item[method]["tags"]
        ]
        if operations:
            title = f'<h2 id="{escape(tag)}">{escape(tag)}</h2>'
            parts.append(f"<section>{title}<p>{escape(about)}</p>{''.join(operations)}</section>")
    return "".join((*parts, f"</main><script>{SCRIPT}</script></html>"))


# --- one operation


class _Curl:
    """Makes the command that asks for an operation."""

    def __init__(self, server: str, has_keys: bool) -> None:
        self._server = server
        self._has_keys = has_keys

    def of(self, path: str, method: str, operation: Schema) -> str:
        for parameter in operation["parameters"]:
            if parameter["in"] == "path":
                path = path.replace(f"{{{parameter['name']}}}", quote(str(parameter["example"]), safe=":"))
        asked = [p["name"] for p in operation["parameters"] if "; required" in p.get("description", "")]
        needed = [f"{name}={NEEDED.get(name, name)}" for name in asked]
        url = self._server + path + ("?" + "&".join(needed) if needed else "")
        words = ["curl"]
        if "text/event-stream" in operation["responses"].get("200", {}).get("content", {}):
            words.append("-N")
        if method != "get":
            words.append(f"-X {method.upper()}")
        if self._has_keys and operation.get("security") != []:
            words.append("-H 'Authorization: Bearer '$KEY")
        body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("example")
        if body is not None:
            words.append(f"--json {_quoted(msgspec.json.encode(body).decode())}")
        return " ".join((*words, _quoted(url)))


def _quoted(text: str) -> str:
    """A word of the shell."""
    return "'" + text.replace("'", "'\\''") + "'"


def _operation(whole: Schema, path: str, method: str, operation: Schema, curl: _Curl) -> str:
    name = operation["operationId"]
    fields = [parameter["name"] for parameter in operation["parameters"]]
    errors = [answer["description"] for status, answer in operation["responses"].items() if int(status) >= 400]
    found = " ".join((method, path, name, operation["summary"], *operation["tags"], *fields, *errors)).lower()
    head = f"<summary><b>{method.upper()}</b> <code>{escape(path)}</code> <span>{escape(operation['summary'])}</span>"
    parts = [
        f'<details id="{escape(name)}" data-text="{escape(found)}">{head}</summary><div>',
        f"<p>{_code(operation['description'])}</p>",
        f"<pre>{escape(curl.of(path, method, operation))}</pre>",
        *_parameters(operation["parameters"]),
        *_body(whole, operation.get("requestBody")),
        *_answers(whole, operation["responses"]),
    ]
    return "".join((*parts, "</div></details>"))


def _parameters(parameters: list[Schema]) -> Iterator[str]:
    if parameters:
        rows = [(f"{p['name']}", f"{p['in']}, {_kind(p['schema'])}", p.get("description", "")) for p in parameters]
        yield "<h4>Parameters</h4>" + _table(rows)


def _body(whole: Schema, body: Schema | None) -> Iterator[str]:
    if body is None:
        return
    for media, content in body["content"].items():
        yield f"<h4>Body <code>{escape(media)}</code></h4>"
        yield _table(list(_rows(whole, content.get("schema", {})))) or _code(content["schema"].get("description", ""))


def _answers(whole: Schema, answers: Schema) -> Iterator[str]:
    refused = []
    for status, answer in answers.items():
        if int(status) >= 400:
            refused.append((status, "", answer["description"]))
            continue
        yield f"<h4>{escape(status)} {escape(answer['description'])}</h4>"
        for media, content in answer.get("content", {}).items():
            yield _table(list(_rows(whole, content.get("schema", {}))))
            example = content.get("example")
            if example is not None:
                text = (
                    example if isinstance(example, str) else msgspec.json.format(msgspec.json.encode(example)).decode()
                )
                yield f"<pre>{escape(text)}</pre>"
            elif media != "application/json":
                yield f"<p><code>{escape(media)}</code></p>"
    yield "<h4>Refusals</h4>" + _table(refused)


# --- schemas


def _rows(whole: Schema, schema: Schema, place: str = "", depth: int = 0) -> Iterator[tuple[str, str, str]]:
    """The fields of a schema: name, kind, meaning; those of structs within, below them."""
    if "$ref" in schema:
        schema = whole["components"]["schemas"][schema["$ref"].removeprefix(REFERENCE)]
    for name, field in schema.get("properties", {}).items():
        needed = ", required" if name in schema.get("required", ()) and not place and "default" not in field else ""
        yield place + name, _kind(field) + needed, field.get("description", "")
        inner = field.get("items", field) if field.get("type") == "array" else field
        if "$ref" in inner and depth < DEPTH_MAX and name != "performance":
            yield from _rows(whole, inner, f"{place}{name}.", depth + 1)


def _kind(schema: Schema) -> str:
    """A type in words."""
    if "$ref" in schema:
        return str(schema["$ref"]).removeprefix(REFERENCE)
    if "enum" in schema:
        return " or ".join(str(msgspec.json.encode(value).decode()) for value in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(map(_kind, schema["anyOf"])))
    kind: Any = schema.get("type", "any JSON")
    if kind == "array":
        return f"array of {_kind(schema.get('items', {}))}"
    default = f", default {msgspec.json.encode(schema['default']).decode()}" if "default" in schema else ""
    return (" or ".join(kind) if isinstance(kind, list) else str(kind)) + default


def _table(rows: list[tuple[str, str, str]]) -> str:
    lines = [
        f"<tr><td><code>{escape(name)}</code><td>{escape(kind)}<td>{_code(meaning)}" for name, kind, meaning in rows
    ]
    return f"<table>{''.join(lines)}</table>" if lines else ""


def _code(text: str) -> str:
    """A text, escaped; what stands between backticks is code."""
    pieces = [escape(piece) for piece in text.split("`")]
    return "".join(f"<code>{piece}</code>" if n % 2 else piece for n, piece in enumerate(pieces))

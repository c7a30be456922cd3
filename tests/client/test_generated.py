"""The blocking client is what the asyncio one says, rewritten; and the check notices when it is not."""

import shutil
from pathlib import Path

import pytest

from tools.blocking_client import BY_HAND, PAIRS, ROOT, SOURCE, TARGET, differing, generated, main, rewritten


@pytest.mark.slow
def test_the_blocking_client_is_what_would_be_generated() -> None:
    assert main(["--check"]) == 0


def test_both_packages_have_the_same_modules() -> None:
    aio, blocking = ({path.stem for path in (ROOT / part).glob("*.py")} for part in (SOURCE, TARGET))
    assert aio == blocking
    assert set(BY_HAND) < aio


@pytest.mark.slow
def test_a_generated_module_says_so_in_its_first_line() -> None:
    for path, text in generated().items():
        first = text.partition("\n")[0]
        source = SOURCE / path.name if path.parent == ROOT / TARGET else path.relative_to(ROOT).with_name("aio.py")
        assert first.startswith(f"# Generated from {source} by `python -m tools.blocking_client`")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A copy of both packages, and of those that have both kinds."""
    for part in (SOURCE, TARGET, *PAIRS):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.slow
def test_a_changed_source_is_noticed_and_written(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"], root) == 0
    edit(root / SOURCE / "caller.py", "body.status < 400", "body.status < 300")
    assert main(["--check"], root) == 1
    assert f"{TARGET / 'caller.py'} is not what" in capsys.readouterr().err
    assert main([], root) == 0
    assert "body.status < 300" in (root / TARGET / "caller.py").read_text()
    assert main(["--check"], root) == 0


@pytest.mark.slow
def test_an_edited_an_absent_and_a_left_over_module_are_noticed(root: Path) -> None:
    target = root / TARGET
    edit(target / "worker.py", "_hold_on", "_hold_off")
    (target / "streams.py").unlink()
    (target / "left_over.py").touch()
    assert [path.name for path in differing(generated(root), root)] == ["left_over.py", "streams.py", "worker.py"]


@pytest.mark.parametrize(
    ("source", "blocking"),
    [
        ("async def f(x: int) -> None:\n    await g(x)\n", "def f(x: int) -> None:\n    g(x)\n"),
        ("y = (await f()).x + await g()", "y = (f()).x + g()"),
        ("async with A() as a:\n    pass", "with A() as a:\n    pass"),
        ("l = [x async for x in y]", "l = [x for x in y]"),
        ("class AsyncConsumer(AsyncIterator[Item]):", "class Consumer(Iterator[Item]):"),
        ("f: Callable[[A[B]], Awaitable[C[D]]]", "f: Callable[[A[B]], C[D]]"),
        ("from topics.client.aio.sockets import AsyncSocket", "from topics.client.blocking.sockets import Socket"),
        ("self.async_ = awaited.Asynchronous", "self.async_ = awaited.Asynchronous"),
        ("async def __anext__(self):\n    raise StopAsyncIteration", "def __next__(self):\n    raise StopIteration"),
        ('"""Of an AsyncClient: use an `async with`."""', '"""Of a Client: use a `with`."""'),
        ('"""One\ntwo AsyncBody\nthree"""  # its AsyncBody', '"""One\ntwo Body\nthree"""  # its Body'),
        ('x = await f("AsyncBody", await g())', 'x = f("Body", g())'),
    ],
)
def test_a_module_is_rewritten_token_by_token(source: str, blocking: str) -> None:
    assert rewritten(source) == blocking

"""Disks of this machine, for the tests of the disk and of its helper."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from topics.storage.disk import RealDisk


@pytest.fixture
def helped(tmp_path: Path) -> Iterator[RealDisk]:
    """A disk whose syncs are done by the helper process."""
    disk = RealDisk(tmp_path / "data", sync="process")
    yield disk
    disk.close()

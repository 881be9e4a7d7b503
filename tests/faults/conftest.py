"""A Ray folder of a test's own, by which the processes of its runs are known, and a disk that can be filled."""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support import heads


@pytest.fixture
def home():
    """RAY_TMPDIR by which the processes of one run are known; none of them is left."""
    folder = Path(tempfile.mkdtemp(prefix="ff.", dir="/tmp"))
    yield folder
    for pid in heads.processes_of(folder):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[tuple[Path, Callable[[], None], Callable[[], None]]]:
    """(a file system of 1 MB, fill it, make room again)."""
    home = tmp_path / "disk"
    home.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", home]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a small tmpfs: a full disk is not tried")

    def fill() -> None:
        with suppress(OSError), (home / "fill").open("ab", buffering=0) as file:
            while True:
                file.write(b"0" * 4096)

    try:
        yield home, fill, (home / "fill").unlink
    finally:
        subprocess.run(["umount", "-l", home], check=True)

"""A Ray folder of a test's own, by which the processes of its runs are known."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
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

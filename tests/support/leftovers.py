"""Names of partial files as writers leave them that were killed."""

from __future__ import annotations

import re
from pathlib import Path

from flray import files

NOBODY = 2**22 + 1  # above the highest process number of Linux


def left_by_the_dead(path: Path) -> Path:
    """The name of a partial file of `path` that a dead process of this machine has written."""
    return path.with_name(re.sub(r"-\d+-\d+-", f"-{NOBODY}-1-", files.partial(path).name, count=1))


def left_elsewhere(path: Path) -> Path:
    """The name of a partial file of `path` that a process of another machine is writing, or has written."""
    return path.with_name(re.sub(r"^\.flray-[0-9a-f]{8}", ".flray-00000000", files.partial(path).name))

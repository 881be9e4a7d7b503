"""What killed processes leave: names of partial files, and how one sees that a process has ended."""

import re
import time
from pathlib import Path

from flray import files

NOBODY = 2**22 + 1  # above the highest process number of Linux


def left_by_the_dead(path: Path) -> Path:
    """The name of a partial file of `path` that a dead process of this machine has written."""
    return path.with_name(re.sub(r"-\d+-\d+-", f"-{NOBODY}-1-", files.partial(path).name, count=1))


def left_elsewhere(path: Path) -> Path:
    """The name of a partial file of `path` that a process of another machine is writing, or has written."""
    return path.with_name(re.sub(r"^\.flray-[0-9a-f]{8}", ".flray-00000000", files.partial(path).name))


def ended(pid: int) -> bool:
    """Within 20 seconds; a zombie has ended."""
    for _ in range(200):
        try:
            if "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text():
                return True
        except (FileNotFoundError, ProcessLookupError):  # the last one where it ends as it is read
            return True
        time.sleep(0.1)
    return False

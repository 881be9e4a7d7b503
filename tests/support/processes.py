"""Other processes of Python."""

import subprocess
import sys
from typing import Any


def python(*words: object, status: int | None = 0, **options: Any) -> subprocess.CompletedProcess[str]:
    """The end of `python WORDS`, with what it printed. Fails the test for another exit status; None: any will do."""
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, **{"timeout": 300, **options})
    assert status in (None, done.returncode), f"status {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done

"""Commands of flray, in this process and in others."""

import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pandas
from click.testing import Result
from typer.testing import CliRunner

from flray.cli import app

QUICK = Path(__file__).parents[2] / "configs" / "quickstart.yaml"


def invoke(*words: object, **options: Any) -> Result:
    """`flray WORDS` as a shell types it; `options` are those of the runner."""
    return CliRunner().invoke(app, [str(word) for word in words], **options)


def succeeded(*words: object) -> Result:
    """A command that ends with exit code 0; otherwise the test fails, with what it printed."""
    done = invoke(*words)
    assert done.exit_code == 0, f"flray {' '.join(map(str, words))}: {done.exception!r}\n{done.output}"
    return done


def interrupted(folder: Path, *words: object) -> Result:
    """A command that gets Ctrl-C when the first rounds are below the folder of its results."""

    def stop() -> None:
        while not list(folder.glob("**/rounds/part-*.parquet")):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=stop, daemon=True).start()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell (CI) has it ignored
    try:
        stopped = invoke(*words, "--out", folder)
    finally:
        signal.signal(signal.SIGINT, before)
    assert stopped.exit_code == 130, stopped.output
    return stopped


def wait_for_rounds(folder: Path, count: int, process: subprocess.Popen[str] | None = None) -> None:
    """Until a run, that of the process, has written so many rounds."""
    until, rounds = time.monotonic() + 240, folder / "rounds"
    while not list(rounds.glob("part-*.parquet")) or pandas.read_parquet(rounds)["round"].max() < count:
        assert time.monotonic() < until, f"no round {count} in {folder}"
        assert process is None or process.poll() is None, process.communicate(timeout=60)
        time.sleep(0.05)

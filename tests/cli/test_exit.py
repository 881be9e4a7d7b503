"""The end of a command: its exit code at once, whoever asked to be called at the end is, and no process of its Ray
stays behind."""

import errno
import subprocess
import sys
import time
import warnings
from contextlib import suppress
from pathlib import Path

import pytest

from flray.cli import main

ROOT = Path(__file__).parents[2]
SETTINGS = [
    "rounds=1",
    "data.source=iris",
    "proxy=null",
    "partition.clients=2",
    "algorithm.local_epochs=1",
    "evaluate.clients=false",
    "resources.executor=calls",
]
LAST_WORDS = """
import atexit, subprocess, sys
def end():
    print("the last word of", sys.argv[1])
    subprocess.Popen(["sh", "-c", "sleep 1; echo sent > later"], start_new_session=True)  # an upload, say
atexit.register(end)
"""


def of_session(session: int) -> list[str]:
    """The processes of a session, whichever died: what Ray starts stays in that of the process which started it."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if int((entry / "stat").read_text().rpartition(")")[2].split()[3]) == session:
                found.append((entry / "cmdline").read_text().replace("\0", " "))
    return found


def command(folder: Path, *words: str) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of a run in a session of its own, of which nothing is left a little later, but what
    the user's own function has started at the end."""
    (folder / "last_words.py").write_text(LAST_WORDS)
    begin = [sys.executable, "-m", "flray", "run", str(ROOT / "configs" / "quickstart.yaml"), "--import", "last_words"]
    with subprocess.Popen(
        [*begin, *SETTINGS, *words, "--out", "run"],
        cwd=folder,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        output, errors = process.communicate(timeout=240)
    until = time.monotonic() + 60
    while (left := of_session(process.pid)) or not (folder / "later").exists():
        assert time.monotonic() < until, left
        time.sleep(0.1)
    return process.returncode, output, errors


@pytest.mark.slow
@pytest.mark.parametrize(("size", "code"), [("cohort.size=2", 0), ("cohort.size=3", 2)])
def test_a_command_ends_with_its_code_and_leaves_no_process(tmp_path: Path, size: str, code: int):
    found, output, errors = command(tmp_path, size)
    assert found == code, errors
    assert output.endswith("the last word of run\n") and "Traceback" not in errors, errors
    assert (tmp_path / "run" / "model.safetensors").exists() == (code == 0)


def test_a_full_disk_that_a_library_meets_is_one_line(monkeypatch, capsys):
    def full(**_):
        raise OSError(errno.ENOSPC, "No space left on device", "/tmp/x")

    monkeypatch.setattr("flray.cli.app", full)
    monkeypatch.setattr("warnings.showwarning", None)  # `main` sets these two
    monkeypatch.setattr("flray.cli.runs.own_process", False)
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err
    assert ended.value.code == 2 and said.startswith("error: /tmp/x: the disk is full") and said.count("\n") == 1


def test_a_warning_of_two_places_is_one_line(monkeypatch, capsys):
    def twice(**_):
        warnings.warn("the same", stacklevel=1)
        warnings.warn("the same", stacklevel=1)
        warnings.warn("another", stacklevel=1)

    monkeypatch.setattr("flray.cli.app", twice)
    monkeypatch.setattr("flray.cli.runs.own_process", False)
    with warnings.catch_warnings(), pytest.raises(SystemExit):
        warnings.simplefilter("always")
        monkeypatch.setattr("warnings.showwarning", None)
        main()
    assert capsys.readouterr().err == "warning: the same\nwarning: another\n"

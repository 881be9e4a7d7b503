"""`flray show --follow`: runs that have not begun, go on, end, are lost or stall, in folders and in a storage."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flray.core.schema.errors import CheckpointError
from flray.results.watching import Glance, glances
from flray.rundir.lock import NAME, FolderLock, Owner
from tests.support.commands import invoke
from tests.support.messages import assert_says
from tests.support.tables import config, folder, put

RUN = """
import sys, time, flray.running
from pathlib import Path
from flray.config.loader import load_config
from flray.rundir import recorder
from tests.support.iris import TOY
recorder.FLUSH_S = 0  # else a run that begins within a second shows its first round with the second
values = {**TOY, "rounds": 4, "resources": {"executor": "local"}}
for row in flray.running.play(load_config(values)[0], Path(sys.argv[1])):
    time.sleep(1.1)
"""


def watched(place: Path | str, changes: list[Callable[[], object]], seconds: float = 1.0) -> Iterator[Glance]:
    """Glances between which one change after the other happens, `seconds` apart by the watcher's clock."""
    now, left = [0.0], iter(changes)

    def wait(_: float) -> None:
        next(left)()
        now[0] += seconds

    return glances(str(place), 1.0, wait, lambda: now[0])


def owner(pid: int, **other: object) -> Owner:
    return Owner.this_process()._replace(pid=pid, **other)  # type: ignore[arg-type]


def held_by(path: Path, who: Owner) -> None:
    (path / NAME).write_text(json.dumps(who._asdict()))


def test_a_run_is_waited_for_watched_and_left_at_its_end(tmp_path: Path) -> None:
    path = tmp_path / "run"
    lock: list[FolderLock] = []

    def begin() -> None:
        folder(path, config(), [0.2], "running")
        lock.append(FolderLock.acquire(path))

    def end() -> None:
        (path / "STATUS").write_text("finished\n")
        lock[0].release()

    before, running, still, ended = watched(path, [begin, lambda: None, end])
    assert (before.run, before.over, before.note) == (None, False, f"waiting for {path} to begin")
    assert running.news and running.run is not None and running.run.rounds["test/acc"].tolist() == [0.2]
    assert (running.note, running.over, still.news, still.over) == ("", False, False, False)
    assert ended.news and ended.over and ended.good and not ended.note


@pytest.mark.parametrize("place", ["/nowhere", "absent/run"])
def test_where_no_run_can_begin_nothing_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match=f"there is no run in {place}, and no folder /.* of runs"):
        list(watched(place, []))


def test_a_run_is_not_waited_for_without_end(tmp_path: Path) -> None:
    """Ten minutes by the watcher's clock; a process that holds the folder is about to begin, and is waited for."""
    path = tmp_path / "run"
    with pytest.raises(CheckpointError, match=f"no run began in {path} within 10 min"):
        list(watched(path, [lambda: None] * 12, 60.0))
    path.mkdir()
    lock = FolderLock.acquire(path)
    found = watched(path, [lambda: None] * 14, 60.0)
    assert all(next(found).note == f"waiting for {path} to begin" for _ in range(14))
    lock.release()


def test_a_run_that_goes_on_is_not_over(tmp_path: Path) -> None:
    """Its STATUS still says that it was interrupted when its process has the folder already."""
    path = folder(tmp_path / "run", config(), [0.2], "interrupted after round 1; continue with: flray resume run")
    lock = FolderLock.acquire(path)
    first, second = watched(path, [lock.release])
    assert not first.over and second.over and not second.good


def test_a_dead_process_is_lost_and_a_silent_one_elsewhere_stalls(tmp_path: Path) -> None:
    path = folder(tmp_path / "run", config(), [0.2], "running")
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    held_by(path, owner(dead.pid, started=1))
    (lost,) = watched(path, [])
    assert lost.over and not lost.good and lost.note.startswith(f"lost: process {dead.pid} on ")
    assert lost.note.endswith(f"is gone; go on with: flray resume {path}")
    held_by(path, owner(7, machine="another", host="node7"))
    before = {file: file.stat().st_mtime_ns for file in path.rglob("*")}
    beat = (path / NAME).stat().st_mtime
    seen = watched(path, [lambda: None, lambda: None, lambda: os.utime(path / NAME, (beat + 5, beat + 5))], 40.0)
    notes = [next(seen).note for _ in range(3)]
    assert notes == ["", "", "stalled: no sign of life of process 7 on node7 for 80 s"]
    assert {file: file.stat().st_mtime_ns for file in path.rglob("*")} == before  # looking leaves no trace
    again = next(seen)
    assert again.note == "nothing new for 2 min" and not again.over
    (path / NAME).unlink()
    assert "no process holds the folder" in next(watched(path, [])).note


@pytest.mark.parametrize("status", ["running", "starting", None])
def test_a_folder_that_no_process_holds_is_left_when_nothing_changes_in_it(tmp_path: Path, status: str | None) -> None:
    """A copy that another program brings up to date 400 s after the first look, and 800 s later no more. The one
    without STATUS has a config.yaml that is no YAML."""
    path = folder(tmp_path / "run", config(), [0.2], status)
    if status is None:
        (path / "config.yaml").write_text("{")
    seen = list(watched(path, [lambda: put(path, "rounds", {"done": [1, 2]}), *[lambda: None] * 2], 400.0))
    assert [glance.over for glance in seen] == [False, False, False, True] and not seen[-1].good
    assert all("no process holds the folder" in glance.note for glance in seen)


def test_a_run_in_a_storage(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/bucket/run"

    def begin() -> None:
        folder(tmp_path / "bucket" / "run", config(), [0.2, 0.3], "running")

    def fail() -> None:
        (tmp_path / "bucket" / "run" / "STATUS").write_text("failed: the disk is full\n")

    before, running, quiet, ended = watched(uri, [begin, lambda: None, fail], 50.0)
    assert before.run is None and "it has no config.yaml" in before.note
    assert running.run is not None and len(running.run.rounds) == 2 and not running.note
    assert quiet.note == "nothing new for 50 s; a storage is brought up to date at checkpoints"
    assert ended.over and not ended.good


def test_a_folder_of_runs_is_no_run(tmp_path: Path) -> None:
    folder(tmp_path / "grid" / "a", config(), [0.2])
    with pytest.raises(CheckpointError, match=r"it holds 1 runs, for example .*grid/a"):
        list(watched(tmp_path / "grid", []))


def test_the_command_prints_lines_where_there_is_no_terminal(tmp_path: Path) -> None:
    path = folder(tmp_path / "run", config(), [0.2, 0.4])
    done = invoke("show", "--follow", path)
    assert done.exit_code == 0 and done.stdout.startswith("round 2: test/acc 0.4000\n")
    assert "FedAvg" in done.stdout and "40.00 %  ▁█  best 40.00 % in round 2" in done.stdout
    (path / "STATUS").write_text("failed: why\n")
    assert invoke("show", "--follow", path).exit_code == 1


def test_the_command_prints_a_record_for_each_round_and_the_essentials_at_the_end(tmp_path: Path) -> None:
    path = folder(tmp_path / "run", config(), [0.2, 0.4])
    done = invoke("show", "--follow", path, "--format", "json")
    assert done.exit_code == 0
    *rounds, end = (json.loads(line) for line in done.stdout.splitlines())
    assert [(row["run"], row["done"], row["test/acc"]) for row in rounds] == [(str(path), 1, 0.2), (str(path), 2, 0.4)]
    assert end["run"] == str(path) and end["status"] == "finished" and "FedAvg" in end["essentials"]["run"]
    wrong = invoke("show", "--follow", path, "--format", "jsn")
    assert_says(wrong.exception, "--format", "jsn", "json")


@pytest.mark.slow
def test_a_real_run_on_a_terminal(tmp_path: Path) -> None:
    """Watched from before it begins to its end; a second one is left by Ctrl-C, and neither touches the run."""
    path = tmp_path / "run"
    screen, theirs = pty.openpty()
    command = [sys.executable, "-m", "flray", "show", "--follow", str(path), "--every", "0.2"]
    watching = subprocess.Popen(command, stdout=theirs, env={**os.environ, "TERM": "xterm", "COLUMNS": "150"})
    other = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None and other.stdout.readline().startswith(f"waiting for {path}")
    run = subprocess.Popen([sys.executable, "-c", RUN, str(path)])
    lines = iter(other.stdout.readline, "")
    assert any(line.startswith("round 1:") for line in lines)
    other.send_signal(signal.SIGINT)
    assert other.wait(60) == 130
    seen, until = b"", time.monotonic() + 120
    os.set_blocking(screen, False)
    while watching.poll() is None and time.monotonic() < until:
        try:
            seen += os.read(screen, 2**16)
        except BlockingIOError:
            time.sleep(0.1)
    assert run.wait(60) == 0 and watching.wait(60) == 0
    text = seen.decode()
    assert "waiting for" in text and "1 of 4 in" in text and "4 of 4 in" in text

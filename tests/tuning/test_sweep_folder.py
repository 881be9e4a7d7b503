"""What a sweep's folder survives: a second driver, a process number used again, a study that lost its trials.

Nothing is trained.
"""

import errno
import json
import os
import shlex
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flray.core.schema.errors import CheckpointError, ConfigError
from flray.rundir.lock import NAME, FolderLock, FolderLostError, Owner
from flray.tuning.studies import JOURNAL, Studies
from flray.tuning.sweep import StudySearcher, _drop_others, _final, resume_sweep, run_sweep
from flray.tuning.sweep_folder import CONFIG, check_folder, take_folder
from flray.tuning.trainable import Job
from flray.tuning.trials import open_sweep
from tests.support.iris_sweep import ended, iris_sweep, studies_of
from tests.support.swapping import write_run


def begun(folder: Path, trials: int = 3) -> Path:
    """A sweep's folder in which this many trials had their runs; the last one has not ended."""
    studies = studies_of(folder, trials=4)
    for number in range(trials):
        key, _, home = studies.next()
        home.mkdir(parents=True)
        if number < trials - 1:
            studies.tell(key, ended(0.5))
    return folder


# one driver --------------------------------------------------------------------------------------
def test_a_sweep_that_somebody_drives_is_left_alone(tmp_path: Path) -> None:
    """So is one that is only starting."""
    folder, new = begun(tmp_path / "s"), tmp_path / "new"
    new.mkdir()
    locks = [FolderLock.acquire(place) for place in (folder, new)]
    with pytest.raises(CheckpointError, match=rf"s is in use: process {os.getpid()} on .* writes to it"):
        resume_sweep(folder, [], progress=False)
    with pytest.raises(CheckpointError, match="new is in use"):
        run_sweep(iris_sweep(), new, progress=False)
    for lock in locks:
        lock.release()


def test_one_that_ended_while_its_lock_was_waited_for_is_not_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when its driver is on another machine: the folder was still empty at the first look."""
    acquire = FolderLock.acquire

    def waited(folder: Path) -> FolderLock:
        (folder / CONFIG).write_text("the other's")
        return acquire(folder)

    monkeypatch.setattr(FolderLock, "acquire", waited)
    with pytest.raises(CheckpointError, match="holds a sweep by now"):
        take_folder(tmp_path / "s", iris_sweep(), resume=False)
    assert [path.name for path in (tmp_path / "s").iterdir()] == [CONFIG]


def test_the_command_that_continues_a_sweep_can_be_pasted(tmp_path: Path) -> None:
    folder = begun(tmp_path / "my sweep")
    with pytest.raises(CheckpointError, match="already holds a sweep") as refused:
        run_sweep(iris_sweep(trials=4), folder, progress=False)
    command = str(refused.value).partition("continue with: ")[2].partition(", or")[0]
    assert shlex.split(command) == ["flray", "sweep", str(folder), "--resume"]


def test_a_process_number_that_is_somebody_elses_now_is_no_driver(tmp_path: Path) -> None:
    """Process 1 lives, but it did not start when the owner of the lock did.

    The lock on the journal goes with its owner.
    """
    folder, here = begun(tmp_path / "s"), Owner.this_process()
    (folder / NAME).write_text(json.dumps({**here._asdict(), "pid": 1, "started": 0}))
    (folder / "STATUS").write_text("running: process 1")
    (folder / f"{JOURNAL}.lock").symlink_to(folder / JOURNAL)
    lock = take_folder(folder, iris_sweep(trials=4), resume=True)
    assert lock.owner.pid == os.getpid() and not (folder / f"{JOURNAL}.lock").is_symlink()
    lock.release()


def test_who_lost_the_folder_writes_nothing_more_to_the_study(tmp_path: Path) -> None:
    folder = begun(tmp_path / "s", trials=1)
    lock = FolderLock.acquire(folder)
    studies = Studies(iris_sweep(trials=4), folder, check=lock.check)
    key, *_ = studies.next()
    (folder / NAME).write_text(json.dumps(Owner.this_process()._asdict()))  # somebody took over
    before = (folder / JOURNAL).read_bytes()
    with pytest.raises(FolderLostError, match="was taken over by process"):
        studies.report(key, {"round": 1, "val/acc": 0.5})
    with pytest.raises(FolderLostError):
        studies.tell(key, ended(0.5))
    assert (folder / JOURNAL).read_bytes() == before
    lock.release()


# what changes no trial ----------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("section", "forms"),
    [("resources.server.threads", [1, 2]), ("checkpoint.every", {"linear": [1, 3]}), ("profile.rounds", [[1], [2]])],
)
def test_a_new_sweep_over_what_changes_no_trial_is_refused(tmp_path: Path, section: str, forms: Any) -> None:
    """One that has begun goes on, and so does one with a constant; where a time is judged it is a sensible search."""
    space = {"algorithm.lr": [0.1, 0.2], section: forms}
    searching = iris_sweep(space=space)
    with pytest.raises(ConfigError, match=rf"space.{section}: it changes no run but its time; set it in"):
        check_folder(tmp_path / "new", searching, resume=False)
    begun_before = tmp_path / "begun"
    studies_of(begun_before, space=space)
    check_folder(begun_before, searching, resume=True)
    one = forms["linear"][0] if isinstance(forms, dict) else forms[0]
    if not isinstance(one, list):
        check_folder(tmp_path / "new", iris_sweep(space={**space, section: one}), resume=False)
    check_folder(tmp_path / "new", iris_sweep(space=space, objective={"time/s": "min"}), resume=False)
    both = {"val/acc": "max", "time/round_s": "min"}
    check_folder(tmp_path / "new", iris_sweep(space=space, objective=both), resume=False)


@pytest.mark.parametrize(
    ("key", "values"), [("resources.client_actors", [1, 2]), ("resources.client.num_cpus", {"linear": [1, 2]})]
)
def test_a_new_sweep_over_the_processes_of_a_trial_is_refused(tmp_path: Path, key: str, values: Any) -> None:
    """Also where a time is judged: Ray Tune places all trials as the first one."""
    searching = iris_sweep(space={"algorithm.lr": [0.1, 0.2], key: values}, objective={"time/s": "min"})
    with pytest.raises(ConfigError, match=rf"space.{key}: all trials have the same processes; set it in"):
        check_folder(tmp_path / "new", searching, resume=False)


# sweep.yaml ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", r"it is empty"),
        (b"name: tiny\n", r"it is not a complete sweep"),
        (b"- a\n", r"it is not a complete sweep"),
        (b"name: [tiny\nobjective: x", r""),
        (b"name: t\xff\xfe\x00iny\n", r""),
    ],
)
def test_a_damaged_sweep_file_is_one_line(tmp_path: Path, content: bytes, why: str) -> None:
    folder = begun(tmp_path / "s")
    (folder / CONFIG).write_bytes(content)
    attempts = [
        lambda: resume_sweep(folder, [], progress=False),
        lambda: run_sweep(iris_sweep(trials=4), folder, progress=False),
        lambda: run_sweep(iris_sweep(trials=4), folder, resume=True, progress=False),
        lambda: open_sweep(folder),
    ]
    for attempt in attempts:
        with pytest.raises(CheckpointError, match=rf"sweep\.yaml is damaged.*{why}.*; put it back from") as caught:
            attempt()
        assert str(caught.value).isprintable()
    assert (folder / CONFIG).read_bytes() == content


# final/ ------------------------------------------------------------------------------------------
def test_only_what_the_sweep_put_into_final_is_removed_from_there(tmp_path: Path) -> None:
    """A file of the desktop, a user's notes and run, and a run that the user gave the name of a best one."""
    final = tmp_path / "final"
    for name in ("mine", "fedsol-0009-seed2"):
        write_run(final / name, name)
    (final / ".DS_Store").write_text("x")
    (final / "notes").mkdir()
    (final / "notes" / "thesis.txt").write_text("precious")
    _drop_others(final, ["fedsol-0001-seed2", "fedsol-0002-seed2"])
    for name in ("fedsol-0001-seed2", "fedsol-0002-seed2"):
        write_run(final / name, name)
    _drop_others(final, ["fedsol-0001-seed2", "fedsol-0003-seed2"])
    there = sorted(path.name for path in final.iterdir())
    assert there == [".DS_Store", ".made", "fedsol-0001-seed2", "fedsol-0009-seed2", "mine", "notes"]
    assert (final / "notes" / "thesis.txt").read_text() == "precious"


def test_final_runs_stay_until_others_have_taken_their_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A resume finds a better trial and stops in its final run, or finds no complete trial: then `final.csv` was of
    nothing, and the runs were gone."""
    final, stops, found = tmp_path / "final", [False], list[Any]()
    values = {"algorithm.lr": 0.1, "algorithm.rho": 0.1, "algorithm.perturb": "head"}

    def run_cells(cells: Any, homes: list[Path], *_: Any, **__: Any) -> None:
        if stops[0]:
            raise KeyboardInterrupt
        for home in homes:
            write_run(home, home.name)

    monkeypatch.setattr("flray.tuning.sweep.run_cells", run_cells)
    monkeypatch.setattr("flray.tuning.sweep.best", lambda *_: [(None, trial) for trial in found])
    monkeypatch.setattr("flray.tuning.sweep.write_final_table", lambda folder: None)

    def runs(number: int | None, stop: bool = False) -> list[str]:
        stops[0] = stop
        found[:] = [] if number is None else [SimpleNamespace(params=values, user_attrs={}, number=number)]
        with pytest.raises(KeyboardInterrupt) if stop else nullcontext():
            _final(iris_sweep(final={"top": 1, "seeds": 1}), tmp_path, None, False)  # type: ignore[arg-type]
        return sorted(path.parent.name.split("-")[1] for path in final.glob("*/config.yaml"))

    assert runs(1) == runs(2, stop=True) == runs(None) == ["0001"]
    assert runs(2) == ["0002"]


# the study ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("lost", ["deleted", "emptied"])
def test_a_study_that_is_gone_does_not_start_over(tmp_path: Path, lost: str) -> None:
    folder = begun(tmp_path / "s")
    (folder / JOURNAL).unlink() if lost == "deleted" else (folder / JOURNAL).write_text("")
    with pytest.raises(
        CheckpointError, match=r"study.journal knows none of the 3 trials in .*trials: .*bring it back, or start again"
    ):
        Studies(iris_sweep(trials=4), folder)
    assert not (folder / JOURNAL).exists() or not (folder / JOURNAL).read_text()


def test_a_study_that_lost_its_last_trial_does_not_train_over_its_run(tmp_path: Path) -> None:
    folder = begun(tmp_path / "s")
    (folder / "trials" / "0002-seed1").mkdir()
    lines = (folder / JOURNAL).read_text().splitlines(keepends=True)
    last = next(number for number, line in enumerate(lines) if "trials/0002" in line)
    (folder / JOURNAL).write_text("".join(lines[:last]))
    with pytest.raises(
        CheckpointError, match=r"does not know trials/0002: .* move .*trials/0002\* away to train it again"
    ):
        Studies(iris_sweep(trials=4), folder)
    for home in (folder / "trials").glob("0002*"):
        home.rmdir()
    assert Studies(iris_sweep(trials=4), folder).next()[2].name == "0003"  # the number 2 had been given out


def test_a_study_in_a_database_that_is_gone_is_missed_as_well(tmp_path: Path) -> None:
    folder, url = begun(tmp_path / "s"), f"sqlite:///{tmp_path}/other.db"
    with pytest.raises(CheckpointError, match=r"other\.db knows none of the 3 trials"):
        Studies(iris_sweep(trials=4, study=url), folder)


def test_a_full_disk_ends_the_sweep_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal cannot be written: Ray Tune sees no error, no other trial begins, and nothing follows the
    half-written line."""
    sweep, folder = iris_sweep(trials=4), begun(tmp_path / "s", trials=1)
    studies = Studies(sweep, folder)

    def config(key: str, overrides: dict[str, Any], run: Path) -> dict[str, Any]:
        return Job.of(key, run, sweep.experiment(overrides), ("val/acc",), [(6, 1)]).config()

    searcher = StudySearcher(studies, config, lambda: studies.error is not None)
    searcher.suggest("a")
    calls: list[Any] = []

    def full(self: Any, logs: Any) -> None:
        calls.append(logs)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("optuna.storages.journal.JournalFileBackend.append_logs", full)
    searcher.on_trial_result("a", {"round": 1, "val/acc": 0.5})
    searcher.on_trial_result("a", {"round": 2, "val/acc": 0.5})
    searcher.on_trial_complete("a", ended(0.5))
    assert len(calls) == 1 and searcher.suggest("b") == StudySearcher.FINISHED
    line = (
        f"study: {folder}/study.journal cannot be used: [Errno 28] No space left on device; free some space and "
        "run: flray sweep"
    )
    assert str(studies.error) == f"{line} {folder} --resume"


def test_a_sweep_inside_a_run_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path / "run", "mine")
    with pytest.raises(CheckpointError, match=f"{tmp_path}/run/sweep is inside the run {tmp_path}/run"):
        check_folder(tmp_path / "run" / "sweep", iris_sweep(), resume=False)

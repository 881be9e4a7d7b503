"""A run whose process is gone is not said to run; which runs lie below a folder, whatever else lies there."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from flray.core.schema.errors import CheckpointError, ConfigError
from flray.results.essentials import essentials
from flray.results.tables import compare
from flray.rundir import reader
from flray.rundir.lock import NAME, FolderLock
from flray.rundir.reader import Run, runs_below
from flray.running import resume
from tests.support.commands import invoke, succeeded
from tests.support.messages import facts
from tests.support.tables import config, folder


def dead(path: Path) -> None:
    """The lock of a process that was killed."""
    FolderLock.acquire(path)
    record = json.loads((path / NAME).read_text())
    (path / NAME).write_text(json.dumps(record | {"pid": 999999999}))


@pytest.mark.parametrize("status", ["running", "starting"])
def test_a_run_whose_process_is_gone_is_stopped(tmp_path: Path, status: str) -> None:
    path = folder(tmp_path / "run", config(), [0.2], status)
    lock = FolderLock.acquire(path)
    assert Run(path).standing == status
    lock.release()
    assert Run(path).standing == f"stopped (its process is gone); resume with: flray resume {path}"
    dead(path)
    assert Run(path).standing.startswith("stopped (process 999999999 on ")
    assert essentials(Run(path))["status"] == Run(path).standing
    assert compare([path])["status"].iloc[0].startswith("stopped (process 999999999 on ")
    said = invoke("runs", tmp_path, env={"COLUMNS": "250"}).output
    assert "stopped (process" in said and Run(path).status == status


@pytest.mark.parametrize("before", ["sw2", "'/home/me/it'\"'\"'s here/sw2'", "/r/a,b.c"])
@pytest.mark.parametrize(
    "status", ["interrupted after round 260; continue with: {}", "failed: disk full; free it and run: {}; and no more"]
)
def test_a_run_that_was_moved_or_copied_is_resumed_where_it_is(tmp_path: Path, before: str, status: str) -> None:
    path = folder(tmp_path / "my copy", config(), {0: 0.5})
    (path / "STATUS").write_text(status.format(f"flray resume {before}") + "\n")
    assert Run(path).standing == Run(path).status == status.format(f"flray resume '{path}'")
    for text in ("failed: flray resume, then", "failed: flray resume --accept data", "failed: see flray resumes a"):
        (path / "STATUS").write_text(text)
        assert Run(path).status == text


def test_of_another_machine_the_status_is_believed(tmp_path: Path) -> None:
    path = folder(tmp_path / "run", config(), [0.2], "running")
    dead(path)
    record = json.loads((path / NAME).read_text())
    (path / NAME).write_text(json.dumps(record | {"machine": "another"}))
    assert Run(path).standing == "running"


def test_the_rounds_of_a_run_over_tasks_are_those_of_all_its_tasks(tmp_path: Path) -> None:
    """Five tasks of 30 rounds: 2 of 150, not 2 of 30."""
    folder(tmp_path / "run", config() | {"rounds": 30, "tasks": {"num_tasks": 5}}, [0.2, 0.3])
    assert "2/150" in invoke("runs", tmp_path).output


def test_resume_of_a_folder_of_runs_names_them(tmp_path: Path) -> None:
    folder(tmp_path / "a", config(), [0.2])
    folder(tmp_path / "deep" / "b", config(), [0.2], "interrupted after round 1")
    with pytest.raises(ConfigError, match=facts("2 runs", 1, f"flray resume {tmp_path}/deep/b")):
        resume(tmp_path)
    (tmp_path / "deep" / "b" / "STATUS").write_text("finished")
    with pytest.raises(ConfigError, match=facts("2 runs", "all finished")):
        resume(tmp_path)
    sweep = folder(tmp_path / "sweep" / "trials" / "0000", config(), [0.2], "paused after round 1").parents[1]
    for name in ("sweep.yaml", "STATUS"):
        (sweep / name).write_text("interrupted after 1 of 2 trials")
    with pytest.raises(ConfigError, match=facts("3 runs", 1, f"flray sweep {sweep} --resume")):
        resume(tmp_path)
    (tmp_path / "sweep.yaml").write_text("name: x")
    with pytest.raises(ConfigError, match=facts(f"flray sweep {tmp_path}", "--resume")):
        resume(tmp_path)


def test_the_command_that_resumes_one_of_some_runs_can_be_pasted(tmp_path: Path) -> None:
    for name in ("a", "b"):
        folder(tmp_path / "my runs" / name, config(), [0.2], "interrupted after round 1")
    with pytest.raises(ConfigError, match=facts(f"flray resume '{tmp_path}/my runs/a', or")):
        resume(tmp_path / "my runs")


def test_links_that_lead_back_and_folders_of_others_are_passed_over(tmp_path: Path) -> None:
    folder(tmp_path / "a" / "run", config(), [0.2])
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    (tmp_path / "closed").mkdir(mode=0)
    assert {os.path.realpath(path) for path in runs_below(tmp_path)} == {str(tmp_path / "a" / "run")}


def test_a_run_of_another_user_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder or that of its sweep cannot be listed, or a link in it cannot be followed."""
    runs = [folder(tmp_path / name, config(), [0.2]) for name in ("linked", "sweep/final/one", "unlisted")]
    (tmp_path / "linked" / "data").symlink_to("x" * 300)
    for name in ("STATUS", "sweep.yaml"):
        (tmp_path / "sweep" / name).touch()
    known = Path.iterdir

    def iterdir(self: Path) -> Iterator[Path]:
        if self.name in ("sweep", "unlisted"):
            raise PermissionError
        return known(self)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    assert runs_below(tmp_path) == runs and runs_below(runs[0]) == runs[:1]


def test_a_link_to_a_run_or_to_a_folder_of_runs_is_no_second_one(tmp_path: Path) -> None:
    """Also of a sweep whose final runs have another name that is read first: its trials were read instead."""
    sweep = tmp_path / "b" / "sweep"
    final, _ = (folder(sweep / name, config(), [0.2]) for name in ("final/one", "trials/0000"))
    for name in ("STATUS", "sweep.yaml"):
        (sweep / name).touch()
    (tmp_path / "z").symlink_to(final)
    with pytest.warns(UserWarning, match="is a sweep"):
        assert (runs_below(tmp_path), runs_below(tmp_path.as_uri())) == ([final], [final.as_uri()])
    (tmp_path / "a").symlink_to(sweep / "final")
    with pytest.warns(UserWarning, match="is a sweep"):
        assert runs_below(tmp_path.as_uri()) == [(tmp_path / "a" / "one").as_uri()]
    assert runs_below(tmp_path) == [tmp_path / "a" / "one"]


def test_a_configuration_of_the_users_above_runs_hides_none(tmp_path: Path) -> None:
    """With no run below it is one that lost its other files."""
    runs = [folder(tmp_path / "runs" / name, config(), [0.2]) for name in ("a", "b")]
    alone = folder(tmp_path / "copied", config(), [0.2], status=None)
    (tmp_path / "config.yaml").write_text("rounds: 1")
    assert runs_below(tmp_path) == [alone, *runs]


def test_a_tree_without_end_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MAX_FOLDERS", 10)
    for number in range(12):
        (tmp_path / str(number)).mkdir()
    with pytest.raises(CheckpointError, match=facts(tmp_path, 10)):
        runs_below(tmp_path)


def test_many_foreign_folders_are_summarised(tmp_path: Path) -> None:
    folder(tmp_path / "run", config(), [0.2])
    for number in range(30):
        (tmp_path / f"x{number}").mkdir()
        (tmp_path / f"x{number}" / "config.yaml").write_text("- no run")
    found = succeeded("compare", tmp_path)
    assert found.output.count("left out: ") == 2 and "29 more folders" in found.output

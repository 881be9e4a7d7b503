"""Who may have a folder, what a run that replaces another one costs it, and what is left when nothing came of it.

Without Ray.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import flray
from flray.config.loader import load_config
from flray.core.schema.errors import CheckpointError
from flray.rundir.folder import RunFolder, check_inputs, grid_rows, is_run, unused_folder
from flray.rundir.lock import NAME, FolderLock, holder
from flray.rundir.swap import MARK
from tests.support.messages import facts
from tests.support.processes import python
from tests.support.swapping import replacement, write_run
from tests.support.tasks import BASE

ROOT = Path(__file__).parents[2]
QUICK = ROOT / "configs" / "quickstart.yaml"


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_new_run_takes_a_new_folder_and_keeps_it(tmp_path):
    home = RunFolder.claim(tmp_path / "a" / "run")
    assert home.path == home.target == tmp_path / "a" / "run" and not home.replaces
    write_run(home.path, "new")
    home.begin()
    home.release()
    assert is_run(home.path) and not (home.path / NAME).exists()


@pytest.mark.parametrize("made_before", [True, False])
def test_a_run_that_did_not_begin_leaves_the_folder_as_it_was(tmp_path, made_before):
    folder = tmp_path / "run"
    if made_before:
        folder.mkdir()
    home = RunFolder.claim(folder)
    (home.path / "partition").mkdir()
    (home.path / "partition" / "partition.json").write_text("{}")
    home.release()
    assert (names(folder) == []) if made_before else not folder.exists()


@pytest.mark.parametrize(
    ("runs", "place", "overwrite", "words"),
    [
        (["run"], "run", False, ("{place}", "--overwrite", "flray resume")),
        (["run", "run/fedavg-seed5"], "run", True, ("{place}/fedavg-seed5", "another run", "move it")),
        (["run"], "run/seeds/a", False, ("{place}", "inside the run", "another --out")),
        (["run"], "", True, ("give --out a name",)),
        (["run"], "/", True, ("give --out a name",)),
        (["run"], "run/STATUS", False, ("{place}", "not a folder")),
        (["run"], "x" * 300, False, ("{place.parent}", "--out")),
        (["run"], "a\0b", False, ("{place.parent}", "--out")),
    ],
)
def test_a_place_that_no_run_can_have_is_one_line(tmp_path, monkeypatch, runs, place, overwrite, words):
    for name in runs:
        write_run(tmp_path / name, "old")
    monkeypatch.chdir(tmp_path / "run")
    folder = tmp_path / place if place else Path()
    with pytest.raises(CheckpointError, match=facts(*(word.format(place=folder) for word in words))):
        RunFolder.claim(folder, overwrite=overwrite)
    assert all(is_run(tmp_path / name) for name in runs)


@pytest.mark.parametrize("status", ["starting", "running", "finished"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_foreign_folder_is_left_alone_whatever_its_status_says(tmp_path, status, overwrite):
    (tmp_path / "STATUS").write_text(status)
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(CheckpointError, match=facts(tmp_path, "--out")):
        RunFolder.claim(tmp_path, overwrite=overwrite)
    assert names(tmp_path) == ["STATUS", "thesis.txt"]


@pytest.mark.parametrize("replaces", [True, False])
def test_what_a_start_that_was_killed_left_is_no_obstacle(tmp_path, replaces):
    """The lock of a dead process, and what is written before config.yaml; in the folder, or in the one beside the run
    to replace."""
    folder = tmp_path / "run"
    if replaces:
        write_run(folder, "old")
    killed = RunFolder.claim(folder, overwrite=True).path
    for place in {folder, killed}:
        (place / NAME).write_text((place / NAME).read_text().replace(f'"pid": {os.getpid()}', '"pid": 999999999'))
    (killed / "partition").mkdir()
    (killed / "environment.json").write_text("{}")
    home = RunFolder.claim(folder, overwrite=True)
    assert home.path == killed and names(killed) == [NAME, MARK][: 1 + replaces]
    home.release()
    assert names(tmp_path) == ["run"] and (is_run(folder) if replaces else names(folder) == [])


def test_the_old_run_stays_until_the_new_one_settles(tmp_path):
    folder = tmp_path / "run"
    write_run(folder, "old")
    home = replacement(folder)
    assert home.replaces and home.path == tmp_path / "run.new"
    assert (folder / "config.yaml").read_text() == "old"
    assert holder(folder) is not None, "the old one is held as well: nobody may go on with it now"
    home.replace_previous_run()
    assert (folder / "config.yaml").read_text() == "new" and home.path == folder and not home.replaces
    home.check()
    home.release()
    assert names(tmp_path) == ["run"] and NAME not in names(folder)


@pytest.mark.parametrize("stopped", [True, False])
def test_a_replacement_that_ends_before_its_first_round(tmp_path, stopped):
    """One that is stopped leaves nothing; one that failed stays beside the old run, and the next attempt takes its
    place."""
    folder = tmp_path / "run"
    write_run(folder, "old")
    home = replacement(folder)
    if stopped:
        home.give_up()
    home.release()
    assert (folder / "config.yaml").read_text() == "old" and NAME not in names(folder)
    assert names(tmp_path) == (["run"] if stopped else ["run", "run.new"])
    again = RunFolder.claim(folder, overwrite=True)
    assert names(again.path) == [NAME, MARK]
    again.release()
    assert names(tmp_path) == ["run"]


@pytest.mark.parametrize("own", ["thesis.txt", "config.yaml"])
def test_something_else_in_the_place_where_it_would_grow_is_named(tmp_path, own):
    write_run(tmp_path / "run", "old")
    if own == "config.yaml":
        write_run(tmp_path / "run.new", "the user's own")
    else:
        (tmp_path / "run.new").mkdir()
        (tmp_path / "run.new" / own).write_text("the user's own")
    before = names(tmp_path / "run.new")
    for _ in range(2):
        with pytest.raises(CheckpointError, match=facts(tmp_path / "run.new")):
            RunFolder.claim(tmp_path / "run", overwrite=True)
    assert names(tmp_path / "run.new") == before and holder(tmp_path / "run") is None
    assert (tmp_path / "run.new" / own).read_text() == "the user's own" and is_run(tmp_path / "run")


def test_a_replacement_that_failed_and_went_on_by_itself_is_the_users_own(tmp_path):
    write_run(tmp_path / "run", "old")
    replacement(tmp_path / "run").release()
    again = RunFolder.claim(tmp_path / "run.new", resume=True)
    again.begin()
    again.release()
    with pytest.raises(CheckpointError, match=facts(tmp_path / "run.new")):
        RunFolder.claim(tmp_path / "run", overwrite=True)
    assert (tmp_path / "run.new" / "config.yaml").read_text() == "new"


def test_a_link_keeps_pointing_where_it_did(tmp_path):
    write_run(tmp_path / "disk" / "run", "old")
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "run")
    home = replacement(tmp_path / "link")
    home.replace_previous_run()
    home.release()
    assert (tmp_path / "link").is_symlink() and (tmp_path / "link" / "config.yaml").read_text() == "new"


@pytest.mark.parametrize("options", [{"resume": True}, {"overwrite": True}])
def test_a_run_that_lives_is_neither_resumed_nor_replaced(tmp_path, options):
    write_run(tmp_path / "run", "old")
    lock = FolderLock.acquire(tmp_path / "run")
    with pytest.raises(CheckpointError, match=facts(tmp_path / "run", f"process {os.getpid()} ")):
        RunFolder.claim(tmp_path / "run", **options)
    lock.release()
    RunFolder.claim(tmp_path / "run", **options).release()
    assert names(tmp_path) == ["run"] and is_run(tmp_path / "run")


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_run_that_ended_while_its_lock_was_waited_for_is_not_taken_for_an_empty_folder(
    tmp_path, monkeypatch, overwrite
):
    """As when its driver is on another machine: the folder was still empty at the first look."""
    acquire, folder = FolderLock.acquire, tmp_path / "run"

    def waited(place):
        if place == folder:
            write_run(folder, "old")
        return acquire(place)

    monkeypatch.setattr(FolderLock, "acquire", waited)
    if overwrite:
        home = RunFolder.claim(folder, overwrite=True)
        assert home.replaces
        home.release()
    else:
        with pytest.raises(CheckpointError, match=facts(folder, "--overwrite", "flray resume")):
            RunFolder.claim(folder)
    assert is_run(folder) and (folder / "rounds" / "part-0000.parquet").read_text() == "old" and holder(folder) is None


def test_a_run_under_another_name_than_the_first_says_so(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    experiment = load_config(QUICK, ["name=mine", "seed=3", "algorithm=fedavg"])[0]
    assert str(unused_folder(experiment)) == "runs/mine/fedavg-seed3" and not caplog.messages
    assert str(unused_folder(experiment)) == "runs/mine/fedavg-seed3-2"
    (line,) = caplog.messages
    assert "runs/mine/fedavg-seed3 is there already" in line and "this run is runs/mine/fedavg-seed3-2" in line


def test_runs_that_begin_at_once_have_names_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    experiment = load_config(QUICK, ["name=mine", "seed=3", "algorithm=fedavg"])[0]
    with ThreadPoolExecutor(8) as threads:
        folders = list(threads.map(unused_folder, [experiment] * 16))
    assert len(set(folders)) == 16
    RunFolder.claim(folders[0]).release()
    assert not folders[0].exists() and folders[1].exists(), "one that was not begun goes"


def test_a_file_in_the_place_of_the_default_folder_is_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("runs").touch()
    experiment = load_config(QUICK)[0]
    with pytest.raises(CheckpointError, match="a file is in the place of a folder"):
        unused_folder(experiment)


def test_a_name_that_is_not_utf_8_is_refused_before_anything_is_written(tmp_path):
    folder = Path(os.fsdecode(bytes(tmp_path) + b"/caf\xe9"))
    with pytest.raises(CheckpointError, match=r"caf\\udce9 is no name in UTF-8; give another --out"):
        RunFolder.claim(folder)
    assert not list(tmp_path.iterdir())


def test_a_name_that_the_locale_cannot_read_is_refused_with_the_way_to_read_it(tmp_path):
    given = "import sys, pathlib, flray.rundir.folder as f; f.RunFolder.claim(pathlib.Path(sys.argv[1]))"
    plain = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    refused = python("-c", given, tmp_path / "café", env=plain, status=1)
    assert "is no name in UTF-8 as ascii reads it (set PYTHONUTF8=1); give another --out" in refused.stderr
    python("-c", given, tmp_path / "café", env={**plain, "PYTHONUTF8": "1"})


def test_a_folder_is_found_after_a_change_of_the_working_directory(tmp_path, monkeypatch):
    """The user's code may change it. The lock was said to be gone, and stayed; messages name the folder as given."""
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    home = RunFolder.claim(Path("runs/a"))
    monkeypatch.chdir(tmp_path / "other")
    home.check()
    assert home.path == home.target == tmp_path / "runs" / "a" and home.shown == Path("runs/a")
    write_run(home.path, "new")
    home.begin()
    home.release()
    assert names(tmp_path / "runs" / "a") == names(home.path) and holder(home.path) is None
    monkeypatch.chdir(tmp_path)
    again = RunFolder.claim(Path("runs/a"), overwrite=True)
    assert again.shown == Path("runs/a.new")
    monkeypatch.chdir(tmp_path / "other")
    again.release()
    assert not (tmp_path / "runs" / "a.new").exists()


@pytest.mark.parametrize(
    ("there", "inside", "says"),
    [
        ("config.yaml", "", "is a run, and those of a grid"),
        ("config.yaml", "seeds", "is inside the run"),
        ("study.journal", "", "is a sweep"),
    ],
)
def test_the_place_of_a_grid_is_no_run_and_no_sweep(tmp_path, there, inside, says):
    for name in (there, "environment.json"):
        (tmp_path / name).touch()
    with pytest.raises(CheckpointError, match=says):
        grid_rows(load_config(QUICK, ["seed=0,1"]), tmp_path / inside)


def test_a_grid_that_lies_inside_a_run_goes_on(tmp_path):
    """An older flray began it there."""
    cells = load_config(QUICK, ["seed=0,1"])
    for folder, cell in ((tmp_path, cells[0]), *((tmp_path / "seeds" / f"fedavg-seed{i}", cells[i]) for i in (0, 1))):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.yaml").write_text(cell.yaml())
        (folder / "STATUS").write_text("interrupted after 1 round")
    assert [row["is"] for row in grid_rows(cells, tmp_path / "seeds")] == ["resumed"] * 2


@pytest.mark.parametrize(
    "given",
    [
        {"model.weights": "run"}, {"model.weights": "../here/run/model.safetensors"}, {"model.weights": "run.new"},
        {"partition.name": "csv", "partition.file": "run/parts.csv"}, {"data.source": "hf:run/rows.csv"},
        {"cohort.from": "run/cohorts.csv"}, {"seed": [0, 1], "model.weights": "grid/fedavg-seed0"},
    ],
    ids=str,
)  # fmt: skip
def test_a_run_is_not_replaced_by_one_that_reads_it(tmp_path, monkeypatch, given):
    """Of a grid none by another one. A name is no path, and what lies elsewhere or is not replaced is read."""
    home = tmp_path / "here"
    home.mkdir()
    monkeypatch.chdir(home)
    for folder in ("run", "run.new", "grid/fedavg-seed0", "other"):
        write_run(home / folder, "before")
        for name in ("model.safetensors", "parts.csv", "rows.csv", "cohorts.csv"):
            (home / folder / name).write_text("")
    out = "grid" if "seed" in given else "run"
    with pytest.raises(CheckpointError, match=facts([*given][-1], "would remove; give another out=")):
        flray.run(BASE, out=out, overwrite=True, progress=False, **given)
    assert (home / "run" / "model.safetensors").exists() and not (home / "run" / NAME).exists()
    elsewhere = load_config({**BASE, "name": "run"}, {"model.weights": "other", "storage": "file:///run"})
    check_inputs(elsewhere, [Path("run"), Path("fedavg")])

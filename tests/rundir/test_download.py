"""Runs that live in a storage: another machine reads them and goes on with them, with real actors."""

import os
import shutil
import time
import warnings
from pathlib import Path

import pytest

import flray
from flray.core.messages.packed import Packed
from flray.core.protocol.clock import Position
from flray.core.schema.errors import CheckpointError, ConfigError
from flray.engine.ray.pool import ActorPool
from flray.results import compare
from flray.rundir import checkpoint
from flray.rundir.download import download
from flray.rundir.reader import runs_below
from flray.rundir.run_store import RunStore
from flray.rundir.storage import DRIVER, SERVER, STATE, Storage
from flray.rundir.uri import join, split
from flray.tuning.trial_run import TrialRun
from tests.support.faults import interrupted, server_killed_at
from tests.support.folders import content, record
from tests.support.messages import facts
from tests.support.runs import last_state, model, on_actors as config


@pytest.fixture(scope="module")
def whole(ray_cluster, tmp_path_factory):
    """An uninterrupted run of an algorithm whose clients keep state, without a storage."""
    return flray.run(config("own", resources={"store": "files"}), out=tmp_path_factory.mktemp("whole") / "run")


def mirrored(base, folder):
    """The storage's copy, as a new machine would see it."""
    there = folder.with_name("copy")
    Storage(*split(join(base, folder.name)), there).pull((*DRIVER, *SERVER, "STATUS"))
    return content(there)


# going on -------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["file", pytest.param("s3", marks=pytest.mark.slow)])
def test_another_machine_goes_on_to_the_same_bits(new_base, tmp_path, whole, kind):
    base = new_base(kind)
    first = tmp_path / "machine1" / "run"
    with interrupted("before", 3), pytest.raises(KeyboardInterrupt):
        flray.run(config("own", storage=base, resources={"store": "files"}), out=first)
    shutil.rmtree(first.parent)
    there = flray.load(join(base, "run"))
    assert there.status.startswith("interrupted after round 3") and there.rounds["round"].tolist() == [1, 2, 3]

    run = flray.resume(join(base, "run"), out=tmp_path / "machine2")
    assert run.folder == tmp_path / "machine2" / "run" and run.status == "finished"
    assert run.rounds["round"].tolist() == [1, 2, 3, 4]
    assert model(run.folder) == model(whole.folder) and last_state(run.folder) == last_state(whole.folder)
    assert mirrored(base, run.folder) == content(run.folder), "and the storage has it all"
    table = compare([join(base, "run"), whole.folder])
    assert table["test/acc"].nunique() == 1 and "storage" not in table
    assert table["folder"].tolist() == [join(base, "run"), str(whole.folder)]


@pytest.mark.slow
def test_checkpoints_that_are_damaged_here_come_from_the_storage(new_base, tmp_path, whole):
    base, folder = new_base("file"), tmp_path / "run"
    with interrupted("before", 3), pytest.raises(KeyboardInterrupt):
        flray.run(config("own", storage=base, resources={"store": "files"}), out=folder)
    for path in [*folder.glob("checkpoints/*/server.safetensors"), *folder.glob("client_state/*/*")]:
        path.write_bytes(path.read_bytes()[:-1] + b"\x99")
    run = flray.resume(folder)
    assert run.rounds["round"].tolist() == [1, 2, 3, 4] and last_state(run.folder) == last_state(whole.folder)


def test_a_copy_in_the_cache_that_is_damaged_is_fetched_again(new_base, tmp_path, monkeypatch, whole):
    monkeypatch.setenv("FLRAY_CACHE", str(tmp_path / "cache"))  # in memory, where a new folder has a new inode
    base = new_base("file")
    Storage.of(base, whole.folder).push((*DRIVER, "STATUS"))
    place = join(base, whole.folder.name)
    run = flray.load(place)
    (part,) = (run.folder / "rounds").glob("part-*")
    stat = part.stat()
    part.write_bytes(b"x" * stat.st_size)
    os.utime(part, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the copy is another folder then, and the run is the same
        assert len(run.clients) and run.rounds.equals(whole.rounds) and run.rounds.equals(whole.rounds)


@pytest.mark.slow
def test_a_server_actor_that_starts_on_an_empty_node_goes_on_from_the_storage(
    new_base, ray_cluster, tmp_path, monkeypatch, whole
):
    """The server dies in round 4, and with its node what it had written."""
    base, folder, loads = new_base("file"), tmp_path / "run", []
    original = ActorPool.start

    def start(self, method, *arguments, **options):
        if RunStore.load not in arguments:
            return original(self, method, *arguments, **options)
        for part in STATE:
            shutil.rmtree(folder / part)
        ref = original(self, method, *arguments, **options)
        loads.append(ray_cluster.get(ref))
        return ref

    monkeypatch.setattr(ActorPool, "start", start)
    with server_killed_at("finish", 6) as killed:
        run = flray.run(config("own", storage=base, resources={"executor": "calls", "store": "files"}), out=folder)
    assert killed and loads == [Position(0, 2, 2, "round")], "the checkpoint after round 2"
    assert run.rounds["round"].tolist() == [1, 2, 3, 4] and run.status == "finished"
    assert last_state(run.folder) == last_state(whole.folder)


# failures -------------------------------------------------------------------------------------
@pytest.mark.parametrize("at", ["driver", "server's node"])
def test_a_storage_that_cannot_be_written_stops_the_run_before_it_begins(ray_cluster, tmp_path, monkeypatch, at):
    (tmp_path / "file").write_text("")
    if at != "driver":  # whose probe passes: here it is switched off
        monkeypatch.setattr(Storage, "probe", lambda self: None)
    with pytest.raises(CheckpointError, match=facts(f"storage file://{tmp_path}/file/exp/run ")):
        flray.run(config(storage=f"file://{tmp_path}/file/exp"), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_storage_that_breaks_does_not_lose_the_run(new_base, ray_cluster, tmp_path, monkeypatch):
    base, folder = new_base("file"), tmp_path / "run"
    home = Path(base.removeprefix("file://"))
    original = flray.engine.simulation.Simulation._round

    def _round(self, run, clock, ahead):
        if clock.round == 1:  # a file where the storage was
            home.rename(tmp_path / "gone")
            home.write_text("")
        return original(self, run, clock, ahead)

    monkeypatch.setattr(flray.engine.simulation.Simulation, "_round", _round)
    monkeypatch.setattr("flray.rundir.storage.RETRY_S", (0.0,))
    with (
        warnings.catch_warnings(record=True) as told,
        pytest.raises(CheckpointError, match=facts(folder, base, f"flray resume {folder}")),
    ):
        warnings.simplefilter("always")
        flray.run(config(storage=base), out=folder)
    assert sum("the next upload catches up" in str(warning.message) for warning in told) >= 2
    assert flray.load(folder).status == "finished" and (folder / "model.safetensors").exists()
    monkeypatch.undo()
    home.unlink()
    (tmp_path / "gone").rename(home)
    assert flray.load(join(base, "run")).status == "running", "what the storage has says that it is not all"
    run = flray.resume(folder)
    assert mirrored(base, run.folder) == content(run.folder)


def test_a_failed_run_is_there_with_its_last_complete_round(new_base, ray_cluster, tmp_path):
    base = new_base("file")
    with interrupted("evaluate", 1, RuntimeError), pytest.raises(RuntimeError):
        flray.run(config(storage=base), out=tmp_path / "run")
    there = flray.load(join(base, "run"))
    assert there.status == "failed: stopped by the test" and there.rounds["round"].tolist() == [1]
    assert any(name.startswith("checkpoints/round-000001/") for name in mirrored(base, tmp_path / "run"))


# without Ray ----------------------------------------------------------------------------------
@pytest.fixture
def run(base, tmp_path):
    """A run of two rounds in a storage: (its URI, the folder it was made in)."""
    folder = tmp_path / "maker" / "run"
    record(folder, 2)
    (folder / "model.safetensors").write_bytes(b"model")
    checkpoint.write(folder, checkpoint.Snapshot(Position(0, 2, 2, "round"), *[Packed.of({})] * 3), 0)
    assert Storage.of(base, folder).push((*DRIVER, *SERVER, "STATUS")) is None
    return join(base, "run"), folder


def test_a_download_is_whole_or_not_there(run, tmp_path, monkeypatch):
    uri, made = run
    original = Storage._download

    def broken(self, name, info):
        if name.startswith("rounds/"):
            raise OSError("the cable is out")
        original(self, name, info)

    monkeypatch.setattr(Storage, "_download", broken)
    with pytest.raises(CheckpointError, match=facts(tmp_path / "runs", "the cable is out")):
        download(uri, tmp_path / "runs")
    assert list((tmp_path / "runs").iterdir()) == []
    monkeypatch.undo()
    folder = download(uri, tmp_path / "runs")
    assert folder == tmp_path / "runs" / "run" and content(folder) == content(made)


def test_a_download_leaves_what_is_already_here(run, tmp_path):
    uri, _ = run
    folder = download(uri, tmp_path)
    (folder / "STATUS").write_text("mine")
    assert download(uri, tmp_path) == folder and (folder / "STATUS").read_text() == "mine"
    (tmp_path / "other" / "run").mkdir(parents=True)
    with pytest.raises(CheckpointError, match=facts(tmp_path / "other" / "run")):
        download(uri, tmp_path / "other")


def test_a_run_that_is_not_there_is_named_with_the_nearest(run):
    uri, _ = run
    with pytest.raises(CheckpointError, match=facts("/runn", "config.yaml", "'run'")):
        flray.load(uri.replace("/run", "/runn"))


def test_reading_brings_results_and_no_checkpoints_and_follows_the_run(run, base):
    uri, made = run
    there = flray.load(uri)
    assert there.rounds["done"].tolist() == [1, 2] and there.status == "running"
    assert not (there.folder / "checkpoints").exists() and (there.folder / "model.safetensors").read_bytes() == b"model"
    record(made, 3)
    (made / "rounds/part-0000.parquet").rename(made / "rounds/part-0001.parquet")
    Storage.of(base, made).push((*DRIVER, *SERVER))
    again = flray.load(uri)
    assert again.rounds["done"].tolist() == [1, 2, 3], "a file that is gone there is gone here"


def test_reading_brings_who_held_what_also_when_another_run_has_taken_the_name(run, base):
    uri, made = run
    for numbers in ([5, 6], [7, 8]):
        (made / "partition/table.csv").write_text(f"client,0,1\n0,3,4\n1,{numbers[0]},{numbers[1]}\n")
        mirror = Storage.of(base, made)
        mirror.clear()  # as a run does that takes another one's place
        time.sleep(1.1 * ("s3" in uri))  # where times are whole seconds
        mirror.push((*DRIVER, *SERVER))
        assert flray.load(uri).partition_table.loc[1].tolist() == numbers


def test_the_runs_of_a_storage_are_found(run, base, tmp_path):
    uri, _ = run
    assert runs_below(uri) == [uri]
    record(tmp_path / "b", 1)
    Storage.of(base, tmp_path / "b").push(DRIVER)
    assert runs_below(base) == sorted([join(base, "b"), uri])


def test_a_storage_is_read_as_a_folder_is(tmp_path):
    """Runs at any depth, below a configuration of the user's as well; of a sweep the final runs, with or without the
    files that its local folder has."""
    base = tmp_path / "base"
    sweep = [base / "sweep" / name for name in ("final/fedavg-0001-seed3", "trials/0000", "trials/0001")]
    mine = [base / "mine" / name for name in ("final/good", "trials/bad")]
    for path in (*sweep, *mine, base / "deep" / "run"):
        path.mkdir(parents=True)
        for name in ("config.yaml", "STATUS"):
            (path / name).touch()
    (base / "deep" / "up").symlink_to(base)
    for _ in ("nothing", "a configuration above"):
        with pytest.warns(UserWarning, match=facts("sweep is a sweep", "final/")):
            assert runs_below(base.as_uri()) == [path.as_uri() for path in (base / "deep" / "run", *mine, sweep[0])]
        (base / "config.yaml").write_text("rounds: 1")
    for name in ("sweep.yaml", "STATUS"):
        (base / "sweep" / name).touch()
    with pytest.warns(UserWarning, match="sweep is a sweep"):
        assert runs_below(base.as_uri()) == [path.as_uri() for path in runs_below(base)]
    assert runs_below((base / "sweep" / "trials").as_uri()) == [path.as_uri() for path in sweep[1:]]
    alone = tmp_path / "alone"
    (alone / "rounds").mkdir(parents=True)
    (alone / "config.yaml").touch()
    assert runs_below(alone.as_uri()) == [alone.as_uri()], "a run that lost its other files"


def test_a_trial_does_not_write_over_a_run_that_only_the_storage_has(run, base, tmp_path):
    """Another machine's cell of a grid, or another sweep's trial of the same number; what it began itself it may begin
    again."""
    _, made = run
    trial = TrialRun(config(storage=base), tmp_path / "run", ())
    with pytest.raises(CheckpointError, match=facts("--overwrite", "flray resume")):
        next(trial._play())
    assert not (tmp_path / "run").exists() and mirrored(base, made) == content(made)


@pytest.mark.slow
def test_a_cell_that_is_told_to_overwrite_does_so_in_the_storage_after_its_first_round(
    ray_cluster, run, base, tmp_path
):
    _, made = run
    other = config(storage=base, algorithm={"name": "fedavg", "lr": 0.02})
    rows = TrialRun(other, tmp_path / "run", (), overwrite=True)._play()  # a generator: it begins with its first row
    wrong = config(storage=base, model={"name": "mlp", "weights": "/nope.safetensors"})
    with pytest.raises(ConfigError, match="nope"):
        next(TrialRun(wrong, tmp_path / "run", (), overwrite=True)._play())
    assert mirrored(base, made) == content(made)
    next(rows)  # the storage has the new run from its first round on
    assert b"lr: 0.02" in Storage.of(base, tmp_path / "run")._read("config.yaml")
    assert "model.safetensors" not in Storage.of(base, tmp_path / "run").names(), "the end of the former run"
    rows.close()
    assert b"lr: 0.02" in Storage.of(base, tmp_path / "run")._read("config.yaml")


def test_out_says_where_a_download_goes_and_nothing_else(run, tmp_path):
    _, made = run
    with pytest.raises(ConfigError, match=facts("out ", "storage")):
        flray.resume(made, out=tmp_path)

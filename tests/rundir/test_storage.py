"""The mirror of a run: complete or visibly not, only what changed, and never over another run."""

import os
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import yaml

import flray
from flray.contracts.played import bits, executor_of
from flray.core.messages.packed import Packed
from flray.core.protocol.clock import Clock, Position
from flray.core.schema.errors import CheckpointError, ConfigError, ServerLostError
from flray.engine.local_executor import LocalExecutor
from flray.files import remove
from flray.rundir import checkpoint, folder as run_folder, lock as locks, storage
from flray.rundir.run_store import RunStore
from flray.rundir.storage import DRIVER, SERVER, STATE, Storage
from flray.running import play, resume, simulate
from tests.support.faults import interrupted
from tests.support.folders import content, record
from tests.support.messages import facts
from tests.support.runs import config, model


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr(storage, "RETRY_S", (0.0, 0.0))


def write(folder, done, keep=0):
    return checkpoint.write(folder, snapshot(done, np.full(9, done, np.float32)), keep)


def snapshot(done, w):
    none = Packed.of({})
    return checkpoint.Snapshot(Position(0, done, done, "round"), Packed.of({"w": w}), none, none)


@pytest.fixture
def run(tmp_path):
    """A run folder after two rounds, with two checkpoints and a client's state."""
    folder = tmp_path / "here" / "run 1"
    record(folder, 2)
    write(folder, 1)
    write(folder, 2)
    (folder / "client_state/003").mkdir(parents=True)
    (folder / "client_state/003/000000003.r000001.safetensors").write_bytes(b"state")
    (folder / "model.safetensors").write_bytes(b"model")
    return folder


def downloaded(base, name, folder):
    """Everything that the storage has, as a new machine would see it."""
    Storage(base, name, folder).pull((*DRIVER, *SERVER, "STATUS"))
    return content(folder)


@pytest.fixture
def written(monkeypatch):
    """Paths written to a storage, in order."""
    paths, original = [], Storage._upload

    def upload(self, name, stamp):
        paths.append(name)
        return original(self, name, stamp)

    monkeypatch.setattr(Storage, "_upload", upload)
    return paths


# up and down ----------------------------------------------------------------------------------
def test_what_comes_back_is_what_went_up(base, run, tmp_path):
    (run / ".config.yaml.tmp").write_text("half")
    (run / "checkpoints/.round-000003.77").mkdir()
    (run / "checkpoints/.round-000003.77/server.safetensors").write_bytes(b"half")
    (run / "notes.txt").write_text("not a part of a run")
    mirror = Storage.of(base, run)
    mirror.sync(lambda: mirror.push(SERVER))
    mirror.check_complete()
    expected = {
        name: data
        for name, data in content(run).items()
        if "half" not in data.decode(errors="ignore") and name != "notes.txt"
    }
    assert downloaded(base, "run 1", tmp_path / "there") == expected


def test_only_what_changed_goes_up(base, run, written):
    mirror = Storage.of(base, run)
    assert mirror.push((*DRIVER, *SERVER)) is None
    assert sorted(written) == sorted(name for name in content(run) if name != "STATUS")
    written.clear()
    assert mirror.push((*DRIVER, *SERVER)) is None and written == []
    record(run, 3)  # config.yaml has the same content and another time: it goes up as well
    write(run, 3)
    assert mirror.push((*DRIVER, *SERVER)) is None
    new = {f"checkpoints/round-000003/{name}" for name in (*checkpoint.FILES, "meta.json")}
    assert set(written) == {"config.yaml", "partition/indices.npy", "rounds/part-0000.parquet", *new}


def test_another_process_does_not_upload_checkpoints_client_states_and_partition_again(base, run, written):
    Storage.of(base, run).push((*DRIVER, *SERVER))
    written.clear()
    (run / "client_state/003/000000003.r000002.safetensors").write_bytes(b"newer")
    assert Storage.of(base, run).push((*DRIVER, *SERVER)) is None
    assert set(written) == {
        "config.yaml", "rounds/part-0000.parquet", "model.safetensors",
        "client_state/003/000000003.r000002.safetensors",
    }  # fmt: skip


def test_another_process_uploads_again_what_is_there_cut_short(base, run, written):
    Storage.of(base, run).push(SERVER)
    mirror = Storage.of(base, run)
    mirror._write(f"{mirror.path}/checkpoints/round-000002/server.safetensors", lambda sink: sink.write(b"cut"))
    written.clear()
    assert mirror.push(STATE) is None
    assert written == ["checkpoints/round-000002/server.safetensors"]


def test_another_process_uploads_a_checkpoint_of_the_same_size_and_other_content(base, run, written):
    """Population-based training puts another trial's checkpoint of the same round in the folder."""
    Storage.of(base, run).push(SERVER)
    (run / "checkpoints/round-000002/meta.json").unlink()
    with pytest.raises(CheckpointError):
        checkpoint.read(run / "checkpoints/round-000002")
    checkpoint.write(run, snapshot(2, np.full(9, 8, np.float32)), 0)
    written.clear()
    assert Storage.of(base, run).push(STATE) is None
    assert set(written) == {f"checkpoints/round-000002/{name}" for name in (*checkpoint.FILES, "meta.json")}


def test_what_is_dropped_here_is_dropped_there(base, run, tmp_path):
    mirror = Storage.of(base, run)
    mirror.push(SERVER)
    write(run, 3, keep=2)
    (run / "client_state/003/000000003.r000001.safetensors").unlink()
    assert mirror.push(SERVER) is None
    assert downloaded(base, "run 1", tmp_path / "there") == {
        name: data for name, data in content(run).items() if name.startswith(SERVER)
    }
    # also by a process that did not bring them up
    write(run, 4, keep=2)
    assert Storage.of(base, run).push(SERVER) is None
    there = tmp_path / "later"
    downloaded(base, "run 1", there)
    assert [p.name for p in checkpoint.checkpoints(there)] == ["round-000003", "round-000004"]


def test_no_empty_folder_stays_where_folders_are_real(new_base, run):
    """Otherwise whoever opens the mirror itself would see a checkpoint without files, which is a damaged one."""
    base = new_base("file")
    mirror = Storage.of(base, run)
    mirror.push(SERVER)
    write(run, 3, keep=1)
    mirror.push(SERVER)
    home = Path(base.removeprefix("file://")) / "run 1"
    assert [p.name for p in checkpoint.checkpoints(home)] == ["round-000003"]


def test_a_pull_brings_what_is_missing_or_cut_short_and_leaves_the_rest(base, run, tmp_path):
    Storage.of(base, run).push(SERVER)
    there = tmp_path / "there"
    mirror = Storage(base, "run 1", there)
    mirror.pull(STATE)
    good = there / "checkpoints/round-000002/server.safetensors"
    before = good.stat().st_ino
    (there / "checkpoints/round-000001/server.safetensors").write_bytes(b"cut")
    (there / "client_state/003/000000003.r000001.safetensors").unlink()
    mirror.pull(STATE)
    assert good.stat().st_ino == before, "not downloaded again"
    assert content(there) == {name: data for name, data in content(run).items() if name.startswith(STATE)}


# torn -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("torn", [*checkpoint.FILES, "meta.json"])
def test_a_checkpoint_whose_upload_broke_off_is_not_there(base, run, tmp_path, monkeypatch, torn):
    mirror = Storage.of(base, run)
    mirror.push(SERVER)
    write(run, 3)
    original = Storage._upload

    def upload(self, name, stamp):
        if name == f"checkpoints/round-000003/{torn}":
            raise OSError("the cable is out")
        return original(self, name, stamp)

    monkeypatch.setattr(Storage, "_upload", upload)
    assert mirror.push(SERVER) == "the cable is out"
    there = tmp_path / "there"
    downloaded(base, "run 1", there)
    assert [p.name for p in checkpoint.checkpoints(there)] == ["round-000001", "round-000002"]
    monkeypatch.undo()
    assert mirror.push(SERVER) is None
    Storage(base, "run 1", there).pull(STATE)
    assert checkpoint.latest(there).position.done == 3


def test_a_checkpoint_whose_removal_broke_off_is_not_there(base, run, tmp_path, monkeypatch):
    mirror = Storage.of(base, run)
    mirror.push(SERVER)
    write(run, 3, keep=1)
    original = Storage._delete

    def delete(self, how, name):
        if not name.endswith("meta.json"):
            raise OSError("the cable is out")
        original(self, how, name)

    monkeypatch.setattr(Storage, "_delete", delete)
    assert mirror.push(SERVER) == "the cable is out"
    downloaded(base, "run 1", tmp_path / "there")
    assert [p.name for p in checkpoint.checkpoints(tmp_path / "there")] == ["round-000003"]


def test_rows_go_up_before_the_checkpoint_that_counts_on_them_and_the_status_last(base, run, written):
    mirror = Storage.of(base, run)
    mirror.sync(lambda: mirror.push(SERVER))
    written_first = written.index("rounds/part-0000.parquet")
    metas = [i for i, name in enumerate(written) if name.endswith("meta.json")]
    others = [i for i, name in enumerate(written) if name.startswith(STATE) and not name.endswith("meta.json")]
    assert written_first < min(others) and max(others) < min(metas)
    assert written[0] == "config.yaml" and written[-1] == "STATUS"


def test_a_status_never_says_more_than_is_there(base, run, written):
    mirror = Storage.of(base, run)
    with pytest.warns(UserWarning, match=facts("run%201", "the server's node has no network", run)):
        mirror.sync(lambda: "the server's node has no network")
    assert "STATUS" not in written
    with pytest.raises(CheckpointError, match=facts(run, "run%201", "no network", "flray resume")):
        mirror.check_complete()
    mirror.sync(lambda: None)
    assert written[-1] == "STATUS"
    mirror.check_complete()


def test_an_upload_is_tried_again_but_a_dead_storage_does_not_hold_the_run_up(new_base, run, monkeypatch):
    mirror, original, failures = Storage.of(new_base("file"), run), Storage._list, [2]
    attempts = []

    def unsteady(self, kinds):
        attempts.append(kinds)
        if failures[0]:
            failures[0] -= 1
            raise OSError("try again\nand more")
        return original(self, kinds)

    monkeypatch.setattr(Storage, "_list", unsteady)
    assert mirror.push(("STATUS",)) is None and len(attempts) == 3
    failures[0], mirror = 100, Storage.of(new_base("file"), run)
    attempts.clear()
    assert mirror.push(("STATUS",)) == "try again" and len(attempts) == 3
    assert mirror.push(("STATUS",)) == "try again" and len(attempts) == 4


# before the first round -----------------------------------------------------------------------
def test_a_new_run_finds_its_place_empty_and_leaves_no_trace_of_the_probe(base, run):
    mirror = Storage.of(base, run)
    mirror.check(resume=False, overwrite=False)
    assert mirror.names() == set() and mirror.names(mirror.root) == set()


def test_a_bucket_that_does_not_exist_is_one_line(s3_endpoint, run):
    mirror = Storage.of(f"s3://no-such-bucket/exp?endpoint_override={s3_endpoint}", run)
    with pytest.raises(
        CheckpointError,
        match=facts("s3://no-such-bucket/exp/run%201", "NO_SUCH_BUCKET", "credentials"),
    ):
        mirror.check(resume=False, overwrite=False)


def test_a_folder_that_cannot_be_one_is_one_line(run, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=facts(f"file://{tmp_path}/file/exp", "leave storage out")):
        Storage.of(f"file://{tmp_path}/file/exp", run).check(resume=False, overwrite=False)


def test_a_storage_that_does_not_answer_is_one_line(run, tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "PROBE_S", 0.05)
    monkeypatch.setattr(Storage, "_write", lambda *_: time.sleep(5))
    with pytest.raises(CheckpointError, match=facts(f"file://{tmp_path}/exp", "no answer within")):
        Storage.of(f"file://{tmp_path}/exp", run).probe()


def test_a_run_is_never_written_over(base, run, tmp_path):
    Storage.of(base, run).push((*DRIVER, *SERVER))
    other = tmp_path / "elsewhere" / "run 1"
    other.mkdir(parents=True)
    with pytest.raises(CheckpointError, match=facts("run%201", "--overwrite", "flray resume '")):
        Storage.of(base, other).check(resume=False, overwrite=False)
    mirror = Storage.of(base, other)
    mirror.check(resume=False, overwrite=True)
    assert "config.yaml" in mirror.names(), "nothing is removed before the new run begins"
    mirror.clear()
    assert mirror.names() == set()


@pytest.mark.parametrize("overwrite", [False, True])
def test_what_is_no_run_is_left_alone(new_base, run, overwrite):
    base = new_base("file")
    home = Path(base.removeprefix("file://")) / "run 1"
    home.mkdir(parents=True)
    (home / "thesis.txt").write_text("precious")
    mirror = Storage.of(base, run)
    with pytest.raises(CheckpointError, match=facts(base, "--out")):
        mirror.check(resume=False, overwrite=overwrite)
    mirror.clear()
    assert (home / "thesis.txt").read_text() == "precious"


def test_a_resume_goes_on_with_the_same_experiment_only(base, run):
    Storage.of(base, run).push((*DRIVER, *SERVER))
    values = yaml.safe_load((run / "config.yaml").read_text())
    (run / "config.yaml").write_text(yaml.safe_dump({**values, "rounds": 20, "storage": base, "newer_flray": 1}))
    Storage.of(base, run).check(resume=True, overwrite=False)
    (run / "config.yaml").write_text(yaml.safe_dump({**values, "algorithm": {"name": "fedavg", "lr": 0.2}}))
    with pytest.raises(CheckpointError, match=facts("run%201", run, "algorithm.lr")):
        Storage.of(base, run).check(resume=True, overwrite=False)


def test_a_resume_does_not_go_back_behind_what_another_machine_did(base, run, tmp_path):
    ahead = tmp_path / "other machine" / "run 1"
    record(ahead, 5)
    write(ahead, 5)
    Storage.of(base, ahead).push((*DRIVER, *SERVER))
    with pytest.raises(CheckpointError, match=facts("run%201", "round 5", run, "round 2", "--out", "flray resume")):
        Storage.of(base, run).check(resume=True, overwrite=False)
    record(run, 5)
    Storage.of(base, run).check(resume=True, overwrite=False)


def test_a_run_folder_is_not_its_own_mirror(run):
    with pytest.raises(ConfigError, match=facts("storage:", "run%201")):
        Storage.of(f"file://{run.parent}".replace(" ", "%20"), run)


# the server's node ----------------------------------------------------------------------------
@pytest.mark.parametrize("store", ["memory", "files"])
def test_a_server_on_another_node_goes_on_from_the_storage(base, tmp_path, store):
    """Two folders of one name stand for two nodes that share no disk. SCAFFOLD's clients keep a state."""
    experiment = config("scaffold", storage=base, resources={"store": store})
    first = executor_of(experiment, tmp_path / "node1" / "run")
    server = first.server
    server.state = server.state.replace(w=server.state.w + 1)
    state = server.algorithm.init_client(server.runtime.context(Clock()))
    first.store.clients.scatter([4], [numpy_of(state, 7.0)], 1)
    server.commit(Position(0, 1, 1, "round"))
    first.store.save(2)
    assert first.store.push() is None
    second = executor_of(experiment, tmp_path / "node2" / "run")
    assert second.store.load() == Position(0, 1, 1, "round")
    assert bits(second.server.state) == bits(server.state)
    assert bits(second.server.states([4])[0]) == bits(server.states([4])[0])


def numpy_of(state, value):
    from flray.core.messages import map_tensors, to_numpy

    return to_numpy(map_tensors(lambda tensor: tensor + value, state))


def test_a_server_whose_storage_is_gone_goes_on_from_its_own_checkpoint_but_does_not_start_again(tmp_path, monkeypatch):
    experiment = config(storage=f"file://{tmp_path}/exp")
    executor = executor_of(experiment, tmp_path / "run")
    executor.server.commit(Position(0, 1, 1, "round"))
    executor.store.save(2)

    def gone(self, kinds):
        raise OSError("no route to host")

    monkeypatch.setattr(Storage, "_list", gone)
    assert executor_of(experiment, tmp_path / "run").call_store(RunStore.load) == Position(0, 1, 1, "round")
    with pytest.raises(CheckpointError, match=facts(tmp_path / "node2" / "run", "no route to host")):
        executor_of(experiment, tmp_path / "node2" / "run").call_store(RunStore.load)


def test_a_checkpoint_of_another_format_is_no_damage_and_stays_where_it_is(tmp_path, monkeypatch):
    executor = executor_of(config(storage=f"file://{tmp_path}/exp"), tmp_path / "run")
    executor.server.commit(Position(0, 1, 1, "round"))
    executor.store.save(2)
    monkeypatch.setattr(checkpoint, "FORMAT", checkpoint.FORMAT + 1)
    with pytest.raises(checkpoint.FormatError, match=facts("format 2", 3)):
        executor.store.load()
    assert [p.name for p in checkpoint.checkpoints(tmp_path / "run")] == ["round-000001"]


# a run that replaces another one ---------------------------------------------------------------
def replacing(base, store="memory", seed=5):
    """SCAFFOLD's clients keep a state. Only the end of the run is due to be saved."""
    return config("scaffold", 3, seed=seed, storage=base, checkpoint={"every": 0}, resources={"store": store})


def assert_mirrored(base, folder, there):
    """The storage has the run, all of it, and nothing else."""
    mirrored = {name: data for name, data in content(folder).items() if name.startswith((*DRIVER, *SERVER, "STATUS"))}
    assert downloaded(base, folder.name, there) == mirrored
    assert {"model.safetensors", "STATUS", "config.yaml"} < set(mirrored)
    assert any(name.endswith("meta.json") for name in mirrored)
    mirror = Storage(base, folder.name, folder)
    assert mirror.names(mirror.root) == {folder.name} and not mirror.to_replace()


@pytest.mark.parametrize("store", ["memory", "files"])
@pytest.mark.parametrize("here", [True, False])
def test_a_run_that_replaces_another_replaces_its_mirror(base, tmp_path, store, here):
    """Also one whose folder is gone `here`."""
    folder = tmp_path / "run"
    simulate(replacing(base, store, seed=4), folder)
    if not here:
        remove(folder)
    simulate(replacing(base, store), folder, overwrite=True)
    assert flray.load(folder).experiment.seed == 5
    assert_mirrored(base, folder, tmp_path / "there")


def test_the_mirror_has_the_new_run_as_soon_as_the_old_one_is_gone(new_base, tmp_path):
    """`checkpoint.every` may let many rounds pass before the next upload."""
    base, folder, names = new_base("file"), tmp_path / "run", []
    simulate(replacing(base, seed=4), folder)
    for row in play(replacing(base), folder, overwrite=True):
        there = tmp_path / f"after {row['done']}"
        downloaded(base, "run", there)
        names.append([path.name for path in checkpoint.checkpoints(there)])
    assert names[0] == ["round-000001"] and flray.load(there).experiment.seed == 5


@pytest.mark.parametrize("here", [True, False])
def test_a_server_that_is_lost_before_the_old_run_is_replaced_does_not_go_on_from_it(
    new_base, tmp_path, monkeypatch, here
):
    base, folder, test, lost = new_base("file"), tmp_path / "run", LocalExecutor.test, []
    simulate(replacing(base), tmp_path / "undisturbed")
    simulate(replacing(base, seed=4), folder)
    (Path(base.removeprefix("file://")) / "run.new").mkdir()
    if not here:
        remove(folder)

    def lose(self, clock):
        lost.append(clock)
        if len(lost) == 2:  # the first one is of the initial model
            raise ServerLostError("the server actor died")
        return test(self, clock)

    monkeypatch.setattr(LocalExecutor, "test", lose)
    monkeypatch.setattr(LocalExecutor, "kill", lambda self: None, raising=False)
    simulate(replacing(base), folder, overwrite=True)
    assert model(folder) == model(tmp_path / "undisturbed") and len(flray.load(folder).rounds) == 3


def kill_at(event, base, folder):
    """Whether a process that replaces the run was killed at its `event`-th step that changes a place; it ended before
    if not."""
    if child := os.fork():
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code in (0, -signal.SIGKILL)
        return code != 0
    left = event

    def step(do):
        def stepped(*arguments, **options):
            nonlocal left
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
            return do(*arguments, **options)

        return stepped

    class Steps:
        """A file system of which what happens to some names is a step."""

        def __init__(self, fs):
            self.fs = fs

        def __getattr__(self, name):
            do = getattr(self.fs, name)
            if name not in ("delete_dir", "delete_file", "move"):
                return do
            parts = ("checkpoints", "config.yaml", "meta.json", folder.name)
            return lambda *paths: (step(do) if paths[-1].rpartition("/")[2] in parts else do)(*paths)

    try:
        original = storage.open_uri
        storage.open_uri = lambda uri: (Steps(original(uri)[0]), original(uri)[1])
        run_folder.swap, run_folder.discard = step(run_folder.swap), step(run_folder.discard)
        simulate(replacing(base), folder, overwrite=True)
        os._exit(0)
    finally:
        os._exit(1)


def test_a_kill_at_any_step_of_a_replacement_leaves_a_mirror_that_the_next_command_completes(
    new_base, tmp_path, monkeypatch
):
    monkeypatch.setattr(locks, "TAKEOVER_WAIT_S", 0.0)
    seeds, before, old = [], new_base("file"), tmp_path / "before" / "run"
    simulate(replacing(before, seed=4), old)
    event = 0
    while True:
        base, folder = new_base("file"), tmp_path / str(event) / "run"
        shutil.copytree(old.parent, folder.parent)
        shutil.copytree(before.removeprefix("file://"), base.removeprefix("file://"))
        values = yaml.safe_load((folder / "config.yaml").read_text())
        for place in (folder, Path(base.removeprefix("file://")) / "run"):
            (place / "config.yaml").write_text(yaml.safe_dump({**values, "storage": base}))
        if not kill_at(event, base, folder):
            break
        seeds.append(flray.load(folder).experiment.seed)
        if event % 2:
            resume(folder, progress=False)
        else:
            simulate(replacing(base), folder, overwrite=True)
        assert flray.load(folder).experiment.seed == (seeds[-1] if event % 2 else 5)
        assert_mirrored(base, folder, tmp_path / str(event) / "there")
        event += 1
    assert seeds == sorted(seeds) and set(seeds) == {4, 5} and event > 5


def test_a_run_that_is_stopped_before_it_replaces_the_mirror_replaces_it_when_it_goes_on(new_base, tmp_path):
    """A resume by the URI means the run in the storage, which this would remove."""
    base, folder = new_base("file"), tmp_path / "run"
    simulate(replacing(base, seed=4), folder)
    before = downloaded(base, "run", tmp_path / "before")
    remove(folder)
    with interrupted("before", 0, KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        simulate(replacing(base), folder, overwrite=True)
    with pytest.raises(CheckpointError, match=facts(folder, f"{base}/run", "--out", f"flray resume {folder}")):
        resume(f"{base}/run", out=tmp_path, progress=False)
    assert downloaded(base, "run", tmp_path / "after") == before
    resume(folder, progress=False)
    assert flray.load(folder).experiment.seed == 5
    assert_mirrored(base, folder, tmp_path / "there")

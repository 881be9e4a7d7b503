"""A run that is stopped: its STATUS says so, and a resume gives the bits of a run that nobody stopped."""

import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

import flray
from flray.core.schema.errors import CheckpointError, ResourceError, ServerLostError
from flray.engine.local_executor import LocalExecutor
from flray.engine.simulation import Simulation
from flray.rundir import checkpoint
from flray.rundir.folder import STARTED, RunFolder
from flray.rundir.lock import NAME
from flray.rundir.recorder import Recorder
from flray.rundir.run_store import RunStore
from flray.running import play, resume, simulate
from tests.support import outcome, tasks
from tests.support.events import events_of
from tests.support.faults import interrupted
from tests.support.stopped import continued


def experiment():
    scaffold = {"name": "scaffold", "lr": 0.1, "local_epochs": 1, "batch_size": 16}
    return tasks.experiment(rounds=2, algorithm=scaffold, checkpoint={"every": 1})


CENTRALIZED = {"name": "centralized", "lr": 0.1, "local_epochs": 1, "batch_size": 16}


def contents(folder):
    """What does not depend on how often a run was stopped."""
    return outcome.contents(flray.load(folder))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    simulate(experiment(), folder)
    return contents(folder)


@contextmanager
def stopped_at(call, error, *files):
    """`error` is raised at the `call`-th call (from 0) of a function of these files of flray; yields where it was.

    Not in a generator expression: Python calls it once more to close it, and ignores what is raised there.
    """
    count, raised = -1, []

    def watch(frame, event, _):
        nonlocal count
        name = frame.f_code.co_name
        if event == "call" and frame.f_code.co_filename.endswith(files) and name not in ("__init__", "<genexpr>"):
            count += 1
            if count == call:
                sys.setprofile(None)
                raised.append(f"{name}, line {frame.f_lineno}")
                raise error("stopped by the test")

    sys.setprofile(watch)
    try:
        yield raised
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("where", ["before", "evaluate"])
def test_a_run_that_is_stopped_in_its_first_round_goes_on_with_the_same_bits(where, error, undisturbed, tmp_path):
    """Its checkpoint is that of the beginning, `round-000000`."""
    with interrupted(where, 0, error), pytest.raises(error):
        simulate(experiment(), tmp_path / "run")
    assert flray.load(tmp_path / "run").status.startswith("interrupted after round 0; continue with: flray resume ")
    assert [path.name for path in checkpoint.checkpoints(tmp_path / "run")] == ["round-000000"]
    resume(tmp_path / "run", progress=False)
    assert contents(tmp_path / "run") == undisturbed


@pytest.mark.parametrize("every", [0, 3])
def test_a_finished_run_that_gets_more_rounds_is_one_that_had_them_from_the_beginning(every, tmp_path):
    """The last round is tested whatever `evaluate.every` says, and is not the last one any more."""

    def run(rounds, folder):
        simulate(tasks.experiment(rounds=rounds, evaluate={"every": every}), tmp_path / folder)
        return contents(tmp_path / folder)

    straight, first = run(7, "straight"), run(4, "extended")
    resume(tmp_path / "extended", rounds=4, progress=False)
    assert contents(tmp_path / "extended") == first
    extended = resume(tmp_path / "extended", rounds=7, progress=False)
    assert contents(tmp_path / "extended") == straight
    rounds = [3, 6, 7] if every else [7]
    assert extended.tests["done"].tolist() == [0] * bool(every) + rounds
    assert extended.rounds.dropna(subset="test/acc")["done"].tolist() == rounds
    assert extended.rounds["time/evaluate_s"].notna().tolist() == extended.rounds["test/acc"].notna().tolist()
    assert extended.missing("tests") == extended.missing("rounds") == ""


@pytest.mark.parametrize(
    "changes", [{"evaluate": {"every": 0}}, {"evaluate": {"every": 3}}, {"algorithm": CENTRALIZED}]
)
def test_a_paused_run_that_gets_fewer_rounds_is_one_that_had_them_from_the_beginning(changes, tmp_path):
    """It ends where it stands, with the test of its last round."""
    changes = {"evaluate": {"every": 3}, **changes}
    simulate(tasks.experiment(rounds=4, **changes), tmp_path / "straight")
    ended = continued(tasks.experiment(rounds=9, **changes), tmp_path / "ended", 4, ["rounds=4"])
    assert ended.status == "finished" and contents(ended) == contents(tmp_path / "straight")
    assert ended.rounds["time/evaluate_s"].notna().tolist() == ended.rounds["test/acc"].notna().tolist()
    simulate(tasks.experiment(rounds=7, **changes), tmp_path / "longer")
    assert contents(resume(ended, rounds=7, progress=False)) == contents(tmp_path / "longer")


@pytest.mark.parametrize("stopped", ["before the row has its test", "before its removed test leaves the table"])
def test_a_stop_between_a_test_and_its_row_takes_no_test_away(stopped, tmp_path, monkeypatch):
    """The row had no accuracy for good, as the table of tests had that of this round."""
    changes, change_last = {"evaluate": {"every": 3}}, Recorder.change_last
    simulate(tasks.experiment(rounds=4, **changes), tmp_path / "straight")
    if stopped.startswith("before the row"):
        rows = play(tasks.experiment(rounds=9, **changes), tmp_path / "run")
        while next(rows)["done"] < 4:
            pass
        rows.close()
        rounds = 4
    else:
        simulate(tasks.experiment(rounds=4, **changes), tmp_path / "run")
        rounds = 6

    def stop(recorder, done, values):
        if rounds == 6:
            change_last(recorder, done, values)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Recorder, "change_last", stop)
        resume(tmp_path / "run", rounds=rounds, progress=False)
    assert contents(resume(tmp_path / "run", rounds=4, progress=False)) == contents(tmp_path / "straight")


def test_a_model_is_that_of_the_end_or_there_is_none(tmp_path):
    """Of a run that had ended and goes on, here and in its storage."""
    stored = {"storage": f"file://{tmp_path}/there"}
    here, there = tmp_path / "run" / "model.safetensors", tmp_path / "there" / "run" / "model.safetensors"
    simulate(tasks.experiment(rounds=2, **stored), tmp_path / "run")
    first = here.read_bytes()
    resume(tmp_path / "run", progress=False)
    assert here.read_bytes() == there.read_bytes() == first
    rows = play(tasks.experiment(rounds=4, **stored), tmp_path / "run", resume=True)
    next(rows)
    assert not here.exists() and not there.exists()
    rows.close()
    assert not here.exists() and not there.exists()
    with pytest.raises(CheckpointError, match="has no checkpoint; a run in a storage is downloaded with"):
        flray.load(f"file://{tmp_path}/there/run").weights()
    resume(tmp_path / "run", progress=False)
    simulate(tasks.experiment(rounds=4), tmp_path / "straight")
    assert here.read_bytes() == there.read_bytes() == (tmp_path / "straight" / "model.safetensors").read_bytes()


def test_the_curves_have_the_last_test_where_it_is_and_not_where_it_was(tmp_path):
    """A START of TensorBoard leaves out the points of earlier files from its step on."""

    def tested(run):
        points, files = set(), sorted((run.folder / "tensorboard").iterdir(), key=lambda path: path.stat().st_mtime_ns)
        for event in (event for path in files for event in events_of(path)):
            if event.session_log.status:
                points = {step for step in points if step < event.step}
            points |= {event.step for value in event.summary.value if value.tag == "test/acc"}
        return points

    run = continued(tasks.experiment(rounds=9, evaluate={"every": 3}), tmp_path / "run", 4, ["rounds=4"])
    assert tested(run) == {0, 3, 4}
    assert tested(resume(run, rounds=7, progress=False)) == {0, 3, 6, 7}


def test_a_change_of_every_that_is_accepted_takes_no_test_away(tmp_path):
    folder = tmp_path / "run"
    simulate(tasks.experiment(rounds=4), folder)
    changed = tasks.experiment(rounds=7, evaluate={"every": 3})
    simulate(changed, folder, resume=True, accept=["evaluate.every"])
    assert flray.load(folder).tests["done"].tolist() == [0, 1, 2, 3, 4, 6, 7]


def stop_and_go_on(folder: Path, call: int, *files: str) -> bool:
    """Whether there was such a call. A run stopped there says so in STATUS, or left nothing, and is gone on with."""
    try:
        with stopped_at(call, SystemExit, *files) as raised:
            simulate(experiment(), folder)
        assert not raised, f"the stop at call {call} was ignored: {raised}"
        return False
    except SystemExit:
        pass
    if not (folder / "config.yaml").exists():
        # a stop in the middle of taking the folder leaves an empty one
        assert not folder.exists() or {path.name for path in folder.iterdir()} <= {NAME, *STARTED}, call
        simulate(experiment(), folder)
    else:
        assert flray.load(folder).status.startswith(("interrupted after round ", "finished")), call
        resume(folder, progress=False)
    return True


@pytest.mark.parametrize("call", [2, 6, 13, 34])
def test_wherever_a_run_is_stopped_its_status_says_so(call, undisturbed, tmp_path):
    stop_and_go_on(tmp_path / "run", call, "engine/simulation.py")
    assert contents(tmp_path / "run") == undisturbed


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "files", [("engine/simulation.py",), ("rundir/recorder.py", "rundir/folder.py"), ("rundir/checkpoint.py",)]
)
def test_at_whichever_call_a_run_is_stopped_its_status_says_so(files, undisturbed, tmp_path):
    call = 0
    while stop_and_go_on(tmp_path / str(call), call, *files):
        assert contents(tmp_path / str(call)) == undisturbed, call
        call += 1
    assert call > 10


def test_a_stop_as_the_folder_is_released_leaves_no_lock(tmp_path, monkeypatch):
    release, calls = RunFolder.release, []

    def stopped(self):
        calls.append(self)
        if len(calls) == 1:
            raise SystemExit(143)
        release(self)

    monkeypatch.setattr(RunFolder, "release", stopped)
    with pytest.raises(SystemExit):
        simulate(experiment(), tmp_path / "run")
    assert flray.load(tmp_path / "run").status == "finished" and not (tmp_path / "run" / NAME).exists()


@pytest.mark.parametrize("stopped", [True, False])
def test_a_stop_or_a_failure_while_the_server_starts_again_is_in_status(stopped, undisturbed, tmp_path, monkeypatch):
    """The server dies in round 2, and its second start is stopped, or fails: no checkpoint can be written then."""
    launch, save, launches = Simulation._launch, RunStore.save, []

    def again(self):
        launches.append(self)
        if len(launches) == 2:
            raise SystemExit(143) if stopped else RuntimeError("no room")
        return launch(self)

    def lost(self, last):
        if len(launches) == 1:
            raise ServerLostError("the server actor died")
        return save(self, last)

    monkeypatch.setattr(Simulation, "_launch", again)
    monkeypatch.setattr(RunStore, "save", lost)
    monkeypatch.setattr(LocalExecutor, "kill", lambda self: None, raising=False)
    with pytest.raises(SystemExit if stopped else RuntimeError):
        simulate(experiment(), tmp_path / "run")
    said = "interrupted while the server was started again" if stopped else "failed: no room"
    assert flray.load(tmp_path / "run").status.startswith(said)
    resume(tmp_path / "run", progress=False)
    assert contents(tmp_path / "run") == undisturbed


def test_a_second_signal_while_the_run_is_saved_is_in_status(undisturbed, tmp_path, monkeypatch):
    def again(self, last):
        raise SystemExit(143)

    with monkeypatch.context() as patch, interrupted("before", 0), pytest.raises(SystemExit):
        patch.setattr(RunStore, "save", again)
        simulate(experiment(), tmp_path / "run")
    assert flray.load(tmp_path / "run").status.startswith("interrupted; no checkpoint could be written (143)")
    resume(tmp_path / "run", progress=False)
    assert contents(tmp_path / "run") == undisturbed


def test_one_reason_that_ends_a_run_and_its_save_is_said_once(tmp_path, monkeypatch):
    def gone(*_, **__):
        raise ResourceError("Ray is gone")

    for where in ((LocalExecutor, "plan"), (RunStore, "save")):
        monkeypatch.setattr(*where, gone)
    with pytest.raises(ResourceError):
        simulate(experiment(), tmp_path / "run")
    assert flray.load(tmp_path / "run").status == "failed: Ray is gone; and no checkpoint could be written"

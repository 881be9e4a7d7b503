"""A campaign against the driver: SIGKILL at a named moment, from the lock on the folder to the last word in STATUS.

A resume gives the bits and rows of the run that nobody disturbed; before there is anything to resume, one line says so
and the same command runs in the same folder. A kill while one run replaces another: tests/rundir/test_swap.py.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import flray
from flray.config.experiment import Experiment
from flray.core.schema.errors import ConfigError
from flray.results.notebook import Run
from tests.faults.moments import Moment
from tests.support.digits import own_on_digits
from tests.support.outcome import contents

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
SIMULATION = "flray.engine.simulation:Simulation"
RECORDER = "flray.rundir.recorder:Recorder"
STORE = "flray.rundir.run_store:RunStore"

# the folder holds a lock and nothing else
EMPTY = {
    "after the lock": Moment("after", "flray.rundir.folder:RunFolder.claim"),
    "data are read": Moment("before", f"{SIMULATION}.go"),
}
# rounds and calls count from 0; a checkpoint comes after rounds 2 and 4 of 5, before and after the task's end
BEGUN = {
    "before the initial test": Moment("before", f"{SIMULATION}._record_test"),
    "before the first round": Moment("before", f"{SIMULATION}._round"),
    "in the first round": Moment("before", f"{SIMULATION}._count_flops"),
    "before the first row": Moment("before", f"{RECORDER}.round"),
    "after the first row": Moment("after", f"{RECORDER}.round"),
    "in the second exchange of round 3": Moment("before", "flray.engine.server:Server._finish", 5),
    "in the test of round 3": Moment("before", f"{SIMULATION}._test", 2),
    "before the rows of a checkpoint": Moment("before", f"{RECORDER}.flush"),
    "one table of a checkpoint's rows is written": Moment("after", "flray.rundir.recorder:ParquetTable.flush"),
    "between rows and checkpoint": Moment("before", f"{STORE}.save"),
    "files of a checkpoint are written": Moment("before", "flray.rundir.checkpoint:with_checksum"),
    "files of the second checkpoint are written": Moment("before", "flray.rundir.checkpoint:with_checksum", 1),
    "a checkpoint has its name": Moment("after", "flray.rundir.checkpoint:write"),
    "client states that no checkpoint needs are dropped": Moment("after", f"{STORE}.save", 1),
    "before the task's end": Moment("before", f"{SIMULATION}._task", 1),
    "after the task's end, before its checkpoint": Moment("after", f"{SIMULATION}._task", 1),
    "between the last checkpoint and the model": Moment("before", f"{STORE}.save_model"),
    "between the model and STATUS": Moment("after", f"{STORE}.save_model"),
    "after the last row": Moment("after", f"{RECORDER}.close"),
    "before STATUS is finished": Moment("before", f"{RECORDER}.status", 1),
    "after STATUS is finished": Moment("after", f"{RECORDER}.status", 1),
    "before the lock is given back": Moment("before", "flray.rundir.lock:FolderLock.release"),
}
# of a resume from the first checkpoint
RESUMED = {
    "the checkpoint is read": Moment("after", f"{STORE}.load"),
    "one table is cut": Moment("after", "flray.rundir.recorder:ParquetTable.truncate"),
    "all tables are cut": Moment("after", f"{RECORDER}.truncate"),
    "environment.json is written": Moment("after", f"{SIMULATION}._write_environment"),
    "its first row": Moment("after", f"{RECORDER}.round"),
}


def settings(executor: str = "local") -> Experiment:
    return own_on_digits(5, {"executor": executor, "store": "files"}, checkpoint={"every": 2, "keep": 2})


def assert_killed(code: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert found.returncode == -signal.SIGKILL, found.stderr[-3000:]


def killed_at(moment: Moment, config: Path, folder: Path) -> None:
    at = f"run_until(Moment{tuple(moment)!r}, {str(config)!r}, {str(folder)!r})"
    assert_killed(f"from tests.faults.moments import *; {at}")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("config") / "config.yaml"
    path.write_text(settings().yaml())
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The run that nobody disturbs."""
    return flray.run(settings(), out=tmp_path_factory.mktemp("whole") / "run", progress=False)


def assert_goes_on(folder: Path, whole: Run) -> None:
    run = flray.resume(folder, progress=False)
    assert run.status == "finished"
    assert contents(run) == contents(whole)
    assert contents(flray.load(folder)) == contents(whole)
    states = {path.name for path in whole.folder.glob("client_state/*/*")}
    assert {path.name for path in folder.glob("client_state/*/*")} == states, "no file of a client is left over"
    left = [path.name for path in folder.rglob(".*") if not path.name.startswith(".lock")]
    assert not left, "nothing half-written stays"


@pytest.mark.parametrize("name", EMPTY)
def test_killed_before_there_is_a_run_the_same_command_runs(whole: Run, config: Path, tmp_path: Path, name: str):
    killed_at(EMPTY[name], config, tmp_path / "run")
    with pytest.raises(ConfigError, match=r"is not a run folder: it has no config\.yaml"):
        flray.resume(tmp_path / "run", progress=False)
    run = flray.run(config, out=tmp_path / "run", progress=False)
    assert contents(run) == contents(whole)


@pytest.mark.parametrize("name", BEGUN)
def test_killed_at_a_moment_a_resume_gives_the_same_bits(whole: Run, config: Path, tmp_path: Path, name: str):
    killed_at(BEGUN[name], config, tmp_path / "run")
    assert_goes_on(tmp_path / "run", whole)


@pytest.mark.parametrize("name", RESUMED)
def test_a_resume_that_is_killed_is_resumed_to_the_same_bits(whole: Run, config: Path, tmp_path: Path, name: str):
    killed_at(Moment("after", f"{RECORDER}.round", 3), config, tmp_path / "run")  # after round 4, before its checkpoint
    killed_at(RESUMED[name], config, tmp_path / "run")
    assert_goes_on(tmp_path / "run", whole)


# a stop by SIGTERM or Ctrl-C, which is killed while it saves
@pytest.mark.parametrize("name", ["rows", "checkpoint", "cut", "status"])
@pytest.mark.parametrize("round", [0, 2])
def test_a_stop_that_is_killed_is_resumed_to_the_same_bits(
    whole: Run, config: Path, tmp_path: Path, name: str, round: int
) -> None:
    code = f"""
from tests.faults.moments import *
def stop():
    where, function = {{
        "rows": ("before", "{STORE}.save"),
        "checkpoint": ("after", "{STORE}.save"),
        "cut": ("after", "{RECORDER}.truncate"),
        "status": ("before", "{RECORDER}.status"),
    }}[{name!r}]
    at(Moment(where, function), die)
    raise KeyboardInterrupt
at(Moment("after", "{SIMULATION}._transact", {round}), stop)
import flray
flray.run({str(config)!r}, out={str(tmp_path / "run")!r}, progress=False)
"""
    assert_killed(code)
    assert_goes_on(tmp_path / "run", whole)


# the same where the server is another process
@pytest.mark.parametrize("name", ["before the first row", "after the first row", "a stop"])
def test_a_driver_of_actors_killed_at_a_moment_is_resumed_to_the_same_bits(
    ray_cluster: ModuleType, whole: Run, tmp_path: Path, name: str
) -> None:
    moment = BEGUN.get(name, Moment("before", f"{SIMULATION}._save", 1))
    config = tmp_path / "config.yaml"
    config.write_text(settings("calls").yaml())
    killed_at(moment, config, tmp_path / "run")
    assert_goes_on(tmp_path / "run", whole)

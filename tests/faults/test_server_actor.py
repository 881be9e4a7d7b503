"""A campaign against the server actor: SIGKILL at a named moment of a run.

The run goes on by itself to the bits and rows of one that nobody disturbed; where the server dies at the same work
again and again, one line says so, and a resume gives these bits.
"""

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import flray
from flray.config.experiment import Experiment
from flray.core.schema.errors import ResourceError
from flray.engine.simulation import RESTARTS
from flray.results.notebook import Run
from tests.support.digits import own_on_digits
from tests.support.outcome import contents

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# rounds count from 0; a checkpoint after rounds 2 and 4, before and after the task's end
MOMENTS = (
    "broadcast round 0/0/0",  # before the first client has worked
    "work round 0/0/0",  # in the first round, before there is any checkpoint
    "finish round 0/1/0",
    "work round 2/0/0",  # while clients train
    "work round 2/1/0",  # in the second exchange: the first one is staged
    "finish round 2/0/0",
    "scatter round 2/0/0",  # the state of one client of the cohort is stored
    "finished round 2/0/0",  # between two exchanges: the answer is not sent
    "broadcast round 2/1/0",
    "published round 2/0/0",  # the round is over, its test is not
    "commit round-000002",
    "save round-000002",
    "writing round-000002",  # files of the checkpoint are written under another name
    "saved round-000002",  # the checkpoint has its name, the driver does not know
    "work task_end 4/0/2",  # the third client of a sequential exchange
    "finish task_end 4/0/2",
    "writing round-000004-task-end",
    "model",
    "model written",
)


def settings(store: str, **fatal: Any) -> Experiment:
    resources, imports = {"executor": "calls", "store": store}, ["tests.faults.fatal"]
    return own_on_digits(4, resources, "fatal", algorithm=fatal, imports=imports)


@pytest.fixture(scope="module")
def whole(ray_cluster: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The run that nobody disturbs."""
    folder = tmp_path_factory.mktemp("whole")
    return flray.run(settings("memory", log=str(folder / "log")), out=folder / "run", progress=False)


@pytest.mark.parametrize(("moment", "store"), [(m, ("memory", "files")[i % 2]) for i, m in enumerate(MOMENTS)])
def test_a_server_killed_at_a_moment_costs_no_bit(whole: Run, tmp_path: Path, moment: str, store: str):
    log = tmp_path / "log"
    run = flray.run(settings(store, moment=moment, log=str(log)), out=tmp_path / "run", progress=False)
    assert log.read_text() == f"{moment}\n", "the moment came, once"
    assert run.status == "finished"
    assert contents(run) == contents(whole)


@pytest.mark.parametrize("moment", ["work round 0/0/0", "finish round 2/0/0", "writing round-000002"])
def test_a_server_that_dies_every_time_ends_the_run_in_one_line(whole: Run, tmp_path: Path, moment: str) -> None:
    log = tmp_path / "log"
    experiment = settings("files", moment=moment, deaths=1 + RESTARTS, log=str(log))
    with pytest.raises(ResourceError, match="the server actor died") as error:
        flray.run(experiment, out=tmp_path / "run", progress=False)
    assert log.read_text() == f"{moment}\n" * (1 + RESTARTS)
    assert "\n" not in str(error.value) and str(error.value).endswith(f"flray resume {tmp_path / 'run'}")
    assert flray.load(tmp_path / "run").status.startswith("failed: the server actor died")
    run = flray.resume(tmp_path / "run", progress=False)
    assert run.status == "finished"
    assert contents(run) == contents(whole)

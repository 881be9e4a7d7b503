"""What trials report while their runs go on: the recorder writes every two seconds, these rounds take milliseconds."""

from pathlib import Path
from typing import Any

import pytest

from flray.tuning.sweep import run_sweep
from flray.tuning.trials import trials_table
from tests.support.iris_sweep import EXPERIMENT, iris_sweep
from tests.support.truth import assert_true

ROUNDS = 24
# what trials report does not depend on who computes it: no actors that would have to start for every trial
FAST = {**EXPERIMENT, "rounds": ROUNDS, "resources": {"executor": "local", "server": {"threads": 1}}}


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["val/acc", "val/acc_mean10"])
def test_asha_judges_what_the_rounds_say(ray_cluster: Any, tmp_path: Path, objective: str) -> None:
    """Rungs at rounds 4, 12 and 24, the last two over two seeds."""
    rule = {"name": "asha", "grace": 4, "reduction": 3, "seeds": [1, 2]}
    sweep = iris_sweep(experiment=FAST, objective=objective, trials=4, scheduler=rule, final={"top": 0}, concurrency=2)
    run_sweep(sweep, tmp_path / "s", progress=False)
    assert assert_true(tmp_path / "s", {12: 2, 24: 2}) >= ROUNDS + 3 * 4


@pytest.mark.slow
@pytest.mark.parametrize(
    "scheduler",
    [
        {"name": "pbt", "grace": 4},
        {"name": "hyperband", "reduction": 3},
        {"name": "median", "grace": 2, "startup": 1},
    ],
)
@pytest.mark.parametrize("objective", ["val/acc", "val/acc_mean10"])
def test_so_do_the_other_schedulers(
    ray_cluster: Any, tmp_path: Path, scheduler: dict[str, Any], objective: str
) -> None:
    sweep = iris_sweep(
        experiment=FAST, objective=objective, trials=4, scheduler=scheduler, final={"top": 0}, concurrency="auto"
    )
    run_sweep(sweep, tmp_path / "s", progress=False)
    assert assert_true(tmp_path / "s") >= ROUNDS
    states = trials_table(tmp_path / "s")["state"].tolist()
    assert len(states) == 4 and "finished" in states and set(states) <= {"finished", "pruned"}


@pytest.mark.slow
def test_sums_over_rounds_are_objectives_as_well(ray_cluster: Any, tmp_path: Path) -> None:
    objective = {"val/acc": "max", "comm/bytes": "min", "client_steps": "min", "time/s": "min"}
    space = {"algorithm.local_epochs": [1, 2], "cohort.size": [2, 4]}
    sweep = iris_sweep(experiment=FAST, trials=2, space=space, objective=objective, final={"top": 0})
    run_sweep(sweep, tmp_path / "s", progress=False)
    assert assert_true(tmp_path / "s") == 0  # Optuna keeps no values on the way of several objectives

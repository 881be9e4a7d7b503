"""`algorithm=centralized` with `executor: local`: the bits of one learner by hand, also after a stop, without Ray."""

from pathlib import Path

import pytest

import flray
from flray.core.messages import equal, to_numpy
from flray.core.schema.errors import ConfigError
from flray.rundir import checkpoint
from flray.running import play
from tests.support.centralized import config
from tests.support.learners import rounds_by_hand
from tests.support.messages import facts
from tests.support.processes import python

LOCAL = {"resources": {"executor": "local", "server": {"threads": 1}}}


def test_a_stopped_and_resumed_run_has_the_rounds_of_one_learner(tmp_path):
    """Four rounds of 24 steps: 96 samples, 2 epochs of 12 batches of 8."""
    experiment = config(**LOCAL)
    state, rows = rounds_by_hand(experiment)
    going = play(experiment, tmp_path / "run")
    assert [next(going)["round"] for _ in range(3)] == [1, 2, 3]
    going.close()
    run = flray.resume(tmp_path / "run")
    assert run.status == "finished"
    table = run.rounds
    assert list(zip(*(table[c] for c in ("train/loss", "client_steps", "test/acc", "test/loss")), strict=True)) == rows
    assert equal(checkpoint.latest(run.folder).server.message(), to_numpy(state))


def test_tasks_follow_one_another_and_clients_fine_tune_at_the_end_of_each(tmp_path):
    tasks = {"num_tasks": 2, "class_order": [2, 0, 1]}
    run = flray.run(config(1, 2, tasks=tasks, evaluate={"finetune_epochs": 0}, **LOCAL), out=tmp_path / "run")
    assert run.status == "finished" and run.rounds["task"].tolist() == [0, 0, 1, 1]
    assert run.rounds["client_steps"].tolist() == [16, 16, 8, 8], "64 and 32 samples, 2 epochs in batches of 8"
    assert run.personal["task"].tolist() == [0] * 5 + [1] * 5


def test_no_client_can_be_skipped(tmp_path):
    with pytest.raises(ConfigError, match=facts("on_nonfinite", "skip", "stop", "fail")):
        flray.run(config(on_nonfinite="skip", **LOCAL), out=tmp_path / "run")


@pytest.mark.slow
def test_it_imports_no_ray(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(config(rounds=1, **LOCAL).yaml())
    run = f"flray.run({str(path)!r}, out={str(tmp_path / 'run')!r}, progress=False)"
    code = f"import sys, flray; {run}; print('ray' in sys.modules)"
    assert python("-c", code, cwd=Path(__file__).parents[2]).stdout.strip() == "False"

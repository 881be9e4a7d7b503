"""What is judged (models, updates, client states, losses) and what is only reported (metrics), apart from each
other."""

import math

import numpy as np
import pytest
import torch

import flray
from flray.algorithms.fedavg import FedAvg
from flray.core.messages import Record, ServerState, Update
from flray.core.schema.errors import AlgorithmError
from flray.engine.health import client_problem, model_is_finite, reported, sums
from flray.engine.summary import summarise
from tests.support.messages import facts
from tests.support.runs import config

NAN, INF = math.nan, math.inf


def update(*values):
    return Update(torch.tensor(values), torch.zeros(0))


def row(client, skipped=False, **metrics):
    return {"client": client, "skipped": skipped, "num_steps": 3, **metrics}


# judged ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("message", "state", "loss", "problem"),
    [
        (update(1.0), (), 0.5, None),
        (Update(torch.full((70_000,), 60_000, dtype=torch.float16), torch.zeros(0)), (), 0.5, None),
        (update(1.0, INF), (), 0.5, "update.w is not finite"),
        (update(1.0), update(NAN), 0.5, "client state.w is not finite"),
        (update(1.0), (), NAN, "train/loss is nan"),
    ],
)
def test_a_client_is_judged_by_its_loss_its_update_and_its_state(message, state, loss, problem):
    judged = sums({"update": message, "client state": state})
    assert client_problem(judged, {"train/loss": loss, "client/acc": NAN}) == problem


def test_a_server_state_is_judged_by_its_model_alone():
    class Watchful(Record):
        w: torch.Tensor
        b: torch.Tensor
        best: torch.Tensor  # so far: infinite before the first value

    algorithm = FedAvg()
    assert model_is_finite(algorithm.model_of(None, Watchful(torch.ones(2), torch.zeros(0), torch.tensor([INF]))))
    assert not model_is_finite(algorithm.model_of(None, ServerState(torch.ones(2), torch.tensor([INF]))))
    assert model_is_finite(None)


# reported -------------------------------------------------------------------------------------
def test_metrics_are_numbers_and_vectors():
    assert reported({"a": torch.tensor(2.0), "b": torch.tensor([0.5, 1.0]), "c": 3}, FedAvg().report) == {
        "a": 2.0,
        "b": [0.5, 1.0],
        "c": 3.0,
    }


def test_the_mean_is_over_the_clients_that_report():
    """By hand: weights 1, 2, 5; the second has no `b`, the third none in its first class, the fourth was skipped."""
    rows = [
        row(1, a=1.0, b=4.0, v=[1.0, NAN]),
        row(2, a=3.0, v=[4.0, NAN]),
        row(3, a=2.0, b=1.0, v=[NAN, NAN]),
        row(4, skipped=True, a=100.0),
    ]
    found = summarise(rows, {1: 1.0, 2: 2.0, 3: 5.0, 4: 7.0})
    assert found["a"] == pytest.approx((1 * 1 + 2 * 3 + 5 * 2) / 8)
    assert found["b"] == pytest.approx((1 * 4 + 5 * 1) / 6)
    assert found["v"] == [pytest.approx((1 * 1 + 2 * 4) / 3), pytest.approx(NAN, nan_ok=True)]


def test_vectors_of_different_lengths_are_an_error():
    with pytest.raises(AlgorithmError, match=facts("'v'", "lengths")):
        summarise([row(1, v=[1.0]), row(2, v=[1.0, 2.0])], {1: 0.5, 2: 0.5})


def test_a_run_with_metrics_that_are_nan_or_vectors_is_no_divergence(tmp_path):
    """tests/engine/faulty.py: `chatty` reports a NaN, an infinity and a vector from clients and server."""
    run = flray.run(config("chatty", rounds=3), out=tmp_path / "run", progress=False)
    assert run.status == "finished" and not run.rounds["diverged"].any()
    assert run.rounds["client/undefined"].isna().all()
    assert [list(v) for v in run.rounds["client/by_class"]] == [[1.0, 2.0, 3.0]] * 3
    assert np.isinf(run.rounds["server/score"]).all()
    assert len(run.clients["client/by_class"].iloc[0]) == 3

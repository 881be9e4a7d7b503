"""Memory drift and label flips: two samples by hand, and Proposition 5.3 on random answers."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as arrays

import flray
from flray.engine.replay import Replay
from flray.metrics.memory_drift import flips
from tests.support.iris import IRIS, LOCAL


def test_two_samples_by_hand() -> None:
    """Sample 1: p = (3/4, 1/4), q = (1/4, 3/4): KL = ln 3 / 2, gap 1/2, flipped, bound 1/32. Sample 2: p = q =
    (4/5, 1/5)."""
    teacher = torch.tensor([[3.0, 1.0], [4.0, 1.0]]).log()
    student = torch.tensor([[1.0, 3.0], [4.0, 1.0]]).log()
    known = {
        "drift": math.log(3) / 4, "flips": 0.5, "gap": (0.5 + 0.6) / 2, "gap_least": 0.5, "drift_most": math.log(3) / 2,
        "safe": 0.5, "flips_safe": 0, "safe_exact": 0.5, "tight": 16 * math.log(3),
    }  # fmt: skip
    assert flips(teacher, student) == pytest.approx(known, abs=1e-5)
    assert math.isnan(flips(teacher, teacher)["tight"])


LOGITS = arrays.arrays(np.float64, (6, 4), elements=st.floats(-6, 6, allow_nan=False))


@given(LOGITS, LOGITS, st.floats(0, 1))
def test_no_sample_flips_whose_divergence_is_below_an_eighth_of_its_squared_gap(z, noise, size) -> None:
    """Proposition 5.3: from ||p - q||_1 <= sqrt(2 KL), so `flips_safe` is 0 whatever the answers are."""
    found = flips(torch.from_numpy(z), torch.from_numpy(z + size * noise))
    assert found["flips_safe"] == 0 and found["drift"] >= -1e-12 and found["safe_exact"] >= found["safe"]
    assert math.isnan(found["tight"]) or found["tight"] >= 4 - 1e-6


def answers(folder: Path, done: int) -> torch.Tensor:
    """Log-probabilities of the model that was saved after so many rounds, on the public data."""
    replay = Replay(folder).goto(done)
    proxy = replay.runtime.load_proxy()[0]
    x = replay.runtime.normalizer(proxy.x)
    with torch.no_grad():
        return replay.runtime.objective.at(replay.state.w, replay.state.b)(x).double().log_softmax(1)


def divergence(log_p: torch.Tensor, log_q: torch.Tensor) -> float:
    return float((log_p.exp() * (log_p - log_q)).sum(1).mean())


@pytest.mark.parametrize("name", ["fedavg", "fedproj"])
def test_rows_of_a_run_are_those_of_its_saved_models(tmp_path: Path, name: str) -> None:
    """Also of an algorithm that does not project. FedProj's teacher is the ensemble that its state keeps."""
    algorithm = {"name": name, **LOCAL}
    run = flray.run({**IRIS, "algorithm": algorithm, "diagnostics": ["memory"]}, out=tmp_path / "run", progress=False)
    rows = run.diagnostics["memory"]
    clients, server = (rows[rows["place"] == place] for place in ("end", "finish"))
    assert len(clients) == 6 and len(server) == 2 and (server["client"] == -1).all()
    first, second = answers(run.folder, 1), answers(run.folder, 2)
    assert server["global_drift"].iloc[1] == pytest.approx(divergence(first, second), rel=1e-4)
    flipped = (first.argmax(1) != second.argmax(1)).double().mean()
    assert server["global_flips"].iloc[1] == pytest.approx(float(flipped))
    later = clients[clients["done"] == 2]
    if name == "fedavg":
        assert server["ensemble_drift"].isna().all(), "its server sees the sum of its clients' models"
        assert (clients["loss_before"] == 0).all() and clients["loss_after"].to_numpy() == pytest.approx(
            clients["drift"].to_numpy(), rel=1e-4, abs=1e-6
        )
    else:
        teacher = Replay(run.folder).goto(1).state.rule.logits.double().log_softmax(1)
        assert later["loss_before"].to_numpy() == pytest.approx([divergence(teacher, first)] * 3, rel=1e-3)
        assert server["ensemble_drift"].iloc[0] == pytest.approx(divergence(teacher, first), rel=1e-3)
        assert server["ensemble_drift"].to_numpy() == pytest.approx(run.rounds["memory/drift"].to_numpy(), rel=1e-3)

"""Local forgetting: a hand-made test set, and a run whose rows are counted again from its models."""

import math
from pathlib import Path

import numpy as np
import pytest

import flray
from flray.metrics.local_forgetting import in_and_out
from tests.support.iris import IRIS

RIGHT, TOTAL = [9, 4, 0], [10, 8, 2]  # accuracies 0.9, 0.5, 0


@pytest.mark.parametrize(
    ("held", "inside", "outside"),
    [
        ([5, 0, 0], 0.9, (0.5 + 0.0) / 2),  # one class: out is the mean of the two others
        ([3, 1, 0], 0.75 * 0.9 + 0.25 * 0.5, (0.25 * 0.9 + 0.75 * 0.5 + 1 * 0.0) / 2),
        ([1, 1, 1], 1.4 / 3, 1.4 / 3),
    ],
)
def test_in_and_out_of_the_local_distribution_by_hand(held: list[int], inside: float, outside: float) -> None:
    assert in_and_out(RIGHT, TOTAL, held) == pytest.approx((inside, outside))


def test_classes_that_are_not_tested_are_left_out() -> None:
    assert in_and_out([1, 0], [2, 0], [1, 3]) == pytest.approx((0.5, 0.5))
    assert all(math.isnan(value) for value in in_and_out([0, 0], [0, 0], [1, 3]))


def test_what_a_run_says_about_forgetting_is_what_its_test_says(tmp_path: Path) -> None:
    """In round r + 1 the received model is the one that round r's test measured, on the whole test set."""
    algorithm = {"name": "fedavg", "lr": 0.1, "local_epochs": 3, "batch_size": 8}
    kinds = [{"name": "local_forgetting", "samples": None}]
    config = {**IRIS, "proxy": None, "algorithm": algorithm, "rounds": 3, "diagnostics": kinds}
    run = flray.run(config, out=tmp_path / "run", progress=False)
    found = run.diagnostics["local_forgetting"]
    rows, server = (found[found["place"] == place] for place in ("end", "finish"))
    tests = run.tests.set_index("done")["acc"]
    assert len(rows) == 9 and len(server) == 3 and (server["client"] == -1).all()
    assert server["acc_average"].tolist() == server["acc_global"].tolist() == pytest.approx(tests[1:].tolist())
    assert sorted(map(tuple, rows["held"][:3])) == sorted(map(tuple, 40 * np.eye(3, dtype=int)))
    for done, acc in zip(rows["done"], rows["acc_before"], strict=True):
        assert acc == pytest.approx(tests[done - 1])
    by_class = np.stack(rows["class_after"].to_numpy())
    # one class a client: what is in its distribution is that class, what is out of it the mean of the others
    own = by_class.max(axis=1) if (by_class.max(axis=1) == rows["in_after"].to_numpy()).all() else None
    assert own is not None and (rows["in_after"] > rows["in_before"] - 1e-12).all()
    assert rows["out_after"].to_numpy() == pytest.approx((by_class.sum(axis=1) - own) / 2)

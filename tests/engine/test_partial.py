"""Clients that stop in time under `coordination: {name: deadline, late: partial}`: their local steps, and four
methods in NumPy."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import flray
from flray.scenario.devices import Devices, DevicesConfig, Work
from tests.support.even import EVEN
from tests.support.regression import Model, Regression, final, initial
from tests.support.stopped import model

SPEEDS = [1.0, 0.5, 2.0, 0.1, 1.9, 0.7]
PLANNED = 5
STEPS_IN_TIME = 3.5
"""The deadline, as local steps of a client with the speed 1."""
SECTIONS: dict[str, Any] = {  # clients of 8 samples, whose steps have the same cost
    **EVEN,
    "rounds": 3,
    "data": {"source": "synthetic", "options": {"num_train": 48, "num_test": 40, "shape": 6, "num_classes": 4}},
    "partition": {"name": "iid", "clients": 6},
    "cohort": {"size": 6},
    "model": {"name": "mlp", "hidden": [], "dtype": "float64"},
    "algorithm": {"name": "fedavg", "lr": 0.3, "momentum": 0.0, "local_epochs": PLANNED, "batch_size": "full"},
    "checkpoint": {"every": 1, "keep": 0},
}
EXPECTED = {k: min(PLANNED, int(STEPS_IN_TIME * speed)) for k, speed in enumerate(SPEEDS)}  # 3 1 5 0 5 2


@pytest.fixture(scope="module")
def devices(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Devices of these speeds in FLOPs a second, and the deadline, from the seconds of a synchronous run."""
    folder = tmp_path_factory.mktemp("speeds")
    equal = {"devices": {"speed": {"name": "equal", "flops_per_second": 1.0}}}
    whole = flray.run({**SECTIONS, **equal}, "rounds=1", out=folder / "whole", progress=False)
    step = whole.rounds["time/virtual_s"].iloc[0] / PLANNED
    pd.DataFrame({"client": range(6), "flops_per_second": SPEEDS}).to_csv(folder / "speed.csv", index=False)
    return {
        "devices": {"speed": {"name": "trace", "file": str(folder / "speed.csv")}},
        "coordination": {"name": "deadline", "seconds": STEPS_IN_TIME * step, "late": "partial"},
    }


def run(folder: Path, sections: dict[str, Any], *overrides: str) -> flray.Run:
    return flray.run(sections, *overrides, out=folder, progress=False)


def fedavg(regression: Regression, w: Model, steps: dict[int, int], memory: dict[str, Any]) -> Model:
    return mean([regression.trained(w, k, n) for k, n in steps.items()])


def fedprox(regression: Regression, w: Model, steps: dict[int, int], memory: dict[str, Any]) -> Model:
    """Li et al., MLSys 2020: the gradient of F_k + mu/2 |v - w|^2."""
    return mean([regression.trained(w, k, n, lambda v, name: 0.5 * (v[name] - w[name])) for k, n in steps.items()])


def fednova(regression: Regression, w: Model, steps: dict[int, int], memory: dict[str, Any]) -> Model:
    """Wang et al., NeurIPS 2020: w - (mean of the n_k) x mean of (w - w_k) / n_k."""
    effective = np.mean(list(steps.values()))
    moves = {k: regression.trained(w, k, n) for k, n in steps.items()}
    return {name: w[name] + effective * mean([(v[name] - w[name]) / steps[k] for k, v in moves.items()]) for name in w}


def scaffold(regression: Regression, w: Model, steps: dict[int, int], memory: dict[str, Any]) -> Model:
    """Karimireddy et al., ICML 2020, option II: c_k <- c_k - c + (w - w_k) / (n_k lr); c <- c + sum of changes / N."""
    zero = {name: np.zeros_like(value) for name, value in w.items()}
    c, own = memory.get("c", zero), memory.get("own", dict.fromkeys(range(6), zero))
    moves, after = [], dict(own)
    for k, n in steps.items():
        v = regression.trained(w, k, n, lambda v, name, k=k: c[name] - own[k][name])
        after[k] = {name: own[k][name] - c[name] + (w[name] - v[name]) / (n * regression.lr) for name in w}
        moves.append(v)
    memory["c"] = {name: c[name] + sum(after[k][name] - own[k][name] for k in steps) / 6 for name in w}
    memory["own"] = after
    return mean(moves)


def mean(values: list[Any]) -> Any:
    if isinstance(values[0], dict):
        return {name: mean([value[name] for value in values]) for name in values[0]}
    return np.mean(values, axis=0)


@pytest.mark.parametrize("method, options", [(fedavg, {}), (fedprox, {"mu": 0.5}), (fednova, {}), (scaffold, {})])
def test_a_round_is_that_of_the_method_with_the_steps_taken(
    tmp_path: Path, devices: dict[str, Any], method: Any, options: dict[str, float]
) -> None:
    """Client 3 has no step in time and is late."""
    algorithm = {**SECTIONS["algorithm"], **options, "name": method.__name__}
    found = run(tmp_path / "run", {**SECTIONS, **devices, "algorithm": algorithm})
    steps = {k: n for k, n in EXPECTED.items() if n}
    for _, rows in found.clients.groupby("done"):
        assert dict(zip(rows["client"], rows["num_steps"], strict=True)) == steps
    assert found.rounds["clients_late"].eq(1).all() and found.rounds["clients_partial"].eq(3).all()
    assert found.rounds["client_steps"].eq(sum(steps.values())).all()
    limit = devices["coordination"]["seconds"]
    np.testing.assert_allclose(found.rounds["time/virtual_s"], limit * np.arange(1, 4), rtol=1e-12)
    regression, w, memory = Regression(found, lr=0.3), initial(found), dict[str, Any]()
    for _ in range(3):
        w = method(regression, w, steps, memory)
    for name, value in final(found).items():
        np.testing.assert_allclose(value, w[name], rtol=1e-9, atol=1e-12)


def test_the_deadline_is_waited_for_a_client_that_stops_early(tmp_path: Path, devices: dict[str, Any]) -> None:
    """At 10.5 steps of the speed 1 client 3 stops after one of five, and nobody is late."""
    limit = float(10.5 / STEPS_IN_TIME * devices["coordination"]["seconds"])
    found = run(tmp_path / "run", {**SECTIONS, **devices}, f"coordination.seconds={limit!r}", "rounds=1")
    steps = found.clients.set_index("client")["num_steps"]
    assert steps[3] == 1 and steps.drop(3).eq(PLANNED).all()
    assert found.rounds["clients_late"].eq(0).all() and found.rounds["time/virtual_s"].tolist() == [limit]


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fednova", "fedsol", "perfedavg", "ditto"])
def test_a_deadline_that_all_meet_is_synchronous_to_the_bit(tmp_path: Path, devices: dict[str, Any], name: str) -> None:
    sections = {**SECTIONS, "algorithm": {**SECTIONS["algorithm"], "name": name, "batch_size": 3}}
    waits = run(tmp_path / "waits", {**sections, "devices": devices["devices"]})
    generous = {"name": "deadline", "seconds": 1e12, "late": "partial"}
    limited = run(tmp_path / "limited", {**sections, "devices": devices["devices"], "coordination": generous})
    assert model(limited) == model(waits) and limited.rounds["clients_partial"].eq(0).all()
    assert limited.rounds["time/virtual_s"].tolist() == waits.rounds["time/virtual_s"].tolist()


def test_the_steps_in_time_are_the_most_whose_seconds_are_within_the_limit() -> None:
    """Compared with counting up, at limits that are the seconds of a whole number of steps, and just below them."""
    config = DevicesConfig.model_validate({"speed": {"name": "lognormal", "sigma": 1.0}, "bandwidth": {"up": 3e5}})
    found, work, clients = Devices(config, 7), Work(1.1e6, 3.7e5, 30_001, 10_007), np.arange(40)
    batches = 1 + clients % 9
    for n in (0, 1, 3, 17, 400):
        seconds = found.seconds(clients, np.full(40, n), batches, work)
        for limit, expected in ((seconds[5], n), (np.nextafter(seconds[5], 0), max(n - 1, 0))):
            steps = found.steps_within(float(limit), clients, batches, work)
            counted = np.zeros(40, dtype=np.int64)
            while (more := found.seconds(clients, counted + 1, batches, work) <= limit).any():
                counted += more
            assert steps.tolist() == counted.tolist()
            assert steps[5] == expected


def test_steps_that_take_no_time_are_not_divided_by() -> None:
    """Messages of 10 bytes at 1 byte a second: 20 s, whatever the number of steps."""
    config = DevicesConfig.model_validate({"bandwidth": {"down": 1.0, "up": 1.0}})
    with np.errstate(all="raise"):
        clients = np.arange(3)
        steps = Devices(config, 0).steps_within(15.0, clients, np.ones(3), Work(0.0, 0.0, 10, 10))
    assert steps.tolist() == [0, 0, 0]

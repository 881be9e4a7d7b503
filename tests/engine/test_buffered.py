"""Runs under `coordination: buffered`: the synchronous run where nothing is late, FedBuff and FedAsync of softmax
regression in NumPy; the same bits whatever happens: `test_same_bits.py`."""

import os
import signal
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
import ray
import torch

import flray
from flray.config.loader import load_config
from flray.core.messages import Models
from flray.core.protocol.aggregation import Aggregated, Aggregation
from flray.core.protocol.aggregation_section import Pooled
from flray.core.schema.errors import ConfigError
from flray.engine.ray import leases
from flray.running import play
from tests.support.even import EVEN
from tests.support.regression import Regression, final, initial
from tests.support.stopped import model
from tests.support.timed import TIMED

UNEVEN = {**TIMED, "seed": 3, "rounds": 12, "coordination": {"name": "buffered", "size": 2, "concurrency": 5}}


def run(folder: Path, sections: dict[str, Any], *overrides: str) -> flray.Run:
    return flray.run(sections, *overrides, out=folder, progress=False)


def plain(found: flray.Run, table: str = "rounds") -> pd.DataFrame:
    """A table without times of this machine."""
    frame = getattr(found, table)
    times = [name for name in frame if name.startswith("time/") and name != "time/virtual_s"]
    return frame.drop(columns=times)


@pytest.mark.parametrize(
    "parts",
    [
        {"aggregation": "median"},
        {"uplink": [{"name": "topk", "fraction": 0.2}]},
        {"model": {"name": "tests.contracts.networks:NormNet"}},
    ],
    ids=["median", "topk", "batch norm"],
)
def test_with_equal_durations_it_is_synchronous_to_the_bit(tmp_path: Path, parts: dict[str, Any]) -> None:
    """More algorithms: tests/contracts/test_coordination.py."""
    waits = run(tmp_path / "waits", {**EVEN, **parts, "devices": {"speed": "equal"}})
    buffered = {"devices": {"speed": "equal"}, "coordination": {"name": "buffered", "size": 4}}
    goes_on = run(tmp_path / "goes on", {**EVEN, **parts, **buffered})
    assert model(goes_on) == model(waits)
    columns = waits.rounds.columns.difference(["clients_late"]).intersection(plain(waits).columns)
    pd.testing.assert_frame_equal(goes_on.rounds[columns], waits.rounds[columns])
    assert goes_on.rounds["staleness_max"].eq(0).all() and goes_on.rounds["versions"].eq(1).all()


# softmax regression, a full batch a step, in float64 --------------------------------------------------
REGRESSION = {
    **UNEVEN,
    "model": {"name": "mlp", "hidden": [], "dtype": "float64"},
    "algorithm": {"name": "fedavg", "lr": 0.3, "momentum": 0.0, "local_epochs": 1, "batch_size": "full"},
    "checkpoint": {"every": 1, "keep": 0},
}


@pytest.mark.parametrize("method", ["fedbuff", "fedasync", "median"])
def test_every_step_is_that_of_the_paper(tmp_path: Path, method: str) -> None:
    """w_{t+1} = w_t + sum_k p_k s_k (w_k - w_v) with s = (age + 1)^-1/2; w <- (1 - 0.4 s) w + 0.4 s w_k; the median of
    w_t + s_k (w_k - w_v). Who delivers with which age comes from clients/; the arrivals have a test of their own."""
    parts = {
        "fedbuff": {},
        "fedasync": {
            "aggregation": {"name": "fedasync", "alpha": 0.4},
            "coordination": {"name": "buffered", "size": 1, "concurrency": 5},
        },
        "median": {"aggregation": "median", "coordination": {"name": "buffered", "size": 3, "concurrency": 6}},
    }[method]
    found = run(tmp_path / "run", {**REGRESSION, **parts})
    regression = Regression(found, lr=0.3)
    models = [initial(found)]
    rows = found.clients.sort_values(["done", "position"])
    for done, step in rows.groupby("done"):
        now, p = models[-1], step["num_examples"] / step["num_examples"].sum()
        ages = step["staleness"].to_numpy()
        s = 1 / np.sqrt(ages + 1)
        olds = [models[done - 1 - age] for age in ages]
        trained = [regression.trained(old, client) for old, client in zip(olds, step["client"], strict=True)]
        after = {}
        for name in now:
            moves = [new[name] - old[name] for new, old in zip(trained, olds, strict=True)]
            if method == "fedbuff":
                after[name] = now[name] + sum(a * b * move for a, b, move in zip(p, s, moves, strict=True))
            elif method == "fedasync":
                after[name] = (1 - 0.4 * s[0]) * now[name] + 0.4 * s[0] * trained[0][name]
            else:
                after[name] = np.median([now[name] + b * move for b, move in zip(s, moves, strict=True)], axis=0)
        models.append(after)
    assert rows["staleness"].max() >= 2
    last = final(found)
    for name in last:
        np.testing.assert_allclose(last[name], models[-1][name], rtol=1e-9, atol=1e-12)


class Stacked(Aggregation[None, Models], frozen=True):
    """The median of an odd number of models, by torch's functions of tuples of tensors."""

    pooled: ClassVar[Pooled] = "each"

    def combine(self, ctx, own, before, updates, cohort, buffers):  # type: ignore[no-untyped-def]
        return Aggregated(torch.stack(updates.w).median(dim=0).values, torch.stack(updates.b).median(dim=0).values)


def test_a_rule_gets_a_tuple_of_the_old_models_as_of_new_ones(tmp_path: Path) -> None:
    buffered = {**UNEVEN, "coordination": {"name": "buffered", "size": 3, "concurrency": 6}}
    rules = ("median", f"{__name__}:Stacked")
    built_in, own = (run(tmp_path / rule[:6], {**buffered, "aggregation": rule}) for rule in rules)
    assert model(own) == model(built_in) and own.rounds["staleness_max"].max() >= 2


@pytest.mark.parametrize(("cohort", "size", "runs"), [(10, 4, False), (4, 8, True)])
def test_krum_counts_the_faulty_among_the_updates_of_a_step(tmp_path: Path, cohort: int, size: int, runs: bool) -> None:
    """0.3 of 4 updates are 1, and 2 f + 2 < 4 does not hold; of 8 they are 2, and 6 < 8."""
    config = {**UNEVEN, "rounds": 1, "cohort": {"size": cohort}, "aggregation": {"name": "krum", "faulty": 0.3}}
    config["coordination"] = {"name": "buffered", "size": size, "concurrency": 10}
    with nullcontext() if runs else pytest.raises(ConfigError, match=r"0\.3 of 4 clients are 1"):
        assert run(tmp_path / "run", config).status == "finished"


# the same bits ----------------------------------------------------------------------------------------
STATE = {**UNEVEN, "algorithm": {**EVEN["algorithm"], "name": "scaffold"}, "checkpoint": {"every": 3, "keep": 0}}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> flray.Run:
    return run(tmp_path_factory.mktemp("buffered") / "whole", STATE)


def test_updates_are_old_and_some_are_dropped(tmp_path: Path, whole: flray.Run) -> None:
    """The ages of clients/ are those of rounds/; a limit of 1 leaves none above it, and counts what it drops."""
    by_step = whole.clients.groupby("done")["staleness"]
    np.testing.assert_allclose(whole.rounds["staleness_mean"], by_step.mean())
    assert whole.rounds["staleness_max"].tolist() == by_step.max().tolist() and by_step.max().max() > 1
    assert whole.rounds["time/virtual_s"].is_monotonic_increasing
    assert whole.rounds["versions_bytes"].gt(0).all() and whole.rounds["clients_stale"].eq(0).all()
    limited = run(tmp_path / "limited", STATE, "coordination.max_staleness=1")
    assert limited.rounds["staleness_max"].max() == 1 and limited.rounds["clients_stale"].sum() > 0
    down = limited.rounds["comm/down_bytes"] / (limited.rounds["cohort_size"] + limited.rounds["clients_stale"])
    assert down.nunique() == 1


@pytest.mark.slow
def test_actors_one_of_which_is_killed_give_the_same_bits(
    ray_cluster: ModuleType, tmp_path: Path, whole: flray.Run
) -> None:
    """Where `executor: auto` is decided."""
    resources = {"client_actors": 3, "server": {"threads": 1}}
    rounds = play(load_config({**STATE, "resources": resources})[0], tmp_path / "run")
    for row in rounds:
        pool = leases.newest()
        if row["done"] == 4 and pool is not None:
            os.kill(ray.get(pool.clients[0].setup.remote(*pool._setup))["pid"], signal.SIGKILL)
    found = flray.load(tmp_path / "run")
    assert found.experiment.resources.executor == "calls"
    assert model(found) == model(whole)
    for table in ("rounds", "clients"):
        pd.testing.assert_frame_equal(plain(found, table), plain(whole, table))


def test_a_client_left_out_for_its_numbers_counts_as_arrived(tmp_path: Path) -> None:
    """The learning rate makes every model infinite: the model stays, and the clock goes on."""
    found = run(tmp_path / "run", {**UNEVEN, "on_nonfinite": "skip"}, "algorithm.lr=1e38", "rounds=3")
    assert found.rounds["clients_skipped"].tolist() == [2, 2, 2]
    assert found.rounds["time/virtual_s"].is_monotonic_increasing

"""`flray bench --profile`: the parts are of real work, and together they are the round."""

from __future__ import annotations

from pathlib import Path

import pytest

from flray.bench import Workload
from flray.bench.clients import measure
from flray.bench.profile import PARTS, Clocks, profile, profiles
from flray.core.schema.errors import ConfigError
from flray.engine.client import Client
from flray.engine.simulation import Simulation
from flray.ops.pooling import Collector

TINY = Workload(6, 10, (8, 8, 1), 3, 4, {"name": "mlp", "hidden": [8]}, tested=40)


@pytest.mark.parametrize("executor", ["calls", "graph"])
@pytest.mark.slow
def test_every_part_of_a_round_takes_some_time_and_the_methods_are_as_they_were(ray_cluster, tmp_path: Path, executor):
    before = [vars(kind).copy() for kind in (Client, Collector, Simulation)]
    rows = profile(TINY, 3, tmp_path, executor=executor, client_actors=2)
    assert [row["part"] for row in rows] == [*PARTS, "round"]
    assert all(row["ms"] > 0 for row in rows) and rows[-1]["share"] == 1
    assert [vars(kind).copy() for kind in (Client, Collector, Simulation)] == before


def test_the_time_of_a_part_is_without_that_of_the_parts_inside_it():
    clocks = Clocks()
    ticks = iter([0.0, 1.0, 4.0, 9.0])  # the outer part is 9 s, of which the inner one takes 3
    clocks.now = lambda: next(ticks)
    clocks.timed("outer", lambda: clocks.timed("inner", lambda: None))
    assert clocks.spent == {("outer", -1): 6.0, ("inner", -1): 3.0}


@pytest.mark.parametrize(("names", "rounds"), [(["W9"], None), (["W2"], 0)])
def test_what_cannot_be_profiled_is_one_line(names, rounds):
    with pytest.raises(ConfigError):
        profiles(names, rounds)


def test_clients_are_measured_beside_the_bare_loop():
    found = measure(TINY._replace(tested=0), 2)
    assert list(found) == ["flray", "bare", "bare fused"] and all(0 < ms < 1e6 for ms in found.values())

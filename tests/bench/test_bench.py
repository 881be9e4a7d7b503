"""The benchmark compares like with like: same gradient steps, same weights; no timed assertion."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from flray import bench
from flray.bench import BarePool, Way, Workload
from flray.cli.look import BENCHES
from flray.core.protocol.seeding import torch_seed
from flray.core.schema.errors import FlrayError
from flray.models import build_model
from flray.rundir.reader import load
from flray.running import simulate

TINY = Workload(6, 10, (8, 8, 1), 3, 4, {"name": "mlp", "hidden": [8]}, epochs=2)
KEYS = {"name", "value", "unit", "must", "aim", "met", "detail"}


@pytest.mark.slow
@pytest.mark.parametrize("channels_last", [False, True])
def test_bare_loop_and_flray_end_with_the_same_weights(ray_cluster, tmp_path: Path, channels_last: bool):
    """Two rounds of 3 clients x 2 epochs x ceil(10 / 4) = 3 batches: 18 steps a round; same order, so the same weights
    up to rounding."""
    experiment = TINY.experiment(rounds=2)
    scenario = TINY.scenario(experiment)
    simulate(experiment, tmp_path / "run", scenario=scenario)
    ours = load_file(tmp_path / "run" / "model.safetensors")
    model = build_model(experiment.model, (1, 8, 8), 10, torch_seed(0, "model"))
    with BarePool(experiment, scenario, Way(2, 1, fused=True, channels_last=channels_last), addressed=True) as pool:
        assert [pool.round() for _ in range(2)] == [18, 18]
        moved = torch.cat([(w - p.detach()).flatten() for w, p in zip(pool.weights, model.parameters(), strict=True)])
        assert moved.abs().max() > 1e-3  # far more than the tolerance below
        for name, weight in zip(pool.names, pool.weights, strict=True):
            torch.testing.assert_close(ours[name], weight, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_rows_of_a_comparison(ray_cluster, tmp_path: Path):
    rows = bench.compare("W2 round flray/bare", TINY, rounds=2, repeats=1, home=tmp_path, ways=[(1, 1)])
    assert [row["name"] for row in rows] == ["W2 round flray/bare", "server share of a W1 round"]
    for row in rows:
        assert set(row) == KEYS
        assert np.isfinite(row["value"]) and row["met"] == (row["value"] <= row["must"])
    assert "18 steps a round" in rows[0]["detail"]
    assert 0 < rows[1]["value"] < 1


@pytest.mark.slow
def test_the_bare_loop_tests_what_flray_tests(ray_cluster, tmp_path: Path):
    """Two processes and all 130 samples: as many right and the same loss as `tests/` has after each of two rounds."""
    workload = TINY._replace(tested=130)
    experiment = workload.experiment(rounds=2)
    scenario = workload.scenario(experiment)
    simulate(experiment, tmp_path / "run", scenario=scenario)
    with BarePool(experiment, scenario, Way(2, 1), addressed=True) as pool:
        found = [pool.test(), *((pool.round(), pool.test())[1] for _ in range(2))]
    table = load(tmp_path / "run").tests
    assert table["total"].tolist() == [130] * 3
    assert table["right"].tolist() == [right for right, _ in found]
    np.testing.assert_allclose(table["loss_sum"], [loss for _, loss in found], rtol=1e-4)


def test_unlike_work_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    class Pool(BarePool):
        def __init__(self, *_: object):
            self.way, self.workers = Way(1, 1), []

        def measure(self, rounds: int) -> tuple[float, int]:
            return 1.0, 17

    monkeypatch.setattr(bench, "BarePool", Pool)
    monkeypatch.setattr(bench, "measure", lambda experiment, scenario, folder: bench.Measured(1.0, 18, 0.1))
    with pytest.raises(RuntimeError, match="18 gradient steps a round and the bare loop 17"):
        bench.compare("W2 round flray/bare", TINY, rounds=1, repeats=1, home=tmp_path, ways=[(1, 1)])


def test_memory_of_this_process():
    """The driver alone is part of the whole, and what is not a mapped file is part of it too."""
    whole, unmapped, driver = bench.processes.pss(os.getpid())
    assert 0 < driver <= whole and unmapped <= whole


def test_a_process_that_fails_names_its_benchmark():
    with pytest.raises(FlrayError, match=r"^bench startup: a process ended with 3: why$"):
        bench.processes._timed("startup", ("-c", "import sys; print('why', file=sys.stderr); sys.exit(3)"))


def test_the_help_of_the_command_names_every_benchmark():
    assert BENCHES.split(",") == list(bench.BENCHMARKS)
    assert set(bench.DEFAULT) <= set(bench.BENCHMARKS)
    assert sum(bench.BENCHMARKS[name].seconds for name in bench.DEFAULT) <= 360


def test_the_display_names_each_benchmark_and_the_seconds_that_are_left(monkeypatch, capsys):
    """Two of 30 and 60 s for three repeats: 2/3 of 90 s are left before the first, 2/3 of 60 s before the second."""
    row = bench._row("W2 round flray/bare", 1.0, "")
    two = {name: bench.Benchmark(seconds, lambda *_: [row]) for name, seconds in {"a": 30.0, "b": 60.0}.items()}
    monkeypatch.setattr(bench, "BENCHMARKS", two)
    assert bench.bench(["b", "a"], repeats=2) == [row, row]
    first, second = capsys.readouterr().err.splitlines()
    assert " a (1 of 2)" in first and " 60 s " in first
    assert " b (2 of 2)" in second and " 40 s " in second


def test_a_value_is_met_up_to_its_must():
    name = "W2 memory of all processes"
    _, must, _ = bench.TARGETS[name]
    assert [bench._row(name, value, "")["met"] for value in (must - 1, must, must + 1)] == [True, True, False]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_sweep_and_the_same_runs(tmp_path: Path):
    value, detail = bench.processes.sweep_ratio(tmp_path, repeats=1, rounds=1)
    assert value > 0 and "sweep: " in detail and "row: " in detail
    assert len(list(tmp_path.glob("sweep-0/trials/0007/model.safetensors"))) == 1
    assert len(list(tmp_path.glob("row/*/model.safetensors"))) == 8

"""Which runs are small: the plan by hand, what asks for Ray, and the table of FLOPs beside counted ones."""

import math
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import flray
from flray.config.loader import load_config
from flray.config.small import LIMIT, PER_PIXEL, STEP, planned_flops, runs_here
from flray.engine.flops import CountFlops
from flray.models import build_model
from flray.models.model_config import ModelConfig
from flray.running import simulate
from tests.support.processes import python
from tests.support.runs import model

QUICK = Path(__file__).parents[2] / "configs" / "quickstart.yaml"


@pytest.fixture
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """The session's Ray is none of the process that the tests ask about."""
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False))


def planned(*words: str) -> float | None:
    return planned_flops(load_config(QUICK, list(words))[0])


def test_the_plan_of_the_quickstart() -> None:
    """Digits are 1,797 samples of 64 pixels for 20 clients: 89.85 each, 6 batches of 16. In each of 30 rounds 10
    clients pass 5 times. A gradient of the network 64-64-10 takes 3 products of 2 FLOPs a weight."""
    sample, held = 6 * (64 * 64 + 64 * 10), 1797 / 20
    assert planned() == pytest.approx(30 * 10 * 5 * (held * sample + 6 * STEP))
    assert planned("rounds=60") == pytest.approx(2 * planned())
    assert planned("algorithm.batch_size=full") == pytest.approx(30 * 10 * 5 * (held * sample + STEP))
    assert planned("data.train_size=600") == pytest.approx(30 * 10 * 5 * (30 * sample + 2 * STEP))
    assert planned("data.resize=16") == pytest.approx(30 * 10 * 5 * (held * (sample + 6 * 192 * 64) + 6 * STEP))


def test_tasks_share_the_samples() -> None:
    """Two tasks of 30 rounds: twice the rounds, and half of the samples in each, 44.925 in 3 batches."""
    sample = 6 * (64 * 64 + 64 * 10)
    tasks = ["tasks={num_tasks: 2, class_order: natural}"]
    assert planned(*tasks) == pytest.approx(60 * 10 * 5 * (1797 / 40 * sample + 3 * STEP))


def test_arrays_of_a_script_count_by_their_shape() -> None:
    """180 samples of 5 numbers, for 20 clients 9 each in one batch: a network 5-64-10."""
    x, y = np.zeros((180, 5), np.float32), np.arange(180) % 10
    given = flray.data.from_arrays((x, y))
    sample = 6 * (5 * 64 + 64 * 10)
    assert planned(f"data={given['source']}") == pytest.approx(30 * 10 * 5 * (9 * sample + STEP))
    assert planned("data=given:0000") is None


@pytest.mark.usefixtures("no_ray")
@pytest.mark.parametrize(
    ("words", "here"),
    [
        (["rounds=300"], False),
        (["address=auto"], False),
        (["resources.client_actors=1"], False),
        (["resources.client.num_gpus=0.5"], False),
        (["resources.client.num_gpus=auto"], False),
        (["resources.server.num_gpus=1"], False),
        (["resources.server.num_cpus=1"], False),
        (["resources.executor=calls"], False),
        (["algorithm=centralized"], False),
        (["data.source=a_folder"], False),
        (["data.source=hf:mnist"], False),
        (["model.name=timm:resnet18"], False),
        (["data.source=cifar10", "model=resnet18", "rounds=1"], False),
        ([], True),
        (["rounds=0"], True),
        (["rounds=300", "resources.executor=local"], True),
        (["algorithm=fedproj"], True),
        (["data.source=iris"], True),
        (["data={source: synthetic, options: {shape: 8}}"], True),
        (["resources.server.threads=1", "resources.client.num_cpus=2", "resources.store=files"], True),
    ],
)
def test_a_small_run_needs_no_ray_unless_it_asks_for_it(words: list[str], here: bool) -> None:
    assert runs_here(load_config(QUICK, words)[0]) is here


def test_the_graph_of_earlier_configurations_means_calls() -> None:
    with pytest.warns(UserWarning, match="executor: graph, .* means calls"):
        assert load_config(QUICK, ["resources.executor=graph"])[0].resources.executor == "calls"


@pytest.mark.usefixtures("no_ray")
def test_a_ray_that_is_there_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = load_config(QUICK)[0]
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert not runs_here(experiment)
    monkeypatch.delenv("RAY_ADDRESS")
    assert runs_here(experiment)
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: True))
    assert not runs_here(experiment)


@pytest.mark.parametrize("name", PER_PIXEL)
def test_the_flops_of_the_table_are_those_of_the_networks(name: str) -> None:
    """Forward and backward on two images of 3x32x32, counted by torch's own formulas."""
    shape = (3, 32, 32)
    module = build_model(ModelConfig(name=name), shape, 10, 0)
    with CountFlops() as counted:
        module(torch.rand(2, *shape)).sum().backward()
    assert counted.total / 2 / math.prod(shape[1:]) == pytest.approx(PER_PIXEL[name], rel=0.4)


def test_a_small_run_is_that_of_actors_and_imports_no_ray(ray_cluster: ModuleType, tmp_path: Path) -> None:
    """The same bytes; its configuration names the executor, and one line says so."""
    config = tmp_path / "c.yaml"
    config.write_text(yaml.safe_dump({"extends": str(QUICK), "rounds": 2, "evaluate": {"clients": False}}))
    code = f"import flray, sys; flray.run({str(config)!r}, out='here'); assert 'ray' not in sys.modules"
    known = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    assert python("-c", code, cwd=tmp_path, env=known).stderr.count("a small run: in this process, without Ray") == 1
    written: dict[str, Any] = yaml.safe_load((tmp_path / "here" / "config.yaml").read_text())
    assert written["resources"]["executor"] == "local"
    simulate(load_config(config, ["resources.executor=calls"])[0], tmp_path / "actors")
    assert model(tmp_path / "here") == model(tmp_path / "actors")
    assert planned() < LIMIT

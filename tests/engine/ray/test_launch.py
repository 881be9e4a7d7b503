"""What `resources.executor: auto` means: the configuration alone decides."""

from __future__ import annotations

import pytest

from flray.config.experiment import ResourcesConfig
from flray.engine.ray.launch import SMALL, chosen
from tests.support.runs import config


@pytest.mark.parametrize(
    ("algorithm", "numbers", "resources", "executor"),
    [
        ("fedavg", SMALL, {}, "graph"),
        ("fedavg", SMALL + 1, {}, "calls"),
        ("fedavg", SMALL, {"client": {"num_gpus": "auto"}}, "calls"),
        ("fedavg", SMALL, {"server": {"num_gpus": 1}}, "calls"),
        ("centralized", SMALL, {}, "calls"),
        ("fedavg", SMALL, {"executor": "calls"}, "calls"),
        ("fedavg", SMALL + 1, {"executor": "graph"}, "graph"),
    ],
)
def test_auto_is_a_graph_for_small_models_in_parallel_without_a_gpu(algorithm, numbers, resources, executor):
    assert chosen(config(algorithm, resources=resources), numbers) == executor


def test_the_limit_is_the_one_that_the_field_tells():
    assert f"{SMALL:,} parameters" in (ResourcesConfig.model_fields["executor"].description or "")

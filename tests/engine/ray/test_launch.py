"""What `resources.executor: auto` means: the configuration alone decides."""

from __future__ import annotations

import pytest

from flray.config.experiment import ResourcesConfig
from flray.engine.ray.launch import GRAPH_PARAMETERS, choose_executor
from tests.support.runs import on_actors as config


@pytest.mark.parametrize(
    ("algorithm", "numbers", "resources", "executor"),
    [
        ("fedavg", GRAPH_PARAMETERS, {}, "graph"),
        ("fedavg", GRAPH_PARAMETERS + 1, {}, "calls"),
        ("fedavg", GRAPH_PARAMETERS, {"client": {"num_gpus": "auto"}}, "calls"),
        ("fedavg", GRAPH_PARAMETERS, {"server": {"num_gpus": 1}}, "calls"),
        ("centralized", GRAPH_PARAMETERS, {}, "calls"),
        ("fedavg", GRAPH_PARAMETERS, {"executor": "calls"}, "calls"),
        ("fedavg", GRAPH_PARAMETERS + 1, {"executor": "graph"}, "graph"),
    ],
)
def test_auto_is_a_graph_for_small_models_in_parallel_without_a_gpu(algorithm, numbers, resources, executor):
    assert choose_executor(config(algorithm, resources=resources), numbers) == executor


def test_the_limit_is_the_one_that_the_field_tells():
    assert f"{GRAPH_PARAMETERS:,} parameters" in (ResourcesConfig.model_fields["executor"].description or "")

"""What a process is set up to, and what is said of GPUs that nobody uses; the rest needs one: `tests/gpu`."""

from __future__ import annotations

import warnings

import pytest
import torch

import flray
from flray.config.experiment import ResourcesConfig
from flray.engine import devices


def run(folder, executor):
    values = {
        "data": {"source": "iris"},
        "partition": {"name": "iid", "clients": 3},
        "model": {"name": "mlp", "hidden": [4]},
        "algorithm": "fedavg",
        "rounds": 1,
        "resources": {"executor": executor},
    }
    return flray.run(values, out=folder, progress=False)


def test_a_run_that_leaves_a_gpu_idle_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.warns(devices.IdleGPUWarning, match="^1 GPU stands idle.*num_gpus=auto and resources.executor=auto$"):
        run(tmp_path / "run", "local")


def test_a_small_run_that_nobody_sent_anywhere_does_not(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr("flray.config.small.names_ray", lambda experiment: False)  # of the session's cluster
    with warnings.catch_warnings():
        warnings.simplefilter("error", devices.IdleGPUWarning)
        assert run(tmp_path / "run", "auto").experiment.resources.executor == "local"


@pytest.mark.parametrize(
    ("gpus", "resources"),
    [
        (0, {}),
        (2, {"client": {"num_gpus": "auto"}}),
        (1, {"server": {"num_gpus": 1}}),
        (1, {"client": {"num_gpus": 0.5}}),
    ],
)
def test_nothing_is_said_without_a_gpu_or_where_an_actor_takes_one(gpus, resources):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        devices.warn_of_idle(gpus, ResourcesConfig(**resources))


def test_a_cpu_is_left_as_it_is():
    before = torch.backends.cudnn.allow_tf32, torch.are_deterministic_algorithms_enabled()
    assert devices.set_up("cpu", "tf32") == "cpu"
    assert before == (torch.backends.cudnn.allow_tf32, torch.are_deterministic_algorithms_enabled())

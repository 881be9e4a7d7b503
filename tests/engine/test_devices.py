"""What a process is set up to, and what is said of GPUs that nobody uses; the rest needs one: `tests/gpu`."""

import warnings
from pathlib import Path

import pytest
import torch

import flray
from flray.algorithms.fedavg import FedAvg
from flray.config.experiment import ResourcesConfig
from flray.core.schema.errors import ClientError
from flray.engine import devices
from flray.engine.replay import Replay
from tests.support.runs import last_state
from tests.support.tasks import BASE

MIG = "proc/driver/nvidia/capabilities/gpu0/mig"


def run(folder, executor, algorithm="fedavg"):
    values = {**BASE, "algorithm": algorithm, "rounds": 1, "resources": {"executor": executor}}
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


@pytest.mark.parametrize(
    ("count", "files", "words"),
    [
        (0, [], "0 GPUs"),
        (1, [], "1 GPU"),
        (2, ["tmp/nvidia-mps/control"], "2 GPUs, shared by NVIDIA's MPS"),
        (1, ["tmp/nvidia-mps/nvidia-cuda-mps-control.pid"], "1 GPU"),  # the daemon has ended
        (1, [f"{MIG}/gi7/ci0/access", f"{MIG}/gi8/ci0/access"], "1 GPU (MIG: the machine has 2 slices; "),
        (1, [f"{MIG}/config"], "1 GPU"),  # a card that could have slices
    ],
)
def test_how_processes_share_a_gpu_is_named(count, files, words, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    for file in map(tmp_path.joinpath, files):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    assert devices.gpus(tmp_path).startswith(words) and ("MIG" in words or devices.gpus(tmp_path) == words)
    (tmp_path / "control").touch()
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    assert devices.gpus(tmp_path).endswith("NVIDIA's MPS") == (count > 0)
    monkeypatch.setattr(Path, "exists", private)
    assert "MPS" not in devices.gpus(tmp_path)


def private(path):
    raise PermissionError("another user's folder")


def test_a_macs_gpu_is_named_and_not_used(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert "mps" in devices.gpus() and devices.gpus().startswith("0 GPUs (")


def test_a_cpu_is_left_as_it_is():
    before = torch.backends.cudnn.allow_tf32, torch.are_deterministic_algorithms_enabled()
    assert devices.set_up("cpu", "tf32") == "cpu"
    assert before == (torch.backends.cudnn.allow_tf32, torch.are_deterministic_algorithms_enabled())


LEFT = [0]


class Full(FedAvg, frozen=True):
    """The GPU has no memory left in the second step of a client, `LEFT` times."""

    def step(self, ctx, broadcast, client, local, batch):
        if LEFT[0] and local.moments.steps == 1:
            LEFT[0] -= 1
            raise torch.OutOfMemoryError(
                "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.19 GiB of which "
                "1.50 GiB is free. Process 1 has 77.69 GiB memory in use. See documentation for memory management"
            )
        return super().step(ctx, broadcast, client, local, batch)


OPTIONS = {"name": Full, "local_epochs": 2, "batch_size": 10}


def test_a_client_for_which_a_gpu_has_no_memory_is_repeated_once(tmp_path):
    """In a run and in its replay."""
    states, losses = [], []
    for left in (0, 1):
        LEFT[0] = left
        states.append(last_state(run(tmp_path / str(left), "local", OPTIONS).folder))
        LEFT[0] += left
        losses.append([row["train/loss"] for _, _, row in Replay(tmp_path / "0").goto(0).clients()])
    assert states[0] == states[1] and losses[0] == losses[1] and not LEFT[0]


def test_a_client_for_which_a_gpu_has_too_little_memory_fails_with_what_to_change(tmp_path):
    LEFT[0] = 2
    with pytest.raises(ClientError) as error:
        run(tmp_path / "run", "local", OPTIONS)
    first, rest = str(error.value).split("\n", 1)
    assert "of which 1.50 GiB is free; set resources.client.num_gpus=auto" in first and "batch_size" in first
    assert "Process 1" not in first and "in step" in rest and not LEFT[0]

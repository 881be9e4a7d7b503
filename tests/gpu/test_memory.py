"""The memory of a client: predicted on the CPU, measured on a GPU."""

from __future__ import annotations

import pytest
import torch

from flray.contracts.played import Local
from flray.core.messages import to_numpy
from flray.engine.client import Client
from flray.engine.device_memory import MARGIN, WORKSPACE
from tests.support.memory import broadcast_of, chunk_of, predicted, small


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedproj", "moon"])
@pytest.mark.parametrize(("model", "batch"), [("fedavg_cnn", 24), ("resnet8", 16), ("resnet18", 24)])
def test_the_peak_is_the_predicted_one(name, model, batch, tmp_path, gpu):
    """With its margin and the kernels' workspace it is enough; without them it is at most a quarter too much."""
    config = small(name, model, batch)
    found = predicted(config, tmp_path)
    local = Local(config, tmp_path / "cuda", device=gpu)
    training, sent, chunk = config.algorithm.training, to_numpy(broadcast_of(local)), chunk_of(local)
    client = Client(local.server.runtime)
    for _ in range(2):  # the libraries have made their handles and workspaces, and steps are recorded
        client.work(chunk, training, sent, None)
    state = sum(part.nbytes for part in vars(local.server.state).values() if isinstance(part, torch.Tensor))
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    client.work(chunk, training, sent, None)
    measured = torch.cuda.max_memory_allocated() - state
    print(f"{name} {model}: predicted {sum(found) / 1e6:.1f} MB, measured {measured / 1e6:.1f} MB")
    assert measured <= sum(found) * (1 + MARGIN) + WORKSPACE and sum(found) <= 1.25 * measured

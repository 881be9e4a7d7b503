"""The memory of a client: predicted on the CPU, measured on a GPU."""

import numpy as np
import pytest
import torch

from flray.algorithms.fedavg import FedAvg
from flray.contracts.played import Local
from flray.core.messages import to_numpy
from flray.engine.client import Client
from flray.engine.device_memory import CUDA
from tests.support.memory import broadcast_of, chunk_of, predicted, small


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedproj", "moon"])
@pytest.mark.parametrize(("model", "batch"), [("fedavg_cnn", 24), ("resnet8", 16), ("resnet18", 24)])
def test_the_peak_is_the_predicted_one(name, model, batch, tmp_path, gpu):
    """Of the allocator alone: a process on its own is measured by `acceptance.py`."""
    config = small(name, model, batch)
    found = predicted(config, tmp_path)
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    torch.cuda.reset_peak_memory_stats()
    local = Local(config, tmp_path / "cuda", device=gpu)
    training, sent, chunk = config.algorithm.training, to_numpy(broadcast_of(local)), chunk_of(local)
    client = Client(local.server.runtime)
    for _ in range(2):  # the second time its steps are recorded
        client.work_neighbours([chunk], training, [sent], [None])
    torch.cuda.synchronize()
    held = torch.cuda.max_memory_reserved() - before
    print(f"{name} {model}: predicted {found.total / 1e6:.1f} MB, the allocator holds {held / 1e6:.1f} MB")
    assert found.tensors <= held <= found.total - CUDA


class Greedy(FedAvg, frozen=True):
    """The end of the second client asks for more memory than the GPU has."""

    def end(self, ctx, broadcast, client, local, data):
        if Greedy.clients == 1:
            Greedy.clients += 1
            torch.empty(10**13, dtype=torch.uint8, device=ctx.device)
        Greedy.clients += 1
        return super().end(ctx, broadcast, client, local, data)


def test_a_client_without_memory_is_repeated_to_the_same_bits(tmp_path, gpu):
    found = []
    for clients in (1, 2):
        Greedy.clients = clients
        local = Local(
            small("fedavg", "fedavg_cnn").model_copy(update={"algorithm": Greedy(lr=0.05)}),
            tmp_path / str(clients),
            device=gpu,
        )
        local.play(2)
        assert (local.executor.client.captured is None) == (clients == 1)
        found.append(local.server.state.w.cpu().numpy())
    assert np.array_equal(*found)

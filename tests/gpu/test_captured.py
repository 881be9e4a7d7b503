"""Local steps as CUDA graphs have the bits of local steps without."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest
import torch

from flray.algorithms.fedavg import FedAvg
from flray.contracts.played import Local
from flray.engine.captured import CudaGraphs
from tests.contracts.table import TABLE
from tests.contracts.traffic import short
from tests.support.devices import finish, numbers
from tests.support.kinds import RECORDED


@pytest.mark.parametrize("name", TABLE)
def test_graphs_have_the_same_bits(name, tmp_path, gpu):
    plain, repeated = (Local(short(name), tmp_path / kind, device=gpu) for kind in ("plain", "graphs"))
    steps, plain.executor.client.captured = repeated.executor.client.captured, None
    one, other = (numbers(finish(local, 3)) for local in (plain, repeated))
    assert one.keys() == other.keys()
    for key, array in one.items():
        assert np.array_equal(array, other[key], equal_nan=array.dtype.kind == "f"), key
    print(f"{name}: {steps.replays} steps by a graph; not: {sorted(set(steps.refused.values()))}")
    assert steps.replays or name not in RECORDED


class Waits(FedAvg, frozen=True):
    """A step that reads a number of the GPU, in a client that draws on it afterwards."""

    capturable: ClassVar[bool] = True

    def gradient(self, ctx, broadcast, client, local, batch):
        loss, g = super().gradient(ctx, broadcast, client, local, batch)
        return loss, g.mul_(min(float(loss), 1.0))

    def end(self, ctx, broadcast, client, local, data):
        local.w.add_(torch.randn_like(local.w), alpha=1e-4)
        return super().end(ctx, broadcast, client, local, data)


def test_a_step_that_waits_for_the_gpu_is_not_recorded(tmp_path, gpu):
    config = short("fedavg").model_copy(update={"algorithm": Waits(lr=0.05)})
    found = []
    for kind in ("plain", "graphs"):
        local = Local(config, tmp_path / kind, device=gpu)
        steps = local.executor.client.captured
        if kind == "plain":
            local.executor.client.captured = None
        local.play(2)
        found.append(local.server.state.w.cpu().numpy())
    assert np.array_equal(*found) and not steps.recorded and len(set(steps.refused.values())) == 1


def test_a_graph_that_fails_leaves_the_gpu_as_it_was(gpu):
    graphs, x = CudaGraphs(), torch.ones(3, device=gpu)
    with pytest.raises(RuntimeError):
        graphs().record(lambda: x * float(x.sum()))
    assert torch.rand(2, device=gpu).shape == (2,)
    torch.cuda.empty_cache()
    for _ in range(2):  # the second time, in a new pool after all graphs of the old one are gone
        graph = graphs()
        after = graph.record(lambda: x + 1)
        x.mul_(2)
        graph.replay()
        assert torch.equal(after, x + 1)
        del graph, after
        graphs.renew()

"""The benchmark of FedProTIP's step compares what it says it compares; no timed assertion."""

from __future__ import annotations

import pytest
import torch

from flray.bench import TARGETS, projected


@pytest.mark.slow
def test_costs_are_rows_of_the_benchmark_and_bases_have_the_stated_share():
    tiny = {"name": "resnet8_3stage"}
    found = projected.costs(1, tiny, side=8)
    assert set(found) <= set(TARGETS) and all(value > 0 for value, _ in found.values())
    half = projected.Half("fedprotip", "none", tiny, 8)
    (block,) = half.state.blocks
    for basis in block.values():
        assert basis.shape[1] == int(projected.SHARE * basis.shape[0])
        torch.testing.assert_close(basis.T @ basis, torch.eye(basis.shape[1]), atol=1e-4, rtol=0)
    local = half.algorithm.begin(half.ctx, half.broadcast, half.client, half.data)
    assert len(local.protected) == len(block) == len(half.algorithm.layers(half.ctx))

"""The answers of neighbouring chunks as one: the same sums as if the clients had been one chunk."""

from __future__ import annotations

import numpy as np
import torch

from flray.core.messages import Update
from flray.engine.exchanges import ChunkResult, joined
from flray.ops.pooling import Collector

W = torch.from_numpy(np.random.default_rng(0).standard_normal((7, 5)).astype(np.float32))


def chunk(positions: range, reached: list[int]) -> ChunkResult:
    """Clients at these positions; their gradients reach so many rows of a head of 4."""
    collector = Collector()
    for position in positions:
        collector.add(position, Update(W[position], W[position, :2]), 1 / (position + 2))
    states = [f"state {position}" for position in positions]
    rows = None if not reached else np.isin(np.arange(4), reached)
    return ChunkResult(collector.sent(), states, [position + 1 for position in positions], rows, {"0": len(positions)})


def test_joined_chunks_are_one_chunk() -> None:
    whole = chunk(range(1, 7), [0, 2, 3])
    found = joined([chunk(range(1, 2), [0]), chunk(range(2, 5), [2, 3]), chunk(range(5, 7), [0])])
    assert found.states == whole.states and found.steps == whole.steps == [2, 3, 4, 5, 6, 7]
    assert found.rows is not None and found.rows.tolist() == [True, False, True, True]
    assert found.bits == {"0": 6} and found.sent.nbytes == whole.sent.nbytes
    assert len(found.sent.nodes) == len(whole.sent.nodes)
    for ours, theirs in zip(found.sent.nodes, whole.sent.nodes, strict=True):
        assert ours._replace(value=None, owned=False) == theirs._replace(value=None, owned=False)
        assert ours.value.w.tobytes() == theirs.value.w.tobytes()
    assert joined([chunk(range(2), []), chunk(range(2, 3), [])]).rows is None

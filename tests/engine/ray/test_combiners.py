"""Which sums are combined, and how many vectors are left."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from flray.core.messages import Update
from flray.engine.cohort import chunk_ranges
from flray.engine.exchanges import Chunk, ChunkResult
from flray.engine.ray.combiners import MIN_SAVED_BYTES, apart, combine, most_bytes, num_subtrees, worth_it
from flray.ops.pooling import Collector


def result(first: int, size: int, own: int = 0) -> ChunkResult:
    """Of clients that each send one number, and have a state of `own` float32 numbers."""
    collector = Collector()
    for position in range(first, first + size):
        collector.add(position, Update(torch.tensor([float(position)]), torch.zeros(0)), 1.0)
    states = [{"own": np.zeros(own, np.float32)} if own else ()] * size
    return ChunkResult(collector.sent(), states, [1] * size)


@given(st.integers(0, 200), st.integers(1, 200))
def test_subtrees_are_those_that_a_chunk_sends(first, size):
    assert num_subtrees(first, size) == len(result(first, size).sent.nodes)


def chunks(cohort: int, actors: int) -> list[Chunk]:
    ranges = chunk_ranges([1.0] * cohort, actors)
    return [Chunk(None, run.start, (0.1,) * len(run), None) for run in ranges]  # type: ignore[arg-type]


@given(st.integers(1, 500))
def test_two_actors_never_combine(cohort):
    assert not worth_it(chunks(cohort, 2), 10**12)


@given(st.integers(1, 500), st.integers(1, 64))
def test_without_combiners_the_server_gets_at_most_2_log2_vectors(cohort, actors):
    """However large the model is: either these are few, or they are combined."""
    cut = chunks(cohort, actors)
    sent = sum(len(result(chunk.first, len(chunk.weights)).sent.nodes) for chunk in cut)
    if not worth_it(cut, 10**12):
        assert sent <= max(2 * math.log2(cohort), 1)
    model_bytes = 10**6
    if not worth_it(cut, model_bytes):
        assert sent * model_bytes <= most_bytes(cohort, model_bytes)


def test_small_models_are_not_worth_a_call():
    """64 chunks of 128 clients send 64 vectors, and one is left."""
    cut = chunks(128, 64)
    assert not worth_it(cut, MIN_SAVED_BYTES // 63) and worth_it(cut, MIN_SAVED_BYTES // 63 + 1)


@pytest.mark.usefixtures("ray_cluster")
def test_what_cannot_be_added_stays_with_the_chunk():
    parts = [apart(result(0, 3, own=10_000), ["row"]), apart(result(3, 3), ["row"])]
    (_, heavy, report), (_, light, other) = parts
    assert report.own is None and [state["own"].size for state in heavy.states] == [10_000] * 3
    assert light is None and other.own.states == [()] * 3 and other.own.steps == [1] * 3
    assert (report.part.vectors, report.part.bytes) == (2, 8), "(0 + 1), 2"
    sums, part = combine(*(sums for sums, _, _ in parts))
    assert [(n.level, n.place, n.value.w.tolist()) for n in sums.sent.nodes] == [(2, 0, [6.0]), (1, 2, [9.0])]
    assert (part.vectors, part.bytes) == (2, 8) and not sums.states

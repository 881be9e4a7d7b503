"""The fixed tree: the same bits whoever summed which part."""

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from flray.core.messages import Record
from flray.ops.average import TreeSum, combine, tree_mean
from tests.support.small_cases import normal


class Message(Record):
    w: Tensor
    loss: float


@st.composite
def cohorts(draw):
    """(messages with None for skipped clients, weights, cut points of a contiguous split)."""
    size = draw(st.integers(1, 40))
    skipped = draw(st.lists(st.booleans(), min_size=size, max_size=size))
    cuts = draw(st.sets(st.integers(1, size - 1), max_size=6)) if size > 1 else set()
    seed = draw(st.integers(0, 1000))
    w = normal(size, 3, seed=seed) * 10 ** normal(size, 1, seed=seed + 1)
    weights = torch.rand(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    messages = [None if skip else Message(w[i], float(i)) for i, skip in enumerate(skipped)]
    return messages, (weights / weights.sum()).tolist(), sorted(cuts)


def in_runs(messages, weights, cuts):
    """Every run reduced by its own process, the server completes."""
    nodes = []
    for first, last in zip([0, *cuts], [*cuts, len(messages)], strict=True):
        tree = TreeSum()
        for position in range(first, last):
            tree.add(position, messages[position], weights[position])
        length = last - first
        assert len(tree.nodes) <= max(1, 2 * np.log2(max(length, 2)))
        nodes += tree.nodes
    return combine(nodes)


@given(cohorts())
def test_it_is_the_weighted_sum_of_those_that_delivered(cohort):
    """sum_k weight_k message_k in float64, of the same bits in one run."""
    messages, weights, cuts = cohort
    found, whole = in_runs(messages, weights, cuts), in_runs(messages, weights, [])
    terms = [(m, p) for m, p in zip(messages, weights, strict=True) if m is not None]
    if not terms:
        assert found is whole is None
        return
    assert torch.equal(whole.w, found.w) and whole.loss == found.loss
    exact = sum(p * m.w.double() for m, p in terms)
    size = sum(p * m.w.double().abs() for m, p in terms)
    assert bool(((found.w.double() - exact).abs() <= 1e-6 * size + 1e-12).all())
    assert found.loss == pytest.approx(sum(p * m.loss for m, p in terms), rel=1e-12)


def test_the_tree_has_the_published_shape():
    """Five positions: ((0+1)+(2+3))+4, in float32, where the order of additions shows in the last bit."""
    w = [torch.tensor([v]) for v in (1.0, 2.0**-24, 2.0**-24, 2.0**-24, 2.0**-24)]
    tree = TreeSum()
    for position, value in enumerate(w):
        tree.add(position, value, 1.0)
    expected = ((w[0] + w[1]) + (w[2] + w[3])) + w[4]
    running = w[0] + w[1] + w[2] + w[3] + w[4]
    assert torch.equal(tree.total(), expected)
    assert not torch.equal(expected, running), "the example distinguishes the tree from a running sum"


def test_a_missing_run_is_an_error_and_not_a_smaller_sum():
    tree = TreeSum()
    for position in (0, 1, 3):
        tree.add(position, torch.ones(1), 1.0)
    with pytest.raises(RuntimeError, match="missing"):
        tree.total()


def test_adding_copies_the_message():
    """The next client trains in the same scratch memory."""
    scratch = torch.ones(3)
    tree = TreeSum()
    tree.add(0, scratch, 1.0)
    scratch.fill_(5.0)
    tree.add(1, scratch, 1.0)
    assert torch.equal(tree.total(), torch.full((3,), 6.0))


def test_the_mean_of_messages_has_the_bits_of_the_engines_own_mean():
    messages = [Message(normal(5, seed=i), float(i)) for i in range(11)]
    weights = torch.rand(11, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    direct = in_runs(messages, weights.tolist(), [4, 9])
    before = messages[3].w.clone()
    mean = tree_mean(messages, weights)
    assert torch.equal(mean.w, direct.w)
    assert float(mean.loss) == pytest.approx(direct.loss, rel=1e-12)
    assert torch.equal(messages[3].w, before)


def test_a_lone_right_leaf_of_weight_one_is_copied():
    """The engine reuses a client's tensors: after a skipped left sibling the sum must not follow what is written to
    them next.
    """
    tree, update = TreeSum(), torch.ones(3)
    tree.add(0, None, 1.0)
    tree.add(1, update, 1.0)
    update.zero_()
    assert tree.total().tolist() == [1.0, 1.0, 1.0]

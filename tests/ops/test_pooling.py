"""What the server half gets of the clients' updates, by field, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from flray.core.messages import EachUpdate, Record, Update, equal, nbytes, nbytes_by_field
from flray.core.messages.fields import each, mean, pools, sum
from flray.core.schema.errors import AlgorithmError
from flray.ops.pooling import Collector, mean_of_each, pooled, separate
from tests.support.small_cases import normal


class Bases(Update):
    """A model with a mean, sums of counts, and what only some clients have: a basis of their own rank, a gradient."""

    counts: Tensor = sum()
    seen: int = sum()
    basis: Tensor = each()
    gradient: Tensor | None = each()
    layers: dict[str, Tensor] = mean()


def update(k: int) -> Bases:
    gradient = normal(3, seed=50 + k) if k % 3 == 0 else None
    layers = {"body.0": normal(2, seed=70 + k), "head": normal(4, seed=90 + k)}
    return Bases(normal(6, seed=k), normal(0), torch.arange(4) * k, k, normal(5, k % 4, seed=20 + k), gradient, layers)


@st.composite
def cohorts(draw: Any) -> Any:
    """(who is left out, weights, cuts of a contiguous split)."""
    size = draw(st.integers(1, 17))
    left_out = draw(st.lists(st.booleans(), min_size=size, max_size=size))
    cuts = draw(st.sets(st.integers(1, size - 1), max_size=4)) if size > 1 else set()
    weights = np.random.default_rng(draw(st.integers(0, 99))).random(size)
    return left_out, weights / weights.sum(), sorted(cuts)


def through(updates: list[Any], weights: Any, cuts: list[int] = ()) -> Any:
    """As the engine does it: a process for each chunk, which trains in one scratch memory, and a server."""
    runs = []
    for first, last in zip([0, *cuts], [*cuts, len(updates)], strict=True):
        collector, scratch = Collector(), torch.zeros(6)
        for k in range(first, last):
            sent = updates[k]
            if isinstance(sent, Bases):
                sent = sent.replace(w=scratch.copy_(sent.w))
            collector.add(k, sent, float(weights[k]))
        runs.append(collector.sent())
    there = [u is not None for u in updates]
    return pooled(runs[::-1], None if all(there) else float(weights[there].sum())), runs


@given(cohorts())
def test_every_field_is_pooled_as_it_declares(cohort):
    left_out, weights, cuts = cohort
    updates = [None if out else update(k) for k, out in enumerate(left_out)]
    found, runs = through(updates, weights, cuts)
    there = [k for k, out in enumerate(left_out) if not out]
    if not there:
        assert found is None
        return
    p = weights[there] / weights[there].sum()
    expected = np.einsum("k,kp->p", p, np.stack([updates[k].w.double().numpy() for k in there]))
    np.testing.assert_allclose(found.w.numpy(), expected, rtol=1e-5, atol=1e-6)
    head = np.einsum("k,kp->p", p, np.stack([updates[k].layers["head"].double().numpy() for k in there]))
    np.testing.assert_allclose(found.layers["head"].numpy(), head, rtol=1e-5, atol=1e-6)
    assert found.counts.dtype == torch.int64 and found.counts.tolist() == [i * int(np.sum(there)) for i in range(4)]
    assert found.seen == int(np.sum(there)) and type(found.seen) is int
    assert equal(found.basis, tuple(updates[k].basis for k in there))
    assert equal(found.gradient, tuple(updates[k].gradient for k in there))
    assert [g is None for g in found.gradient] == [k % 3 != 0 for k in there]
    # the same bits from one process
    assert equal(found, through(updates, weights)[0])
    sent = [run.nbytes for run in runs]
    total = np.sum([np.sum(list(run.values())) for run in sent])
    assert total == np.sum([nbytes(updates[k]) for k in there])
    assert np.sum([run.get("basis", 0) for run in sent]) == np.sum([5 * (k % 4) * 4 for k in there])


def test_a_mean_has_the_bits_that_it_has_without_other_fields():
    updates = [update(k) for k in range(7)]
    weights = np.full(7, 1 / 7)
    alone = [Update(u.w, u.b) for u in updates]
    assert torch.equal(through(updates, weights, [3])[0].w, through(alone, weights)[0].w)


def test_the_mean_of_each_has_the_bits_of_the_mean():
    updates = [Update(normal(8, seed=k), normal(2, seed=30 + k)) for k in range(5)]
    weights = torch.tensor([0.1, 0.3, 0.2, 0.25, 0.15], dtype=torch.float64)
    single, _ = through([EachUpdate.of(u) for u in updates], weights.tolist(), [2])
    direct, _ = through(updates, weights.tolist(), [2])
    assert isinstance(single.w, tuple) and len(single.w) == 5
    assert equal(separate(single)[3], EachUpdate.of(updates[3]))
    assert equal(Update.of(mean_of_each(single, weights)), direct)
    plain = np.mean([u.w.double().numpy() for u in updates], axis=0)
    np.testing.assert_allclose(mean_of_each(single).w.numpy(), plain, rtol=1e-6, atol=1e-7)


def test_what_is_pooled_is_the_servers_own():
    """In neither the client's scratch memory nor, with one process, in the object store."""
    sent = Collector()
    scratch = EachUpdate(torch.ones(2), torch.ones(1))
    sent.add(0, scratch, 1.0)
    scratch.w.zero_()
    run = sent.sent()
    for _, fields in run.each:
        for array in fields.values():
            array.flags.writeable = False
    found = pooled([run])
    found.w[0].add_(1)
    assert found.w[0].tolist() == [2.0, 2.0] and run.each[0][1]["w"].tolist() == [1.0, 1.0]


def test_updates_without_fields_of_their_own():
    assert through([(), ()], [0.5, 0.5])[0] == ()
    assert through([torch.ones(2), torch.zeros(2)], [0.25, 0.75])[0].tolist() == [0.25, 0.25]
    assert nbytes_by_field(()) == {} and nbytes_by_field(torch.ones(2)) == {"value": 8}
    assert nbytes_by_field(update(2)) == {
        "w": 24, "b": 0, "counts": 32, "seen": 8, "basis": 40, "gradient": 0, "layers": 24,
    }  # fmt: skip


def test_a_class_inherits_how_its_base_is_pooled():
    class More(Bases):
        w: Tensor = each()
        extra: Tensor = mean(default=None)

    assert pools(More) == {**pools(Bases), "w": "each", "extra": "mean"}
    assert pools(Update) == {"w": "mean", "b": "mean"}


class Loose(Record):
    value: Any
    total: Any = sum(default=0)


WHOLE = torch.ones(2, dtype=torch.int64)


@pytest.mark.parametrize(
    ("first", "second", "what"),
    [
        (
            Loose(WHOLE),
            None,
            "Loose.value holds torch.int64, which has no mean; declare the field each(), or sum()",
        ),
        (Loose("a"), None, "Loose.value holds text, which has no mean; declare the field each()"),
        (
            Loose(None, torch.ones(2) > 0),
            None,
            "Loose.total holds torch.bool, which has no sum; declare the field each()",
        ),
        (
            Loose(torch.ones(2)),
            Loose(torch.ones(3)),
            "the field value of an update differs in form between clients ([2], [3])",
        ),
        (
            Loose(torch.ones(2)),
            Loose(None),
            "the field value of an update differs in form between clients ([2], NoneType)",
        ),
        (
            Loose({"a": 1.0}),
            Loose({"b": 1.0}),
            "the field value of an update differs in form between clients (dict, dict)",
        ),
        (Loose(1.0), Update(torch.ones(1), torch.ones(1)), "an update differs in form between clients (Loose, Update)"),
    ],
)
def test_what_has_no_mean_is_one_line(first, second, what):
    """A shape of its own would otherwise be broadcast without a word."""
    with pytest.raises(AlgorithmError) as caught:
        through([first] + [second] * (second is not None), [0.5, 0.5])
    assert what in str(caught.value) and "\n" not in str(caught.value)

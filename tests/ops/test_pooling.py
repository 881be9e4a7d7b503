"""What the server half gets of the clients' updates, by field, against NumPy."""

import weakref
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from flray.core.messages import (
    EachUpdate,
    Record,
    Streamed,
    StreamedUpdate,
    Update,
    equal,
    map_tensors,
    nbytes,
    nbytes_by_field,
)
from flray.core.messages.fields import each, mean, pools, sum
from flray.core.schema.errors import AlgorithmError
from flray.ops.pooling import Collector, Separate, mean_of_each, merged, pooled, summed_bytes
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


@given(cohorts(), st.integers(2, 4))
def test_neighbours_that_are_merged_first_change_no_bit(cohort, fan_in):
    """Groups of neighbouring chunks, then groups of these, as combiners merge them, until one message is left."""
    left_out, weights, cuts = cohort
    updates = [None if out else update(k) for k, out in enumerate(left_out)]
    expected, runs = through(updates, weights, cuts)
    there = [k for k, out in enumerate(left_out) if not out]
    nbytes_before = np.sum([np.sum(list(run.nbytes.values())) for run in runs])
    while len(runs) > 1:
        runs = [merged(runs[i : i + fan_in][::-1]) for i in range(0, len(runs), fan_in)]
    (run,) = runs
    assert len(run.nodes) <= bin(len(updates)).count("1"), "whole subtrees of positions from 0 on"
    assert np.sum(list(run.nbytes.values())) == nbytes_before
    found = pooled([run], None if len(there) == len(updates) else float(weights[there].sum()))
    assert (found is None and expected is None) or equal(found, expected)


class Votes(Update):
    """What travels in few bits."""

    votes: Any = sum()
    score: Any = mean()


@pytest.mark.parametrize("cuts", [[], [1], [1, 2, 4]])
@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (torch.int8, -100),
        (torch.uint8, 200),
        (torch.int16, 2**15 - 1),
        (torch.uint16, 2**16 - 1),
        (torch.int32, 2**31 - 1),
        (torch.uint32, 2**32 - 1),
    ],
)
def test_narrow_integers_have_the_sum_of_wide_ones(dtype, value, cuts):
    scores = torch.tensor([1e-4, 3.3, 60_000.0], dtype=torch.float16)
    sent = [Votes(torch.ones(2), torch.zeros(0), torch.tensor([value, 1], dtype=dtype), scores) for _ in range(5)]
    found, runs = through(sent, np.full(5, 0.2), cuts)
    assert found.votes.dtype == torch.int64 and found.votes.tolist() == [5 * value, 5]
    np.testing.assert_allclose(found.score.double().numpy(), scores.double().numpy(), rtol=1e-6)
    assert np.sum([run.nbytes["score"] for run in runs]) == 5 * 3 * 2
    assert np.sum([run.nbytes["votes"] for run in runs]) == 10 * torch.tensor([], dtype=dtype).element_size()


def test_a_sum_of_half_precision_loses_nothing_that_float32_holds():
    """2049 is no float16: 2048 + 1 would stay 2048."""
    values = [2048.0, 1.0, 1.0, 1.0]
    sent = [Votes(torch.ones(1), torch.zeros(0), torch.tensor([v]).half(), torch.ones(1)) for v in values]
    assert through(sent, np.full(4, 0.25), [2])[0].votes.tolist() == [2051.0]


def test_clients_that_send_other_dtypes_are_added_in_the_wider_one():
    parts = [torch.tensor([2]), torch.tensor([0.5]), torch.tensor([2.0**-30], dtype=torch.float64)]
    for order in ([0, 1, 2], [2, 1, 0], [1, 0, 2]):
        sent = [Votes(torch.ones(1), torch.zeros(0), parts[k], torch.ones(1)) for k in order]
        for cuts in ([], [1], [2]):
            assert through(sent, np.full(3, 1 / 3), cuts)[0].votes.tolist() == [2.5 + 2.0**-30]


def test_two_chunks_by_hand():
    """Positions 0 1 2 | 3 4: 3 waits with its weight for 2, in another chunk; (0+1)+(2+3) is complete, 4 stays."""
    values, weights = [1.0, 2.0**-24, 3.0, 5.0, 7.0], [0.5, 0.25, 0.125, 0.0625, 0.0625]
    runs = []
    for positions in (range(3), range(3, 5)):
        collector = Collector()
        for k in positions:
            collector.add(k, Update(torch.tensor([values[k]]), torch.zeros(0)), weights[k])
        runs.append(collector.sent())
    assert [(n.level, n.place) for run in runs for n in run.nodes] == [(1, 0), (0, 2), (0, 3), (0, 4)]
    run = merged(runs)
    assert [(n.level, n.place) for n in run.nodes] == [(2, 0), (0, 4)]
    v, p = np.float32(values), np.float32(weights)
    first = (p[0] * v[0] + p[1] * v[1]) + (p[2] * v[2] + p[3] * v[3])
    assert run.nodes[0].value.w.tolist() == [first] and run.nodes[1].value.w.tolist() == [p[4] * v[4]]
    assert pooled([run]).w.tolist() == [first + p[4] * v[4]] == pooled(runs).w.tolist()
    assert runs[0].nodes[0].value.w.tolist() == [p[0] * v[0] + p[1] * v[1]], "nothing was written into"


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
    assert equal(Separate(single)[3], EachUpdate.of(updates[3]))
    assert equal(Update.of(mean_of_each(single, weights)), direct)
    plain = np.mean([u.w.double().numpy() for u in updates], axis=0)
    np.testing.assert_allclose(mean_of_each(single).w.numpy(), plain, rtol=1e-6, atol=1e-7)


def test_streamed_models_are_made_when_they_are_read_and_one_at_a_time(monkeypatch):
    """The values, means and bits of `each()`; of six models never more than two are alive, the one that a loop has and
    the next."""
    updates = [Update(normal(8, seed=k), normal(2, seed=30 + k)) for k in range(6)]
    weights = torch.tensor([0.1, 0.3, 0.1, 0.25, 0.15, 0.1], dtype=torch.float64)
    whole, _ = through([EachUpdate.of(u) for u in updates], weights.tolist(), [2])
    streamed, _ = through([StreamedUpdate.of(u) for u in updates], weights.tolist(), [2])
    assert isinstance(streamed.w, Streamed) and len(streamed.w) == 6
    assert equal(tuple(streamed.w), whole.w) and equal(tuple(streamed.b[4:]), whole.b[4:])
    assert equal(Update.of(mean_of_each(streamed, weights)), Update.of(mean_of_each(whole, weights)))
    assert equal(map_tensors(torch.clone, streamed).w, whole.w), "a copy of the message is a tuple"
    made, most, read = [], [0], Streamed.__getitem__

    def counted(self: Streamed, place: Any) -> Any:
        value = read(self, place)
        made.append(weakref.ref(value))
        most[0] = max(most[0], np.count_nonzero([ref() is not None for ref in made]))
        return value

    monkeypatch.setattr(Streamed, "__getitem__", counted)
    for w in streamed.w:
        w.sum()
    assert len(made) == 6 and most == [2]
    monkeypatch.undo()
    with pytest.raises(IndexError):
        streamed.w[6]


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
            Loose(None, torch.ones(2, dtype=torch.uint64)),
            None,
            "Loose.total holds torch.uint64, which has no sum; declare the field each()",
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


class Narrow(Record):
    """10 elements in each field, of types that a cohort's sum does not fit."""

    half: Tensor
    counts: Tensor = sum()
    single: Tensor = each()


def test_a_partial_sum_has_the_bytes_of_the_types_of_sums():
    """float16 becomes float32 and uint8 int64: 40 and 80 bytes in place of 20 and 10."""
    one = Narrow(*(torch.ones(10, dtype=dtype) for dtype in (torch.float16, torch.uint8, torch.float64)))
    sent = Collector()
    for position in range(4):
        sent.add(position, one, 0.25)
    (node,) = sent.sent().nodes
    assert summed_bytes(one) == nbytes(node.value) == 40 + 80
    assert summed_bytes({"w": torch.ones(3), "seen": 2, "gradient": None}) == 3 * 4 + 8

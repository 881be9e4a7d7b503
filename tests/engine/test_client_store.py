"""Both stores keep the same; files also survive, and forget what no checkpoint needs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from flray.core.errors import CheckpointError
from flray.engine.client_store import FileStore, MemoryStore


class State(NamedTuple):
    control: np.ndarray
    rounds: int


def state(value):
    return State(np.full((2, 3), value, np.float32), int(value))


def same(left, right):
    return (
        type(left) is type(right)
        and np.array_equal(left.control, right.control)
        and left.rounds == right.rounds
        and type(left.rounds) is type(right.rounds)
    )


@pytest.fixture(params=["memory", "files"])
def make(request, tmp_path):
    return MemoryStore if request.param == "memory" else (lambda: FileStore(tmp_path / "client_state"))


def test_gather_returns_what_was_scattered_in_the_order_asked_for(make):
    store = make()
    store.scatter([5, 1_000_005], [state(1), state(2)], 1)
    store.scatter([5], [state(3)], 2)
    found = store.gather([1_000_005, 7, 5])
    assert same(found[0], state(2)) and found[1] is None and same(found[2], state(3))


def test_none_and_stateless_leave_the_old_state(make):
    store = make()
    store.scatter([1, 2], [state(1), state(2)], 1)
    store.scatter([1, 2], [None, ()], 2)
    assert [s.rounds for s in store.gather([1, 2])] == [1, 2]


class Scalars(NamedTuple):
    norm: np.ndarray
    empty: np.ndarray


def test_shapes_come_back_also_of_0_dim_and_empty_arrays(make):
    store = make()
    store.scatter([1], [Scalars(np.array(2.5), np.zeros((0, 3), np.float32))], 1)
    again = make()
    again.load(store.save(), Scalars(np.array(0.0), np.zeros((0, 3), np.float32)))
    for found in (*store.gather([1]), *again.gather([1])):
        assert found.norm.shape == () and found.norm == 2.5
        assert found.empty.shape == (0, 3) and found.empty.dtype == np.float32


def test_save_and_load(make):
    store = make()
    store.scatter([4, 2], [state(4), state(2)], 1)
    saved = {name: array.copy() for name, array in store.save().items()}
    store.scatter([4], [state(9)], 2)
    again = make()
    again.load(saved, state(0))
    assert [s.rounds for s in again.gather([2, 4])] == [2, 4], "the state at the checkpoint, not the later one"


def test_an_empty_store_saves_and_loads(make):
    store = make()
    saved = store.save()
    again = make()
    again.load(saved, state(0))
    assert again.gather([0]) == [None]


def test_prune_keeps_what_the_present_and_the_checkpoints_need(tmp_path):
    store = FileStore(tmp_path)
    store.scatter([1, 2], [state(1), state(1)], 1)
    first = store.save()
    for stamp in (2, 3, 4):
        store.scatter([1], [state(stamp)], stamp)
    (tmp_path / "001" / "left.tmp").write_bytes(b"torn")
    store.prune([first])
    assert sorted(p.name for p in tmp_path.glob("*/*")) == [f"00000000{c}.r00000{s}.safetensors" for c, s in ((1, 1), (1, 4), (2, 1))]
    back = FileStore(tmp_path)
    back.load(first, state(0))
    assert [s.rounds for s in back.gather([1, 2])] == [1, 1]
    assert [s.rounds for s in store.gather([1, 2])] == [4, 1]


@pytest.mark.parametrize("how", ["missing", "torn"])
def test_a_lost_file_names_the_client_and_the_file(tmp_path, how):
    store = FileStore(tmp_path)
    store.scatter([12], [state(1)], 1)
    (path,) = tmp_path.glob("*/*.safetensors")
    path.unlink() if how == "missing" else path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(CheckpointError, match=r"state of client 12 .*000000012\.r000001"):
        store.gather([12])


def test_a_state_in_memory_does_not_share_the_callers_arrays():
    """The arrays of a delivery lie in Ray's object store, and one of them held keeps the whole delivery there."""
    store = MemoryStore()
    mine = state(1)
    store.scatter([1], [mine], 1)
    mine.control.fill(7)
    assert same(store.gather([1])[0], state(1))

"""Both stores keep the same; files also survive, and forget what no checkpoint needs."""

import gc
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from flray.core.messages import Record, equal
from flray.core.schema.errors import CheckpointError
from flray.rundir.client_store import FileStore, MemoryStore
from tests.support.messages import facts


class State(Record):
    control: np.ndarray
    rounds: int


def state(value):
    return State(np.full((2, 3), value, np.float32), int(value))


@pytest.fixture(params=["memory", "files"])
def make(request, tmp_path):
    return MemoryStore if request.param == "memory" else (lambda: FileStore(tmp_path / "client_state"))


def test_gather_returns_what_was_scattered_in_the_order_asked_for(make):
    store = make()
    store.scatter([5, 1_000_005], [state(1), state(2)], 1)
    store.scatter([5], [state(3)], 2)
    found = store.gather([1_000_005, 7, 5])
    assert equal(found[0], state(2)) and found[1] is None and equal(found[2], state(3))


def test_none_and_stateless_leave_the_old_state(make):
    store = make()
    store.scatter([1, 2], [state(1), state(2)], 1)
    store.scatter([1, 2], [None, ()], 2)
    assert [s.rounds for s in store.gather([1, 2])] == [1, 2]


class Scalars(Record):
    norm: np.ndarray
    empty: np.ndarray


def test_save_and_load(make):
    store = make()
    store.scatter([4, 2], [state(4), state(2)], 1)
    saved = store.save()
    store.scatter([4], [state(9)], 2)
    again = make()
    again.load(saved)
    assert [s.rounds for s in again.gather([2, 4])] == [2, 4], "the state at the checkpoint, not the later one"


@pytest.mark.parametrize("clients", [[], [4]])
def test_a_checkpoint_of_the_other_store_is_refused(tmp_path, clients):
    """As where config.yaml has lost `resources.store: files`; a store without states has data of its kind, too."""
    files, memory = FileStore(tmp_path), MemoryStore()
    for store in (files, memory):
        store.scatter(clients, [state(c) for c in clients], 1)
    with pytest.raises(CheckpointError, match=r"resources\.store: files, and config\.yaml says memory"):
        MemoryStore().load(files.save())
    with pytest.raises(CheckpointError, match=r"resources\.store: memory, and config\.yaml says files"):
        FileStore(tmp_path).load(memory.save())


def test_an_empty_store_saves_and_loads(make):
    store = make()
    saved = store.save()
    again = make()
    again.load(saved)
    assert again.gather([0]) == [None]


STEPS = st.lists(
    st.one_of(st.tuples(st.just("round"), st.sets(st.integers(0, 5), min_size=1), st.booleans()), st.just(("save",))),
    max_size=14,
)


@given(STEPS, st.integers(0, 14), st.integers(1, 3))
def test_files_are_those_that_the_present_and_the_kept_checkpoints_name(steps, crash, last):
    """Against a list of all files by hand, over rounds that are committed or undone, with a resume from the newest
    checkpoint before step `crash`; the last checkpoints are kept, and what a killed process left goes."""
    with tempfile.TemporaryDirectory() as home:
        (Path(home) / "000").mkdir()
        (Path(home) / "000" / "left.tmp").write_bytes(b"torn")
        store, present, before, kept = FileStore(Path(home)), {}, {}, []
        for stamp, step in enumerate(steps):
            if stamp == crash and kept:
                store, present = FileStore(Path(home)), dict(kept[-1][1])
                store.load(kept[-1][0])
            if step[0] == "round":
                _, clients, committed = step
                store.scatter(sorted(clients), [state(stamp)] * len(clients), stamp)
                before, present = present, {**present, **dict.fromkeys(clients, stamp)}
                if committed:
                    store.commit()
                else:
                    store.rollback()
                    present = before
            else:
                kept = [*kept, (store.save(), dict(present))][-last:]
                store.prune([saved for saved, _ in kept])
                files = {path.name for path in Path(home).glob("*/*")}
                named = {pair for _, then in kept for pair in then.items()} | set(present.items())
                assert files == {f"{client:09d}.r{at:06d}.safetensors" for client, at in named}
            assert [found and found.rounds for found in store.gather(range(6))] == [present.get(c) for c in range(6)]
        for saved, then in kept:
            again = FileStore(Path(home))
            again.load(saved)
            again.check(saved)
            assert again.clients() == sorted(then)
            assert [found.rounds for found in again.gather(sorted(then))] == [then[client] for client in sorted(then)]


@pytest.mark.parametrize("how", ["missing", "torn", "bit", "another's", "folder"])
def test_a_damaged_file_names_the_client_the_file_and_the_way_on(tmp_path, how):
    """A flipped bit, or another client's good file, would be read without a word: the index knows the contents."""
    store = FileStore(tmp_path / "client_state")
    store.scatter([12, 13], [state(1), state(2)], 1)
    saved = store.save()
    path, other = (next(tmp_path.glob(f"*/*/*{client}.r*.safetensors")) for client in (12, 13))
    content = path.read_bytes()
    path.unlink()
    if how == "folder":
        path.mkdir()
    elif how != "missing":
        flipped = content[:-1] + bytes([content[-1] ^ 1])
        path.write_bytes({"torn": content[:20], "bit": flipped, "another's": other.read_bytes()}[how])
    what = facts("client 12 ", path, f"flray resume {tmp_path}")
    with pytest.raises(CheckpointError, match=what):
        store.check(saved)
    assert equal(store.gather([13])[0], state(2))
    with pytest.raises(CheckpointError, match=what):
        store.gather([12])
    with pytest.raises(CheckpointError, match=what):
        store.save()  # a checkpoint with it would push out a good one


def test_a_state_in_memory_does_not_share_the_callers_arrays():
    """The arrays of a delivery lie in Ray's object store, and one of them held keeps the whole delivery there."""
    store = MemoryStore()
    mine = state(1)
    store.scatter([1], [mine], 1)
    mine.control.fill(7)
    assert equal(store.gather([1])[0], state(1))


def test_a_state_whose_class_is_gone_is_no_damage(tmp_path):
    """The line names what to import, and a checkpoint may still be written: the file is good."""
    store = FileStore(tmp_path)

    def define():
        class Gone(Record):
            x: float

        return Gone

    store.scatter([1], [define()(0.5)], 1)
    gc.collect()
    with pytest.raises(CheckpointError, match=facts("00000001.r000001.safetensors", "Gone", __name__)):
        store.gather([1])
    store.save()


def test_any_message_is_a_state_but_none_and_the_empty_tuple(make):
    """Also arrays of no dimension, and empty ones."""
    store, again = make(), make()
    scalars = Scalars(np.array(2.5), np.zeros((0, 3), np.float32))
    states = [np.ones(2), {"head": np.zeros(1)}, (3, None), scalars]
    store.scatter(range(4), states, 1)
    again.load(store.save())
    for found in (store.gather(range(4)), again.gather(range(4))):
        assert all(equal(a, b) for a, b in zip(found, states, strict=True))


def test_a_replay_reads_the_files_of_the_checkpoint_that_it_goes_to_and_not_its_own(tmp_path):
    """Its own states of the same round have other bits, where the code, the data or the machine has changed."""
    run, replay = FileStore(tmp_path / "run"), FileStore(tmp_path / "run", tmp_path / "scratch")
    run.scatter([4, 2], [state(4), state(2)], 3)
    replay.scatter([4, 7], [state(9), state(7)], 3)
    assert replay.gather([4])[0].rounds == 9
    replay.load(run.save())
    found = [s and s.rounds for s in replay.gather([4, 2, 7])]
    assert found == [4, 2, None] and run.gather([4])[0].rounds == 4
    replay.scatter([2], [state(5)], 4)
    assert replay.gather([2])[0].rounds == 5 and not list((tmp_path / "run").glob("*/*.r000004*"))

"""Checkpoints: exact, whole or not there at all, and never trusted when damaged."""

import errno
import json
import os
import re
import shlex
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from safetensors import SafetensorError

from flray.core.messages.packed import Packed
from flray.core.protocol.clock import Position
from flray.core.schema.errors import CheckpointError
from flray.files import read_checksummed, with_checksum
from flray.rundir import checkpoint
from flray.rundir.checkpoint import FILES, Snapshot
from tests.support.leftovers import left_by_the_dead
from tests.support.messages import facts


def server(value):
    return {"w": np.full(100, value, np.float32), "inner.count": np.array(int(value))}


def snapshot(position, state, clients):
    return Snapshot(position, Packed.of(state), Packed.of(clients), Packed.of({}))


def write(folder, done, keep=0):
    position = Position(0, done, done, "round")
    return checkpoint.write(folder, snapshot(position, server(done), {"3": np.arange(done)}), keep)


def damage(path, where=-1):
    content = bytearray(path.read_bytes())
    content[where] ^= 1
    path.write_bytes(content)


DTYPES = st.sampled_from([np.float32, np.float64, np.int64, np.uint8, np.bool_])
NAMES = st.text("abcXYZ019._/-", min_size=1, max_size=8)
MESSAGES = st.dictionaries(
    NAMES, DTYPES.flatmap(lambda d: arrays(d, array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))), max_size=5
)


@given(MESSAGES, MESSAGES, st.tuples(st.integers(0, 9), st.integers(0, 99), st.integers(0, 999)))
def test_what_is_read_is_what_was_written(tmp_path_factory, state, clients, where):
    """Bits, dtypes and shapes; also NaN, 0-dim and empty arrays."""
    folder = tmp_path_factory.mktemp("c")
    path = checkpoint.write(folder, snapshot(Position(*where, "round"), state, clients), 0)
    saved = checkpoint.read(path)
    assert saved.position == (*where, "round")
    for written, found in ((state, saved.server.message()), (clients, saved.clients.message())):
        assert written.keys() == found.keys()
        for name, array in written.items():
            assert (array.dtype, array.shape, array.tobytes()) == (
                found[name].dtype,
                found[name].shape,
                found[name].tobytes(),
            )


def test_keep_drops_all_but_the_last(tmp_path):
    assert checkpoint.latest(tmp_path) is None
    for done in (1, 2, 3, 10):
        write(tmp_path, done, keep=2)
    assert [p.name for p in checkpoint.checkpoints(tmp_path)] == ["round-000003", "round-000010"]
    assert checkpoint.latest(tmp_path).position.done == 10
    assert checkpoint.latest(tmp_path, at_most=9).position.done == 3
    assert checkpoint.latest(tmp_path, at_most=2) is None


@pytest.mark.parametrize("name", [*checkpoint.FILES, "meta.json"])
@pytest.mark.parametrize("how", ["flipped byte", "truncated", "missing", "empty"])
def test_a_damaged_checkpoint_is_passed_over_aloud(tmp_path, name, how):
    write(tmp_path, 1)
    path = write(tmp_path, 2) / name
    if how == "flipped byte":
        damage(path, 0 if name == "meta.json" else -1)
    elif how == "truncated":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    elif how == "empty":
        path.write_bytes(b"")
    else:
        path.unlink()
    with pytest.warns(UserWarning, match=facts("round-000002", "falling back")):
        saved = checkpoint.latest(tmp_path)
    assert saved.position.done == 1 and np.array_equal(saved.server.message()["w"], server(1)["w"])


def test_the_command_that_starts_a_run_again_can_be_pasted(tmp_path):
    run = tmp_path / "my runs"
    with pytest.raises(CheckpointError, match="has no checkpoint") as lost:
        checkpoint.check_none_lost(run, "finished", 10, 1)
    command = shlex.split(str(lost.value).partition("start again with: ")[2])
    assert command == ["flray", "run", f"{run}/config.yaml", "--out", str(run), "--overwrite"]


def test_when_all_are_damaged_the_run_does_not_silently_start_again(tmp_path):
    for done in (1, 2):
        damage(write(tmp_path, done) / "server.safetensors")
    way = facts("round-000002/server", f"flray run {tmp_path}/config.yaml --out {tmp_path} --overwrite")
    with warnings.catch_warnings(record=True), pytest.raises(CheckpointError, match=way):
        warnings.simplefilter("always")
        checkpoint.latest(tmp_path)


@pytest.mark.parametrize("key", ["task", "round", "done", "phase", "checksums"])
def test_an_edited_meta_json_is_damage(tmp_path, key):
    write(tmp_path, 1)
    path = write(tmp_path, 2) / "meta.json"
    meta = json.loads(path.read_text())
    other = {"checksums": {**meta["checksums"], FILES[0]: meta["checksums"][FILES[1]]}, "phase": "task_end"}
    meta[key] = other[key] if key in other else meta[key] + 1
    path.write_text(json.dumps(meta, indent=1))
    with pytest.warns(UserWarning, match=facts("round-000002", "checksum", "falling back")):
        assert checkpoint.latest(tmp_path).position.done == 1


def test_a_checkpoint_under_the_name_of_another_is_passed_over(tmp_path):
    write(tmp_path, 1)
    write(tmp_path, 2).rename(tmp_path / "checkpoints" / "round-000009")
    with pytest.warns(UserWarning, match=facts("round-000009", "round-000002")):
        assert checkpoint.latest(tmp_path).position.done == 1


def test_a_file_in_the_place_of_a_checkpoint_is_passed_over_aloud_and_makes_room(tmp_path):
    write(tmp_path, 1)
    (tmp_path / "checkpoints" / "round-000002").write_text("x")
    with pytest.warns(UserWarning, match=facts("round-000002")):
        assert checkpoint.latest(tmp_path).position.done == 1
    write(tmp_path, 2, keep=1)
    assert checkpoint.latest(tmp_path).position.done == 2 and len(checkpoint.checkpoints(tmp_path)) == 1


def test_what_has_no_checkpoints_name_is_none(tmp_path):
    write(tmp_path, 1)
    for name in ("round-x", "round-", "round-1", "round-000002-task", "round-000003.old", ".round-000004.77", "notes"):
        (tmp_path / "checkpoints" / name).mkdir()
    assert [p.name for p in checkpoint.checkpoints(tmp_path)] == ["round-000001"]
    assert checkpoint.latest(tmp_path).position.done == 1


def test_a_checkpoint_whose_client_states_are_damaged_is_passed_over(tmp_path):
    for done in (1, 2, 3):
        write(tmp_path, done)

    def check(clients):
        if len(clients.message()["3"]) > 1:
            raise CheckpointError("the state of client 3 is damaged")

    with pytest.warns(UserWarning, match=facts("client 3 ", "falling back", "round-00000")):
        assert checkpoint.latest(tmp_path, check=check).position.done == 1


@pytest.mark.parametrize("point", ["save", "fsync", "rename"])
def test_a_crash_while_writing_leaves_the_old_ones(tmp_path, monkeypatch, point):
    """The process dies (SystemExit stands for it: nothing of ours runs afterwards) before the new one has its name."""
    write(tmp_path, 1)

    def die(*args, **kwargs):
        raise SystemExit

    if point == "save":
        monkeypatch.setattr("safetensors.numpy.save_file", die)
    elif point == "fsync":
        monkeypatch.setattr(os, "fsync", die)
    else:
        monkeypatch.setattr(Path, "rename", die)
    with pytest.raises(SystemExit):
        write(tmp_path, 2)
    monkeypatch.undo()
    assert [p.name for p in checkpoint.checkpoints(tmp_path)] == ["round-000001"]
    assert checkpoint.latest(tmp_path).position.done == 1
    # and the next attempt succeeds over what the crash left
    write(tmp_path, 2)
    assert checkpoint.latest(tmp_path).position.done == 2


def test_a_good_checkpoint_of_the_same_round_is_left_alone(tmp_path):
    """The same position has the same bits; a damaged one is written again."""
    path = write(tmp_path, 1)
    before = {p.name: p.stat().st_mtime_ns for p in path.iterdir()}
    write(tmp_path, 1)
    assert {p.name: p.stat().st_mtime_ns for p in path.iterdir()} == before
    damage(path / "server.safetensors")
    write(tmp_path, 1)
    assert checkpoint.read(path).position.done == 1


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("os.fsync", OSError(errno.ENOSPC, "No space left on device")),
        # safetensors raises its own error type for an I/O error (seen on a full tmpfs)
        ("safetensors.numpy.save_file", SafetensorError("I/O error: No space left on device (os error 28)")),
    ],
)
def test_a_full_disk_is_one_line_and_leaves_the_old_ones(tmp_path, monkeypatch, call, error):
    write(tmp_path, 1)

    def full(*args, **kwargs):
        raise error

    monkeypatch.setattr(call, full)
    with pytest.raises(CheckpointError, match=facts("disk is full", "flray resume")):
        write(tmp_path, 2)
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["round-000001"], "nothing half-written stays"


@pytest.mark.parametrize(
    ("status", "rows", "every", "lost"),
    [
        ("finished", 0, 10, True),
        ("interrupted after round 3; continue with: x", 0, 10, True),
        ("failed: client 3", 2, 10, True),
        ("failed: the disk is full; and no checkpoint could be written: x", 2, 10, False),
        ("running", 11, 10, True),
        ("running", 10, 10, False),  # killed between the rows and the checkpoint
        ("running", 50, 0, False),
        ("running", 0, 10, False),
        ("starting", 0, 10, False),
        ("unknown: no STATUS file", 0, 10, False),
    ],
)
def test_a_run_that_had_checkpoints_does_not_start_from_nothing(tmp_path, status, rows, every, lost):
    if not lost:
        checkpoint.check_none_lost(tmp_path, status, rows, every)
        return
    with pytest.raises(
        CheckpointError, match=facts(tmp_path, "no checkpoint", re.compile(r"flray run \S+ --out \S+ --overwrite"))
    ):
        checkpoint.check_none_lost(tmp_path, status, rows, every)


@pytest.mark.parametrize("format", [None, 1, 3])
def test_a_checkpoint_of_another_format_is_refused_in_one_line(tmp_path, format):
    """It is not passed over as damaged: the one before it is of another version as well, or the run has been two
    programs."""
    write(tmp_path, 1)
    path = write(tmp_path, 2)
    meta = {**read_checksummed(path / "meta.json"), "format": format}
    if format is None:
        del meta["format"]
    (path / "meta.json").write_text(with_checksum(meta))
    with warnings.catch_warnings(), pytest.raises(checkpoint.FormatError) as caught:
        warnings.simplefilter("error")
        checkpoint.latest(tmp_path)
    line = str(caught.value)
    assert line.startswith(
        f"checkpoint {path} has format {format or 1}, this version of flray reads {checkpoint.FORMAT};"
    )
    assert f"flray run {tmp_path / 'config.yaml'} --out {tmp_path} --overwrite" in line
    assert checkpoint.latest(tmp_path, at_most=1).position.done == 1


def test_what_a_killed_process_left_of_a_checkpoint_goes_with_the_next_one(tmp_path):
    """It has the size of the model and of all client states."""
    left = left_by_the_dead(tmp_path / "checkpoints" / "round-000001")
    left.mkdir(parents=True)
    (left / FILES[0]).write_bytes(b"0" * 100)
    checkpoint.write(tmp_path, snapshot(Position(0, 2, 2, "round"), (), {}), 0)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["round-000002"]

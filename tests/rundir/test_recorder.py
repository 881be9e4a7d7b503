"""Parquet that opens at any moment."""

import errno
import sys
import threading
import time
import warnings

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from flray.core.protocol.clock import Position
from flray.core.schema.errors import CheckpointError
from flray.rundir import recorder
from flray.rundir.parts import RowsMissingWarning
from flray.rundir.recorder import ParquetTable, Recorder
from tests.support.events import events_of
from tests.support.leftovers import left_by_the_dead
from tests.support.messages import facts
from tests.support.processes import python


def after(done, phase="round"):
    return Position(0, done, done, phase)


@pytest.fixture
def table(tmp_path):
    return ParquetTable(tmp_path / "rounds")


def read(table):
    return pd.read_parquet(table.folder)


def test_a_flush_writes_no_more_rows_than_a_file_holds_and_files_are_few(table, monkeypatch):
    """50 rounds of 40 rows, a flush each. A file is full with 100 rows: three rounds. So a flush writes 120 rows at
    most, and 2,000 rows lie in ceil(50 / 3) = 17 files; a file of 100 rounds would be written with up to 2,000."""
    monkeypatch.setattr(recorder, "ROWS", 100)
    sizes = []
    write = recorder.write_part
    monkeypatch.setattr(recorder, "write_part", lambda path, rows: (sizes.append(rows.num_rows), write(path, rows)))
    for done in range(1, 51):
        table.append([{"done": done, "client": c, "loss": done / (c + 1)} for c in range(40)], done)
        table.flush()
    assert len(sizes) == 50 and max(sizes) == 120
    assert len(list(table.folder.iterdir())) == 17
    expected = [[done, c, done / (c + 1)] for done in range(1, 51) for c in range(40)]
    assert read(table)[["done", "client", "loss"]].values.tolist() == expected


def test_one_that_lists_the_folder_finds_every_file_and_each_row_once_while_rows_come(table, monkeypatch):
    """A reader beside the writer: it always sees the rounds 1 to n, each with its three rows."""
    monkeypatch.setattr(recorder, "ROWS", 20)
    seen, over = [], threading.Event()

    def look():
        while not over.is_set():
            if list(table.folder.glob("part-*")):
                seen.append(read(table)["done"].tolist())

    reader = threading.Thread(target=look)
    reader.start()
    for done in range(1, 151):
        table.append([{"done": done, "client": c} for c in range(3)], done)
        table.flush()
    over.set()
    reader.join()
    seen.append(read(table)["done"].tolist())
    assert len(seen) > 1 and seen[-1][-1] == 150
    for dones in seen:
        assert dones == [done for done in range(1, dones[-1] + 1) for _ in range(3)]


class Killed(BaseException):
    """Ends a writer where `kill -9` would."""


@pytest.mark.parametrize("moment", ["before the file", "before the rename", "after the rename"])
def test_a_writer_killed_at_each_of_its_writes_loses_no_written_row_and_doubles_none(tmp_path, monkeypatch, moment):
    """Twelve rounds; round 8 brings a column, so every file is written again. Killed at the n-th write for every n:
    the folder is readable, has rounds 1 to some m, and a resume from round min(m, 5) ends with all twelve."""
    monkeypatch.setattr(recorder, "ROWS", 6)

    def write(folder, at=None):
        count = 0
        known = recorder.write_part

        def dying(path, rows):
            nonlocal count
            count += 1
            if count != at or moment == "after the rename":
                known(path, rows)
            if count == at:
                if moment == "before the rename":
                    path.parent.mkdir(parents=True, exist_ok=True)
                    (path.parent / f".{path.name}.0123456789ab").write_bytes(b"PAR1 torn")
                raise Killed

        table = ParquetTable(folder)
        with monkeypatch.context() as patch:
            patch.setattr(recorder, "write_part", dying)
            begun = max(table.stored_rounds, default=0)
            table.truncate(after(min(begun, 5)))
            for done in range(min(begun, 5) + 1, 13):
                late = {"late": 0.5} if done >= 8 else {}
                table.append([{"done": done, "client": c, **late} for c in range(2)], done)
                table.flush()
        return count

    writes = write(tmp_path / "whole")
    whole = pd.read_parquet(tmp_path / "whole")
    assert writes > 12
    for at in range(1, writes + 1):
        folder = tmp_path / str(at)
        with pytest.raises(Killed):
            write(folder, at)
        there = pd.read_parquet(folder)["done"].tolist() if list(folder.glob("part-*")) else []
        assert there == [done for done in range(1, max(there, default=0) + 1) for _ in range(2)]
        write(folder)
        pd.testing.assert_frame_equal(pd.read_parquet(folder), whole)


@pytest.mark.parametrize("part", [1, 100])
@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 2.5, 3], [1.0, 2.5, 3.0]),
        ([True, 5, 2.5], [1.0, 5.0, 2.5]),
        ([False, True, 7], [0, 1, 7]),
        ([2**53 + 1, 0.5], [2.0**53, 0.5]),
        ([0.5, 2**62 + 1], [0.5, 2.0**62]),
        ([[2**53 + 1, 0.5], [1]], [[2.0**53, 0.5], [1.0]]),
        ([[1, 2], [0.5, 0.25], []], [[1.0, 2.0], [0.5, 0.25], []]),
        ([[], [3], [0.5]], [[], [3.0], [0.5]]),
    ],
)
def test_a_column_gets_the_type_of_all_its_values_however_they_are_flushed(
    tmp_path, monkeypatch, part, values, expected
):
    """As if all rows had been there at once."""
    monkeypatch.setattr(recorder, "PART", part)
    for flushed in (False, True):
        table = ParquetTable(tmp_path / str(flushed))
        for done, value in enumerate(values, start=1):
            table.append([{"done": done, "x": value}], done)
            if flushed:
                table.flush()
        table.flush()
        assert [list(x) if isinstance(expected[0], list) else x for x in read(table)["x"]] == expected


SCALARS = [st.floats(), st.integers(-(2**63), 2**63 - 1), st.booleans(), st.text(max_size=3)]
KINDS = [*SCALARS, *(st.lists(st.none() | kind, max_size=3) for kind in SCALARS), st.lists(st.lists(SCALARS[1]))]


@given(st.one_of(*(st.lists(st.none() | kind, max_size=20) for kind in KINDS)))
def test_a_column_is_what_pyarrow_makes_of_its_values(values):
    ours, theirs = recorder._column(values), pa.array(values)
    ours.validate(full=True)
    assert ours.type == theirs.type and repr(ours.to_pylist()) == repr(theirs.to_pylist())


def test_rows_are_written_without_pandas(tmp_path):
    """It takes 0.4 s and 32 MiB."""
    code = """
import sys
from pathlib import Path
from flray.rundir.recorder import ParquetTable
table = ParquetTable(Path(sys.argv[1]))
for done in (1, 2):
    row = {"done": done, "task": 0, "round": done, "test/acc": 0.5, "right": [3, 4], "diverged": False, "a": None}
    table.append([row], done)
    table.flush()
print("pandas" in sys.modules)
"""
    assert python("-c", code, tmp_path / "rounds").stdout == "False\n"
    assert len(pd.read_parquet(tmp_path / "rounds")) == 2


def test_a_column_that_comes_later_is_empty_before(table, monkeypatch):
    monkeypatch.setattr(recorder, "PART", 1)
    table.append([{"done": 1}], 1)
    table.append([{"done": 2, "late": "x"}], 2)
    table.append([{"done": 3, "other": 1.5}], 3)
    table.flush()
    frame = read(table)
    assert frame["late"].tolist()[1] == "x" and frame["late"].isna().tolist() == [True, False, True]
    assert frame["other"].isna().tolist() == [True, True, False]


def test_a_column_without_values_yet_is_a_number(table):
    table.append([{"done": 1, "test/acc": None}], 1)
    table.flush()
    assert read(table)["test/acc"].isna().all() and read(table)["test/acc"].dtype == float
    table.append([{"done": 2, "test/acc": 0.5}], 2)
    table.flush()
    assert read(table)["test/acc"].tolist()[1] == 0.5


def test_recorder_writes_clients_with_their_round_and_status_whole(tmp_path):
    record = Recorder(tmp_path)
    record.round(
        {"done": 1, "task": 0, "round": 1, "test/acc": 0.5},
        [{"client": 4, "skipped": False}, {"client": 2, "skipped": True}],
    )
    record.task({"done": 1, "task": 0, "phase": "task_end"}, [])
    record.close()
    clients = pd.read_parquet(tmp_path / "clients")
    assert clients[["done", "task", "round", "client"]].values.tolist() == [[1, 0, 1, 4], [1, 0, 1, 2]]
    assert pd.read_parquet(tmp_path / "tasks")["task"].tolist() == [0]
    record.status("running")
    assert (tmp_path / "STATUS").read_text() == "running\n"
    assert any((tmp_path / "tensorboard").iterdir())


def test_a_full_disk_is_one_line(tmp_path, monkeypatch):
    record = Recorder(tmp_path)
    record._flushed = float("inf")  # not before we ask for it
    record.round({"done": 1, "task": 0, "round": 1}, [{"client": 4}])

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("pyarrow.parquet.write_table", full)
    with pytest.raises(CheckpointError, match=facts("No space left", "flray resume")):
        record.flush()


def rows_of(folder, rounds, clients=2):
    record = Recorder(folder)
    for done in range(1, rounds + 1):
        row = {"done": done, "task": 0, "round": done, "test/acc": done / 100}
        record.round(row, [{"client": c, "skipped": False} for c in range(clients)])
    record.task({"done": rounds, "task": 0, "phase": "task_end"}, [])
    record.close()
    return {name: pd.read_parquet(folder / name) for name in ("rounds", "clients", "tasks")}


def spoil(path, how):
    content = path.read_bytes()
    path.unlink()
    if how == "folder":
        path.mkdir()
    elif how != "deleted":
        path.write_bytes(
            {"truncated": content[: len(content) // 2], "empty": b"", "garbage": b"\x07" * len(content)}[how]
        )


@pytest.mark.parametrize("how", ["truncated", "empty", "garbage", "folder", "deleted"])
def test_a_damaged_part_is_moved_aside_aloud_and_what_is_good_goes_on(tmp_path, monkeypatch, how):
    monkeypatch.setattr(recorder, "PART", 3)
    before = rows_of(tmp_path, 8)
    spoil(tmp_path / "rounds" / "part-0001.parquet", how)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        record = Recorder(tmp_path)
    record.truncate(after(7))
    written = ["rounds", "clients", "tasks"]
    assert record.missing(after(7, "task_end"), written) == {"rounds": "4-6", "tasks": "0 (task 0 is the first)"}
    assert record.missing(after(7), ["clients"]) == {}
    named = [str(warning.message).partition(" is damaged ")[0] for warning in told]
    assert named == [str(tmp_path / "rounds" / "part-0001.parquet")] * (how != "deleted")
    assert len(list((tmp_path / "rounds").glob("_damaged-*"))) == (how != "deleted")
    row = {"done": 8, "task": 0, "round": 8, "test/acc": 0.08, "new": 1.0}
    record.round(row, [{"client": c, "skipped": False} for c in range(2)])
    record.close()
    frame = pd.read_parquet(tmp_path / "rounds")
    assert frame["done"].tolist() == [1, 2, 3, 7, 8] and frame["new"].tolist()[-1] == 1.0
    assert pd.read_parquet(tmp_path / "clients")["done"].tolist() == before["clients"]["done"].tolist()
    assert record.counts() == {"rounds": 5, "clients": 16, "tests": 0, "tasks": 0, "personal": 0}


def test_a_file_in_the_place_of_a_table_is_moved_aside(tmp_path):
    (tmp_path / "rounds").write_text("x")
    with pytest.warns(RowsMissingWarning, match=facts("rounds ", "_damaged")):
        frames = rows_of(tmp_path, 2)
    assert frames["rounds"]["done"].tolist() == [1, 2]


def test_a_part_that_rots_while_the_run_goes_on_is_one_line(tmp_path, monkeypatch):
    """A new column makes the earlier files follow, so they are read."""
    monkeypatch.setattr(recorder, "PART", 1)
    record = Recorder(tmp_path)
    record._flushed = float("inf")  # not before we ask for it
    for done in (1, 2):
        record.round({"done": done, "task": 0, "round": done}, [])
    record.flush()
    (tmp_path / "rounds" / "part-0000.parquet").write_bytes(b"rot")
    record.round({"done": 2, "task": 0, "round": 2, "new": 1}, [])
    with pytest.raises(CheckpointError, match=facts("part-0000.parquet", "damaged", "flray resume")):
        record.flush()


def test_status_is_written_where_nothing_can_be_added(tmp_path, monkeypatch):
    """A full disk has no room for a second file, but the old one has its block."""
    record = Recorder(tmp_path)
    record.status("interrupted after round 10; continue with: flray resume here")
    known = type(tmp_path).touch

    def full(self, *args, **kwargs):
        if self.name.startswith("."):
            raise OSError(errno.ENOSPC, "No space left on device")
        return known(self, *args, **kwargs)

    monkeypatch.setattr(type(tmp_path), "touch", full)
    record.status("failed: the disk is full")
    assert (tmp_path / "STATUS").read_text() == "failed: the disk is full\n"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["STATUS"]
    (tmp_path / "STATUS").unlink()
    with pytest.raises(CheckpointError, match=facts("STATUS", "No space left on device", "free some space")):
        record.status("running")
    assert not list(tmp_path.iterdir()), "nothing is left that would make the folder somebody else's"


def test_what_a_killed_process_left_half_written_is_removed_when_the_run_goes_on(tmp_path):
    """Ends of `files.atomic_write` that never came; a user's own hidden files stay."""
    left = ["STATUS", "model.safetensors", "rounds/part-0000.parquet", "partition/partition.json"]
    own = [".notes", ".STATUS.backup"]
    for name in (*(left_by_the_dead(tmp_path / name).relative_to(tmp_path) for name in left), *own):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    Recorder(tmp_path)
    assert sorted(path.name for path in tmp_path.rglob(".*")) == sorted(own)


# TensorBoard ---------------------------------------------------------------------------------------
def test_the_curves_are_those_of_the_rows(tmp_path):
    """Read with tensorboardX's own reader of records: a step is rounds done; texts and vectors are no curves."""
    record = Recorder(tmp_path)
    for done in (1, 2):
        record.round({"done": done, "task": 0, "round": done, "test/acc": done / 4, "x": "text", "v": [1.0]}, [])
    record.close()
    events = [event for path in (tmp_path / "tensorboard").iterdir() for event in events_of(path)]
    curves = [(event.step, value.tag, value.simple_value) for event in events for value in event.summary.value]
    assert curves == [(1, "test/acc", 0.25), (2, "test/acc", 0.5)]


def test_a_clock_that_is_set_back_by_weeks_stops_nothing(tmp_path, monkeypatch):
    """tensorboardX's own thread then waits for more seconds than there can be, dies, and its caller waits for ever."""
    record = Recorder(tmp_path)
    record.round({"done": 1, "task": 0, "round": 1, "test/acc": 0.5}, [])
    record.flush()
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() - 30 * 86400)
    for done in range(2, 40):
        record.round({"done": done, "task": 0, "round": done, "test/acc": 0.5}, [])
        record.flush()
    record.close()
    (path,) = (tmp_path / "tensorboard").iterdir()
    assert len([event for event in events_of(path) if event.summary.value]) == 39


@pytest.mark.parametrize("harm", ["a file in its place", "a full disk", "another tensorboardX"])
def test_curves_that_cannot_be_written_are_one_warning(tmp_path, monkeypatch, harm):
    record = Recorder(tmp_path)
    if harm == "a file in its place":
        (tmp_path / "tensorboard").write_text("mine")
    elif harm == "a full disk":

        def full(*_):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr("tensorboardX.event_file_writer.EventsWriter.flush", full)
    else:
        monkeypatch.setitem(sys.modules, "tensorboardX.event_file_writer", None)
    record.round({"done": 1, "task": 0, "round": 1, "test/acc": 0.5}, [])
    with pytest.warns(UserWarning, match="curves cannot be written .*; the run goes on without them") as said:
        record.flush()
    record.round({"done": 2, "task": 0, "round": 2, "test/acc": 0.5}, [])
    record.close()
    assert len(said) == 1 and len(Recorder(tmp_path).rounds.stored_rounds) == 2

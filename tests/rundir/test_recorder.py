"""Parquet that opens at any moment."""

from __future__ import annotations

import errno
import warnings

import pandas as pd
import pytest

from flray.core.protocol.clock import Position
from flray.core.schema.errors import CheckpointError
from flray.rundir import recorder
from flray.rundir.parts import RowsMissingWarning
from flray.rundir.recorder import ParquetTable, Recorder
from tests.support.messages import facts


def after(done, phase="round"):
    return Position(0, done, done, phase)


@pytest.fixture
def table(tmp_path):
    return ParquetTable(tmp_path / "rounds")


def read(table):
    return pd.read_parquet(table.folder)


def test_readable_after_every_flush(table):
    for done in range(1, 5):
        table.append([{"done": done, "acc": done / 10}], done)
        table.flush()
        frame = read(table)
        assert frame["done"].tolist() == list(range(1, done + 1))
        assert frame["acc"].tolist() == [d / 10 for d in range(1, done + 1)]


def test_nothing_is_lost_over_several_parts(table, monkeypatch):
    monkeypatch.setattr(recorder, "PART", 3)
    for done in range(1, 9):
        table.append([{"done": done, "client": c} for c in range(2)], done)
    table.flush()
    assert sorted(p.name for p in table.folder.iterdir()) == [f"part-{i:04d}.parquet" for i in range(3)]
    assert read(table)[["done", "client"]].values.tolist() == [[d, c] for d in range(1, 9) for c in range(2)]


def test_a_column_that_comes_later_is_empty_before(table, monkeypatch):
    monkeypatch.setattr(recorder, "PART", 1)
    table.append([{"done": 1}], 1)
    table.append([{"done": 2, "late": "x"}], 2)
    table.append([{"done": 3, "other": 1.5}], 3)
    table.flush()
    frame = read(table)
    assert frame["late"].tolist()[1] == "x" and frame["late"].isna().tolist() == [True, False, True]
    assert frame["other"].isna().tolist() == [True, True, False]


@pytest.mark.parametrize("part", [1, 100])
def test_integers_that_meet_a_float_become_floats_everywhere(table, monkeypatch, part):
    monkeypatch.setattr(recorder, "PART", part)
    for done, value in enumerate([1, 2.5, 3], start=1):
        table.append([{"done": done, "x": value}], done)
        table.flush()
    assert read(table)["x"].tolist() == [1.0, 2.5, 3.0]


def test_a_column_without_values_yet_is_a_number(table):
    table.append([{"done": 1, "test/acc": None}], 1)
    table.flush()
    assert read(table)["test/acc"].isna().all() and read(table)["test/acc"].dtype == float
    table.append([{"done": 2, "test/acc": 0.5}], 2)
    table.flush()
    assert read(table)["test/acc"].tolist()[1] == 0.5


def test_a_nan_stays_a_nan(table):
    table.append([{"done": 1, "loss": float("nan")}, {"done": 1, "loss": 1.0}], 1)
    table.flush()
    assert read(table)["loss"].isna().tolist() == [True, False]


def test_half_written_files_are_not_read(table):
    table.append([{"done": 1}], 1)
    table.flush()
    (table.folder / ".part-0000.parquet.tmp").write_bytes(b"torn")
    assert read(table)["done"].tolist() == [1]
    assert ParquetTable(table.folder)._schema.keys() == {"done"}


@pytest.mark.parametrize("until", [0, 2, 3, 4, 7])
def test_keep_until_drops_what_a_resume_computes_again(table, monkeypatch, until):
    monkeypatch.setattr(recorder, "PART", 3)
    for done in range(1, 8):
        table.append([{"done": done, "x": float(done)}], done)
    table.flush()
    again = ParquetTable(table.folder)
    again.truncate(after(until))
    for done in range(until + 1, 9):
        again.append([{"done": done, "x": -float(done)}], done)
    again.flush()
    frame = read(again)
    kept = [d for d in range(1, 8) if d <= until]
    assert frame["done"].tolist() == list(range(1, 9))
    assert frame["x"].tolist() == [float(d) if d in kept else -float(d) for d in range(1, 9)]


def test_a_folder_whose_name_looks_like_a_partition_adds_no_column(tmp_path):
    """Sweeps name folders lr=0.1; pyarrow takes that for a column of its own."""
    table = ParquetTable(tmp_path / "lr=0.1" / "rounds")
    for done in (1, 2, 3):
        table.append([{"done": done}], done)
    table.flush()
    again = ParquetTable(table.folder)
    again.truncate(after(2))
    again.append([{"done": 3, "new": 1.0}], 3)
    again.flush()
    frame = pd.read_parquet(table.folder)
    assert frame["done"].tolist() == [1, 2, 3] and set(frame.columns) == {"done", "new"}


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
    with pytest.raises(CheckpointError, match="No space left") as error:
        record.flush()
    assert "\n" not in str(error.value) and "flray resume" in str(error.value)


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
    with pytest.raises(CheckpointError, match=facts("part-0000.parquet", "damaged", "flray resume")) as error:
        record.flush()
    assert "\n" not in str(error.value)


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
    left = [".STATUS", ".model.safetensors", "rounds/.part-0000.parquet", "partition/.partition.json"]
    own = [".notes", ".STATUS.backup"]
    for name in (*(f"{name}.0123456789ab" for name in left), *own):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    Recorder(tmp_path)
    assert sorted(path.name for path in tmp_path.rglob(".*")) == sorted(own)

"""Parquet that opens at any moment."""

from __future__ import annotations

import pandas as pd
import pytest

from flray.engine import recorder
from flray.engine.recorder import Recorder, Table


@pytest.fixture
def table(tmp_path):
    return Table(tmp_path / "rounds")


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
    assert Table(table.folder)._schema.keys() == {"done"}


@pytest.mark.parametrize("until", [0, 2, 3, 4, 7])
def test_keep_until_drops_what_a_resume_computes_again(table, monkeypatch, until):
    monkeypatch.setattr(recorder, "PART", 3)
    for done in range(1, 8):
        table.append([{"done": done, "x": float(done)}], done)
    table.flush()
    again = Table(table.folder)
    again.keep("done", until)
    for done in range(until + 1, 9):
        again.append([{"done": done, "x": -float(done)}], done)
    again.flush()
    frame = read(again)
    kept = [d for d in range(1, 8) if d <= until]
    assert frame["done"].tolist() == list(range(1, 9))
    assert frame["x"].tolist() == [float(d) if d in kept else -float(d) for d in range(1, 9)]


def test_a_folder_whose_name_looks_like_a_partition_adds_no_column(tmp_path):
    """Sweeps name folders lr=0.1; pyarrow takes that for a column of its own."""
    table = Table(tmp_path / "lr=0.1" / "rounds")
    for done in (1, 2, 3):
        table.append([{"done": done}], done)
    table.flush()
    again = Table(table.folder)
    again.keep("done", 2)
    again.append([{"done": 3, "new": 1.0}], 3)
    again.flush()
    frame = pd.read_parquet(table.folder)
    assert frame["done"].tolist() == [1, 2, 3] and set(frame.columns) == {"done", "new"}


def test_recorder_writes_clients_with_their_round_and_status_whole(tmp_path):
    record = Recorder(tmp_path)
    record.round({"done": 1, "task": 0, "round": 1, "test/acc": 0.5}, [{"client": 4, "skipped": False}, {"client": 2, "skipped": True}])
    record.task({"done": 1, "task": 0})
    record.close()
    clients = pd.read_parquet(tmp_path / "clients")
    assert clients[["done", "task", "round", "client"]].values.tolist() == [[1, 0, 1, 4], [1, 0, 1, 2]]
    assert pd.read_parquet(tmp_path / "tasks")["task"].tolist() == [0]
    record.status("running")
    assert (tmp_path / "STATUS").read_text() == "running\n"
    assert any((tmp_path / "tensorboard").iterdir())


def test_a_full_disk_is_one_line(tmp_path, monkeypatch):
    import errno

    from flray.core.errors import CheckpointError

    record = Recorder(tmp_path)
    record._flushed = float("inf")  # not before we ask for it
    record.round({"done": 1, "task": 0, "round": 1}, [{"client": 4}])

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(recorder.pq, "write_table", full)
    with pytest.raises(CheckpointError, match="No space left") as error:
        record.flush()
    assert "\n" not in str(error.value) and "flray resume" in str(error.value)

"""A Parquet file that knows its own rows."""

import math

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flray.rundir.parts import missing_numbers, read_part, write_part
from tests.support.messages import facts

ROWS = {
    "done": [1, 2, 3],
    "test/acc": [0.5, None, float("nan")],
    "skipped_clients": ["3 4", None, ""],
    "diverged": [False, True, None],
    "late": pa.nulls(3, pa.float64()),
}


@pytest.fixture
def part(tmp_path):
    path = tmp_path / "lr=0.1" / "part-0000.parquet"
    write_part(path, pa.table(ROWS))
    return path


def test_what_is_read_is_what_was_written_and_what_pandas_reads(part):
    table = read_part(part)
    assert table.column_names == list(ROWS)
    assert (
        table["skipped_clients"].to_pylist() == ROWS["skipped_clients"]
        and table["diverged"].to_pylist() == ROWS["diverged"]
    )
    acc = table["test/acc"].to_pylist()
    assert acc[:2] == [0.5, None] and math.isnan(acc[2])
    pd.testing.assert_frame_equal(table.to_pandas(), pd.read_parquet(part))


def test_no_flipped_bit_changes_a_row(part):
    """Every bit of the file, one at a time: the rows as they were, or an error in one line."""
    good = read_part(part)
    content = part.read_bytes()
    found = 0
    for place in range(0, len(content)):
        flipped = bytearray(content)
        flipped[place] ^= 1 << place % 8
        part.write_bytes(flipped)
        try:
            table = read_part(part)
        except ValueError as error:
            assert str(part) in str(error) and "\n" not in str(error)
            found += 1
        else:
            assert repr(table.to_pydict()) == repr(good.to_pydict()) and table.schema == good.schema
    assert found > len(content) / 3


@pytest.mark.parametrize(
    "changed",
    [
        {**ROWS, "done": [1, 2, 4]},
        {**ROWS, "test/acc": [0.5, 0.0, float("nan")]},
        {**ROWS, "skipped_clients": ["3 4", "", None]},
        {("loss" if name == "late" else name): values for name, values in ROWS.items()},
        {name: values[:2] for name, values in ROWS.items()},
    ],
    ids=["value", "null", "text", "name", "rows"],
)
def test_other_rows_under_the_checksum_are_damage(part, changed):
    other = pa.table(changed).replace_schema_metadata(pq.read_schema(part).metadata)
    pq.write_table(other, part)
    with pytest.raises(ValueError, match="its rows are not those that were written"):
        read_part(part)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"garbage" * 100, b"PAR1" + bytes(100) + b"PAR1"])
def test_what_is_no_parquet_is_one_line(part, content):
    part.write_bytes(content)
    with pytest.raises(ValueError, match=facts("part-0000.parquet", "damaged")) as error:
        read_part(part)
    assert "\n" not in str(error.value)


def test_gaps():
    assert missing_numbers([1, 2, 3], 3) == "" and missing_numbers([], 0) == "" and missing_numbers([2, 9], 1) == "1"
    assert missing_numbers([2, 5, 6], 9) == "1, 3-4, 7-9"

"""Parquet files of strange types, and damaged or hostile ones: the right numbers, or one line that names the file."""

import io
import struct
from collections import Counter

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flray.core.schema.errors import DataError
from flray.data import DataConfig, load_dataset
from flray.data.cache import file_digest
from flray.data.sources import table_sources
from tests.support.messages import facts

N = 6
LABEL = pa.array(np.arange(N) % 2)
NUMBERS = pa.array(np.arange(N) * 1.5)


def load(folder, content, **options):
    """The training samples of a folder with this table or these bytes."""
    folder.mkdir()
    if isinstance(content, bytes):
        (folder / "train.parquet").write_bytes(content)
    else:
        pq.write_table(content, folder / "train.parquet")
    return load_dataset(
        DataConfig(source=folder.name, root=str(folder.parent), test_fraction=0, leak_check=False, **options)
    ).train


def stored(**options):
    buffer = io.BytesIO()
    pq.write_table(pa.table({"f": NUMBERS, "label": LABEL}), buffer, **options)
    return buffer.getvalue()


class Celsius(pa.ExtensionType):
    """A type of somebody's own over float64."""

    def __init__(self):
        super().__init__(pa.float64(), "tests.celsius")

    def __arrow_ext_serialize__(self):
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage, serialized):
        return cls()


@pytest.mark.parametrize(
    ("column", "right"),
    [
        (pa.array([True, False] * 3), [1, 0] * 3),
        (pa.array(np.arange(N).astype(np.float16)), range(N)),
        (pa.array(range(N), pa.decimal128(10, 0)), range(N)),
        (pa.array(np.arange(N) * 1.0).dictionary_encode(), range(N)),
        (pa.ExtensionArray.from_storage(Celsius(), NUMBERS), np.arange(N) * 1.5),
    ],
)
def test_types_that_are_numbers_are_read(tmp_path, column, right):
    """Decimals are features where the configuration names them (`tests/data/sources/test_choice.py`)."""
    train = load(tmp_path / "set", pa.table({"f": column, "label": LABEL}), input="f")
    assert train.x[:, 0].tolist() == list(right) and train.y.tolist() == [0, 1] * 3


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"f": pa.array([{"a": 1.0, "b": 2.0}] * N), "label": LABEL}, "struct<a: double, b: double>, not encoded"),
        ({"f": pa.array([[("a", 1.0)]] * N, pa.map_(pa.string(), pa.float64())), "label": LABEL}, "holds map<string"),
        ({"f": pa.array([[{"a": 1.0}]] * N), "label": LABEL}, "'f' holds list<"),
        ({"f": pa.array([[1.0] * (k + 1) for k in range(N)]), "label": LABEL}, "not equally many numbers in each row"),
        ({"f": pa.nulls(N), "label": LABEL}, "'f'"),
        ({"f": pa.array([b"1234"] * N, pa.binary(4)), "label": LABEL}, "'f' holds fixed_size_binary[4]"),
        ({"f": pa.array([b"0" * 16] * N, pa.uuid()), "label": LABEL}, "'f' holds extension<arrow.uuid>"),
        (
            {"f": pa.FixedShapeTensorArray.from_numpy_ndarray(np.zeros((N, 2, 3, 3), np.float32)), "label": LABEL},
            "'f' holds extension<arrow.fixed_shape_tensor",
        ),
        ({"f": NUMBERS, "label": pa.array([{"a": 1}] * N)}, "holds struct<a: int64>, not a label for each sample"),
        (
            {"f": NUMBERS, "label": pa.array(pd.interval_range(0, N))},
            "holds struct<left: int64, right: int64>, not a label for each sample",
        ),
        ({"label": LABEL}, "no input column beside 'label'"),
    ],
)
def test_types_that_are_no_numbers_are_one_line(tmp_path, columns, says):
    with pytest.raises(DataError, match=facts(says)):
        load(tmp_path / "set", pa.table(columns))


@pytest.mark.parametrize("name", ["f", "label"])
def test_a_name_of_two_columns_is_refused(tmp_path, name):
    names = ["f", "f", "label"] if name == "f" else ["f", "label", "label"]
    columns = [NUMBERS, NUMBERS if name == "f" else LABEL, LABEL]
    with pytest.raises(DataError, match=f"several columns '{name}'"):
        load(tmp_path / "set", pa.Table.from_arrays(columns, names=names))


GOOD = stored()
FOOTER = struct.unpack("<I", GOOD[-8:-4])[0]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "file size is 0 bytes"),
        (b"PAR1PAR1", "smaller than the size reported by footer"),
        (b"a,b\n1,2\n" * 4, "magic bytes not found"),
        (GOOD[: len(GOOD) // 2], "magic bytes not found"),
        (GOOD[:-8] + struct.pack("<I", 2**31 - 1) + b"PAR1", "smaller than the size reported by footer"),
        (GOOD[:-8] + struct.pack("<I", 0) + b"PAR1", "deserialize"),
        (GOOD[:-4] + b"PARE", "encrypted"),
        (b"PARE" + GOOD[4:-4] + b"PARE", "encrypted"),
        (GOOD[:4] + GOOD[40:], ""),
    ],
)
def test_damaged_and_encrypted_files_are_one_line_that_names_the_file(tmp_path, content, says):
    with pytest.raises(DataError) as caught:
        load(tmp_path / "set", content)
    text = str(caught.value)
    assert "train.parquet is not a readable Parquet file" in text and says in text


def test_a_flipped_bit_of_the_footer_changes_no_number_in_silence(tmp_path):
    """Row counts, offsets, types: 80 bits drawn from the footer. Each file is right, or refused in one line."""
    draws, found = np.random.default_rng(0), Counter()
    for k in range(80):
        content = bytearray(GOOD)
        content[len(GOOD) - 8 - FOOTER + int(draws.integers(FOOTER))] ^= 1 << int(draws.integers(8))
        try:
            train = load(tmp_path / f"set{k}", bytes(content))
        except DataError as error:
            assert "\n" not in str(error)
            found["refused"] += 1
            continue
        assert train.x[:, 0].tolist() == (np.arange(N) * 1.5).tolist() and train.y.tolist() == [0, 1] * 3
        found["right"] += 1
    assert found["refused"] and found["right"]


def test_a_page_that_is_not_what_its_checksum_says_is_refused(tmp_path):
    """Parquet may store a CRC of each page, and then a flipped bit of a number is found."""
    content = stored(write_page_checksum=True, compression="none", use_dictionary=False)
    assert load(tmp_path / "whole", content).x[:, 0].tolist() == (np.arange(N) * 1.5).tolist()
    place = content.index(struct.pack("<d", 1.5))
    with pytest.raises(DataError, match="not a readable Parquet file"):
        load(tmp_path / "set", content[:place] + b"\1" + content[place + 1 :])


def test_contents_that_change_under_their_size_and_time_do_not_get_into_the_cache(tmp_path, monkeypatch):
    """Their hash is known by size and times, which a damaged disk leaves as they are; before samples are built the
    contents are read again."""
    content = stored(compression="none", use_dictionary=False)
    path = tmp_path / "set" / "train.parquet"
    assert load(tmp_path / "set", content).x[1, 0] == 1.5
    known = file_digest([path])
    place = content.index(struct.pack("<d", 1.5))
    path.write_bytes(content[:place] + struct.pack("<d", 2.5) + content[place + 8 :])
    other = {"source": "set", "root": str(tmp_path), "test_fraction": 0, "leak_check": False, "input": "f"}
    with monkeypatch.context() as patch:
        patch.setattr(table_sources, "file_digest", lambda paths: known)
        with pytest.raises(DataError, match=r"contents of train.parquet have changed under their old size and times"):
            load_dataset(DataConfig(**other))
    assert load_dataset(DataConfig(**other)).train.x[1, 0] == 2.5

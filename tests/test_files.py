"""Files that are whole and known by their checksums."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from flray.files import (
    array_checksum,
    atomic_write,
    checksum,
    file_checksum,
    read_checksummed,
    release_pages,
    with_checksum,
)


def test_the_checksum_is_xxh3_as_its_author_defines_it(tmp_path):
    """Test vectors of the xxHash specification (XXH3_128bits, seed 0): no bytes, and b"a" as `xxhsum -H2` prints it."""
    assert checksum() == checksum(b"") == "99aa06d3014798d86001c324468d497f"
    assert checksum(b"a") == "a96faf705af16834e6c632b61e964e1f"
    (tmp_path / "f").write_bytes(b"a" * 1_000_000)
    assert file_checksum(tmp_path / "f") == checksum(b"a" * 999_999, b"a")


def test_arrays_are_told_apart_by_contents_shape_and_dtype():
    a = np.arange(6)
    assert array_checksum(a) == array_checksum(np.arange(12)[::2] // 2)
    assert (
        len(
            {
                array_checksum(*x)
                for x in ((a,), (a.reshape(2, 3),), (a.astype(np.int32),), (a + 1,), (a, None), (None, a), (a, a))
            }
        )
        == 7
    )


def test_sealed_values_come_back_and_no_flipped_bit_changes_them(tmp_path):
    path = tmp_path / "note.json"
    values = {"a": [1, 2.5, None, True], "text": "ü\n", "inner": {"1": tmp_path.name}}
    path.write_text(with_checksum(values))
    assert read_checksummed(path) == values and json.loads(path.read_text())["a"] == values["a"]
    content = path.read_bytes()
    found = 0
    for place in range(len(content)):
        for bit in range(8):
            flipped = bytearray(content)
            flipped[place] ^= 1 << bit
            path.write_bytes(flipped)
            try:
                assert read_checksummed(path) == values, (place, bit)  # a tab for a space
            except ValueError:
                found += 1
    assert found > 7 * len(content)


@pytest.mark.parametrize("content", ["", "{", "[]", "3", "null", "{}", "\x00\x01", '{"checksum": 1}'])
def test_other_contents_are_a_value_error(tmp_path, content):
    (tmp_path / "f").write_text(content)
    with pytest.raises(ValueError):
        read_checksummed(tmp_path / "f")


def test_whole_writes_all_or_nothing_with_the_users_umask(tmp_path):
    path = tmp_path / "f"
    before = os.umask(0o027)
    try:
        with atomic_write(path, sync=True) as aside:
            aside.write_text("one")
    finally:
        os.umask(before)
    assert path.read_text() == "one" and path.stat().st_mode & 0o777 == 0o640
    with pytest.raises(RuntimeError), atomic_write(path) as aside:
        aside.write_text("two")
        raise RuntimeError
    assert path.read_text() == "one" and [p.name for p in tmp_path.iterdir()] == ["f"]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_what_is_mapped_is_given_back_and_read_again(tmp_path):
    """The pages of a file that was read from end to end leave this process; what can be written to stays."""

    def resident():
        lines = Path("/proc/self/smaps").read_text().split(str(path))
        return sum(int(part.partition("Rss:")[2].split()[0]) for part in lines[1:])

    path = tmp_path / "a.npy"
    np.save(path, np.arange(2**20))
    mapped = np.load(path, mmap_mode="r").view(np.ndarray)
    total = mapped.sum()
    assert resident() >= 2**13, "KiB"
    release_pages(mapped, None, np.arange(3))
    assert resident() == 0
    assert mapped.sum() == total and mapped[-1] == 2**20 - 1
    private = np.load(path, mmap_mode="c")
    private[0] = 7
    release_pages(private)
    assert private[0] == 7

"""Files that are whole and known by their checksums."""

import errno
import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors import SafetensorError

from flray.core.schema.errors import CheckpointError, DataError, FlrayError
from flray.files import (
    array_checksum,
    atomic_folder,
    atomic_write,
    cache_root,
    checksum,
    file_checksum,
    read_checksummed,
    release_pages,
    remove_leftovers,
    results_folder,
    with_checksum,
    write_text,
    writing,
)
from tests.support.leftovers import left_elsewhere


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
        with atomic_write(path, durable=True) as aside:
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


# errors of the disk -------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "the disk is full .*; free some space"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "your quota on this disk is used up; free some space"),
        (OSError(errno.EROFS, "Read-only file system"), "the disk is read-only; choose another place"),
        (OSError(errno.EACCES, "Permission denied"), "Permission denied; see who owns the folder"),
        (OSError(errno.EIO, "Input/output error"), "the disk reports an Input/output error; check the disk"),
        (OSError(errno.ENAMETOOLONG, "File name too long"), "the name is too long; choose a shorter one"),
        (OSError(errno.EFBIG, "File too large"), r"larger than .* \(ulimit -f\); raise the limit"),
        (OSError(errno.EMFILE, "Too many open files"), r"too many open files; raise the limit \(ulimit -n\)"),
        (OSError("2048 requested and 512 written"), "the disk is full"),  # NumPy's, which has no number
        (SafetensorError("Error while serializing: I/O error: No space left (os error 28)"), "the disk is full"),
        (OSError("[Errno 122] Error writing bytes. Detail: [errno 122] Disk quota exceeded"), "your quota"),  # pyarrow
        (FileNotFoundError(errno.ENOENT, "No such file", "/somewhere/else"), "does not exist: /somewhere/else; make"),
    ],
)
def test_every_error_of_a_disk_is_one_line_with_the_path_and_what_to_do(tmp_path, error, said):
    with (
        pytest.raises(DataError, match=f"^cannot write {re.escape(str(tmp_path / 'f'))}: .*{said}.*, or leave"),
        writing(tmp_path / "f", ", or leave it", DataError),
    ):
        raise error


def test_an_error_that_is_none_of_the_disk_stays_as_it_is(tmp_path):
    for error in (ValueError("no"), RuntimeError("no"), CheckpointError("no"), KeyError("no")):
        with pytest.raises(type(error)) as found, writing(tmp_path / "f"):
            raise error
        assert found.value is error


def test_what_the_system_itself_refuses_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder" / "inside").mkdir(parents=True)
    os.mkfifo(tmp_path / "pipe")
    for path, said in (
        (tmp_path / "file" / "f", "a file is in the place of a folder"),
        (tmp_path / "folder", "a folder is in its place"),
        (tmp_path / "absent" / "f", "its folder does not exist"),
        (tmp_path / ("x" * 256), "the name is too long"),
        (tmp_path / "a\0b", "no file can have this name"),
        (tmp_path / "pipe", "it is a named pipe, not a file"),
    ):
        with pytest.raises(CheckpointError, match=said):
            write_text(path, "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder", "pipe"], "nothing partial stays"
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_a_device_is_neither_replaced_nor_read(tmp_path):
    with pytest.raises(CheckpointError, match="it is a device, not a file"):
        write_text(Path("/dev/null"), "new")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    (tmp_path / "zero").symlink_to("/dev/zero")
    with pytest.raises(OSError, match="it is a device"):
        read_checksummed(tmp_path / "zero")


def test_the_file_that_a_link_points_to_is_replaced_and_the_link_stays(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "f").write_text("old")
    (tmp_path / "link").symlink_to("there/f")
    write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "there" / "f").read_text() == "new"


def test_a_name_of_255_bytes_can_be_written(tmp_path):
    path = tmp_path / ("ü" * 125 + "x.txt")
    write_text(path, "new")
    assert path.read_text() == "new" and len(list(tmp_path.iterdir())) == 1


# what killed writers leave ------------------------------------------------------------------------
def test_the_next_writer_removes_what_a_killed_one_left_and_nothing_of_a_living_one(tmp_path):
    """A process is killed with half a file; another one is still writing; a user has a hidden file."""
    code = "import sys; from pathlib import Path; from flray.files import atomic_write\n" + (
        "with atomic_write(Path(sys.argv[1])) as path: path.write_text('half'); print(path, flush=True); input()"
    )
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", code, tmp_path / "f"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    dead, living = (Path(writer.stdout.readline().strip()) for writer in writers)
    writers[0].kill()
    writers[0].wait()
    (tmp_path / ".flray-notes").write_text("")
    write_text(tmp_path / "g", "whole")
    assert not dead.exists() and living.read_text() == "half" and (tmp_path / ".flray-notes").exists()
    writers[1].communicate("\n")
    assert (tmp_path / "f").read_text() == "half" and not living.exists()


def test_what_another_machine_is_writing_counts_as_left_after_a_day(tmp_path):
    young, old = left_elsewhere(tmp_path / "f"), left_elsewhere(tmp_path / "f")
    for path in (young, old):
        path.mkdir()
    os.utime(old, (0, 0))
    remove_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [young.name]


def test_a_folder_is_replaced_whole_or_not_at_all(tmp_path):
    for text in ("one", "two"):
        with atomic_folder(tmp_path / "d", durable=True) as folder:
            (folder / text).write_text(text)
    assert [path.name for path in (tmp_path / "d").iterdir()] == ["two"]
    with pytest.raises(RuntimeError), atomic_folder(tmp_path / "d") as folder:
        (folder / "three").write_text("")
        raise RuntimeError
    assert [path.name for path in tmp_path.rglob("*")] == ["d", "two"]


def test_a_folder_is_replaced_where_names_cannot_be_exchanged(tmp_path, monkeypatch):
    monkeypatch.setattr("flray.files.exchange", lambda one, other: False)
    test_a_folder_is_replaced_whole_or_not_at_all(tmp_path)


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch):
    def homeless(self):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("FLRAY_CACHE", raising=False)
    monkeypatch.setattr(Path, "expanduser", homeless)
    with pytest.raises(FlrayError, match="set FLRAY_CACHE"):
        cache_root()


@pytest.mark.parametrize("uri", ["s3://bucket/exp", "file:///tmp/exp", "gs://bucket/a/b"])
def test_a_uri_is_no_folder_for_results(uri, tmp_path, monkeypatch):
    """`Path` takes a slash away, and `s3:/bucket/exp` would be made beside the user's other folders."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FlrayError, match=f"^{uri} is a URI"):
        results_folder(Path(uri), None)
    with pytest.raises(FlrayError, match=f"^{uri} is a URI"):
        write_text(Path(uri), "text")
    assert not list(tmp_path.iterdir())
    (tmp_path / "s3:").mkdir()  # who has such a folder means it
    assert results_folder(Path("s3:/exp"), None) == Path("s3:/exp")


def test_results_in_a_temporary_folder_of_rays_are_warned_of_once(tmp_path, recwarn):
    """As Ray 2.55 names them: a job's copy of its folder, and the folder of a trial, which is its working directory."""
    session = tmp_path / "session_2026-11-29_23-01-50_736211_11537"
    rays = [session / "artifacts" / "exp" / "working_dirs" / "trial", tmp_path / "working_dir_files" / "_ray_pkg_1"]
    for folder in [*rays, *rays, tmp_path / "session_2026", tmp_path / "working_dirs"]:
        assert results_folder(folder / "run", None) == folder / "run"
    results_folder(tmp_path / "session_latest" / "run", "s3://bucket")
    said = [str(warning.message) for warning in recwarn if "give out (--out) on a" in str(warning.message)]
    assert [text.partition(" lies in Ray's temporary folder")[0] for text in said] == [f"{f / 'run'}" for f in rays]

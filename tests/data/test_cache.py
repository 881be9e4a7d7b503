"""The cache: hit, damage, two writers at once, full disk."""

import errno
import multiprocessing
import os

import numpy as np
import pytest

from flray.core.errors import DataError
from flray.data import cache
from flray.data.cache import Entry, array_digest, digest, fetch, file_digest


def entry():
    return Entry({"a": np.arange(1000), "b": np.ones((3, 4), np.uint8)}, {"note": [1, "x"]})


def counting():
    calls = []

    def build():
        calls.append(1)
        return entry()

    return build, calls


def test_hit_is_a_read_only_map(own_cache):
    build, calls = counting()
    first, second = fetch("k", build), fetch("k", build)
    assert len(calls) == 1 and second.meta == {"note": [1, "x"]}
    assert np.array_equal(second.arrays["a"], np.arange(1000)) and not second.arrays["a"].flags.writeable
    assert type(first.arrays["a"]) is np.ndarray and isinstance(first.arrays["a"].base, np.memmap)
    assert [p.name for p in (own_cache / "data").iterdir()] == ["k"], "no temporary folder is left"


@pytest.mark.parametrize("damage", ["short", "long", "header", "missing", "meta", "meta_gone"])
def test_damage_is_found_and_repaired(own_cache, damage):
    build, calls = counting()
    fetch("k", build)
    path, meta = own_cache / "data/k/a.npy", own_cache / "data/k/meta.json"
    content = path.read_bytes()
    if damage == "short":
        path.write_bytes(content[:-8])
    elif damage == "long":
        path.write_bytes(content + b"x")
    elif damage == "header":
        path.write_bytes(b"\0" * 128 + content[128:])
    elif damage == "missing":
        path.unlink()
    elif damage == "meta":
        meta.write_text('{"files": ')
    else:
        meta.unlink()
    again = fetch("k", build)
    assert len(calls) == 2 and np.array_equal(again.arrays["a"], np.arange(1000))


def _slow_fetch(folder, queue):
    os.environ["FLRAY_CACHE"] = folder

    def build():
        queue.put(1)
        return entry()

    got = fetch("k", build)
    queue.put(int(got.arrays["a"].sum()) * 10)


def test_concurrent_processes_build_once(own_cache):
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    workers = [context.Process(target=_slow_fetch, args=(str(own_cache), queue)) for _ in range(4)]
    for w in workers:
        w.start()
    values = [queue.get(timeout=20) for _ in range(5)]
    for w in workers:
        w.join(20)
    assert sorted(values) == [1] + [4995000] * 4


def test_without_locks_the_rename_stays_atomic(own_cache, monkeypatch):
    """A reader between the two steps of a writer sees no entry, never half of one."""
    seen = []
    real = np.save

    def spying(file, array, **kw):
        seen.append(cache._read(own_cache / "data/k"))
        real(file, array, **kw)

    monkeypatch.setattr(np, "save", spying)
    fetch("k", entry)
    assert seen == [None, None]


def test_full_disk(own_cache, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(DataError, match=r"no space left for the data cache in .*; free some, or set FLRAY_CACHE"):
        fetch("k", entry)
    assert not list((own_cache / "data").iterdir())


def test_file_digest_reads_a_file_once(own_cache, tmp_path, monkeypatch):
    path = tmp_path / "x"
    path.write_bytes(b"one")
    os.utime(path, ns=(1, 1))
    first = file_digest([path])
    path.write_bytes(b"two")
    os.utime(path, ns=(1, 1))
    assert file_digest([path]) == first, "same path, size and mtime: the note is trusted"
    os.utime(path, ns=(2, 2))
    assert file_digest([path]) != first
    for note in (own_cache / "hashes").iterdir():
        note.write_text("broken")
    assert file_digest([path]) != first


def test_digests_tell_values_apart():
    assert digest(1) != digest("1") != digest([1]) and digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    a = np.arange(6)
    assert array_digest(a) != array_digest(a.reshape(2, 3)) != array_digest(a.astype(np.int32))
    assert array_digest(a, None) != array_digest(a)

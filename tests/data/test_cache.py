"""The cache: hit, damage, two writers at once, full disk."""

import errno
import multiprocessing
import os

import numpy as np
import pytest

from flray.core.schema.errors import DataError
from flray.data import DataConfig, cache, load_dataset
from flray.data.cache import CacheEntry, CacheWarning, digest, fetch, file_digest


def entry():
    return CacheEntry({"a": np.arange(1000), "b": np.ones((3, 4), np.uint8)}, {"note": [1, "x"]})


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


DAMAGE = {
    "short": ("a.npy", lambda content: content[:-8]),
    "long": ("a.npy", lambda content: content + b"x"),
    "header": ("a.npy", lambda content: b"\0" * 128 + content[128:]),
    "bit": ("a.npy", lambda content: content[:-9] + bytes([content[-9] ^ 1]) + content[-8:]),
    "a folder": ("a.npy", None),
    "missing": ("a.npy", None),
    "half of the note": ("meta.json", lambda content: b'{"files": '),
    "no keys": ("meta.json", lambda content: b"{}"),
    "a list": ("meta.json", lambda content: b"[]"),
    "no note": ("meta.json", None),
    "other facts": ("meta.json", lambda content: content.replace(b'"x"', b'"y"')),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_found_named_and_repaired(own_cache, damage):
    """With another time: a test is faster than the clock of some file systems."""
    build, calls = counting()
    fetch("k", build)
    name, change = DAMAGE[damage]
    path = own_cache / "data/k" / name
    content = path.read_bytes()
    path.unlink()
    if change:
        path.write_bytes(change(content))
        os.utime(path, ns=(1, 1))
    elif damage == "a folder":
        path.mkdir()
    with pytest.warns(CacheWarning, match=rf"data/k/{name} is (damaged|missing).*built again"):
        again = fetch("k", build)
    assert len(calls) == 2 and np.array_equal(again.arrays["a"], np.arange(1000)) and again.meta == {"note": [1, "x"]}
    assert [p.name for p in (own_cache / "data").iterdir()] == ["k"]


def test_the_fingerprint_is_that_of_the_arrays(own_cache):
    """Shifted labels that come with checksums of their own are another data set, and are called so."""
    config = DataConfig(source="iris")
    before = load_dataset(config).fingerprint
    for folder in (own_cache / "data").iterdir():
        found, _ = cache._read(folder)
        if "train_y" in found.arrays:
            arrays = {**found.arrays, "train_y": (found.arrays["train_y"] + 1) % 3}
            cache._write(folder, CacheEntry({name: np.array(a) for name, a in arrays.items()}, found.meta))
    assert load_dataset(config).fingerprint != before


@pytest.mark.filterwarnings("ignore::flray.data.cache.CacheWarning")
@pytest.mark.parametrize("name", ["data", "locks", "data/k", "locks/k"])
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_is_in_the_way_is_one_line_or_replaced(own_cache, name, kind):
    path = own_cache / name
    path.parent.mkdir(parents=True)
    path.touch() if kind == "file" else path.mkdir()
    try:
        found = fetch("k", entry)
    except DataError as error:
        assert str(path) in str(error) and "remove it" in str(error) and "\n" not in str(error)
    else:
        assert np.array_equal(found.arrays["a"], np.arange(1000))


def test_a_file_is_compared_once_a_process_and_again_when_it_changed(own_cache, monkeypatch):
    fetch("k", entry)
    reads = []
    real = cache.file_checksum
    monkeypatch.setattr(cache, "file_checksum", lambda path: reads.append(path.name) or real(path))
    fetch("k", entry)
    assert reads == []
    os.utime(own_cache / "data/k/b.npy", ns=(1, 1))
    fetch("k", entry)
    assert reads == ["b.npy"]


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
        seen.append(cache._read(own_cache / "data/k")[0])
        real(file, array, **kw)

    monkeypatch.setattr(np, "save", spying)
    fetch("k", entry)
    assert seen == [None, None]


def test_full_disk(own_cache, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(DataError, match=r"data/k: the disk is full .*; free some space, or set FLRAY_CACHE"):
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

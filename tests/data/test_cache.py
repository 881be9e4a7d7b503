"""The cache: hit, damage, two writers at once, full disk."""

import errno
import io
import json
import multiprocessing
import os

import datasets
import numpy as np
import pytest
from PIL import Image

from flray.core.schema.errors import DataError
from flray.data import DataConfig, cache, load_dataset
from flray.data.cache import CacheEntry, CacheWarning, digest, fetch, file_digest, listing_digest


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
    with monkeypatch.context() as patch:
        patch.setattr(cache, "file_checksum", lambda path: pytest.fail(f"{path} is read again"))
        assert file_digest([path]) == first
    put_over(path, b"two")
    assert file_digest([path]) != first
    for note in (own_cache / "hashes").iterdir():
        note.write_text("broken")
    assert file_digest([path]) != first


def put_over(path, content):
    """Other contents of the old size and mtime, as `cp -a` and `unzip` put them over a file."""
    old = path.stat()
    assert len(content) == old.st_size
    while path.stat().st_ctime_ns == old.st_ctime_ns:  # a moment of the file system's clock
        path.write_bytes(content)
        os.utime(path, ns=(old.st_atime_ns, old.st_mtime_ns))


def test_a_copy_that_keeps_times_is_another_file(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"one")
    found = {copies: listing_digest([str(path)], copies) for copies in (True, False)}
    assert found == {copies: listing_digest([str(path)], copies) for copies in (True, False)}
    put_over(path, b"two")
    assert listing_digest([str(path)]) != found[True] and listing_digest([str(path)], copies=False) == found[False]


@pytest.mark.parametrize("names", [("train.csv",), ("train.jsonl",), ("train/a.csv", "TEST/a.csv")])
def test_a_table_that_was_copied_over_with_its_time_is_read(tmp_path, names):
    """`TEST`: no split that `datasets` finds by itself."""

    def content(name, value):
        rows = [{"a": value, "label": number % 2} for number in range(40)]
        lines = map(json.dumps, rows) if name.endswith("jsonl") else (f"{row['a']},{row['label']}" for row in rows)
        return "\n".join([*([] if name.endswith("jsonl") else ["a,label"]), *lines]).encode()

    for value, name in enumerate(names, 1):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content(name, value))
    config = DataConfig(source=f"hf:{tmp_path}", leak_check=False, **({"test_fraction": 0} if len(names) == 1 else {}))
    assert load_dataset(config).test.x.tolist() == [[len(names)]] * 40
    put_over(tmp_path / names[-1], content(names[-1], 5))
    assert load_dataset(config).test.x.tolist() == [[5]] * 40


def test_a_table_of_another_mode_is_not_converted_again(tmp_path, monkeypatch):
    """Its ctime is another one. `datasets` converts into a folder for each contents."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "converted"))
    table = tmp_path / "set/train.csv"
    table.parent.mkdir()
    table.write_text("a,label\n" + "1,0\n1,1\n" * 20)
    config = DataConfig(source=f"hf:{table.parent}", test_fraction=0, leak_check=False)
    converted, old = set(), table.stat().st_ctime_ns
    for mode in (0o600, 0o644):
        while table.stat().st_ctime_ns == old:
            table.chmod(mode)
        old = table.stat().st_ctime_ns
        load_dataset(config)
        converted |= {path.name for path in (tmp_path / "converted").glob("flray-*")}
    assert len(converted) == 1


def test_a_table_that_cannot_be_read_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "train.csv").write_text("a,label\n" + "1,0\n1,1\n" * 20)

    def damaged(path):
        raise OSError(errno.EIO, "Input/output error", str(path))

    monkeypatch.setattr(cache, "file_checksum", damaged)
    with pytest.raises(DataError, match=r"train.csv cannot be read \(Input/output error\); check"):
        load_dataset(DataConfig(source=f"hf:{tmp_path}"))


def test_a_picture_that_was_copied_over_with_its_time_is_read(tmp_path):
    def content(level):
        buffer = io.BytesIO()
        Image.fromarray(np.full((4, 4), level, np.uint8)).save(buffer, "bmp")
        return buffer.getvalue()

    for level, place in enumerate(("train/a", "train/b", "test/a", "test/b")):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "0.bmp").write_bytes(content(level))
    config = DataConfig(source=f"hf:{tmp_path}")
    assert load_dataset(config).train.x[:, 0, 0, 0].tolist() == [0, 1]
    put_over(tmp_path / "train/b/0.bmp", content(9))
    assert load_dataset(config).train.x[:, 0, 0, 0].tolist() == [0, 9]


def test_digests_tell_values_apart():
    assert digest(1) != digest("1") != digest([1]) and digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})

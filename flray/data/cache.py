"""Decoded arrays as memory-mapped `.npy` files, shared by all processes of a node.

`FLRAY_CACHE/data/<key>/` holds one entry: arrays and `meta.json` with their sizes. A key names contents
(hash of the source files, decode options, `FORMAT`), so an entry never goes stale. Entries are written aside,
fsynced and renamed; a lock file lets one process build while the others wait.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flray.core.errors import DataError

FORMAT = 1  # raise it when decoded arrays change meaning: old entries are then simply not found
Array = np.ndarray[Any, np.dtype[Any]]


class Entry(NamedTuple):
    """Arrays by name, and small JSON facts about them."""

    arrays: Mapping[str, Array]
    meta: Mapping[str, Any]


def cache_root() -> Path:
    """`FLRAY_CACHE`, default `~/.cache/flray`."""
    return Path(os.environ.get("FLRAY_CACHE") or "~/.cache/flray").expanduser()


def digest(*parts: Any) -> str:
    """32 hex digits of a JSON-serialisable value."""
    text = json.dumps([FORMAT, *parts], sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def fetch(key: str, build: Callable[[], Entry]) -> Entry:
    """The entry of `key`, read-only and memory-mapped; built and stored where it is missing or damaged.

    Raises DataError when the disk is full or the cache folder cannot be written.
    """
    folder = cache_root() / "data" / key
    entry = _read(folder)
    if entry is not None:
        return entry
    with _disk_errors(folder.parent):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(cache_root() / "locks" / key):
            entry = _read(folder)  # another process may have built it while this one waited
            if entry is None:
                _write(folder, build())
                entry = _read(folder)
    if entry is None:
        raise DataError(f"data cache entry {folder} cannot be read back; is the disk of FLRAY_CACHE healthy?")
    return entry


def file_digest(paths: Sequence[Path]) -> str:
    """Hash of the bytes of files. Known (path, size, mtime) are not read again."""
    index = cache_root() / "hashes"
    out = []
    for path in paths:
        stat = path.stat()
        stamp = [str(path.resolve()), stat.st_size, stat.st_mtime_ns]
        note = index / f"{digest(stamp[0])}.json"
        known = _json(note)
        if known is None or known.get("stamp") != stamp:
            with path.open("rb") as file:
                known = {
                    "stamp": stamp,
                    "hash": hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest(),
                }
            with _disk_errors(index):
                index.mkdir(parents=True, exist_ok=True)
                aside = index / f".{uuid.uuid4().hex}"
                aside.write_text(json.dumps(known))
                aside.replace(note)
        out.append(known["hash"])
    return digest(out)


def listing_digest(paths: Sequence[str]) -> str:
    """Hash of the names, sizes and times of many small files: what `file_digest` trusts, without reading any of them."""
    state = hashlib.blake2b(digest_size=16)
    for path in paths:
        stat = os.stat(path)
        state.update(f"{path}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode())
    return state.hexdigest()


def array_digest(*arrays: Array | None) -> str:
    """Hash of contents, dtypes and shapes of arrays."""
    state = hashlib.blake2b(digest_size=16)
    for array in arrays:
        if array is None:
            state.update(b"none")
        else:
            state.update(f"{array.dtype.str}{array.shape}".encode())
            state.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return state.hexdigest()


def _read(folder: Path) -> Entry | None:
    """None where the entry is missing, short or damaged."""
    note = _json(folder / "meta.json")
    if note is None:
        return None
    arrays: dict[str, Array] = {}
    try:
        for name, size in note["files"].items():
            path = folder / f"{name}.npy"
            if path.stat().st_size != size:
                return None
            loaded = np.load(path, mmap_mode="r", allow_pickle=False)
            # a plain view: indexing np.memmap itself costs microseconds more at every gather
            arrays[name] = loaded.view(np.ndarray)
        return Entry(arrays, note["meta"])
    except (OSError, ValueError, KeyError, AttributeError, EOFError):
        return None


def _json(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def _write(folder: Path, entry: Entry) -> None:
    aside = folder.parent / f".tmp-{folder.name}-{uuid.uuid4().hex}"
    aside.mkdir()
    try:
        sizes = {}
        for name, array in entry.arrays.items():
            with (aside / f"{name}.npy").open("wb") as file:
                np.save(file, np.ascontiguousarray(array), allow_pickle=False)
                _sync(file)
                sizes[name] = file.tell()
        with (aside / "meta.json").open("w") as text:
            json.dump({"files": sizes, "meta": dict(entry.meta)}, text)
            _sync(text)
        _sync_folder(aside)
        with contextlib.suppress(FileNotFoundError):  # a damaged entry makes room; running readers keep their mapping
            bad = folder.parent / f".tmp-bad-{uuid.uuid4().hex}"
            folder.rename(bad)
            shutil.rmtree(bad, ignore_errors=True)
        aside.rename(folder)
        _sync_folder(folder.parent)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _sync(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """An advisory lock, released by the kernel if the process dies. Renames stay atomic where locks do not exist."""
    import fcntl

    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        with contextlib.suppress(OSError):  # some network file systems have no flock
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DataError(f"no space left for the data cache in {folder}; free some, or set FLRAY_CACHE") from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS) and str(cache_root()) in str(error.filename):
            raise DataError(f"cannot write the data cache in {folder} ({error.strerror}); set FLRAY_CACHE") from error
        raise

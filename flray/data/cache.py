"""Decoded arrays as memory-mapped `.npy` files, shared by all processes of a node.

`FLRAY_CACHE/data/<key>/` holds one entry: arrays, and `meta.json` with their checksums. The key is a hash of the
contents (source files, decode options, `FORMAT`), so an entry is never out of date. Entries are written to a temporary
folder, fsynced and renamed. A lock file makes other processes wait for the one that builds.

A process compares a file with its checksum before it first maps it, and again if its size, time or inode changed: 10 to
40 ms for CIFAR-10 (184 MB) in the page cache. A damaged entry is reported and built again from its source.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flray.core.schema.errors import DataError, message_of, warn
from flray.files import (
    atomic_folder,
    atomic_write,
    cache_root,
    checksum,
    file_checksum,
    locked,
    read_checksummed,
    with_checksum,
    writing,
)

FORMAT = 2  # raise it when decoded arrays change meaning; old entries are then not used
Array = np.ndarray[Any, np.dtype[Any]]


_verified: set[tuple[str, int, int, int]] = set()  # (path, inode, size, mtime) of files that this process has verified


class CacheWarning(UserWarning):
    """A damaged entry of the data cache, which is built again."""


class CacheEntry(NamedTuple):
    """Arrays by name, and small JSON values about them. `checksums`: of the arrays' files, once they are stored."""

    arrays: Mapping[str, Array]
    meta: Mapping[str, Any]
    checksums: Mapping[str, str] = {}


def digest(*parts: Any) -> str:
    """32 hex digits of a JSON-serialisable value."""
    return checksum(json.dumps([FORMAT, *parts], sort_keys=True, default=str).encode())


def fetch(key: str, build: Callable[[], CacheEntry]) -> CacheEntry:
    """The entry of `key`, read-only and memory-mapped. A missing entry is built and stored, and so is a damaged one,
    with a `CacheWarning`.

    Raises `DataError` if the disk is full or the cache folder cannot be written.
    """
    folder = cache_root() / "data" / key
    entry, _ = _read(folder)
    if entry is not None:
        return entry
    with contextlib.ExitStack() as waited:
        with storing(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
            waited.enter_context(locked(cache_root() / "locks" / key))
        entry, damage = _read(folder)  # another process may have built it while this one waited
        if entry is None:
            if damage:
                warn(f"data cache: {folder}/{damage}; it is built again from the source", CacheWarning)
            built = build()
            with storing(folder):
                _write(folder, built)
            entry, _ = _read(folder)
    if entry is None:
        raise DataError(
            f"data cache entry {folder} cannot be read after it was written; check the disk, or set FLRAY_CACHE"
        )
    return entry


def file_digest(paths: Sequence[Path]) -> str:
    """Hash of the contents of files. A file with known (path, size, mtime, ctime) is not read again: a copy that keeps
    the time of its contents has a ctime of its own."""
    index = cache_root() / "hashes"
    out = []
    for path in paths:
        stat = path.stat()
        stamp = [str(path.resolve()), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]
        note = index / f"{digest(stamp[0])}.json"
        known: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError):
            known = read_checksummed(note)
        if known.get("stamp") != stamp:
            known = {"stamp": stamp, "hash": file_checksum(path)}
            with storing(note):
                index.mkdir(parents=True, exist_ok=True)
                with atomic_write(note) as temporary:
                    temporary.write_text(with_checksum(known))
        out.append(known["hash"])
    return digest(out)


def check_unchanged(paths: Sequence[Path], expected: str) -> None:
    """Raises `DataError` if the contents of files are not those of `expected`, a result of :func:`file_digest`.

    That one trusts a size and times. What is built once and then kept in the cache reads the files again.
    """
    if digest([file_checksum(path) for path in paths]) == expected:
        return
    for path in paths:
        (cache_root() / "hashes" / f"{digest(str(path.resolve()))}.json").unlink(missing_ok=True)
    raise DataError(
        f"{paths[0].parent}: the contents of {', '.join(path.name for path in paths[:4])} have changed under their old "
        "size and times (damage, or a copy); copy the files again, or start again to read them as they are"
    )


def listing_digest(paths: Sequence[str], copies: bool = True) -> str:
    """Hash of the names, sizes and times of many files, none of which is read. `copies`: another file of the same name,
    size and mtime, as `cp -a` leaves it, has another hash, by its ctime."""
    stats = ((path, os.stat(path)) for path in paths)
    return checksum(
        *(
            f"{path}\0{stat.st_size}\0{stat.st_mtime_ns}{f'+{stat.st_ctime_ns}' if copies else ''}\n".encode()
            for path, stat in stats
        )
    )


def _read(folder: Path) -> tuple[CacheEntry | None, str]:
    """(entry, ""), or (None, description of the damage); (None, "") if there is no entry."""
    if not folder.exists():
        return None, ""
    name = "meta.json"
    arrays: dict[str, Array] = {}
    try:
        note = read_checksummed(folder / name)
        for array, expected in note["files"].items():
            name = f"{array}.npy"
            stat = (folder / name).stat()
            stamp = (str(folder / name), stat.st_ino, stat.st_size, stat.st_mtime_ns)
            if stamp not in _verified:
                if file_checksum(folder / name) != expected:
                    raise ValueError("its contents are not those that were written")
                _verified.add(stamp)
            loaded = np.load(folder / name, mmap_mode="r", allow_pickle=False)
            # a plain view: a gather from np.memmap takes microseconds more
            arrays[array] = loaded.view(np.ndarray)
        return CacheEntry(arrays, note["meta"], note["files"]), ""
    except FileNotFoundError:
        return None, f"{name} is missing" if folder.exists() else ""
    except (OSError, ValueError, EOFError) as error:
        return None, f"{name} is damaged ({message_of(error)})"


def _write(folder: Path, entry: CacheEntry) -> None:
    """Running readers of a damaged entry that it replaces keep their mapping."""
    with atomic_folder(folder, durable=True) as temporary:
        checksums = {}
        for name, array in entry.arrays.items():
            path = temporary / f"{name}.npy"
            with path.open("wb") as file:
                np.save(file, np.ascontiguousarray(array), allow_pickle=False)
            checksums[name] = file_checksum(path)
        (temporary / "meta.json").write_text(with_checksum({"files": checksums, "meta": dict(entry.meta)}))


def storing(path: Path) -> contextlib.AbstractContextManager[None]:
    """:func:`writing` of a path in the data cache: its errors are `DataError`."""
    return writing(path, ", or set FLRAY_CACHE", DataError)

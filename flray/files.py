"""Atomic writes, the errors of disks in words, checksums, and the folder of flray's cache.

A file that replaces another is written by :func:`atomic_write`, a folder by :func:`atomic_folder`, each inside
:func:`writing`, which turns an error of the disk into one line. A file of a folder that another program may have
written is opened as :func:`regular`.

The checksum is XXH3 with 128 bits. It finds damage and accidental edits, not an attacker, who would write a new one.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import json
import mmap
import os
import re
import secrets
import shlex
import shutil
import stat
import sys
import time
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from flray.core.schema.errors import CheckpointError, ConfigError, FlrayError, single_line, warn
from flray.living import is_alive, machine, started

# a name that :func:`partial` gives: machine, process, start of the process, random digits, final name
PARTIAL = re.compile(r"\.flray-([0-9a-f]{8})-(\d+)-(\d+)-[0-9a-f]{8}\.(.+)", re.DOTALL)
# a temporary folder of Ray's: a session's, in which a trial of Ray Tune works, and copies of a job's folder
RAYS = re.compile(r"working_dir_files|session_(latest|\d{4}(-\d\d){2}_\d\d(-\d\d){2}_\d+_\d+)")
DAY_S = 86_400  # a partial file of another machine that nobody has written to for so long has no writer
SMALL = 2**20  # bytes; more than a line of STATUS, a lock or a note ever has
MANY = 64 * 2**20  # bytes; more than a text file of a run folder ever has
NAME_BYTES = 255  # of a name, in most file systems
AT_FDCWD, RENAME_EXCHANGE = -100, 2  # <fcntl.h>, <linux/fs.h>
# the system or file system cannot exchange names
CANNOT_EXCHANGE = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM)
# an error of the disk: what it is, and what to do
PROBLEMS: Mapping[int, tuple[str, str]] = {
    errno.ENOSPC: ("the disk is full (No space left on device)", "free some space"),
    errno.EDQUOT: ("your quota on this disk is used up", "free some space"),
    errno.EFBIG: ("the file is larger than this process or disk allows (ulimit -f)", "raise the limit"),
    errno.EROFS: ("the disk is read-only", "choose another place"),
    errno.EACCES: ("Permission denied", "see who owns the folder"),
    errno.EPERM: ("Operation not permitted", "see who owns the folder"),
    errno.ENAMETOOLONG: ("the name is too long", "choose a shorter one"),
    errno.EIO: ("the disk reports an Input/output error", "check the disk"),
    errno.ESTALE: ("the network disk has lost the folder", "mount it again"),
    errno.ENOENT: ("its folder does not exist", "make the folder"),
    errno.ENOTDIR: ("a file is in the place of a folder", "remove it"),
    errno.EEXIST: ("something of this name is in the way", "remove it"),
    errno.EISDIR: ("a folder is in its place", "remove it"),
    errno.ENOTEMPTY: ("a folder is in its place", "remove it"),
    errno.EMFILE: ("this process has too many open files", "raise the limit (ulimit -n)"),
    errno.ENFILE: ("this machine has too many open files", "close some programs"),
}
KINDS = {  # of what is no regular file
    stat.S_IFDIR: "a folder", stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}  # fmt: skip


def cache_root() -> Path:
    """`FLRAY_CACHE`, default `~/.cache/flray`. Raises `FlrayError` for a user without a home."""
    try:
        return Path(os.environ.get("FLRAY_CACHE") or "~/.cache/flray").expanduser()
    except RuntimeError as error:
        raise FlrayError(f"flray's cache: {single_line(str(error))}; set FLRAY_CACHE to a folder") from error


def checksum(*parts: bytes | memoryview) -> str:
    """XXH3 of the parts, one after the other: 32 hex digits."""
    state = xxhash.xxh3_128()
    for part in parts:
        state.update(part)
    return state.hexdigest()


def file_checksum(path: Path) -> str:
    """The checksum of a file. Reads it and does not map it, so a bad sector is an `OSError` and not a signal."""
    with regular(path).open("rb") as file:
        return hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()


def array_checksum(*arrays: np.ndarray[Any, Any] | None) -> str:
    """The checksum of the arrays' dtypes, shapes and contents; None counts as well."""
    parts: list[bytes | memoryview] = []
    for array in arrays:
        if array is None:
            parts.append(b"none")
        else:
            parts.append(f"{array.dtype.str}{array.shape}".encode())
            parts.append(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return checksum(*parts)


def remove(path: Path) -> None:
    """Remove a file, or a folder with its content, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def release_pages(*arrays: np.ndarray[Any, Any] | None) -> None:
    """Release the pages of read-only memory-mapped arrays, which stay in memory otherwise; a later read loads them
    again."""
    for array in arrays:
        base: Any = array
        while isinstance(base, np.ndarray):
            base = base.base
        if array is not None and not array.flags.writeable and isinstance(base, mmap.mmap) and sys.platform == "linux":
            base.madvise(mmap.MADV_DONTNEED)


# errors of the disk -------------------------------------------------------------------------------
@contextlib.contextmanager
def writing(path: Path, more: str = "", kind: type[FlrayError] = CheckpointError) -> Iterator[None]:
    """The block writes `path`: an error of the disk in it is an error `kind` of one line with the path, the problem and
    what to do. `more` follows what to do (`" and run: flray resume DIR"`)."""
    check_local(path)
    try:
        yield
    except Exception as error:
        problem = disk_problem(error, path)
        if problem is None:
            raise
        raise kind(f"cannot write {path}: {problem[0]}; {problem[1]}{more}") from error


def disk_problem(error: BaseException, path: Path | None = None) -> tuple[str, str] | None:
    """(what is wrong with the disk, what to do) in words; None for an error that is none of a disk.

    Errors of safetensors and pyarrow contain the system's number in their text; NumPy's has none. If the error is about
    another file than `path`, the words name it.
    """
    text = str(error)
    if isinstance(error, ValueError) and "embedded null" in text:
        return "no file can have this name", "choose another one"
    if not isinstance(error, OSError) and type(error).__name__ != "SafetensorError":
        return None
    in_text = re.search(r"(?:os error |[Ee]rrno:? )(\d+)", text)
    number: int = getattr(error, "errno", None) or (int(in_text[1]) if in_text else 0)
    if not number and " requested and " in text:  # NumPy wrote fewer bytes than it was given, and does not say why
        return "the disk is full (or a quota, or ulimit -f, is used up)", "free some space"
    if number in PROBLEMS:
        what, remedy = PROBLEMS[number]
    else:
        what, remedy = single_line(getattr(error, "strerror", None) or text or type(error).__name__), "check the disk"
    named = getattr(error, "filename2", None) or getattr(error, "filename", None)
    if isinstance(named, str | bytes | os.PathLike) and path is not None:
        other = Path(os.fsdecode(named))
        if other != path and other != path.parent and not PARTIAL.fullmatch(other.name):
            what = f"{what}: {other}"
    return what, remedy


# reading ------------------------------------------------------------------------------------------
def regular(path: Path, at_most: int | None = None) -> Path:
    """The path, if it is that of a regular file (or of a link to one), of at most so many bytes.

    Raises `OSError`: of a named pipe or a device a reader may wait for ever.
    """
    found = path.stat()
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder, not a file", str(path))
    _check_kind(path, found.st_mode)
    if at_most is not None and found.st_size > at_most:
        raise OSError(errno.EFBIG, f"it has {found.st_size:,} bytes, more than the {at_most:,} of any", str(path))
    return path


def _check_kind(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = KINDS.get(stat.S_IFMT(mode), "something else")
        raise OSError(errno.EINVAL, f"it is {kind}, not a file", str(path))


# writing ------------------------------------------------------------------------------------------
def partial(path: Path) -> Path:
    """A new hidden name beside this one, for a partial file or folder. It names this process, and keeps the suffix."""
    head = f".flray-{_machine_digits()}-{os.getpid()}-{started(os.getpid()) or 0}-{secrets.token_hex(4)}."
    room, name = NAME_BYTES - len(head), os.fsencode(path.name)
    if len(name) > room and len(name) <= NAME_BYTES:  # a longer one fails under its own name
        name = name[-room:]
    return path.with_name(head + os.fsdecode(name))


@cache
def _machine_digits() -> str:
    return checksum(machine().encode())[:8]


def remove_leftovers(folder: Path) -> None:
    """Remove the partial files and folders of dead processes in `folder`."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            match = PARTIAL.fullmatch(entry.name)
            if match is not None and _has_no_writer(match, Path(entry.path)):
                with contextlib.suppress(OSError):
                    remove(Path(entry.path))


def _has_no_writer(match: re.Match[str], path: Path) -> bool:
    if machine() and match[1] == _machine_digits():
        return not is_alive(int(match[2]), int(match[3]))
    return time.time() - path.lstat().st_mtime > DAY_S


_looked_through = set[Path]()  # folders of this process's writes


def _beside(path: Path) -> Path:
    """The path to write, that of what a link points to. Before this process's first write in a folder it removes there
    what dead processes left. Raises `OSError` for a pipe or a device, which is not to be replaced."""
    if path.is_symlink():
        path = path.resolve()
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        mode = path.stat().st_mode
        if not stat.S_ISDIR(mode):
            _check_kind(path, mode)
    folder = path.parent.absolute()
    if folder not in _looked_through:
        _looked_through.add(folder)
        remove_leftovers(folder)
    return path


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an advisory lock on `path`, which the kernel releases if the process dies. Some network file systems have no
    such lock: the block runs without it."""
    import fcntl

    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def atomic_write(path: Path, durable: bool = False) -> Iterator[Path]:
    """A temporary path with the same suffix, renamed to `path` if the block succeeds and removed if it fails.

    A reader sees the old file or the new one. Its mode is that of the user's umask (safetensors creates files with mode
    0600). `durable`: write the contents to the disk before the rename.
    """
    path = _beside(path)
    temporary = partial(path)
    try:
        temporary.touch()
        mode = temporary.stat().st_mode
        yield temporary
        temporary.chmod(mode)
        if durable:
            sync(temporary)
        temporary.replace(path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str, kind: type[FlrayError] = CheckpointError) -> None:
    """Write a text file in UTF-8 by :func:`atomic_write`. Raises as :func:`writing` does."""
    with writing(path, kind=kind), atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def atomic_folder(path: Path, durable: bool = False) -> Iterator[Path]:
    """A temporary folder beside `path`, which gets that name if the block succeeds and is removed if it fails.

    A folder of that name is replaced: readers see all of the old one or all of the new one (where the file system can
    exchange names in one step; else for a moment none). `durable`: write the contents to the disk before that.
    """
    path = _beside(path)
    temporary = partial(path)
    try:
        temporary.mkdir()
        yield temporary
        mode = temporary.stat().st_mode & 0o666  # safetensors creates files with mode 0600
        for inside in temporary.rglob("*"):
            if inside.is_file():
                inside.chmod(mode)
        if durable:
            for inside in (*temporary.rglob("*"), temporary):
                sync(inside)
        if not os.path.lexists(path):
            temporary.rename(path)
        elif not exchange(temporary, path):
            path.rename(old := partial(path))
            temporary.rename(path)
            remove(old)
        if durable:
            sync(path.parent)
    finally:
        remove(temporary)


def sync(path: Path) -> None:
    """The contents of the file, or the names in the folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def exchange(one: Path, other: Path) -> bool:
    """Exchange the names of two files or folders in one step; False: the system or the file system cannot.

    Raises `OSError` for any other failure.
    """
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    if renameat2(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in CANNOT_EXCHANGE:
        return False
    raise OSError(code, os.strerror(code), str(one))


def clear_partial(*folders: Path) -> None:
    """Remove partial files in :func:`atomic_write`, whoever left them. No other process may write there."""
    for folder in folders:
        for path in folder.glob(".flray-*"):
            if PARTIAL.fullmatch(path.name):
                remove(path)


# checksums in JSON --------------------------------------------------------------------------------
def with_checksum(values: Mapping[str, Any]) -> str:
    """The values as JSON, with their checksum under `checksum`. A value that JSON does not know becomes its `str`."""
    plain = json.loads(json.dumps(dict(values), default=str))
    return json.dumps({**plain, "checksum": _checksum_of(plain)}, indent=1) + "\n"


def read_checksummed(path: Path) -> dict[str, Any]:
    """The values that :func:`with_checksum` turned into this file.

    Raises `ValueError` for damage, `OSError` for a file that cannot be read.
    """
    values = json.loads(regular(path, MANY).read_text(encoding="utf-8"))
    if not isinstance(values, dict) or values.pop("checksum", None) != _checksum_of(values):
        raise ValueError("its checksum is not that of its contents")
    return values


def _checksum_of(values: dict[str, Any]) -> str:
    return checksum(json.dumps(values, sort_keys=True).encode())


_warned: set[tuple[str, ...]] = set()  # Ray's folders


def check_local(path: Path) -> None:
    """Raises `ConfigError` for a URI, of which `Path` has made `s3:/bucket/exp`: it would be a folder beside others."""
    scheme, *rest = path.parts or ("",)
    if len(scheme) > 2 and scheme.endswith(":") and not Path(scheme).exists():  # C: is a disk
        uri = f"{scheme}//{'/' if scheme == 'file:' else ''}{'/'.join(rest)}"
        raise ConfigError(
            f"{uri} is a URI; write a file or folder of this machine (a run is copied to a storage by storage={uri})"
        )


def quoted(place: object) -> str:
    """A path, or another word of a command that a message proposes, as a shell reads it."""
    return shlex.quote(str(place))


def results_folder(folder: Path, storage: str | None) -> Path:
    """The folder of the results; a warning if it is in a temporary folder of Ray's, once in a process for each. Raises
    `ConfigError` for a URI."""
    check_local(folder)
    parts = folder.absolute().parts
    place = next((parts[: number + 1] for number, part in enumerate(parts) if RAYS.fullmatch(part)), None)
    if storage is None and place is not None and place not in _warned:
        _warned.add(place)
        warn(
            f"{folder} lies in Ray's temporary folder (a copy of a job's working directory, a trial's own folder); "
            "give out (--out) on a shared disk, or storage=URI"
        )
    return folder

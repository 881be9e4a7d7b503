"""Exact checkpoints: safetensors + JSON with checksums, written aside and renamed; a damaged one is passed over, aloud."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from flray.core.errors import CheckpointError

FILES = ("server.safetensors", "clients.safetensors")


class Position(NamedTuple):
    """After `done` rounds in all, the next one being round `round` (0-based) of task `task`; `task_end`: after a task's last exchange."""

    task: int
    round: int
    done: int
    task_end: bool = False

    @property
    def name(self) -> str:
        return f"round-{self.done:06d}" + ("-task-end" if self.task_end else "")


class Saved(NamedTuple):
    """A checkpoint as read back."""

    path: Path
    task: int
    round: int
    done: int
    server: dict[str, np.ndarray]
    clients: dict[str, np.ndarray]


@contextlib.contextmanager
def disk_errors(path: Path, folder: Path) -> Iterator[None]:
    """Turn a full or read-only disk into one line; safetensors raises an error of its own for it."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError) as error:
        full = getattr(error, "errno", None) == errno.ENOSPC or "os error 28" in str(error)
        what = "the disk is full" if full else str(error)
        raise CheckpointError(f"cannot write {path}: {what}; free some space and run: flray resume {folder}") from error


def write(folder: Path, at: Position, server: Mapping[str, np.ndarray], clients: Mapping[str, np.ndarray], keep: int) -> Path:
    """Write `FOLDER/checkpoints/round-DONE` whole or not at all, then drop all but the last `keep` (0: keep all).

    One that is there and good is left alone: the same position has the same bits. Raises `CheckpointError` when the disk is full or
    not writable; what was there before stays.
    """
    from safetensors.numpy import save_file

    root = folder / "checkpoints"
    final, aside = root / at.name, root / f".{at.name}.{os.getpid()}"
    if final.exists():
        try:
            read(final)
            return final
        except CheckpointError:
            shutil.rmtree(final)
    try:
        with disk_errors(final, folder):
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir(parents=True)
            for name, arrays in zip(FILES, (server, clients), strict=True):
                save_file({key: np.asarray(array, order="C") for key, array in arrays.items()}, aside / name)
            meta = {**at._asdict(), "checksums": {name: checksum(aside / name) for name in FILES}}
            (aside / "meta.json").write_text(json.dumps(meta, indent=1))
            for name in (*FILES, "meta.json"):
                with (aside / name).open("rb") as file:
                    os.fsync(file.fileno())
            aside.rename(final)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    if keep:
        for old in checkpoints(folder)[:-keep]:
            shutil.rmtree(old, ignore_errors=True)
    return final


def checkpoints(folder: Path, at_most: int | None = None, task_end: bool = True) -> list[Path]:
    """Checkpoint folders, oldest first; of those after at most `at_most` rounds; `task_end=False`: none from after a task's end."""
    root = folder / "checkpoints"
    found = sorted(p for p in root.glob("round-*") if p.is_dir()) if root.is_dir() else []
    return [p for p in found if (at_most is None or rounds_done(p) <= at_most) and (task_end or not p.name.endswith("-task-end"))]


def rounds_done(path: Path) -> int:
    """The number in a checkpoint folder's name."""
    return int(path.name.split("-")[1])


def read(path: Path) -> Saved:
    """Raises `CheckpointError` for a missing file or a wrong checksum."""
    from safetensors.numpy import load_file

    try:
        meta = json.loads((path / "meta.json").read_text())
        for name, expected in meta["checksums"].items():
            if checksum(path / name) != expected:
                raise CheckpointError(f"{path / name} is damaged: its checksum is not the one that was written")
        server, clients = (load_file(path / name) for name in FILES)
        return Saved(path, meta["task"], meta["round"], meta["done"], server, clients)
    except CheckpointError:
        raise
    except Exception as error:
        raise CheckpointError(f"checkpoint {path} cannot be read: {type(error).__name__}: {error}") from error


def latest(folder: Path, at_most: int | None = None, task_end: bool = True) -> Saved | None:
    """The newest good checkpoint of :func:`checkpoints`; damaged ones are passed over with a warning. None: there are none.

    Raises `CheckpointError` when there are some and none is good.
    """
    found = checkpoints(folder, at_most, task_end)
    for path in reversed(found):
        try:
            return read(path)
        except CheckpointError as error:
            warnings.warn(f"{error}; falling back to the checkpoint before it", stacklevel=2)
    if found:
        raise CheckpointError(f"every checkpoint in {folder / 'checkpoints'} is damaged; start again with --overwrite")
    return None


def checksum(path: Path) -> str:
    """BLAKE2b of a file, 32 hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()

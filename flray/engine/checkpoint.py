"""Exact checkpoints: safetensors + JSON with checksums, written aside and renamed; a damaged one is passed over, aloud."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from flray.core.errors import CheckpointError

FILES = ("server.safetensors", "clients.safetensors")


class Saved(NamedTuple):
    """A checkpoint after `done` rounds in all, the next one being round `round` (0-based) of task `task`."""

    path: Path
    task: int
    round: int
    done: int
    server: dict[str, np.ndarray]
    clients: dict[str, np.ndarray]


def write(folder: Path, task: int, round: int, done: int, server: Mapping[str, np.ndarray], clients: Mapping[str, np.ndarray], keep: int) -> Path:
    """Write `FOLDER/checkpoints/round-DONE` whole or not at all, then drop all but the last `keep` (0: keep all).

    Raises `CheckpointError` when the disk is full or not writable; what was there before stays.
    """
    from safetensors.numpy import save_file

    root = folder / "checkpoints"
    final, aside = root / f"round-{done:06d}", root / f".round-{done:06d}.{os.getpid()}"
    try:
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        for name, arrays in zip(FILES, (server, clients), strict=True):
            save_file({key: np.asarray(array, order="C") for key, array in arrays.items()}, aside / name)
        meta = {"task": task, "round": round, "done": done, "checksums": {name: checksum(aside / name) for name in FILES}}
        (aside / "meta.json").write_text(json.dumps(meta, indent=1))
        for name in (*FILES, "meta.json"):
            with (aside / name).open("rb") as file:
                os.fsync(file.fileno())
        if final.exists():
            shutil.rmtree(final)
        aside.rename(final)
    except OSError as error:
        shutil.rmtree(aside, ignore_errors=True)
        what = "the disk is full" if error.errno == errno.ENOSPC else str(error)
        raise CheckpointError(f"cannot write checkpoint {final}: {what}; free some space and run: flray resume {folder}") from error
    if keep:
        for old in checkpoints(folder)[:-keep]:
            shutil.rmtree(old, ignore_errors=True)
    return final


def checkpoints(folder: Path) -> list[Path]:
    """Checkpoint folders, oldest first."""
    root = folder / "checkpoints"
    return sorted(p for p in root.glob("round-*") if p.is_dir()) if root.is_dir() else []


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


def latest(folder: Path, at_most: int | None = None) -> Saved | None:
    """The newest good checkpoint (after at most `at_most` rounds); damaged ones are passed over with a warning. None: there are none.

    Raises `CheckpointError` when there are some and none is good.
    """
    found = [p for p in checkpoints(folder) if at_most is None or int(p.name.removeprefix("round-")) <= at_most]
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

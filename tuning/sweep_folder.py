"""The folder of a sweep: whether a new or a resumed sweep may write there. Imports no torch, Ray or Optuna."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flray.config.grid import dotted
from flray.core.schema.errors import CheckpointError
from flray.rundir.lock import NAME as LOCK
from flray.rundir.lock import FolderLock, check_unused
from flray.rundir.lock import owner as lock_owner
from flray.tuning.config import Sweep
from flray.tuning.trials import stored_sweep

CONFIG = "sweep.yaml"
RESUMABLE = ("trials", "hours", "client_steps", "concurrency", "final")  # what a resume may change


def default_folder(sweep: Sweep, root: Path = Path("runs")) -> Path:
    """`runs/NAME`, the first number free behind it."""
    folder, number = root / sweep.name, 1
    while folder.exists():
        number += 1
        folder = root / f"{sweep.name}-{number}"
    return folder


def check_sweep(folder: Path) -> None:
    """Raises `CheckpointError` if the folder has no sweep, or a damaged one."""
    if not (folder / CONFIG).exists():
        raise CheckpointError(
            f"{folder} is not a sweep folder: it has no {CONFIG}; start one with flray sweep CONFIG --out {folder}"
        )
    stored_sweep(folder)


def check_folder(folder: Path, sweep: Sweep, resume: bool) -> None:
    """Raises `CheckpointError` if the folder has another sweep (`resume`), has files, or is used by a process here."""
    if resume:
        check_sweep(folder)
        _same(dotted(stored_sweep(folder)), dotted(sweep.dump()), folder)
    elif (folder / CONFIG).exists():
        _same(dotted(stored_sweep(folder)), dotted(sweep.dump()), folder)
        raise CheckpointError(
            f"{folder} already holds this sweep; continue with: flray sweep {folder} --resume, or give another --out"
        )
    elif folder.exists() and (not folder.is_dir() or any(not item.name.startswith(LOCK) for item in folder.iterdir())):
        raise CheckpointError(f"{folder} is not empty and not a sweep folder; give another --out")
    check_unused(folder)


def take_folder(folder: Path, sweep: Sweep, resume: bool) -> FolderLock:
    """The folder for this process alone. Raises the `CheckpointError` of :func:`check_folder`."""
    try:
        check_folder(folder, sweep, resume)
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"cannot create {folder}: {error.strerror or error}; give another --out") from error
    killed = lock_owner(folder) is not None
    lock = FolderLock.acquire(folder)
    if resume and killed:  # perhaps while it wrote the journal
        from flray.tuning.studies import JOURNAL

        (folder / f"{JOURNAL}.lock").unlink(missing_ok=True)
    if not resume and (folder / CONFIG).exists():  # another process wrote it while this one waited for the lock
        lock.release()
        raise CheckpointError(
            f"{folder} holds a sweep by now; continue with: flray sweep {folder} --resume, or give another --out"
        )
    return lock


def _same(old: Mapping[str, Any], new: Mapping[str, Any], folder: Path) -> None:
    for key in [*new, *old]:
        free = key.split(".")[0] in RESUMABLE or key.startswith(("experiment.resources", "experiment.address"))
        if not free and old.get(key) != new.get(key):
            raise CheckpointError(
                f"{folder} holds another sweep: {key} is {old.get(key)} there, {new.get(key)} here; give another --out"
            )

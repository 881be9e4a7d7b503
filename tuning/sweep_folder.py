"""The folder of a sweep: whether a new or a resumed sweep may write there. Imports no torch, Ray or Optuna."""

from __future__ import annotations

from pathlib import Path

from flray.core.schema.errors import CheckpointError
from flray.files import quoted
from flray.rundir.folder import check_outside, first_free, to_resume_sweep
from flray.rundir.lock import NAME as LOCK, FolderLock, check_unused, owner as lock_owner
from flray.tuning.beginning import read_beginning
from flray.tuning.config import Sweep
from flray.tuning.trials import check_database, stored_sweep

CONFIG = "sweep.yaml"


def default_folder(sweep: Sweep) -> Path:
    """`runs/NAME`, or the first free name after it."""
    return first_free(Path("runs") / sweep.name)


def check_sweep(folder: Path) -> None:
    """Raises `CheckpointError` if the folder has no sweep, or a damaged one."""
    if not (folder / CONFIG).exists():
        raise CheckpointError(
            f"{folder} is not a sweep folder: it has no {CONFIG}; start one with flray sweep CONFIG --out "
            f"{quoted(folder)}"
        )
    stored_sweep(folder)


def check_folder(folder: Path, sweep: Sweep, resume: bool) -> None:
    """Raises `CheckpointError` if the folder has another sweep (`resume`), has files, is inside a run, or is used by a
    process here. Raises `ConfigError` if a new one searches what changes no trial."""
    began = read_beginning(folder)  # lost: the study has it too
    if resume:
        check_sweep(folder)
        if began is not None:
            began.check(sweep, str(folder))
        if (folder / "trials").exists():
            check_database(sweep.study, folder)
    elif (folder / CONFIG).exists():
        stored_sweep(folder)  # raises if it is damaged
        if began is not None:
            began.check(sweep, str(folder))
        raise CheckpointError(
            f"{folder} already holds a sweep; continue with: {to_resume_sweep(folder)}, or give another --out"
        )
    elif folder.exists() and (not folder.is_dir() or any(not item.name.startswith(LOCK) for item in folder.iterdir())):
        raise CheckpointError(f"{folder} is not empty and not a sweep folder; give another --out")
    else:
        sweep.check_new()
        check_outside(folder)
    check_unused(folder)


def take_folder(folder: Path, sweep: Sweep, resume: bool) -> FolderLock:
    """The folder for this process alone. Raises as :func:`check_folder` does."""
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
            f"{folder} holds a sweep by now; continue with: {to_resume_sweep(folder)}, or give another --out"
        )
    return lock

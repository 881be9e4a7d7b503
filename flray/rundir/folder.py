"""The folder that a run writes: held before anything is written, and the run's own once its first round is done.

A run that replaces another one grows beside it, in `NAME.new`, and takes its place after the first round (`swap.py`):
until then a mistake of any kind costs the new run alone. What is removed is what flray made.
"""

from __future__ import annotations

import contextlib
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path

from flray.config.experiment import Experiment, algorithm_name
from flray.core.schema.errors import CheckpointError
from flray.rundir.lock import NAME as LOCK
from flray.rundir.lock import FolderLock, owner
from flray.rundir.swap import MARK, discard, interrupted, is_free, mark, repair, staging_folder, swap, unmark

STARTED = {"partition", "environment.json"}  # what a run writes before its config.yaml
# what is written to be renamed to them
PARTIAL_NAMES = tuple(f".{name}." for name in ("STATUS", "environment.json", "config.yaml"))


def is_run(folder: Path) -> bool:
    """Whether a run was written there: it has its configuration, and its STATUS or the record of what it began with."""
    return (folder / "config.yaml").is_file() and any(
        (folder / name).is_file() for name in ("STATUS", "environment.json")
    )


class RunFolder:
    """One run's folder, held until :meth:`release`.

    `path` is where to write now, `target` where the run will be in the end.
    """

    def __init__(self, target: Path, path: Path, locks: list[FolderLock], created: bool) -> None:
        """`created`: the folder at `path` did not exist before; otherwise it was empty, or holds the run to resume."""
        self.target, self.path, self._locks, self._created = target, path, locks, created
        self._begun = False  # the run's own files are in it

    @classmethod
    def claim(cls, folder: Path, *, resume: bool = False, overwrite: bool = False) -> RunFolder:
        """Take `folder` for a new run, to replace the run in it (`overwrite`), or to go on with that run (`resume`).

        Returns the folder, held by this process until :meth:`release`.
        Raises `CheckpointError` rather than write over a run or into a folder that is something else, and where another
        process writes there.
        """
        with _one_line(folder), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            folder.lstat()  # fails for a name that no folder can have: too long, or with a NUL
        if not folder.is_symlink():
            repair_swap(folder)
        if resume:
            home = cls(folder, folder, [FolderLock.acquire(folder)], created=False)
            home._begun = True
            return home
        if folder.is_symlink():  # what it points to is replaced, not the link
            folder = folder.resolve()
            repair_swap(folder)
        unbegun = _unbegun(folder, _content(folder))
        _check(folder, unbegun, overwrite)
        created = not folder.exists()
        with _one_line(folder):
            folder.mkdir(parents=True, exist_ok=True)
        lock = FolderLock.acquire(folder)
        try:
            # again: whoever held it while this process waited for the lock may have left a whole run
            unbegun = set(_content(folder)) <= STARTED
            _check(folder, unbegun, overwrite)
            if unbegun:
                _empty(folder)
                return cls(folder, folder, [lock], created)
            staging = staging_folder(folder)
            _clear_staging(staging, folder)
            with _one_line(staging):
                staging.mkdir()
                mark(staging, "new", folder)
            return cls(folder, staging, [lock, FolderLock.acquire(staging)], created=True)
        except BaseException:
            lock.release()
            raise

    @property
    def replaces(self) -> bool:
        """Whether another run is in the place that this one will have."""
        return self.path != self.target

    @property
    def begun(self) -> bool:
        """Whether the folder holds a run of its own."""
        return self._begun

    def check(self) -> None:
        """Raises `FolderLostError` when another process took the folder, or it was deleted."""
        for lock in self._locks:
            lock.check()

    @property
    def lock_id(self) -> str:
        """The id under which the folder at `path` is held."""
        return self._locks[-1].owner.id

    def begin(self) -> None:
        """From here on the folder holds a run.

        It may fail or be interrupted, and is then resumed or replaced by the user's own word.
        """
        self._begun = True
        if not self.replaces:  # a replacement that failed may go on by itself, in `NAME.new`
            unmark(self.path)

    def replace_previous_run(self) -> None:
        """Take the place of the run that is replaced, which is removed.

        Raises `CheckpointError` where a folder cannot be renamed.
        """
        if not self.replaces:
            return
        self.check()
        with _one_line(self.target):
            old = swap(self.target, self.path)
        self.path = self.target
        before, own = self._locks
        self._locks = [own]
        own.folder_renamed(self.target)
        before.folder_renamed(old)
        before.release()
        discard(old, self.target)

    def release(self) -> None:
        """Give the folder back.

        A run that did not begin, or that never took the place of the one it was to replace, leaves nothing.

        Exception: one that failed in its first round stays in `NAME.new`, so that the failure can be repeated there.
        """
        if not self._begun:
            with contextlib.suppress(CheckpointError):
                self.check()
                _empty(self.path)
                if self._created:
                    unmark(self.path)
        for lock in reversed(self._locks):
            lock.release()
        if not self._begun and self._created:
            with contextlib.suppress(OSError):
                self.path.rmdir()

    def give_up(self) -> None:
        """The run was stopped before its first round was done: one that was to replace another leaves nothing."""
        self._begun = self._begun and not self.replaces


def _content(folder: Path) -> list[str]:
    """What is in the folder, without what a lock or a write that a full disk ended leaves there."""
    if not folder.is_dir():
        if folder.exists() or folder.is_symlink():
            raise CheckpointError(f"{folder} is not a folder; give another --out")
        return []
    with _one_line(folder):
        return [item.name for item in folder.iterdir() if not item.name.startswith((LOCK, MARK, *PARTIAL_NAMES))]


def _unbegun(folder: Path, content: list[str]) -> bool:
    """Whether there is nothing, or what a process leaves that was killed while its run started."""
    return not content or (set(content) <= STARTED and owner(folder) is not None)


def _check(folder: Path, unbegun: bool, overwrite: bool) -> None:
    """Raises `CheckpointError` for a folder that is something else than a run, or a run that is not to be replaced."""
    if not unbegun and not is_run(folder):
        raise CheckpointError(f"{folder} is not empty and not a run folder; give another --out")
    if not unbegun and not overwrite:
        raise CheckpointError(
            f"{folder} already holds a run; give another --out, add --overwrite, or run: flray resume {folder}"
        )


def _empty(folder: Path) -> None:
    """Remove everything but the lock, and the mark of a folder that is to replace another one."""
    with _one_line(folder):
        for item in folder.iterdir():
            if item.name not in (LOCK, MARK):
                shutil.rmtree(item) if item.is_dir() and not item.is_symlink() else item.unlink()


def _clear_staging(staging: Path, target: Path) -> None:
    """Remove what an earlier replacement, one that failed in its first round, left in `NAME.new`.

    Raises `CheckpointError` where a folder has that name that flray did not make for this.
    """
    if not is_free(staging, target):
        raise CheckpointError(
            f"{staging} is in the way: the new run would grow there until its first round is done; rename it, or give "
            "another --out"
        )
    if staging.exists():
        lock = FolderLock.acquire(staging)  # nobody else's
        with _one_line(staging):
            discard(staging, target)
        lock.release()


def repair_swap(folder: Path) -> None:
    """Finish or undo what a kill interrupted while one run took the place of another in `folder`; says what was done.

    Raises `CheckpointError` where another process is replacing the run at this moment.
    """
    with _one_line(folder):
        message = repair(folder)
        if not message and interrupted(folder):
            FolderLock.acquire(interrupted(folder)[0]).release()  # raises for a process that is at it
            message = repair(folder)
    if message:
        warnings.warn(message, stacklevel=3)


@contextlib.contextmanager
def _one_line(folder: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise CheckpointError(f"cannot create {folder}: {why}; give another --out") from error


def check_new(folder: Path, overwrite: bool = False) -> None:
    """Raises what :meth:`RunFolder.claim` would raise for a new run, and leaves nothing in the folder."""
    RunFolder.claim(folder, overwrite=overwrite).release()


def default_folder(experiment: Experiment, root: str | Path = "runs") -> Path:
    """`runs/NAME/ALGORITHM-seedS`, the first number free behind it."""
    base = Path(root) / experiment.name / f"{algorithm_name(experiment.algorithm)}-seed{experiment.seed}"
    folder, number = base, 1
    while folder.exists():
        number += 1
        folder = base.with_name(f"{base.name}-{number}")
    return folder

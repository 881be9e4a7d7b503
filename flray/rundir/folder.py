"""The folder that a run writes, locked before the first write.

A run that replaces another one writes to `NAME.new` and takes the other's place after its first round (`swap.py`). An
error before that leaves the previous run unchanged. Only files that flray wrote are removed.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from flray.config.experiment import RESUMABLE, Experiment, method_name
from flray.config.grid import cell_status, dotted, labels
from flray.core.schema.errors import CheckpointError, single_line, warn
from flray.files import PARTIAL, quoted, writing
from flray.log import LOGGER
from flray.rundir.lock import NAME as LOCK, FolderLock, owner
from flray.rundir.swap import MARK, discard, interrupted, is_free, mark, repair, staging_folder, swap, unmark

STARTED = {"partition", "environment.json"}  # what a run writes before its config.yaml

_named: set[Path] = set()  # folders that `unused_folder` made for runs of this process


def is_run(folder: Path) -> bool:
    return has_run(lambda name: (folder / name).is_file())


def has_run(has: Callable[[str], bool]) -> bool:
    """Whether a place that `has` files of some names contains a run: `config.yaml`, and `STATUS` or
    `environment.json`."""
    return has("config.yaml") and (has("STATUS") or has("environment.json"))


def holds_sweep(folder: Path) -> bool:
    return has_sweep(lambda name: (folder / name).is_file())


def has_sweep(has: Callable[[str], bool]) -> bool:
    """Whether a place that `has` files of some names is a sweep's; `sweep.yaml` alone is the user's."""
    return has("sweep.yaml") and any(map(has, ("STATUS", "beginning.json", "study.journal")))  # one may be lost


def sweep_of(run: str | Path, top: str | Path) -> Path | None:
    """The sweep, at the folder `top` or below it, that a run belongs to; None: to none."""
    return next((place for place in Path(run).parents if place.is_relative_to(top) and holds_sweep(place)), None)


def to_resume_sweep(folder: str | Path) -> str:
    """The command that continues the sweep in a folder."""
    return f"flray sweep {quoted(folder)} --resume"


class RunFolder:
    """One run's folder, locked until :meth:`release`. `path`: where to write now. `target`: the run's final folder.

    Both are absolute.
    """

    def __init__(self, target: Path, path: Path, locks: list[FolderLock], created: bool) -> None:
        """`created`: the folder at `path` was made for this run; otherwise it was empty, or contains the run to
        resume."""
        # absolute: the user's code may change the working directory of its process
        self.target, self.path, self._locks, self._created = target.absolute(), path.absolute(), locks, created
        for lock in locks:
            lock.folder = lock.folder.absolute()
        self._parent = target.parent  # as it was given
        self._begun = False  # the folder contains a run of its own

    @classmethod
    def claim(cls, folder: Path, *, resume: bool = False, overwrite: bool = False) -> RunFolder:
        """Lock `folder` for a new run, to replace the run in it (`overwrite`), or to continue that run (`resume`).

        Raises `CheckpointError` if the folder contains a run (without `overwrite`) or anything else, or if another
        process has its lock.
        """
        if not folder.name:
            raise CheckpointError(f"{folder} is no folder for a run alone; give --out a name, as runs/mine")
        if any("\ud800" <= letter <= "\udfff" for letter in str(folder.absolute())):  # Parquet's writer cannot name it
            locale = (
                "" if (name := sys.getfilesystemencoding()) == "utf-8" else f" as {name} reads it (set PYTHONUTF8=1)"
            )
            shown = single_line(str(folder.absolute()))
            raise CheckpointError(f"{shown} is no name in UTF-8{locale}; give another --out")
        with _one_line(folder), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            folder.lstat()  # raises for an impossible name: too long, or with a NUL
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
        created = not folder.exists() or folder.absolute() in _named
        _named.discard(folder.absolute())
        with _one_line(folder):
            folder.mkdir(parents=True, exist_ok=True)
        lock = FolderLock.acquire(folder)
        try:
            # again: the previous owner may have finished a run while this process waited for the lock
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
    def shown(self) -> Path:
        """`path` as :meth:`claim` was given it, for messages."""
        return self._parent / self.path.name

    @property
    def replaces(self) -> bool:
        """Whether another run is in `target`."""
        return self.path != self.target

    @property
    def begun(self) -> bool:
        """Whether the folder contains a run of its own."""
        return self._begun

    def check(self) -> None:
        """Raises `FolderLostError` if another process took the folder over, or it was deleted."""
        for lock in self._locks:
            lock.check()

    @property
    def lock_id(self) -> str:
        """The id of the lock in `path`."""
        return self._locks[-1].owner.id

    def begin(self) -> None:
        """From here on the folder contains a run, which stays after a failure and can be resumed."""
        self._begun = True
        if not self.replaces:  # the mark stays in `NAME.new`, where a failed replacement can be resumed
            unmark(self.path)

    def replace_previous_run(self) -> None:
        """Move this run to `target` and remove the previous run. Raises `CheckpointError` if a rename fails."""
        if not self.replaces:
            return
        self.check()
        with _one_line(self.target):
            old = swap(self.target, self.path)
        self.path = self.target
        before, own = self._locks
        self._locks = [own]
        own.folder = self.target
        before.folder = old
        before.release()
        discard(old, self.target)

    def release(self) -> None:
        """Unlock the folder. Removes a run that did not begin. A replacement that failed in its first round stays in
        `NAME.new`, where the failure can be repeated."""
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
        """The run was stopped in its first round: :meth:`release` removes it if it was to replace another run."""
        self._begun = self._begun and not self.replaces


def _content(folder: Path) -> list[str]:
    """The names in the folder, without locks, marks and temporary files."""
    if not folder.is_dir():
        if folder.exists() or folder.is_symlink():
            raise CheckpointError(f"{folder} is not a folder; give another --out")
        return []
    with _one_line(folder):
        names = [item.name for item in folder.iterdir()]
        return [name for name in names if not name.startswith((LOCK, MARK)) and not PARTIAL.fullmatch(name)]


def _unbegun(folder: Path, content: list[str]) -> bool:
    """Whether the folder is empty, or contains only the files of a run that was killed as it started."""
    return not content or (set(content) <= STARTED and owner(folder) is not None)


def _check(folder: Path, unbegun: bool, overwrite: bool) -> None:
    """Raises `CheckpointError` for a folder with anything but a run, for a run without `overwrite`, for one in which
    another run lies, and for a new one inside a run's folder."""
    if not unbegun and not is_run(folder):
        raise CheckpointError(f"{folder} is not empty and not a run folder; give another --out")
    if not unbegun and not overwrite:
        raise CheckpointError(
            f"{folder} already holds a run; give another --out, add --overwrite, or run: flray resume {quoted(folder)}"
        )
    if unbegun:
        check_outside(folder)
        return
    inside = next(filter(is_run, folder.iterdir()), None)
    if inside is not None:
        raise CheckpointError(f"{inside} is another run, which --overwrite of {folder} would remove; move it first")


def check_outside(folder: Path) -> None:
    """Raises `CheckpointError` for a new folder inside a run's: what looks for runs does not look into one."""
    outer = next(filter(is_run, folder.absolute().parents), None)
    if outer is not None:
        raise CheckpointError(f"{folder} is inside the run {outer} and would not be found there; give another --out")


def _empty(folder: Path) -> None:
    """Remove everything but the lock and the mark of a swap."""
    with _one_line(folder):
        for item in folder.iterdir():
            if item.name not in (LOCK, MARK):
                shutil.rmtree(item) if item.is_dir() and not item.is_symlink() else item.unlink()


def _clear_staging(staging: Path, target: Path) -> None:
    """Remove the `NAME.new` of a replacement that failed. Raises `CheckpointError` if it is a user's folder."""
    if not is_free(staging, target):
        raise CheckpointError(
            f"{staging} is in the way: the new run writes there until its first round is done; rename it, or give "
            "another --out"
        )
    if staging.exists():
        lock = FolderLock.acquire(staging)  # nobody else's
        with _one_line(staging):
            discard(staging, target)
        lock.release()


def repair_swap(folder: Path) -> None:
    """Finish or undo a replacement that a kill interrupted, with a warning. Raises `CheckpointError` if another process
    is replacing the run now."""
    with _one_line(folder):
        message = repair(folder)
        if not message and (places := interrupted(folder)):
            FolderLock.acquire(places[0]).release()  # raises if another process has the lock
            message = repair(folder)
    if message:
        warn(message)


def _one_line(folder: Path) -> contextlib.AbstractContextManager[None]:
    return writing(folder, ", or give another --out")


def grid_rows(cells: Sequence[Experiment], root: Path, overwrite: bool = False) -> list[dict[str, Any]]:
    """A row for each cell: its folder, and whether its run is new, resumed or finished. Raises `CheckpointError` if a
    folder holds another experiment, or `root` is no place for runs."""
    check_root(root)
    return [
        {"folder": str(root / name), "is": cell_status(cell, root / name, overwrite)}
        for cell, name in zip(cells, labels(cells), strict=True)
    ]


def check_root(root: Path) -> None:
    """Raises `CheckpointError` for a place of a grid that is a file, a run or a sweep, or a new one inside a run: its
    runs would not be found there."""
    if root.exists() and not root.is_dir():
        raise CheckpointError(f"{root} is a file, not a folder for the runs of a grid; give another --out")
    if is_run(root):
        raise CheckpointError(f"{root} is a run, and those of a grid would not be found in it; give another --out")
    if (root / "study.journal").exists() or (root / "trials").is_dir():
        raise CheckpointError(f"{root} is a sweep, and the runs of a grid would mix with its own; give another --out")
    if not root.exists():  # a grid that lies there goes on
        check_outside(root)


def check_new(folder: Path, overwrite: bool = False) -> None:
    """Raises the errors of :meth:`RunFolder.claim` for a new run, and leaves the folder unchanged."""
    RunFolder.claim(folder, overwrite=overwrite).release()


def check_inputs(cells: Sequence[Experiment], folders: Sequence[Path]) -> None:
    """Raises `CheckpointError` if one of these runs reads a file in a folder that one of them replaces: it would be
    lost, and no other run could begin as that one."""
    replaced = [place for folder in folders for place in (folder.resolve(), staging_folder(folder.resolve()))]
    for key, text in {named for cell in cells for named in _named_places(cell)}:
        place = Path(os.path.realpath(os.path.expanduser(text.removeprefix("hf:"))))
        if os.path.lexists(place) and any(map(place.is_relative_to, replaced)):
            raise CheckpointError(
                f"{key}: {text} is in a folder that a run with --overwrite would remove; give another --out"
            )


def _named_places(cell: Experiment) -> Iterator[tuple[str, str]]:
    """(key, text) of what may be a path in a configuration. Other words than weights need a slash: a folder may have
    the name of an algorithm."""
    for key, value in dotted(cell.dump()).items():
        texts = [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, str)]
        if key.partition(".")[0] not in RESUMABLE:
            sources = cell.model.sources if key.startswith("model.") else ()
            yield from ((key, text) for text in texts if "/" in text or text in sources)


def default_folder(experiment: Experiment, root: str | Path = "runs") -> Path:
    """`runs/NAME/ALGORITHM-seedS`, or the first free name after it."""
    return first_free(Path(root) / experiment.name / f"{method_name(experiment)}-seed{experiment.seed}")


def first_free(base: Path) -> Path:
    """This path, or the first free name `...-2`, `...-3`, ..."""
    names = (f"{base.name}-{number}" if number > 1 else base.name for number in itertools.count(1))
    return next(path for path in map(base.with_name, names) if not path.exists())


def unused_folder(experiment: Experiment) -> Path:
    """:func:`default_folder` of a run that begins, which is made here: no other run, also of another process, gets the
    name. Says in a line if it is not the first one."""
    made = False
    while not made:
        folder = default_folder(experiment)
        with _one_line(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                folder.mkdir()
                made = True
    _named.add(folder.absolute())
    first = folder.with_name(f"{method_name(experiment)}-seed{experiment.seed}")
    if folder != first:
        LOGGER.warning(
            f"{first} is there already, so this run is {folder} (--overwrite --out {quoted(first)} replaces it)"
        )
    return folder

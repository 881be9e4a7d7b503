"""The studies of a sweep in its storage: one process makes them, and each has the record of its sweep's beginning.

A database can be shared by many sweeps. Optuna gives a study's name out once (a unique column, or the order of the
journal's lines), so of two sweeps that begin at the same moment one gets an error and feeds nothing.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import BaseStorage
from optuna.study import Study, StudyDirection

from flray.core.schema.errors import CheckpointError
from flray.rundir.lock import Owner, holder
from flray.tuning.beginning import ATTRIBUTE, Beginning, read_beginning
from flray.tuning.config import Sweep

DRIVER = "flray.driver"  # user attribute of a study in a database: who writes to it
WAIT_S = 3.0  # for the record of a study that another process has just made
POLL_S = 0.1


def create(storage: BaseStorage, names: Collection[str], directions: Sequence[StudyDirection]) -> None:
    """The studies of a new sweep. Raises `DuplicatedStudyError` if one of them exists; then none is made."""
    made: list[Study] = []
    try:
        for name in sorted(names):
            made.append(optuna.create_study(study_name=name, storage=storage, directions=directions))
    except Exception:
        for study in made:
            with contextlib.suppress(Exception):
                optuna.delete_study(study_name=study.study_name, storage=storage)
        raise


def taken(storage: BaseStorage, names: Collection[str], sweep: Sweep, place: str) -> CheckpointError:
    """The error of a sweep whose study's name is taken; `place`: the storage, in words."""
    name = min(set(optuna.get_all_study_names(storage)) & set(names))
    text = f"study: {place} already holds {name}; give this sweep another name, or resume that one"
    record = recorded(optuna.load_study(study_name=name, storage=storage), wait=True)
    if record is None:
        return CheckpointError(text)
    return CheckpointError(f"{text} ({record.difference(sweep) or 'it has the same configuration'})")


def recorded(study: Study, wait: bool = False) -> Beginning | None:
    """What a study's sweep began with; None: the study has no record. `wait`: for a moment, in which the process that
    made the study may write it. Raises `CheckpointError` for a damaged one."""
    until = time.monotonic() + WAIT_S
    while (values := study.user_attrs.get(ATTRIBUTE)) is None and wait and time.monotonic() < until:
        time.sleep(POLL_S)
    if values is None:
        return None
    try:
        return Beginning.read(values)
    except ValueError:
        raise CheckpointError(
            f"study {study.study_name}: its attribute {ATTRIBUTE} is damaged; bring the study back from a copy, or "
            "start again with another --out and another name"
        ) from None


def join(study: Study, sweep: Sweep, began: Beginning, known: bool, place: str) -> Beginning:
    """The record of the study of a sweep that goes on. `known`: `began` is the record of the sweep's folder. Raises
    `CheckpointError` if the study is another sweep's."""
    record = recorded(study, wait=known and not study.get_trials(deepcopy=False))
    if record is None:
        if known and study.get_trials(deepcopy=False):
            raise CheckpointError(
                f"study: {place} is not the one that this sweep began with: {study.study_name} has trials and no "
                "record; bring the study back, or give another --out and another name"
            )
        study.set_user_attr(ATTRIBUTE, began._asdict())  # a kill came before it
        return began
    if known and record.id != began.id:
        why = record.difference(sweep) or "it began apart, with the same configuration"
        raise CheckpointError(
            f"study: {place} holds another sweep under the name {study.study_name}: {why}; give this one another name "
            "and --out, or resume that one"
        )
    record.check(sweep, f"study: {place}")
    return record


def drive(study: Study, folder: Path, began: Beginning, place: str) -> Callable[[], None]:
    """Makes this process the only one that writes to a study in a database. Returns a check that raises
    `CheckpointError` once another process took the study over. Raises it if a living process of this machine drives the
    study from another folder, or if this folder is a copy of the one where the sweep goes on."""
    before = study.user_attrs.get(DRIVER)
    if isinstance(before, dict) and isinstance(before.get("folder"), str):
        home = Path(before["folder"])
        other = read_beginning(home)
        if other is not None and other.id == began.id and not _same_folder(home, folder):
            raise CheckpointError(
                f"study: {place} belongs to the sweep in {home}, of which {folder} is a copy: both would feed it; "
                "resume that one, or remove it first"
            )
        writer = holder(home)
        if writer is not None and writer.id == before.get("id") and not _same_folder(home, folder):
            raise CheckpointError(
                f"study: {place} is in use: {writer} writes to it from {home}; wait for it, or stop it"
            )
    mine = Owner.this_process()
    values: dict[str, Any] = {"folder": str(folder.absolute()), "host": mine.host, "id": mine.id}
    study.set_user_attr(DRIVER, values)

    def check() -> None:
        now = study.user_attrs.get(DRIVER)
        if now != values:
            who = f"{now.get('folder')} on {now.get('host')}" if isinstance(now, dict) else "nobody"
            raise CheckpointError(
                f"study: {place} was taken over by {who}; this process stops and writes nothing more to it"
            )

    return check


def _same_folder(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False

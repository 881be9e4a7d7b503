"""Sorts folders into runs that can be shown and others, with the reason in a line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from flray.core.schema.errors import CheckpointError, FlrayError
from flray.log import LOGGER
from flray.results.tables import compare, settings
from flray.rundir.reader import Run, runs_below
from flray.rundir.uri import is_uri

LISTED = 10  # folders that are left out, a line each; of more of them the first one and their number
FLAWED = ("damaged", "incomplete", "edited")  # beginnings of the status of a run whose tables have changed


class UnreadableRun(NamedTuple):
    """A folder that is left out, and why."""

    folder: str
    why: str

    def __str__(self) -> str:
        return self.why if self.folder in self.why else f"{self.folder}: {self.why}"


class ReadableRuns(NamedTuple):
    """The runs below some folders, the folders without a readable run, and notes."""

    runs: list[Run]
    broken: list[UnreadableRun]
    notes: list[str]


def readable_runs(folders: Iterable[str | Path | Run]) -> ReadableRuns:
    """The runs in these folders and below them, in any state; of a sweep its final runs.

    A sweep's trials are tested on held-out data and its final runs on the test set, so the two are never mixed: trials
    are taken only if there are no final runs yet, and a note says so.
    """
    runs: list[Run] = []
    broken: list[UnreadableRun] = []
    notes: list[str] = []
    known = set[Path]()
    for folder in folders:
        try:
            below, note = ([folder], []) if isinstance(folder, Run) else _below(folder)
        except FlrayError as error:
            broken.append(UnreadableRun(str(folder), _line(error)))
            continue
        notes += note
        for place in below:
            try:
                run = place if isinstance(place, Run) else Run(place)
                settings(run)
            except (FlrayError, OSError) as error:
                broken.append(UnreadableRun(str(place), _line(error)))
            else:
                where = run.folder.absolute()
                if where not in known:  # `compare grid grid/one` names it twice
                    runs.append(run)
                known.add(where)
    return ReadableRuns(runs, broken, notes)


def _below(folder: str | Path) -> tuple[Sequence[str | Path | Run], list[str]]:
    """(the run folders, notes on them). Raises `CheckpointError` for a sweep without runs."""
    if is_uri(folder) or not (Path(folder) / "sweep.yaml").exists():
        return runs_below(folder) or [folder], []
    for part, says in (("final", "fresh seeds, test set"), ("trials", "held-out data; there are no final runs yet")):
        runs = runs_below(Path(folder) / part)
        if runs:
            return runs, [f"{folder} is a sweep: {len(runs)} runs of {part}/ are read ({says})"]
    raise CheckpointError(f"{folder} is a sweep without runs; it did not begin")


def sound(runs: Iterable[Run]) -> tuple[list[Run], list[UnreadableRun]]:
    """(runs whose tables are complete, the others with the reason).

    A run that is going on, failed or diverged is sound. One with a damaged or lost table, or an edited config.yaml, is
    not.
    """
    good: list[Run] = []
    broken: list[UnreadableRun] = []
    for run in runs:
        status = str(compare([run])["status"].iloc[0])
        try:
            run.diagnostics  # noqa: B018  (tables that are read when they are asked for)
        except CheckpointError as error:
            status = f"damaged: {error}"
        if status.startswith(FLAWED):
            broken.append(UnreadableRun(run.place, status))
        else:
            good.append(run)
    return good, broken


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def runs_in(folders: Iterable[str | Path | Run], sound_only: bool = False) -> list[Run]:
    """The runs in folders and below them, of a sweep its final ones; a warning for each folder that is left out.

    With `sound_only` runs with damaged tables are left out too. Raises `CheckpointError` if no run is left.
    """
    runs, broken, notes = readable_runs(folders)
    if sound_only:
        runs, flawed = sound(runs)
        broken += flawed
    if not runs:
        more = f" (and {len(broken) - 1} more folders)" if len(broken) > 1 else ""
        raise CheckpointError(f"{broken[0] if broken else 'no run is named'}{more}")
    warn_left_out(broken, notes)
    return runs


def warn_left_out(broken: Iterable[object], notes: Iterable[str] = ()) -> None:
    """A line for each folder that is not shown, at most `LISTED`; and other notes."""
    for note in notes:
        LOGGER.info(f"note: {note}")
    folders = list(broken)
    for folder in folders if len(folders) <= LISTED else folders[:1]:
        LOGGER.warning(f"left out: {folder}")
    if len(folders) > LISTED:
        LOGGER.warning(f"left out: {len(folders) - 1} more folders, each for its own reason")

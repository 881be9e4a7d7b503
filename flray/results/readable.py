"""Sorts folders into runs that can be shown and others, with the reason in a line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from flray.core.schema.errors import CheckpointError, FlrayError, message_of
from flray.log import LOGGER
from flray.results.tables import compare, settings
from flray.rundir.folder import sweep_of
from flray.rundir.reader import Run, runs_below
from flray.rundir.uri import is_uri

# the parts of a sweep, in the order in which they are read
PARTS = {"final": "fresh seeds, test set", "trials": "held-out data; there are no final runs yet"}
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
    """The runs in these folders and below them (:func:`runs_below`), in any state; a note on each sweep among them."""
    runs: list[Run] = []
    broken: list[UnreadableRun] = []
    notes: list[str] = []
    known = set[Path]()
    for folder in folders:
        try:
            below, note = ([folder], []) if isinstance(folder, Run) else _below(folder)
        except FlrayError as error:
            broken.append(UnreadableRun(str(folder), message_of(error)))
            continue
        notes += note
        for place in below:
            try:
                run = place if isinstance(place, Run) else Run(place)
                settings(run)
            except (FlrayError, OSError) as error:
                broken.append(UnreadableRun(str(place), message_of(error)))
            else:
                where = run.folder.resolve()  # a link is a second name
                if where not in known:  # as `compare grid grid/one` has it
                    runs.append(run)
                elif isinstance(place, Run) and place not in runs:  # such as one and the one that replaced it
                    notes.append(f"{run.place} is given twice and counts once")
                known.add(where)
    return ReadableRuns(runs, broken, notes)


def _below(folder: str | Path) -> tuple[Sequence[str | Path | Run], list[str]]:
    """(the run folders, notes on them). Raises `CheckpointError` for a sweep without runs."""
    runs = runs_below(folder)
    if not runs and not is_uri(folder) and (Path(folder) / "sweep.yaml").exists():
        raise CheckpointError(f"{folder} is a sweep without runs; it did not begin")
    return runs or [folder], notes_on_sweeps(runs, folder)


def notes_on_sweeps(runs: Iterable[str | Path], top: str | Path) -> list[str]:
    """Which runs of each sweep, at the folder `top` or below it, are among `runs` (of :func:`runs_below`)."""
    parts = Counter[tuple[Path, str]]()
    for run in () if is_uri(top) else runs:
        if (sweep := sweep_of(run, top)) is not None:
            parts[sweep, Path(run).relative_to(sweep).parts[0]] += 1
    return [
        f"{sweep} is a sweep: {count} runs of {part}/ are read ({PARTS[part]})"
        for (sweep, part), count in parts.items()
        if part in PARTS
    ]


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

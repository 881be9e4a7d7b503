"""Results of a sweep: its table, its figures, the best trials on the terminal, the final comparison on the test set,
and the part of a report on its trials."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from flray.algorithms import as_written
from flray.core.schema.errors import CheckpointError, FlrayError, failure
from flray.files import atomic_write, write_text, writing
from flray.log import LOGGER
from flray.results import compare, paired, render, summary, to_markdown
from flray.results.answers import verdict
from flray.results.intervals import MIN_PAIRS, is_share
from flray.results.paired import baseline, caption
from flray.results.pictures import svg
from flray.results.rendering import csv, shown_value
from flray.results.report_page import Lead, PageSection
from flray.rundir.folder import is_run
from flray.rundir.reader import runs_below
from flray.tuning.sweep_figures import Skip, draw, figures_of
from flray.tuning.trials import (
    Direction,
    Opened,
    best,
    describe_parameters,
    front,
    open_sweep,
    parameters,
    table_of,
)

if TYPE_CHECKING:
    import pandas
    from rich.table import Table

TABLE = "sweep.parquet"
MADE = ".made"  # in final/: the names of the runs that the sweep made there
TOP = 10  # trials in the table of a report
NOTES = {
    "importance": "how much each parameter matters for being among the best trials (PED-ANOVA)",
    "history": "every trial in its order, and the best so far",
    "slice": "the objective over each parameter",
    "curves": "every trial's learning curve, pruned ones grey, the best in colour",
    "pareto": "trials that no other one beats in all objectives",
}


class SweepReport(NamedTuple):
    """The files of `write_report`, and the figures that it left out, with the reason."""

    table: Path
    figures: tuple[Path, ...]
    skipped: tuple[str, ...]


# showing -----------------------------------------------------------------------------------------
def render_trials(frame: pandas.DataFrame, objectives: Mapping[str, Direction], top: int = 10) -> Table:
    """A table for the terminal: the best finished trials by the first objective; the title counts all trials."""
    shown = best(frame, objectives, top)
    counts = ", ".join(f"{count} {name}" for name, count in frame["state"].value_counts().items())
    again = f", {frame['reused'].notna().sum()} of them reused" if "reused" in frame else ""
    first, direction = next(iter(objectives.items()))
    title = f"best {len(shown)} by {first} ({direction}) of {len(frame)} trials{again}" + (
        f": {counts}" if counts else ""
    )
    return _render(shown, objectives, title)


def render_front(frame: pandas.DataFrame, objectives: Mapping[str, Direction]) -> Table:
    """The Pareto front as a table for the terminal."""
    directions = ", ".join(f"{name} {direction}" for name, direction in objectives.items())
    shown = front(frame, objectives)
    return _render(
        shown,
        objectives,
        f"Pareto front of {directions}: {len(shown)} of {(frame['state'] == 'finished').sum()} finished trials",
    )


def shown_trials(frame: pandas.DataFrame, objectives: Mapping[str, Direction]) -> pandas.DataFrame:
    """Trials for `flray.results.rendering`, with few columns; the algorithm and the number of seeds only if they
    vary."""
    columns = ["trial", "algorithm", "parameters", *objectives, "round", "seeds", "time/s"]
    same = [name for name in ("algorithm", "seeds") if frame[name].nunique() < 2]
    shown = frame.assign(parameters=[describe_parameters(frame, index) for index in frame.index])
    if "time/s" not in objectives:
        shown["time/s"] = frame["seconds"]
    shown = shown[[name for name in dict.fromkeys(columns) if name not in same]].astype(object)
    return shown.where(shown.notna(), None)


def _render(frame: pandas.DataFrame, objectives: Mapping[str, Direction], title: str) -> Table:
    shown = shown_trials(frame, objectives)
    table = render(shown, title)
    column = table.columns[list(shown).index("parameters")]
    column.overflow, column.min_width = "fold", 20 if frame[parameters(frame)].shape[1] else None
    return table


# writing -----------------------------------------------------------------------------------------
def write_table(folder: str | Path) -> Path:
    """Writes only `sweep.parquet`, which is fast. Raises `CheckpointError` for a folder without a sweep."""
    sweep = open_sweep(folder)
    return _write(sweep, table_of(sweep))


def write_report(folder: str | Path) -> SweepReport:
    """Writes `sweep.parquet` and `figures/` of a sweep folder, also while it runs; about a second a figure.

    Leaves out a figure that cannot be drawn (yet), with the reason. Raises `CheckpointError` for a folder without a
    sweep.
    """
    sweep = open_sweep(folder)
    frame = table_of(sweep)
    return SweepReport(_write(sweep, frame), *draw(sweep, frame))


def _write(sweep: Opened, frame: pandas.DataFrame) -> Path:
    path = sweep.folder / TABLE
    with writing(path), atomic_write(path) as temporary:
        frame.to_parquet(temporary, index=False)
    return path


def noted_runs(final: Path) -> list[str]:
    """The names of the runs that the sweep has put into this folder; other files there are the user's."""
    note = final / MADE
    return note.read_text(errors="replace").splitlines() if note.is_file() else []


def final_runs(folder: Path) -> list[str | Path]:
    """The sweep's own runs in `FOLDER/final`, sorted by name; without its note all that are there."""
    final = folder / "final"
    if not (final / MADE).is_file():
        return runs_below(final)
    return [final / name for name in sorted(noted_runs(final)) if is_run(final / name)]


def final_table(
    folder: str | Path, against: str | Mapping[str, Any] | None = None
) -> tuple[pandas.DataFrame, pandas.DataFrame]:
    """(table of the fresh-seed runs of `FOLDER/final`, their table over seeds).

    With several settings the second table has the paired differences from a reference: `against` (see
    `flray.results.paired`), FedAvg if it is among them, or the first. Raises `CheckpointError` if there are no such
    runs.
    """
    folder = Path(folder)
    runs = final_runs(folder)
    if not runs:
        raise CheckpointError(
            f"{folder / 'final'} holds no runs: the sweep did not get to its final runs; continue it with --resume"
        )
    frame = compare(runs)
    over = summary(frame)
    if len(over) > 1:
        over = paired(frame, baseline(frame) if against is None else against, least=MIN_PAIRS)
    return frame, over


def write_final_table(folder: Path) -> None:
    """Writes :func:`final_table` as `final.csv` (runs) and `final.md` (both tables)."""
    frame, over = final_table(folder)
    head = f"{' '.join(verdict(frame, 'test/acc'))}\n\n{caption(over)}:\n\n" if len(over) > 1 else ""
    write_text(folder / "final.csv", csv(frame))
    write_text(folder / "final.md", f"{to_markdown(frame)}\n{head}{to_markdown(over)}")


# the part of a report before the final runs --------------------------------------------------------
def trials_lead(folder: str | Path, drawn: bool = True) -> Lead:
    """Sentences, tables and pictures of a sweep's trials, also while it runs; without `drawn` no pictures.

    Leaves out a picture that cannot be drawn yet. Raises `CheckpointError` for a folder without a sweep.
    """
    sweep = open_sweep(folder)
    frame = table_of(sweep)
    top = best(frame, sweep.objectives, TOP)
    sections = []
    if len(top):
        table = shown_trials(top, sweep.objectives)
        sections.append(PageSection(f"{sweep.name}: best trials", "judged on held-out data", table))
    if len(sweep.objectives) > 1 and len(front(frame, sweep.objectives)):
        rows = shown_trials(front(frame, sweep.objectives), sweep.objectives)
        sections.append(PageSection(f"{sweep.name}: Pareto front", NOTES["pareto"], rows))
    if drawn:
        sections += _pictures(sweep, frame)
    return Lead(tuple(_sentences(sweep, frame, top)), tuple(sections))


def _sentences(sweep: Opened, frame: pandas.DataFrame, top: pandas.DataFrame) -> list[str]:
    counts = ", ".join(f"{count} {name}" for name, count in frame["state"].value_counts().items())
    said = [f"Sweep {sweep.name}: {len(frame)} trials" + (f" ({counts})." if counts else ".")]
    if len(top):
        objective, direction = next(iter(sweep.objectives.items()))
        row, end = top.iloc[0], "highest" if direction == "max" else "lowest"
        value = f"{shown_value(objective, row[objective])}{' %' if is_share(objective) else ''}"
        said.append(
            f"The {end} {objective} (held-out data) is that of trial {row['trial']}: "
            f"{describe_parameters(top, top.index[0]) or as_written(row['algorithm'])}, {value}."
        )
    return said


def _pictures(sweep: Opened, frame: pandas.DataFrame) -> list[PageSection]:
    pictures = []
    for name, figure in figures_of(sweep, frame):
        note, title = NOTES[name.partition("-")[0]], f"{sweep.name}: {' '.join(map(as_written, name.split('-')))}"
        try:
            with suppress(Skip, FlrayError):  # too few trials, one parameter; a trial's damaged folder
                drawn = figure()
                drawn.suptitle("")
                pictures.append(PageSection(title, note, None, svg(drawn, f"sweep-{name}")))
        except Exception as error:  # of the library that draws it; the rest of the page stays
            LOGGER.warning(f"left out: the figure {name} of {sweep.folder}: {failure(error)}")
    return pictures

"""The part of a report on a sweep's trials, before its final runs: the best trials, the important parameters, their
curves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from flray.algorithms import as_written
from flray.core.schema.errors import FlrayError
from flray.results.intervals import is_share
from flray.results.pictures import svg
from flray.results.rendering import shown_value
from flray.results.report_page import Lead, PageSection
from flray.tuning.report import shown_trials
from flray.tuning.sweep_figures import Skip, canvas, figures_of
from flray.tuning.trials import Opened, best, describe_parameters, front, open_sweep, table_of

if TYPE_CHECKING:
    import pandas

TOP = 10  # trials in the table
NOTES = {
    "importance": "how much each parameter matters for being among the best trials (PED-ANOVA)",
    "history": "every trial in its order, and the best so far",
    "slice": "the objective over each parameter",
    "curves": "every trial's learning curve, pruned ones grey, the best in colour",
    "pareto": "trials that no other one beats in all objectives",
}


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
        kind = name.partition("-")[0]
        if kind in NOTES:
            try:
                with canvas():
                    drawn = figure()
                    _restyle(drawn)
                    title = f"{sweep.name}: {' '.join(map(as_written, name.split('-')))}"
                    pictures.append(PageSection(title, NOTES[kind], None, svg(drawn, f"sweep-{name}")))
            except (Skip, FlrayError):  # too few trials, one parameter; a trial's damaged folder
                continue
    return pictures


def _restyle(figure: Any) -> None:
    """Gives Optuna's figures the report's style, without white lines on a grey ground."""
    figure.suptitle("")
    for axis in figure.axes:
        axis.grid(axis.get_label() != "<colorbar>", color="#e4e7eb", linewidth=0.6)
        axis.set_axisbelow(True)
        axis.tick_params(colors="#000000")
        for part in (axis.xaxis.label, axis.yaxis.label):
            part.set_color("#000000")
        for spine in axis.spines.values():
            spine.set_color("#000000")

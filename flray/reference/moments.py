"""The number of a run at the moment that a paper reports: at the end, or inside the window of a drift."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from flray.reference.papers import Measure
from flray.rundir.reader import Run

if TYPE_CHECKING:
    import pandas


def at_moment(folder: str | Path, measure: Measure, mode: str | None, window: range | None) -> float:
    """The value of a measure as a share; NaN if nothing was tested at that moment.

    Reads the column of `rounds/`, or with `measure.of` (a task of a union of text, named as in `tests/`) the accuracy
    on that test set in `mode`, by default the run's first mode. `window` are the rounds of the drift. `window_end` is
    the last test inside it, `window_mean` the mean of the tests inside it, `last` the last test.
    """
    run = Run(folder)
    values = of_set(run.tests, measure.of, mode) if measure.of else of_rounds(run.rounds, measure.column)
    if measure.moment != "last":
        if window is None:
            return math.nan
        values = values[(values.index >= window.start) & (values.index < window.stop)]
    if not len(values):
        return math.nan
    return float(values.mean() if measure.moment == "window_mean" else values.iloc[-1])


def of_rounds(rounds: pandas.DataFrame, column: str) -> pandas.Series:
    """The tested values of a column, by round over all tasks; empty if there is no such column."""
    if column not in rounds:
        return rounds.iloc[:0, 0]
    return rounds.set_index("done")[column].dropna()


def of_set(tests: pandas.DataFrame, name: str, mode: str | None) -> pandas.Series:
    """The accuracy on one test set, by round over all tasks; empty if it was not tested."""
    own = tests[(tests["set"] == name) & (tests["mode"] == (mode or tests["mode"].iloc[0]))] if len(tests) else tests
    return own.assign(acc=own["right"] / own["total"]).set_index("done")["acc"] if len(own) else own.iloc[:, 0]

"""The results of a sweep for a notebook."""

from __future__ import annotations

import html
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from flray.results.comparison import Comparison, comparison
from flray.results.notebook import Runs
from flray.results.paired import baseline
from flray.results.rendering import Table, to_markdown
from flray.results.tables import compare, settings_of
from flray.tuning.report import final_runs, shown_trials
from flray.tuning.trials import best, open_sweep, trials_table

if TYPE_CHECKING:
    import pandas

TOP = 10  # trials that are displayed


class SweepResult:
    """A sweep's folder: displayed as its best trials and, if they ran, its final runs (fresh seeds, test set)."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.objectives = open_sweep(self.folder).objectives

    @property
    def status(self) -> str:
        return (self.folder / "STATUS").read_text().strip()

    @property
    def trials(self) -> pandas.DataFrame:
        """One row a trial, also while the sweep goes on (:func:`flray.tuning.trials.trials_table`)."""
        return trials_table(self.folder)

    @property
    def best(self) -> pandas.DataFrame:
        """The rows of `trials` with the best values of the first objective, the best first, without repetitions."""
        return best(self.trials, self.objectives, TOP)

    @cached_property
    def final(self) -> Runs:
        """The best configurations again: fresh seeds, all training data, test set. Raises `CheckpointError` if the
        sweep did not get there."""
        return Runs(final_runs(self.folder) or self.folder / "final")

    def compare(self, metric: str = "test/acc") -> Comparison:
        """The final runs compared with FedAvg if it is among them, else with the first."""
        frame = compare(self.final)
        against = baseline(frame) if len(settings_of(frame)) > 1 else None
        return comparison(self.final, metric, against)

    def _repr_html_(self) -> str:
        trials = Table(shown_trials(self.best, self.objectives))._repr_html_()
        text = f"<p>{html.escape(f'{self.folder}: {self.status}')}</p>{trials}"
        return text + (self.compare()._repr_html_() if final_runs(self.folder) else "")

    def __repr__(self) -> str:
        return f"{self.folder}: {self.status}\n{to_markdown(shown_trials(self.best, self.objectives))}"

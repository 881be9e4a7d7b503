"""Read runs, tables, figures."""

from flray.results.figures import ablation, clients
from flray.results.learning import curves
from flray.results.paired import paired
from flray.results.regions import decision_regions
from flray.results.tables import compare, render, summary, to_markdown
from flray.rundir.reader import Run, load, runs_below

__all__ = [
    "Run",
    "ablation",
    "clients",
    "compare",
    "curves",
    "decision_regions",
    "load",
    "paired",
    "render",
    "runs_below",
    "summary",
    "to_markdown",
]

"""What came out of runs: tables of several, paired differences, figures."""

from flray.results.by_mode import by_mode
from flray.results.figures import ablation, clients
from flray.results.learning import curves
from flray.results.paired import paired
from flray.results.regions import decision_regions
from flray.results.rendering import render, to_markdown
from flray.results.tables import compare, summary

__all__ = [
    "ablation",
    "by_mode",
    "clients",
    "compare",
    "curves",
    "decision_regions",
    "paired",
    "render",
    "summary",
    "to_markdown",
]

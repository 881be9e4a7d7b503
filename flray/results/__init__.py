"""Read runs, tables, figures."""

from flray.results.figures import clients, curves
from flray.results.read import Run, load
from flray.results.regions import decision_regions
from flray.results.tables import compare, render, summary, to_markdown

__all__ = ["Run", "clients", "compare", "curves", "decision_regions", "load", "render", "summary", "to_markdown"]

"""Read runs, tables, figures."""

from flray.results.read import Run, load
from flray.results.tables import compare, render, summary, to_markdown

__all__ = ["Run", "compare", "load", "render", "summary", "to_markdown"]

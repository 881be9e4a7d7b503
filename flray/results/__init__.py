"""Read runs, tables, figures."""

from flray.results.read import Run, load

__all__ = ["Run", "load"]

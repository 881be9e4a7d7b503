"""Shared parts of a sweep's figures: a canvas without a window, titles, axes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flray.tuning.trials import Direction, Opened


class Skip(Exception):
    """The reason why a figure cannot be drawn."""


@contextmanager
def canvas() -> Iterator[None]:
    """Lets Optuna draw with pyplot without a window and without its warnings; restores everything that it sets."""
    import matplotlib
    import optuna
    from matplotlib import pyplot

    backend, before, verbosity = matplotlib.get_backend(), pyplot.get_fignums(), optuna.logging.get_verbosity()
    try:
        pyplot.switch_backend("agg")
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        with pyplot.style.context("default"), warnings.catch_warnings():
            # that the plots are experimental, and that an importance looks for low values
            for category in (optuna.exceptions.ExperimentalWarning, UserWarning):
                warnings.simplefilter("ignore", category)
            matplotlib.rcParams["figure.constrained_layout.use"] = True
            yield
    finally:
        for number in set(pyplot.get_fignums()) - set(before):
            pyplot.close(number)
        optuna.logging.set_verbosity(verbosity)
        pyplot.switch_backend(backend)


def titled(figure: Any, sweep: Opened, what: str, algorithm: str = "", size: tuple[float, float] | None = None) -> Any:
    """Replaces Optuna's titles: the sweep, the algorithm, the content."""
    for axis in figure.axes:
        for place in ("left", "center"):
            axis.set_title("", loc=place)
    figure.suptitle(", ".join(part for part in (sweep.name, algorithm) if part) + f": {what}", fontsize=11)
    figure.set_layout_engine("constrained")
    if size is not None:
        figure.set_size_inches(size)
    return figure


def headed(objective: str, objectives: dict[str, Direction]) -> str:
    return f"{objective} ({objectives[objective]})"


def few_ticks(axis: Any) -> None:
    """Labels at 1, 2 and 5 of each decade of a logarithmic axis: Matplotlib's own labels overlap on a short one."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    if axis.get_scale() == "log":
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axis.set_minor_formatter(NullFormatter())


def save_atomically(figure: Any, path: Path) -> Path:
    from matplotlib import pyplot

    from flray.results.figures import save

    temporary = save(figure, path.with_name(f".{path.stem}.tmp.png"))
    pyplot.close(figure)
    return temporary.replace(path)

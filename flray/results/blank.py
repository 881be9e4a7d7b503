"""Axes to draw into: those of a new figure, which a notebook shows as a picture without pyplot, or the caller's."""

from __future__ import annotations

import functools
import io
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from flray.core.schema.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def blank(width: float, height: float) -> Figure:
    """An empty figure of this size in inches, with a constrained layout."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure = _shown()(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def one_axis(axis: Axes | None, width: float = 7.2, height: float = 4.4) -> tuple[Figure, Any]:
    """(figure, axis): the caller's axis and its figure, or a new figure of this size in inches with one axis."""
    if axis is not None:
        return figure_of(axis), axis
    figure = blank(width, height)
    return figure, figure.subplots()


def given(axes: Axes | Iterable[Any], count: int, what: str) -> list[Any]:
    """The caller's axes, in any nesting, as a flat list. Raises `ConfigError` unless there are `count`; `what` names
    the panels."""
    import numpy as np

    flat: list[Any] = np.array(axes, dtype=object).ravel().tolist()
    if len(flat) != count:
        raise ConfigError(f"{len(flat)} axes given, and {count} are drawn ({what}): give so many, or none")
    return flat


def figure_of(axis: Axes) -> Figure:
    """The figure that contains an axis, also if the axis lies in a subfigure."""
    part: Any = axis.figure
    figure: Figure = part.figure
    return figure


@functools.cache
def _shown() -> type[Figure]:
    """The class of figures that a notebook shows without `%matplotlib inline`; matplotlib is imported here."""
    from matplotlib.figure import Figure

    class Shown(Figure):
        def _repr_png_(self) -> bytes:
            """A PNG with at most 256 colours: a third of the size, for notebooks under version control."""
            from PIL import Image

            drawn, small = io.BytesIO(), io.BytesIO()
            self.savefig(drawn, format="png", dpi=100)
            picture = Image.open(drawn).convert("RGB").quantize(256, dither=Image.Dither.NONE)
            picture.save(small, format="png", optimize=True)
            return small.getvalue()

    return Shown

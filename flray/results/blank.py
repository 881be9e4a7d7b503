"""An empty figure, drawn without pyplot and shown by a notebook as a picture."""

from __future__ import annotations

import functools
import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def blank(width: float, height: float) -> Figure:
    """A figure of so many inches with nothing in it, whose parts make room for each other."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure = _shown()(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


@functools.cache
def _shown() -> type[Figure]:
    """The class of figures that a notebook shows without `%matplotlib inline`; matplotlib is imported here."""
    from matplotlib.figure import Figure

    class Shown(Figure):
        def _repr_png_(self) -> bytes:
            buffer = io.BytesIO()
            self.savefig(buffer, format="png", dpi=100)
            return buffer.getvalue()

    return Shown

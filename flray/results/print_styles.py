"""Figures for a paper's column and for a talk: width, letters and lines; saved as PDF, SVG and PNG."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flray.core.schema.errors import ConfigError, unknown
from flray.results.figures import writing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".pdf", ".svg", ".png")
DPI = 300
NARROW = 0.8  # inches of a panel, below which its title has no room
FLATTER = 0.8  # of the height of a figure that is made wider than it was drawn


class PrintStyle(NamedTuple):
    """`column`, `text`: inches of a figure with one column of panels, and of one with several or a colour bar;
    `letters`: the smallest and the largest size in points; `lines`: factor of line widths and markers."""

    column: float
    text: float
    letters: tuple[float, float]
    lines: float


STYLES: Mapping[str, PrintStyle] = {
    "paper": PrintStyle(3.35, 6.9, (6.5, 8.0), 0.6),  # columns of CVPR, NeurIPS, ICML: 3.25 to 3.5 and 5.5 to 7.2
    "talk": PrintStyle(10.0, 12.5, (15.0, 18.0), 1.5),  # a slide of 13.3 by 7.5 inches
}


def save_styled(figure: Figure, out: str | Path, style: str) -> list[Path]:
    """Writes the figure in a style of `STYLES` as PDF, SVG and PNG, named as `out` with these suffixes.

    Letters are letters in the PDF (TrueType), outlines in the SVG. Raises `ConfigError` for another style, or if a file
    cannot be written.
    """
    from matplotlib import rc_context

    fit(figure, style)
    paths, base = [], Path(out)
    stem = base.stem if base.suffix.lower() in FORMATS else base.name  # figure_a0.1 has no suffix
    for suffix in FORMATS:
        with writing(base.with_name(stem + suffix)) as path, rc_context({"pdf.fonttype": 42, "svg.hashsalt": "flray"}):
            dated = {"CreationDate": None} if suffix == ".pdf" else {"Date": None} if suffix == ".svg" else {}
            figure.savefig(path, dpi=DPI, metadata=dated)
        paths.append(path)
    return paths


def check_style(style: str | None) -> None:
    """Raises `ConfigError` for a style that is none of `STYLES`."""
    if style is not None and style not in STYLES:
        raise unknown("--style", style, STYLES)


def fit(figure: Figure, style: str) -> None:
    """Sets size, letters and lines of a figure for a style. Raises `ConfigError` for another style."""
    from matplotlib.collections import PathCollection
    from matplotlib.lines import Line2D
    from matplotlib.text import Text

    check_style(style)
    wanted = STYLES[style]
    columns = max((_columns(axis) for axis in figure.axes), default=1) * len(figure.subfigs or (None,))
    barred = any(axis.get_label() == "<colorbar>" for axis in figure.axes)  # a map has no room beside its bar
    width = wanted.column if columns == 1 and not barred else wanted.text
    if width / columns < NARROW:
        raise ConfigError(
            f"--style {style}: {columns} panels beside each other are narrower than {NARROW} inches; draw fewer "
            "(regions: --rounds, --models)"
        )
    before, height = map(float, figure.get_size_inches())
    figure.set_size_inches(width, height * width / before * (FLATTER if width > before else 1.0))
    smallest, largest = wanted.letters
    for text in figure.findobj(Text):
        size = float(text.get_fontsize())
        text.set_fontsize(smallest if size < 10 else largest)
    for line in figure.findobj(Line2D):
        line.set_linewidth(line.get_linewidth() * wanted.lines)
        line.set_markersize(line.get_markersize() * wanted.lines)
    for axis in figure.axes:
        axis.tick_params(labelsize=smallest, length=3.5 * wanted.lines, width=0.8 * wanted.lines)
        for spine in axis.spines.values():
            spine.set_linewidth(spine.get_linewidth() * wanted.lines)
        for points in axis.collections:
            if isinstance(points, PathCollection):
                points.set_sizes(np.asarray(points.get_sizes()) * wanted.lines**2)
        _wrap(axis, width / columns, smallest)


def _columns(axis: Any) -> int:
    place = axis.get_subplotspec()
    return 1 if place is None else int(place.get_gridspec().ncols)


def _wrap(axis: Any, width: float, size: float) -> None:
    """Wraps the lines of a title at the left for an axis of this width in inches; a letter is half as wide as high."""
    words = axis.get_title(loc="left")
    if words:
        letters = max(12, int(width * 0.8 * 72 / (0.52 * size)))  # a title begins at the axis, right of its labels
        lines = [textwrap.fill(line, letters) for line in words.split("\n")]
        axis.set_title("\n".join(lines), loc="left", fontsize=size)

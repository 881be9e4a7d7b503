"""The pictures of a report as inline SVG: learning curves, forgetting by class and in local training, and others.

Text and lines have the page's own colour, for light and dark pages.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from flray.core.schema.errors import ConfigError, printable
from flray.results.ablation_figures import ablation, ablation_cells
from flray.results.answers import EQUAL
from flray.results.client_figures import counts_figure
from flray.results.continual import tested_set
from flray.results.continual_figures import MOST, accuracy_by_task, accuracy_through_drift, by_class
from flray.results.diagnosis_figures import FIGURES
from flray.results.figures import by_setting, wrap_title
from flray.results.intervals import smaller_is_better
from flray.results.learning import Curve, draw, learning_curves
from flray.results.ranks import SETTINGS, diagram, ranks
from flray.results.rendering import is_number
from flray.results.tables import keys_of, settings
from flray.rundir.reader import Run

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

CURVES = (
    ("Learning curves", "rounds"), ("Over local steps", "steps"), ("Over bytes", "bytes"), ("Over FLOPs", "flops"),
)  # fmt: skip
PAGE = 7.2  # inches of a picture with one column
PHONE = 5.6  # inches of the widest picture whose letters are read on a phone without scrolling
SHARE = 920 / PAGE  # pixels of the page for an inch
Picture = tuple[str, str, str]  # title, note, SVG


def of(runs: Sequence[Run], frame: pandas.DataFrame, metric: str) -> tuple[Picture, ...]:
    """All pictures for which these runs have data; `frame` is `compare`'s table of them."""
    figures = []
    over = metric if any(metric in run.rounds for run in runs) else f"{tested_set(settings(runs[0]))}/acc"
    for title, x in CURVES:
        try:
            curves = learning_curves(runs, over, x)
        except ConfigError:  # no round that all seeds have, or nothing tested
            continue
        curves, some = _ends_best(curves, over)
        ends = [curve.x[-1] / max(curve.rounds[-1], 1) for curve in curves.values()]
        if x == "rounds" or max(ends) > EQUAL * min(ends):  # a round costs as much everywhere: the same picture again
            figures.append((title, f"{over} over {x}{some}", svg(draw(curves, over, x), x, PAGE)))
    kinds: list[tuple[str, str, Callable[[], Figure | None], float | None]] = [
        (
            "Task by task",
            "rows: after a task; columns: tested on a task (0 is the first); a column that darkens was forgotten",
            lambda: accuracy_by_task(runs),
            None,
        ),
        (
            "Through the drift",
            "accuracy on the missing and on the other classes, what the detector read, and its alarms",
            lambda: accuracy_through_drift(runs),
            PAGE,
        ),
        (
            "Class by class",
            "accuracy on each class after each tested round; a dark cell is a class that is forgotten"
            + (f"; the first {MOST} settings" if len(by_setting(runs)) > MOST else ""),
            lambda: by_class(runs),
            PAGE,
        ),
        (*_over_a_key(frame, metric), PAGE),
        ("Mean ranks", "methods over settings, 1 is best", lambda: _ranks(frame, metric), PAGE),
        *((known.title, known.note, _diagnostic(name, runs), None) for name, known in FIGURES.items()),
        ("Who holds what", "", lambda: _partition(runs), PAGE),
    ]
    for title, note, drawn, width in kinds:
        with suppress(ConfigError):  # the runs have nothing for it
            figure = drawn()
            if figure is not None:
                figures.append((title, note, svg(figure, re.sub(r"\W", "-", title), width)))
    return tuple(figures)


def _ends_best(curves: dict[str, Curve], metric: str) -> tuple[dict[str, Curve], str]:
    """(the curves with the best last values, at most `MOST`, a note on the others)."""
    if len(curves) <= MOST:
        return curves, ""
    sign = 1 if smaller_is_better(metric) else -1
    best = sorted(curves, key=lambda label: sign * float(curves[label].mean[-1]))[:MOST]
    return {label: curves[label] for label in best}, f"; of {len(curves)} settings the {MOST} that end best"


def _over_a_key(frame: pandas.DataFrame, metric: str) -> tuple[str, str, Callable[[], Figure | None]]:
    """The ablation over a key; algorithms alone are in the learning curves."""
    outer = [key for key in keys_of(frame) if key.partition(".")[0] not in ("name", "algorithm")]
    varied = [key for key in outer if frame[key].nunique() > 1]
    numbers = [key for key in varied if is_number(frame, key)]
    try:
        key, *_ = ablation_cells(frame, next(iter(numbers or varied), None), metric)
    except ConfigError:  # they differ in the seed alone
        key = "algorithm"
    # a hyper-parameter that differs between algorithms alone, eps of one and of another, is no axis
    own = max((rows[key].nunique() for _, rows in frame.groupby("algorithm")), default=0)
    drawn = None if key in ("algorithm", "name") or (key.startswith("algorithm.") and own < 2) else key
    return (
        f"Over {key}",
        f"{metric} over a key in which the runs differ",
        lambda: None if drawn is None else ablation(frame, drawn, metric),
    )


def _ranks(frame: pandas.DataFrame, metric: str) -> Figure | None:
    ranked = ranks(frame, metric)
    return diagram(ranked) if ranked.blocks == SETTINGS else None


def _diagnostic(name: str, runs: Sequence[Run]) -> Callable[[], Figure | None]:
    """The figure of a diagnostic, over the runs that have it."""
    having = [run for run in runs if len(run.diagnostics.get(name, ()))]
    return lambda: FIGURES[name].figure(having) if having else None


def _partition(runs: Sequence[Run]) -> Figure | None:
    """The partition of the first run that recorded one."""
    run = next((run for run in runs if len(run.partition_table)), None)
    if run is None:
        return None
    counts = run.partition_table
    return counts_figure(counts.to_numpy(), len(counts), list(map(str, counts.columns)))


def svg(figure: Figure, name: str, width: float | None = None) -> str:
    """The figure as an inline SVG element in the colour of the surrounding text; `name` makes its ids unique.
    `width` in inches, or the figure's own: `PAGE` is that of the page, on a phone it scrolls sideways."""
    from matplotlib import rc_context

    if width is not None:
        figure.set_size_inches(width, figure.get_size_inches()[1] * min(1.0, 1.15 * width / 7.2))
    inches = float(figure.get_size_inches()[0])
    for axis in figure.axes:
        spec = axis.get_subplotspec()
        columns = 1 if spec is None else spec.get_gridspec().ncols
        wrap_title(axis, int(13 * inches / columns) - 6)
    buffer = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = printable(buffer.getvalue())
    text = text[text.index("<svg") :]
    for side in ("width", "height"):  # the page decides; the proportions are in viewBox
        text = re.sub(rf'(<svg[^>]*?) {side}="[^"]*"', r"\1", text, count=1)
    size = f"min-width:{56 * inches if inches > PHONE else 0:.0f}px;max-width:{SHARE * inches:.0f}px"
    text = text.replace("<svg", f'<svg role="img" style="{size}"', 1)
    text = re.sub(r'id="(?!m|p|C)([^"]+)"', rf'id="{name}-\1"', text)
    return text.replace("#000000", "currentColor").replace("#e4e7eb", "var(--line)").replace("'DejaVu Sans', ", "")

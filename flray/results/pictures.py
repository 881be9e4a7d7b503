"""The pictures of a report as inline SVG: learning curves, forgetting by class and in local training, and others.

Text and lines have the page's own colour, for light and dark pages.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from flray.core.schema.errors import ConfigError
from flray.results.ablation_figures import ablation, ablation_cells
from flray.results.answers import EQUAL
from flray.results.blank import blank, figure_of, given
from flray.results.colours import same_colours
from flray.results.continual import tested_set
from flray.results.diagnosis_figures import FIGURES
from flray.results.drift_figures import accuracy_through_drift, class_panel
from flray.results.figures import at_whole_numbers, by_setting
from flray.results.intervals import smaller_is_better
from flray.results.learning import Curve, draw, learning_curves
from flray.results.partition_figures import counts_figure
from flray.results.ranks import SETTINGS, diagram, ranks
from flray.results.rendering import is_number
from flray.results.tables import keys_of, settings
from flray.results.task_figures import accuracy_by_task
from flray.rundir.by_task import ClassCounts, class_counts
from flray.rundir.reader import Run

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CURVES = (
    ("Learning curves", "rounds"), ("Over local steps", "steps"), ("Over bytes", "bytes"), ("Over FLOPs", "flops"),
)  # fmt: skip
PAGE = 7.2  # inches of a picture with one column
PHONE = 5.6  # inches of the widest picture whose letters are read on a phone without scrolling
SHARE = 920 / PAGE  # pixels of the page for an inch
MOST = 6  # most settings with a picture by class
Picture = tuple[str, str, str]  # title, note, SVG


def of(runs: Sequence[Run], frame: pandas.DataFrame, metric: str) -> tuple[Picture, ...]:
    """All pictures for which these runs have data; `frame` is `compare`'s table of them. A method has the same colour
    in all of them."""
    with same_colours(map(str, frame["algorithm"])):
        return _all(runs, frame, metric)


def _all(runs: Sequence[Run], frame: pandas.DataFrame, metric: str) -> tuple[Picture, ...]:
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
            "accuracy while data are missing, and of each class",
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
        if title == "Class by class" and any(drift == "Through the drift" for drift, *_ in figures):
            continue  # that picture has the classes
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
    drawn = None if key in ("algorithm", "name") else key
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


def by_class(runs: Sequence[Run], axes: Iterable[Axes] | None = None) -> Figure | None:
    """Heat maps of accuracy by class and round (mean over seeds), one a setting; None if no run counted by class.

    Draws into `axes` if given, one for each of the first six settings.
    """
    counted: dict[str, list[ClassCounts]] = {}
    for label, seeds in by_setting(runs).items():
        counts = [class_counts(run.tests, tested_set(settings(run))) for run in seeds.values() if len(run.tests)]
        tested_twice = [tested for tested in counts if tested is not None and len(tested.done) > 1]
        if tested_twice and len(counted) < MOST:
            counted[label] = tested_twice
    if not counted:
        return None
    if axes is None:
        figure = blank(7.2, 1.1 + 1.7 * len(counted))
        places = figure.subplots(len(counted), 1, sharex=True, squeeze=False)[:, 0].tolist()
    else:
        places = given(axes, len(counted), "the classes of each setting")
        figure = figure_of(places[0])
    for axis, (label, counts_of_seeds) in zip(places, counted.items(), strict=True):
        image = class_panel(axis, counts_of_seeds, None, label)
    places[-1].set_xlabel("round")
    at_whole_numbers(places[-1].xaxis)
    figure.colorbar(image, ax=places, label="accuracy (%)", shrink=0.9)
    return figure


def svg(figure: Figure, name: str, width: float | None = None) -> str:
    """The figure as an inline SVG element in the colour of the surrounding text. `name` makes its ids unique on the
    page.

    `width` in inches, or the figure's own. With `PAGE` it is as wide as the page on a desk; on a phone it scrolls
    sideways, with letters that can be read.
    """
    from matplotlib import rc_context

    if width is not None:
        figure.set_size_inches(width, figure.get_size_inches()[1] * min(1.0, 1.15 * width / 7.2))
    inches = float(figure.get_size_inches()[0])
    for axis in figure.axes:
        words = axis.get_title(loc="left")
        spec = axis.get_subplotspec()
        columns = 1 if spec is None else spec.get_gridspec().ncols
        axis.set_title(textwrap.fill(words, int(13 * inches / columns) - 6), loc="left", fontsize=9)
    buffer = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    for side in ("width", "height"):  # the page decides; the proportions are in viewBox
        text = re.sub(rf'(<svg[^>]*?) {side}="[^"]*"', r"\1", text, count=1)
    size = f"min-width:{56 * inches if inches > PHONE else 0:.0f}px;max-width:{SHARE * inches:.0f}px"
    text = text.replace("<svg", f'<svg role="img" style="{size}"', 1)
    text = re.sub(r'id="(?!m|p|C)([^"]+)"', rf'id="{name}-\1"', text)
    return text.replace("#000000", "currentColor").replace("#e4e7eb", "var(--line)").replace("'DejaVu Sans', ", "")

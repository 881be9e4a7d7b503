"""Pictures of a report: learning curves, what was forgotten by class and by local training, as SVG inside a page.

Text and lines are in the page's own colour, so that they can be read on a light and on a dark ground.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from flray.core.errors import ConfigError
from flray.results.blank import blank, figure_of, given
from flray.results.continual import tested_set
from flray.results.diagnosis_figures import FIGURES
from flray.results.drift_figures import accuracy_through_drift, class_panel
from flray.results.figures import by_setting
from flray.results.learning import draw, learning_curves
from flray.results.tables import settings
from flray.results.task_figures import accuracy_by_task
from flray.rundir.by_task import ClassCounts, class_counts
from flray.rundir.reader import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

EQUAL = 1.1  # costs of a round whose ratio is below this are called equal
MOST = 6  # settings whose classes are drawn
Picture = tuple[str, str, str]  # title, what it shows, SVG


def of(runs: Sequence[Run], labels: Sequence[str], metric: str) -> tuple[Picture, ...]:
    """All pictures that these runs have something for; `labels` name their settings."""
    found = []
    over = metric if any(metric in run.rounds for run in runs) else "test/acc"
    for title, x in (("Learning curves", "rounds"), ("The same over bytes", "bytes"), ("Over local steps", "steps")):
        try:
            curves = learning_curves(runs, over, x)
        except ConfigError:  # no round that all seeds have, or nothing tested
            continue
        ends = [curve.x[-1] / max(curve.rounds[-1], 1) for curve in curves.values()]
        if x == "rounds" or max(ends) > EQUAL * min(ends):  # a round costs as much everywhere: the same picture again
            found.append((title, f"{over} over {x}", svg(draw(curves, over, x), x)))
    for title, note, drawn in (
        ("Task by task", "rows: after a task; columns: tested on a task; a column that darkens is forgotten", _tasks),
        ("Through the drift", "accuracy while data are missing, and of each class", _drift),
    ):
        figure = drawn(runs)
        if figure is not None:
            found.append((title, note, svg(figure, drawn.__name__)))
    classes = None if any(title == "Through the drift" for title, *_ in found) else by_class(runs)
    if classes is not None:
        note = "accuracy on each class after each tested round; a dark cell is a class that is forgotten"
        found.append(("Class by class", note, svg(classes, "classes")))
    for name, (drawn, title, note) in FIGURES.items():
        looked = [run for run in runs if len(run.diagnostics.get(name, ()))]
        if looked:
            found.append((title, note, svg(drawn(looked), name)))
    return tuple(found)


def by_class(runs: Sequence[Run], axes: Iterable[Axes] | None = None) -> Figure | None:
    """Class x round heat maps of accuracy (mean over seeds), one a setting; None where no run counted by class.

    Draws into `axes` where they are given, one for each of the first six settings."""
    from matplotlib.ticker import MaxNLocator

    counted: dict[str, list[ClassCounts]] = {}
    for label, seeds in by_setting(runs).items():
        counts = [class_counts(run.tests, tested_set(settings(run))) for run in seeds.values() if len(run.tests)]
        found = [tested for tested in counts if tested is not None and len(tested.done) > 1]
        if found and len(counted) < MOST:
            counted[label] = found
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
    places[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.colorbar(image, ax=places, label="accuracy (%)", shrink=0.9)
    return figure


def _tasks(runs: Sequence[Run]) -> Figure | None:
    try:
        return accuracy_by_task(runs)
    except ConfigError:  # no tasks, or none has ended
        return None


def _drift(runs: Sequence[Run]) -> Figure | None:
    try:
        return accuracy_through_drift(runs)
    except ConfigError:  # no drift, or nothing tested
        return None


def svg(figure: Figure, name: str) -> str:
    """The figure as an SVG element that fills its place, in the colour of the text around it. `name` keeps its ids
    apart from those of other pictures on the page."""
    from matplotlib import rc_context

    buffer = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    for side in ("width", "height"):  # the page decides; the proportions are in viewBox
        text = re.sub(rf'(<svg[^>]*?) {side}="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'id="(?!m|p|C)([^"]+)"', rf'id="{name}-\1"', text)
    return text.replace("#000000", "currentColor").replace("#e4e7eb", "var(--line)").replace("'DejaVu Sans', ", "")

"""Pictures of a report: learning curves, what was forgotten by class and by local training, as SVG inside a page.

Text and lines are in the page's own colour, so that they can be read on a light and on a dark ground.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from flray.core.errors import ConfigError
from flray.results.continual import tested_set
from flray.results.figures import COLOURS, cycle, plain
from flray.results.learning import draw, learning_curves
from flray.results.tables import settings
from flray.rundir.by_task import ClassCounts, class_counts
from flray.rundir.reader import Run

if TYPE_CHECKING:
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
    classes = by_class(runs, labels)
    if classes is not None:
        note = "accuracy on each class after each tested round, first seed; a dark cell is a class that is forgotten"
        found.append(("What was forgotten, class by class", note, svg(classes, "classes")))
    local = by_local_training(runs, labels)
    if local is not None:
        note = "accuracy of the clients' models on classes they hold (in) and do not hold (out), before and after"
        found.append(("What local training forgets", note, svg(local, "local")))
    return tuple(found)


def by_class(runs: Sequence[Run], labels: Sequence[str]) -> Figure | None:
    """Class x round heat maps of accuracy, one a setting (its first run); None where no run counted by class."""
    counted: dict[str, ClassCounts] = {}
    for run, label in zip(runs, labels, strict=True):
        tests = run.tests
        if label in counted or not len(tests) or len(counted) == MOST:
            continue
        counts = class_counts(tests, tested_set(settings(run)), str(tests["mode"].iloc[0]))
        if counts is not None and len(counts.done) > 1:
            counted[label] = counts
    if not counted:
        return None
    from matplotlib.ticker import MaxNLocator

    figure = _figure(7.2, 1.1 + 1.7 * len(counted))
    rows = figure.subplots(len(counted), 1, sharex=True, squeeze=False)[:, 0]
    for axis, (label, counts) in zip(rows, counted.items(), strict=True):
        with np.errstate(invalid="ignore", divide="ignore"):
            accuracy = 100 * counts.right / np.where(counts.total, counts.total, np.nan)
        edges = np.append(counts.done, 2 * counts.done[-1] - counts.done[-2]) - 0.5
        image = axis.pcolormesh(edges, np.arange(accuracy.shape[1] + 1) - 0.5, accuracy.T, cmap="cividis", vmin=0,
                                vmax=100, rasterized=True)  # fmt: skip
        axis.set_title(label, fontsize=9, loc="left")
        axis.set_ylabel("class")
        axis.invert_yaxis()
    rows[-1].set_xlabel("round")
    rows[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.colorbar(image, ax=list(rows), label="accuracy (%)", shrink=0.9)
    return figure


def by_local_training(runs: Sequence[Run], labels: Sequence[str]) -> Figure | None:
    """Mean accuracy in and out of the clients' own distributions, before and after local training, over rounds; None
    where no run has the diagnostic `local_forgetting`."""
    import pandas

    tables: dict[str, list[pandas.DataFrame]] = {}
    for run, label in zip(runs, labels, strict=True):
        rows = run.diagnostics.get("local_forgetting")
        if rows is not None and len(rows):
            tables.setdefault(label, []).append(rows)
    if not tables:
        return None
    figure = _figure(7.2, 3.4)
    panels = figure.subplots(1, 2, sharey=True)
    for panel, part, title in zip(panels, ("in", "out"), ("classes they hold", "other classes"), strict=True):
        for number, (label, found) in enumerate(tables.items()):
            colour = cycle([c for c in COLOURS if c != "#F0E442"], number)
            mean = pandas.concat(found).groupby("done")[[f"{part}_before", f"{part}_after"]].mean() * 100
            panel.plot(mean.index, mean[f"{part}_before"], color=colour, linestyle=":", linewidth=1.4)
            panel.plot(mean.index, mean[f"{part}_after"], color=colour, linewidth=2, label=label)
        panel.set_title(f"{title}: dotted before, solid after", fontsize=9, loc="left")
        panel.set_xlabel("round")
        plain(panel)
    panels[0].set_ylabel("accuracy (%)")
    panels[1].legend(frameon=False, fontsize=8)
    return figure


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


def _figure(width: float, height: float) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure

"""Two more figures of the diagnostic `conflict`: losses along local training, and cosines over a key of a grid."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flray.core.schema.errors import ConfigError
from flray.results import diagnoses
from flray.results.blank import figure_of
from flray.results.colours import colours_of
from flray.results.diagnosis_panels import GREY, averaged, has, legend, reached, row_of, whole_numbers
from flray.results.figures import open_runs, plain
from flray.results.paired import describe, key_named
from flray.results.tables import compare, keys_of
from flray.rundir.reader import Run

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Folders = Iterable[str | Path | Run]
SIDES = {"cos": ("local gradient", "--", "o"), "move": ("step taken", "-", "s")}


def losses_along(folders: Folders, axes: Iterable[Axes] | None = None) -> Figure:
    """The losses that local steps may increase, over local steps, a panel for each kind (FedSOL Figure 3(b): L_p,
    the `proximal` one). Means over seeds, clients and rounds. Draws into `axes` if given."""
    tables = averaged(open_runs(folders), lambda run: diagnoses.conflict(run, "step"), "step")
    kinds = [kind for kind in diagnoses.AGAINST if has(tables, f"loss_{kind}")]
    panels = row_of(axes, [f"{kind} loss along local training" for kind in kinds], 0.6 + 3.4 * max(2, len(kinds)))
    for panel, kind in zip(panels, kinds, strict=True):
        for (_, table), colour in zip(tables.items(), colours_of(tables), strict=True):
            known = reached(table)
            if f"loss_{kind}" in known:
                panel.plot(known["step"], known[f"loss_{kind}"], color=colour, linewidth=1.8)
        whole_numbers(panel, "local step")
    panels[0].set_ylabel("loss before the step (nats)")
    legend(panels[-1], tables, {}, axes is None)
    return figure_of(panels[0])


def conflict_over(folders: Folders, key: str, axes: Iterable[Axes] | None = None) -> Figure:
    """Cosine of local steps with the gradients that they may oppose, over `key`, a numeric key in which the runs
    differ; a panel for each kind (FedSOL Figure 3(a): the `proximal` one over rho).

    A point is a run; a line goes through the means over seeds for each combination of the other keys. Dashed: the local
    gradient; solid: the step taken. Means over clients, rounds and steps. Draws into `axes` if given. Raises
    `ConfigError` for a key that does not vary or is not numeric.
    """
    runs = open_runs(folders)
    frame = compare(runs)
    key = key_named(frame, key)
    tables: dict[str, list[tuple[float, pandas.DataFrame]]] = {}
    for run, (_, row) in zip(runs, frame.iterrows(), strict=True):
        others = {name: row[name] for name in keys_of(frame) if name != key}
        try:
            place = float(row[key])
        except (TypeError, ValueError):
            raise ConfigError(f"{run.place}: {key} is {row[key]}; this picture is over numbers") from None
        tables.setdefault(describe(others), []).append((place, diagnoses.conflict(run)))
    every = [table for line in tables.values() for _, table in line]
    kinds = [kind for kind in diagnoses.AGAINST if any(f"cos_{kind}" in table for table in every)]
    panels = row_of(axes, [f"with the {kind} gradient" for kind in kinds], 0.6 + 3.4 * max(2, len(kinds)), sharey=True)
    for panel, kind in zip(panels, kinds, strict=True):
        panel.axhline(0, color=GREY, linewidth=1)
        for line, colour in zip(tables.values(), colours_of(tables), strict=True):
            for what, (_, style, marker) in SIDES.items():
                _through(panel, line, f"{what}_{kind}", {"color": colour, "linestyle": style, "marker": marker})
        panel.set_xlabel(key)
        plain(panel)
    panels[0].set_ylabel("cosine; below 0: conflict")
    legend(panels[-1], tables, {name: style for name, style, _ in SIDES.values()}, axes is None)
    return figure_of(panels[0])


def _through(panel: Any, line: list[tuple[float, pandas.DataFrame]], column: str, look: dict[str, Any]) -> None:
    """Draws a point for each run (a column's mean over its rounds) and a line through the means at each place."""
    points = [(place, float(table[column].mean())) for place, table in line if column in table]
    places = sorted({place for place, _ in points})
    means = [np.mean([value for at, value in points if at == place]) for place in places]
    panel.plot(places, means, linewidth=1.8, markersize=5, **look)
    panel.scatter(*zip(*points, strict=True), s=10, color=look["color"], alpha=0.5, linewidth=0) if points else None

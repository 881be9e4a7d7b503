"""Panels of the figures of diagnostics, each drawn into an axis: lines over rounds or local steps, drift against
accuracy, layers, both sides of a proposition."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flray.results import diagnoses
from flray.results.blank import blank, figure_of, given
from flray.results.colours import colours_of, markers_of
from flray.results.figures import at_whole_numbers, axis_label, by_setting, plain
from flray.rundir.reader import Run

if TYPE_CHECKING:
    import pandas

Tables = Mapping[str, "pandas.DataFrame"]  # by setting, the mean over its seeds
STAGES = {  # models of a round -> their name in a legend and their line style
    "before": ("received", ":"),
    "after": ("after local training", "--"),
    "average": ("aggregate", "-"),
    "global": ("new global model", "-."),
}
REACHED = 0.25  # share of the clients that take a local step; below it the step is not drawn
GREY = "#8a94a3"  # for lines of no setting, on light and dark pages


def averaged(runs: Sequence[Run], table: Callable[[Run], pandas.DataFrame], key: str = "done") -> Tables:
    """A table of `diagnoses` by setting, averaged over its seeds; a row for each value of `key` in any of them."""
    import pandas

    return {
        label: pandas.concat([table(run) for run in seeds.values()]).groupby(key, sort=False).mean().reset_index()
        for label, seeds in by_setting(runs).items()
    }


def has(tables: Tables, column: str) -> bool:
    """Whether any setting has a value in this column."""
    return any(column in table and bool(table[column].notna().any()) for table in tables.values())


def stages(tables: Tables) -> list[str]:
    """The stages of `STAGES` to draw: `global` only if it differs from the aggregate, which most servers do not
    change; the received model only without an aggregate, which is what the next round's clients receive."""
    known = [stage for stage in STAGES if has(tables, f"acc_{stage}")]
    known = [stage for stage in known if stage != "before" or "average" not in known]
    same = all(np.allclose(t["acc_global"], t["acc_average"], equal_nan=True) for t in tables.values())
    return [stage for stage in known if stage != "global" or not same]


def recovery_panel(axis: Any, tables: Tables, measure: str = "acc") -> None:
    """Draws the stages of each round in per cent: `measure` is `acc`, `in` or `out` of `diagnoses.recovery`."""
    for (_, table), colour, marker in zip(tables.items(), colours_of(tables), markers_of(tables), strict=True):
        for stage in stages(tables):
            look = {"linestyle": STAGES[stage][1], "linewidth": 3.2 if stage == "average" else 2.2}
            look |= {"marker": marker, "markersize": 6, "markevery": max(1, len(table) // 6)}
            axis.plot(table["done"], 100 * table[f"{measure}_{stage}"], color=colour, **look)
    whole_numbers(axis, "round")


def cosine_panel(axis: Any, tables: Tables, kind: str) -> None:
    """Draws `cos_KIND` (dashed) and `move_KIND` (solid) of `diagnoses.conflict` over local steps.

    Leaves out steps that fewer than `REACHED` of the clients take, and says so on the axis: the last steps of a line
    would be those of a few clients with many samples.
    """
    axis.axhline(0, color=GREY, linewidth=1)
    cut = False
    for (_, table), colour in zip(tables.items(), colours_of(tables), strict=True):
        known = reached(table)
        cut = cut or len(known) < len(table)
        for what, style in (("cos", "--"), ("move", "-")):
            if f"{what}_{kind}" in known:
                axis.plot(known["step"], known[f"{what}_{kind}"], color=colour, linestyle=style, linewidth=1.6)
    axis.set_ylim(-1, 1)
    whole_numbers(axis, f"local step (of {100 * REACHED:.0f} % of the clients or more)" if cut else "local step")


def reached(table: pandas.DataFrame) -> pandas.DataFrame:
    """The rows of `diagnoses.conflict` by step that at least `REACHED` of the clients take."""
    known: pandas.DataFrame = table[table["looks"] >= REACHED * table["looks"].max()]
    return known


def line_panel(axis: Any, tables: Tables, columns: Mapping[str, str]) -> None:
    """Draws columns over rounds, each with its line style, in the colour of the setting."""
    for (_, table), colour in zip(tables.items(), colours_of(tables), strict=True):
        for name, style in columns.items():
            if name in table and table[name].notna().any():
                known = table[table[name].notna()]
                axis.plot(known["done"], known[name], color=colour, linestyle=style, linewidth=1.8)
    whole_numbers(axis, "round")


def correlation_panel(axis: Any, runs: Sequence[Run], drift: str, metric: str = "test/acc") -> None:
    """Draws a point for each round: a drift column of `diagnoses.memory` against the metric, with r and p of the
    runs."""
    labels = by_setting(runs)
    for (label, seeds), colour in zip(labels.items(), colours_of(labels), strict=True):
        correlations = []
        for run in seeds.values():
            table = diagnoses.memory(run, metric)
            if metric in table and drift in table:
                axis.scatter(table[drift], 100 * table[metric], s=22, color=colour, alpha=0.7, linewidth=0)
                correlations += [
                    correlation for name, correlation in diagnoses.correlations(run, metric).items() if name == drift
                ]
        if correlations:
            axis.scatter([], [], s=22, color=colour, label=f"{label}: {_of_seeds(correlations)}")
    axis.set_ylabel(axis_label(metric))
    plain(axis)
    if axis.get_legend_handles_labels()[0]:  # below the panel: inside, it would cover points
        axis.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.16))


def _of_seeds(correlations: Sequence[diagnoses.Correlation]) -> str:
    """Pearson's r and p of the seeds of a setting; their range for more than two."""
    if len(correlations) < 3:
        return ", ".join(f"r {one.r:.2f} (p {one.p:.1g})" for one in correlations)
    r, p = np.array([(one.r, one.p) for one in correlations]).T
    return f"r {r.min():.2f} to {r.max():.2f}, p {p.min():.1g} to {p.max():.1g}, {len(correlations)} seeds"


def layer_panel(axis: Any, tables: Tables, column: str) -> None:
    """Draws a column of `diagnoses.layers`, a group of bars for each layer, a bar for each setting."""
    names = list(dict.fromkeys(name for table in tables.values() for name in table["layer"]))
    for number, ((label, table), colour) in enumerate(zip(tables.items(), colours_of(tables), strict=True)):
        places = np.arange(len(names)) + 0.8 * ((number + 0.5) / len(tables) - 0.5)
        heights = table.set_index("layer")[column].reindex(names)
        axis.bar(places, heights, 0.8 / len(tables), color=colour, label=label)
    axis.set_xticks(range(len(names)), names, rotation=30, ha="right")
    plain(axis)


def sides_panel(axis: Any, runs: Sequence[Run], promised: str, taken: str) -> None:
    """Draws a column of the diagnostic `propositions` against another one, a point for each local step; on the line
    they are equal."""
    from matplotlib.ticker import MaxNLocator

    labels, ends = by_setting(runs), []
    for (label, seeds), colour in zip(labels.items(), colours_of(labels), strict=True):
        rows = [diagnoses.rows_of(run, "propositions") for run in seeds.values()]
        x, y = (np.concatenate([table[name] for table in rows]) for name in (promised, taken))
        axis.scatter(x, y, s=16, color=colour, alpha=0.6, linewidth=0, label=label)
        ends += [x.min(), x.max()]
    axis.plot([min(ends), max(ends)], [min(ends), max(ends)], color=GREY, linewidth=1, zorder=0)
    axis.xaxis.set_major_locator(MaxNLocator(5))
    plain(axis)


def whole_numbers(axis: Any, what: str) -> None:
    """Labels the x axis and gives it whole-number ticks."""
    axis.set_xlabel(what)
    at_whole_numbers(axis.xaxis)
    plain(axis)


def row_of(
    axes: Iterable[Any] | None, titles: Sequence[str], width: float = 9.6, height: float = 4.0, sharey: bool = False
) -> list[Any]:
    """The caller's `axes`, or those of a new figure side by side, with these titles."""
    panels: list[Any]
    if axes is None:
        panels = blank(width, height).subplots(1, len(titles), sharey=sharey, squeeze=False)[0].tolist()
    else:
        panels = given(axes, len(titles), "; ".join(titles))
    for panel, title in zip(panels, titles, strict=True):
        panel.set_title(title, fontsize=9, loc="left")
    return panels


def legend(panel: Any, labels: Iterable[str], styles: Mapping[str, str], below: bool) -> None:
    """A legend with a colour for each setting and a style for each kind of line; `below` the figure or in the panel."""
    from matplotlib.lines import Line2D

    labels = list(labels)
    handles = [
        Line2D([], [], color=c, linewidth=3, label=name) for name, c in zip(labels, colours_of(labels), strict=True)
    ]
    handles += [Line2D([], [], color="#5b6675", ls=style, label=name) for name, style in styles.items()]
    if below:
        columns = min(4, len(handles))
        figure_of(panel).legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False, fontsize=8)
    else:
        panel.legend(handles=handles, frameon=False, fontsize=8)

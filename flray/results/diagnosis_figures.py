"""A figure for each diagnostic: what local training forgets, conflicts along it, drift, divergence, theory.

`FIGURES` has them by the name of the diagnostic. Each is made of panels, functions of an axis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flray.results import diagnoses
from flray.results.blank import blank
from flray.results.colours import colours_of
from flray.results.figures import by_setting, end_at_all, open_runs, plain
from flray.rundir.reader import Run

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

Tables = Mapping[str, "pandas.DataFrame"]  # by setting, the mean over its seeds
LINES = {"before": ":", "after": "--", "average": "-", "global": "-."}  # of a round's models
STAGES = {"before": "received", "after": "after local training", "average": "aggregate", "global": "new global model"}


def local_forgetting(folders: Iterable[str | Path | Run]) -> Figure:
    """Accuracy on the global test set of the received model, of the clients' local models and of their aggregate, over
    rounds: of all classes, and of those that a client does not hold."""
    found = averaged(open_runs(folders), diagnoses.recovery)
    figure = blank(9.6, 4.0)
    panels = figure.subplots(1, 2, sharey=True)
    for panel, what, title in zip(
        panels, ("acc", "out"), ("all classes", "classes that a client does not hold"), strict=True
    ):
        recovery_panel(panel, found, what)
        panel.set_title(title, fontsize=9, loc="left")
    panels[0].set_ylabel("accuracy on the test set (%)")
    _legend(figure, panels[0], found, {STAGES[stage]: LINES[stage] for stage in STAGES if _has(found, f"acc_{stage}")})
    return figure


def recovery_panel(axis: Any, found: Tables, what: str = "acc") -> None:
    """The stages of each round: `what` is `acc`, `in` or `out` of `diagnoses.recovery`."""
    for (label, table), colour in zip(found.items(), colours_of(found), strict=True):
        stages = [
            s
            for s in STAGES
            if s != "global" or not np.allclose(table["acc_global"], table["acc_average"], equal_nan=True)
        ]
        for stage in stages:
            style = {"linewidth": 2 if stage == "average" else 1.4, "linestyle": LINES[stage], "color": colour}
            axis.plot(table["done"], 100 * table[f"{what}_{stage}"], label=f"{label}, {STAGES[stage]}", **style)
    _over(axis, "round")
    end_at_all(axis)


def conflict(folders: Iterable[str | Path | Run]) -> Figure:
    """Cosine of each setting's local steps with the gradients they may work against, along local training (FedSOL
    Figure 3): dashed the local gradient, solid the step that was really taken."""
    found = averaged(open_runs(folders), lambda run: diagnoses.conflict(run, "step"), "step")
    kinds = [kind for kind in diagnoses.AGAINST if _has(found, f"cos_{kind}")]
    figure = blank(0.6 + 3.4 * len(kinds), 3.9)
    panels = figure.subplots(1, len(kinds), sharey=True, squeeze=False)[0]
    for panel, kind in zip(panels, kinds, strict=True):
        cosine_panel(panel, found, kind)
        panel.set_title(f"with the {kind} gradient", fontsize=9, loc="left")
    panels[0].set_ylabel("cosine; below 0: conflict")
    _legend(figure, panels[0], found, {"local gradient": "--", "step taken": "-"})
    return figure


def cosine_panel(axis: Any, found: Tables, kind: str) -> None:
    """`cos_KIND` and `move_KIND` of `diagnoses.conflict` over local steps."""
    axis.axhline(0, color="#8a94a3", linewidth=1)
    for (_, table), colour in zip(found.items(), colours_of(found), strict=True):
        for what, style in (("cos", "--"), ("move", "-")):
            if f"{what}_{kind}" in table:
                axis.plot(table["step"], table[f"{what}_{kind}"], color=colour, linestyle=style, linewidth=1.6)
    axis.set_ylim(-1, 1)
    _over(axis, "local step")


def memory(folders: Iterable[str | Path | Run]) -> Figure:
    """Memory drift over rounds, and beside the accuracy with Pearson's r (FedProj C.4)."""
    runs = open_runs(folders)
    found = averaged(runs, diagnoses.memory)
    figure = blank(9.6, 4.0)
    over, beside = figure.subplots(1, 2)
    line_panel(over, found, {"loss_after": "-", "ensemble_drift": ":"})
    over.set_ylabel("memory loss (KL, nats)")
    _legend(figure, over, found, {"local models after training": "-", "global model against the ensemble": ":"})
    correlation_panel(beside, runs)
    return figure


def correlation_panel(axis: Any, runs: Sequence[Run], drift: str = "loss_after", metric: str = "test/acc") -> None:
    """A point a round: a drift column of `diagnoses.memory` against the metric; r and p of every run in the legend."""
    labels = by_setting(runs)
    for (label, seeds), colour in zip(labels.items(), colours_of(labels), strict=True):
        told = []
        for run in seeds.values():
            table = diagnoses.memory(run, metric)
            if metric not in table or drift not in table:
                continue
            axis.scatter(table[drift], 100 * table[metric], s=22, color=colour, alpha=0.7, linewidth=0)
            told.append(diagnoses.correlations(run, metric)[drift])
        if told:
            words = ", ".join(f"{one.r:.2f} (p {one.p:.1g})" for one in told)
            axis.scatter([], [], s=20, color=colour, label=f"{label}: r {words}")
    axis.set_xlabel(f"{drift} (KL, nats)")
    axis.set_ylabel(f"{metric} (%)")
    plain(axis)
    axis.legend(frameon=False, fontsize=8)


def divergence(folders: Iterable[str | Path | Run]) -> Figure:
    """Weight divergence over rounds (FedSOL Figure 6): of clients from the global model, and from each other."""
    found = averaged(open_runs(folders), diagnoses.divergence)
    figure = blank(7.2, 4.0)
    axis = figure.subplots()
    line_panel(axis, found, {"distance": "-", "between": "--"})
    axis.set_ylabel("Euclidean distance of parameters")
    axis.set_ylim(bottom=0)
    _legend(figure, axis, found, {"client to global model": "-", "client to client": "--"})
    return figure


def heterogeneity(folders: Iterable[str | Path | Run]) -> Figure:
    """zeta and kappa where each round begins (FedProj, Assumption 5.5)."""
    found = averaged(open_runs(folders), diagnoses.heterogeneity)
    figure = blank(9.6, 3.8)
    panels = figure.subplots(1, 2)
    words = ("zeta: distance of clients' gradients from the global one", "kappa: what of a global descent they share")
    for panel, name, title in zip(panels, ("zeta", "kappa"), words, strict=True):
        line_panel(panel, found, {name: "-"})
        panel.set_title(title, fontsize=9, loc="left")
        panel.set_ylabel(name)
    _legend(figure, panels[0], found, {})
    return figure


def layers(folders: Iterable[str | Path | Run]) -> Figure:
    """Mean of FedSOL's Lambda, and how far each layer moves, by layer (FedSOL Figure 5b)."""
    found = averaged(open_runs(folders), diagnoses.layers, "layer")
    names = list(dict.fromkeys(name for table in found.values() for name in table["layer"]))
    figure = blank(max(7.2, 0.5 * len(names) * len(found)), 4.0)
    panels = figure.subplots(1, 2)
    for panel, column, title in zip(
        panels, ("lambda_mean", "relative"), ("mean of Lambda", "moved / norm"), strict=True
    ):
        for number, ((label, table), colour) in enumerate(zip(found.items(), colours_of(found), strict=True)):
            places = np.arange(len(names)) + 0.8 * ((number + 0.5) / len(found) - 0.5)
            heights = table.set_index("layer")[column].reindex(names)
            panel.bar(places, heights, 0.8 / len(found), color=colour, label=label)
        panel.set_xticks(range(len(names)), names, rotation=30, ha="right")
        panel.set_title(title, fontsize=9, loc="left")
        plain(panel)
    panels[0].legend(frameon=False, fontsize=8)
    return figure


def propositions(folders: Iterable[str | Path | Run]) -> Figure:
    """Both sides of FedSOL's propositions, a point a local step; on the diagonal they are equal."""
    runs = open_runs(folders)
    figure = blank(9.6, 4.4)
    panels = figure.subplots(1, 2)
    sides = (
        ("prop1_predicted", "prop1_sol", "Proposition 1: change of L_p"),
        ("prop2_shifted", "prop2_sol", "Proposition 2: change of L_l"),
    )
    for panel, (promised, taken, title) in zip(panels, sides, strict=True):
        sides_panel(panel, runs, promised, taken)
        panel.set_title(title, fontsize=9, loc="left")
    panels[0].legend(frameon=False, fontsize=8)
    return figure


def sides_panel(axis: Any, runs: Sequence[Run], promised: str, taken: str) -> None:
    """A column of the diagnostic `propositions` against another one."""
    from matplotlib.ticker import MaxNLocator

    labels, ends = by_setting(runs), []
    for (label, seeds), colour in zip(labels.items(), colours_of(labels), strict=True):
        rows = [diagnoses.rows_of(run, "propositions") for run in seeds.values()]
        x, y = (np.concatenate([table[name] for table in rows]) for name in (promised, taken))
        axis.scatter(x, y, s=16, color=colour, alpha=0.6, linewidth=0, label=label)
        ends += [x.min(), x.max()]
    axis.plot([min(ends), max(ends)], [min(ends), max(ends)], color="#8a94a3", linewidth=1, zorder=0)
    axis.xaxis.set_major_locator(MaxNLocator(5))
    axis.set_xlabel("what the proposition says")
    axis.set_ylabel("FedSOL's step, to first order")
    plain(axis)


def line_panel(axis: Any, found: Tables, columns: Mapping[str, str]) -> None:
    """Columns over rounds, each with its line style, in the colour of the setting."""
    for (_, table), colour in zip(found.items(), colours_of(found), strict=True):
        for name, style in columns.items():
            if name in table and table[name].notna().any():
                axis.plot(table["done"], table[name], color=colour, linestyle=style, linewidth=1.8)
    _over(axis, "round")


def averaged(runs: Sequence[Run], table: Callable[[Run], pandas.DataFrame], key: str = "done") -> Tables:
    """By setting, the mean over its seeds of a table of `diagnoses`, a row a value of `key` that any of them has."""
    import pandas

    return {
        label: pandas.concat([table(run) for run in seeds.values()]).groupby(key, sort=False).mean().reset_index()
        for label, seeds in by_setting(runs).items()
    }


def _has(found: Tables, column: str) -> bool:
    return any(column in table and table[column].notna().any() for table in found.values())


def _over(axis: Any, what: str) -> None:
    """An axis of whole numbers."""
    from matplotlib.ticker import MaxNLocator

    axis.set_xlabel(what)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    plain(axis)


def _legend(figure: Figure, axis: Any, found: Tables, styles: Mapping[str, str]) -> None:
    """Below the figure: a colour a setting, a style a kind of line."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=c, linewidth=3, label=label) for label, c in zip(found, colours_of(found), strict=True)
    ]
    handles += [Line2D([], [], color="#5b6675", ls=style, label=name) for name, style in styles.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(3, len(handles)), frameon=False, fontsize=8)


FIGURES: Mapping[str, Callable[[Iterable[str | Path | Run]], Figure]] = {
    "local_forgetting": local_forgetting,
    "conflict": conflict,
    "memory": memory,
    "divergence": divergence,
    "heterogeneity": heterogeneity,
    "layers": layers,
    "propositions": propositions,
}

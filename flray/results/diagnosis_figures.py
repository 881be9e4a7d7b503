"""A figure for each diagnostic: forgetting and conflicts in local training, drift, divergence, gradients, theory.

`FIGURES` has them by name. Each makes a tidy frame of a run's tables (`diagnoses`) with the columns `panel`, `setting`,
`style`, `x`, `y`, means over the seeds of a setting. Each draws into `axes` if given, one for each panel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flray.core.schema.errors import ConfigError
from flray.results import diagnoses
from flray.results.colours import colours_of, markers_of
from flray.results.figures import (
    GREY,
    Folders,
    at_whole_numbers,
    axis_label,
    by_setting,
    draw_lines,
    end_at_all,
    facets,
    figure_of,
    legend,
    open_runs,
)
from flray.results.paired import describe, key_named
from flray.results.rendering import digits_lost, heading
from flray.results.tables import compare, keys_of
from flray.rundir.reader import Run

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STAGES = {  # models of a round -> their name in a legend and their line style
    "before": ("received", ":"),
    "after": ("after local training", "--"),
    "average": ("aggregate", "-"),
    "global": ("new global model", "-."),
}
REACHED = 0.25  # share of the clients that take a local step; below it the step is not drawn
SIDES = {"local gradient": "--", "step taken": "-"}  # of cosines
Given = Iterable["Axes"] | None


class DiagnosticFigure(NamedTuple):
    """A figure, with its title and note in a report."""

    figure: Callable[..., Figure]
    title: str
    note: str


FIGURES: dict[str, DiagnosticFigure] = {}


def _diagnostic(title: str, note: str) -> Callable[[Callable[..., Figure]], Callable[..., Figure]]:
    """Puts a figure into `FIGURES`, under the name of its function."""

    def put(draw: Callable[..., Figure]) -> Callable[..., Figure]:
        FIGURES[draw.__name__] = DiagnosticFigure(draw, title, note)
        return draw

    return put


# data ----------------------------------------------------------------------------------------------
def averaged(
    runs: Sequence[Run], table: Callable[[Run], pandas.DataFrame], key: str = "done"
) -> dict[str, pandas.DataFrame]:
    """A table of `diagnoses` by setting, averaged over its seeds; a row for each value of `key` in any of them."""
    import pandas

    return {
        label: pandas.concat([table(run) for run in seeds.values()]).groupby(key, sort=False).mean().reset_index()
        for label, seeds in by_setting(runs).items()
    }


def has(tables: Mapping[str, pandas.DataFrame], column: str) -> bool:
    """Whether any setting has a value in this column."""
    return any(column in table and bool(table[column].notna().any()) for table in tables.values())


def tidy(
    tables: Mapping[str, pandas.DataFrame], columns: Mapping[tuple[str, str], str], x: str = "done"
) -> pandas.DataFrame:
    """The columns that `columns` names by (panel, style) as one tidy frame; those that no setting has are left out."""
    import pandas

    parts = [
        pandas.DataFrame({"panel": panel, "setting": label, "style": style, "x": table[x], "y": table[column]})
        for (panel, style), column in columns.items()
        for label, table in tables.items()
        if column in table and has(tables, column)
    ]
    return pandas.concat(parts, ignore_index=True)


def stages(tables: Mapping[str, pandas.DataFrame]) -> list[str]:
    """The stages of `STAGES` to draw: `global` only if it differs from the aggregate, which most servers do not
    change; the received model only without an aggregate, which is what the next round's clients receive."""
    known = [stage for stage in STAGES if has(tables, f"acc_{stage}")]
    known = [stage for stage in known if stage != "before" or "average" not in known]
    same = all(np.allclose(t["acc_global"], t["acc_average"], equal_nan=True) for t in tables.values())
    return [stage for stage in known if stage != "global" or not same]


# lines ---------------------------------------------------------------------------------------------
def _lines(
    tables: Mapping[str, pandas.DataFrame],
    columns: Mapping[tuple[str, str], str],
    axes: Given,
    styles: Mapping[str, str] = {"": "-"},
    x: tuple[str, str] = ("done", "round"),
    y: str = "",
    scale: float = 1.0,
    zero: bool = False,
    **size: Any,
) -> list[Any]:
    """A panel for each of the columns', with its lines and one legend; `x`: the column of the tables and its label,
    `zero`: with a line at 0. Returns the panels."""
    frame = tidy(tables, columns, x[0])
    frame["y"] *= scale
    names = list(dict.fromkeys(frame["panel"]))
    panels = facets(axes, names, 0.6 + 3.4 * max(2, len(names)), **size)
    for panel, name in zip(panels, names, strict=True):
        if zero:
            panel.axhline(0, color=GREY, linewidth=1)
        draw_lines(panel, frame[frame["panel"] == name], styles)
        if x[0] in ("done", "step"):
            at_whole_numbers(panel, x[1])
        else:
            panel.set_xlabel(x[1])
    if y:
        panels[0].set_ylabel(y)
    _legend(panels[-1], frame, styles, axes)
    return panels


def _legend(panel: Any, frame: pandas.DataFrame, styles: Mapping[str, str], axes: Given) -> None:
    shown = {style: dashes for style, dashes in styles.items() if style and (frame["style"] == style).any()}
    legend(panel, dict.fromkeys(frame["setting"]), shown, axes is None)


@_diagnostic(
    "What local training forgets",
    "the clients' models after local training, and their aggregate, on the global test set",
)
def local_forgetting(folders: Folders, axes: Given = None) -> Figure:
    """Accuracy on the global test set over rounds, of the clients' local models and of their aggregate: on the classes
    that the client holds, and on the others (FedSOL Figure 7).

    The received model is the aggregate of the round before, so it has no line of its own.
    """
    tables = averaged(open_runs(folders), diagnoses.recovery)
    words = {"in": "classes that a client holds", "out": "the other classes: what it forgets"}
    columns = {
        (title, STAGES[stage][0]): f"{part}_{stage}" for part, title in words.items() for stage in stages(tables)
    }
    look: dict[str, Any] = {"y": "accuracy on the test set (%)", "scale": 100, "sharey": True}
    panels = _lines(tables, columns, axes, dict(STAGES.values()), **look)
    for panel in panels:  # after all are drawn: they share the axis
        end_at_all(panel)
    return figure_of(panels[0])


@_diagnostic("Conflicts along local training", "cosines; a step below 0 undoes what should be remembered")
def conflict(folders: Folders, axes: Given = None) -> Figure:
    """Cosine of local steps with the gradients that they may oppose, along local training (FedSOL Figure 3). Dashed:
    the local gradient; solid: the step taken."""
    tables, label = along_steps(open_runs(folders))
    panels = _cosines(tables, axes, ("step", label))
    for panel in panels:
        panel.set_ylim(-1, 1)
    return figure_of(panels[0])


def conflict_over(folders: Folders, key: str, axes: Given = None) -> Figure:
    """:func:`conflict` over `key`, a numeric key in which the runs differ (FedSOL Figure 3(a): the `proximal` one over
    rho).

    A point is the mean over clients, rounds and steps, and over the seeds of a combination of the other keys. Raises
    `ConfigError` for a key that does not vary or is not numeric.
    """
    import pandas

    runs = open_runs(folders)
    frame = compare(runs)
    key = key_named(frame, key)
    others = [name for name in keys_of(frame) if name != key]
    exact, rows = digits_lost(frame, others), []
    for run, row in zip(runs, frame.to_dict("records"), strict=True):
        try:
            place = float(row[key])
        except (TypeError, ValueError):
            raise ConfigError(f"{run.place}: {key} is {row[key]}; this picture is over numbers") from None
        setting = describe({name: row[name] for name in others}, exact)
        rows.append({**diagnoses.conflict(run).mean(), "setting": setting, "at": place})
    means = pandas.DataFrame(rows).groupby(["setting", "at"], sort=False).mean().reset_index("at").sort_values("at")
    tables = {str(name): table for name, table in means.groupby("setting", sort=False)}
    return figure_of(_cosines(tables, axes, ("at", heading(key)))[0])


def _cosines(tables: Mapping[str, pandas.DataFrame], axes: Given, x: tuple[str, str]) -> list[Any]:
    columns = {
        (f"with the {kind} gradient", side): f"{what}_{kind}"
        for kind in diagnoses.AGAINST
        for what, side in zip(("cos", "move"), SIDES, strict=True)
    }
    return _lines(tables, columns, axes, SIDES, x, "cosine; below 0: conflict", zero=True, sharey=True)


def losses_along(folders: Folders, axes: Given = None) -> Figure:
    """The losses that local steps may increase, over local steps, a panel for each kind (FedSOL Figure 3(b): L_p,
    the `proximal` one). Means over seeds, clients and rounds."""
    tables, label = along_steps(open_runs(folders))
    columns = {(f"{kind} loss along local training", ""): f"loss_{kind}" for kind in diagnoses.AGAINST}
    return figure_of(_lines(tables, columns, axes, x=("step", label), y="loss before the step (nats)")[0])


def along_steps(runs: Sequence[Run]) -> tuple[dict[str, pandas.DataFrame], str]:
    """(`diagnoses.conflict` by local step, by setting; the label of the steps' axis).

    Leaves out steps that fewer than `REACHED` of the clients take: the last steps of a line would be those of a few
    clients with many samples. The label says so.
    """
    tables = averaged(runs, lambda run: diagnoses.conflict(run, "step"), "step")
    known = {name: table[table["looks"] >= REACHED * table["looks"].max()] for name, table in tables.items()}
    cut = any(len(known[name]) < len(table) for name, table in tables.items())
    return known, f"local step (of {100 * REACHED:.0f} % of the clients or more)" if cut else "local step"


@_diagnostic("Memory drift", "how far answers on public data move, and the correlation with accuracy")
def memory(folders: Folders, axes: Given = None) -> Figure:
    """Memory loss over rounds; beside it the memory loss of the local models against the accuracy, a point a round,
    with Pearson's r.

    FedProj C.4 prints another r, that of the new global model's memory loss: `memory/drift` of `rounds/`,
    `ensemble_drift` here.
    """
    runs = open_runs(folders)
    over, beside = facets(axes, ["memory drift over rounds", "a point a round"])
    styles = {"local models": "-", "global model, of the ensemble": ":"}
    columns = dict(zip([("", style) for style in styles], ("loss_after", "ensemble_drift"), strict=True))
    frame = tidy(averaged(runs, diagnoses.memory), columns)
    draw_lines(over, frame, styles)
    at_whole_numbers(over, "round")
    over.set_ylabel("memory loss (KL, nats)")
    _legend(over, frame, styles, axes)
    correlated = ["a point a round"]
    for label, seeds, look in _settings(runs):
        for table in map(diagnoses.memory, seeds):
            if "test/acc" in table:
                beside.scatter(table["loss_after"], 100 * table["test/acc"], s=22, alpha=0.7, **look)
        known = [found["loss_after"] for run in seeds if "loss_after" in (found := diagnoses.correlations(run))]
        correlated += [f"{label}: {_of_seeds(known)}"] if known else []
    beside.set_title("\n".join(correlated), fontsize=9, loc="left")  # inside, they would cover points
    beside.set(xlabel="memory loss of the local models (KL, nats)", ylabel=axis_label("test/acc"))
    return figure_of(over)


@_diagnostic("Weight divergence", "how far clients move from the global model and each other")
def divergence(folders: Folders, axes: Given = None) -> Figure:
    """Weight divergence over rounds (FedSOL Figure 6): of clients from the global model and from each other."""
    title = "weight divergence after local training"
    styles = {"client to global model": "-", "client to client (weighted RMS)": "--"}
    columns = dict(zip([(title, style) for style in styles], ("distance", "between"), strict=True))
    tables = averaged(open_runs(folders), diagnoses.divergence)
    (panel,) = _lines(tables, columns, axes, styles, y="Euclidean distance of parameters")
    panel.set_ylim(bottom=0)
    return figure_of(panel)


@_diagnostic("Heterogeneity", "zeta and descent where each round begins")
def heterogeneity(folders: Folders, axes: Given = None) -> Figure:
    """zeta and descent at the start of each round: how far the clients' gradients are from the global gradient, and
    how much of a descent along it they share."""
    columns = {
        ("zeta: distance of clients' gradients from the global one", ""): "zeta",
        ("descent: share of a global descent in them", ""): "descent",
    }
    return figure_of(_lines(averaged(open_runs(folders), diagnoses.heterogeneity), columns, axes)[0])


@_diagnostic("Layer by layer", "FedSOL's Lambda, and how far each layer moves in local training")
def layers(folders: Folders, axes: Given = None) -> Figure:
    """Mean of FedSOL's Lambda, and the distance that each layer moves, by layer (FedSOL Figure 5b)."""
    tables = averaged(open_runs(folders), diagnoses.layers, "layer")
    names = list(dict.fromkeys(name for table in tables.values() for name in table["layer"]))
    words = ["mean of Lambda", "distance moved / norm of the layer"]
    panels = facets(axes, words, max(7.2, 0.5 * len(names) * len(tables)))
    for panel, column in zip(panels, ("lambda_mean", "relative"), strict=True):
        for number, (table, colour) in enumerate(zip(tables.values(), colours_of(tables), strict=True)):
            places = np.arange(len(names)) + 0.8 * ((number + 0.5) / len(tables) - 0.5)
            panel.bar(places, table.set_index("layer")[column].reindex(names), 0.8 / len(tables), color=colour)
        panel.set_xticks(range(len(names)), names, rotation=30, ha="right")
    legend(panels[-1], tables, {}, axes is None)
    return figure_of(panels[0])


@_diagnostic("Size of the update, and gradients", "an update that shrinks may be one that forgets")
def latent_forgetting(folders: Folders, axes: Given = None) -> Figure:
    """The size of the global update, and with `gradients_every` the gradients at the global model (FedMemo, section
    G); a panel for each number that a run has."""
    cosine = "its cosine with the clients'"
    columns = {
        ("variance of the weight update", ""): "wv",
        ("variance of the public data's gradient", ""): "gradient_variance",
        (cosine, ""): "cosine",
        ("trace of the Fisher information", ""): "fisher_trace",
    }
    panels = _lines(averaged(open_runs(folders), diagnoses.gradients), columns, axes, height=3.6)
    for panel in panels:
        if panel.get_title(loc="left") != cosine:
            panel.set_yscale("log")
    return figure_of(panels[0])


@_diagnostic("FedSOL's propositions", "a point on the line is a step in which the proposition is exact")
def propositions(folders: Folders, axes: Given = None) -> Figure:
    """Both sides of FedSOL's propositions; a point is a local step, and on the line they are equal."""
    from matplotlib.ticker import MaxNLocator

    runs = open_runs(folders)
    panels = facets(axes, ["Proposition 1: change of $L_p$ in a step", "Proposition 2: change of $L_l$"], height=4.4)
    sides = (("prop1_predicted", "prop1_sol"), ("prop2_shifted", "prop2_sol"))
    for panel, columns in zip(panels, sides, strict=True):
        ends = []
        for label, seeds, look in _settings(runs):
            rows = [diagnoses.rows_of(run, "propositions")[list(columns)].to_numpy() for run in seeds]
            x, y = np.concatenate(rows).T
            panel.scatter(x, y, s=16, alpha=0.6, label=label, **look)
            ends += [x.min(), x.max()]
        panel.plot([min(ends), max(ends)], [min(ends), max(ends)], color=GREY, linewidth=1, zorder=0)
        panel.xaxis.set_major_locator(MaxNLocator(5))
        panel.set_xlabel("predicted by the proposition")
    panels[0].set_ylabel("FedSOL's step, to first order")
    panels[0].legend(frameon=False, fontsize=8)
    return figure_of(panels[0])


def _settings(runs: Sequence[Run]) -> list[tuple[str, list[Run], dict[str, Any]]]:
    """The settings of runs: label, runs, and the look of their points."""
    labels = by_setting(runs)
    looks = zip(labels.items(), colours_of(labels), markers_of(labels), strict=True)
    return [
        (label, list(seeds.values()), {"color": colour, "marker": marker, "linewidth": 0})
        for (label, seeds), colour, marker in looks
    ]


def _of_seeds(correlations: Sequence[diagnoses.Correlation]) -> str:
    """Pearson's r and p of the seeds of a setting; their range for more than two."""
    if len(correlations) < 3:
        return ", ".join(f"r {one.r:.2f} (p {one.p:.1g})" for one in correlations)
    r, p = np.array([(one.r, one.p) for one in correlations]).T
    return f"r {r.min():.2f} to {r.max():.2f}, p {p.min():.1g} to {p.max():.1g}, {len(correlations)} seeds"

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
    axis_label,
    by_setting,
    draw_lines,
    end_at_all,
    facets,
    figure_of,
    legend,
    open_runs,
    plain,
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


def along_steps(runs: Sequence[Run]) -> tuple[dict[str, pandas.DataFrame], str]:
    """(`diagnoses.conflict` by local step, by setting; the label of the steps' axis).

    Leaves out steps that fewer than `REACHED` of the clients take: the last steps of a line would be those of a few
    clients with many samples. The label says so.
    """
    tables = averaged(runs, lambda run: diagnoses.conflict(run, "step"), "step")
    known = {name: table[table["looks"] >= REACHED * table["looks"].max()] for name, table in tables.items()}
    cut = any(len(known[name]) < len(table) for name, table in tables.items())
    return known, f"local step (of {100 * REACHED:.0f} % of the clients or more)" if cut else "local step"


# lines ---------------------------------------------------------------------------------------------
def _lines(
    frame: pandas.DataFrame,
    axes: Given,
    styles: Mapping[str, str],
    x: str = "round",
    y: str = "",
    zero: bool = False,
    integers: bool = True,
    **size: Any,
) -> list[Any]:
    """A panel for each of the frame's, with its lines and one legend; `zero`: with a line at 0. Returns the panels."""
    names = list(dict.fromkeys(frame["panel"]))
    panels = facets(axes, names, **size)
    for panel, name in zip(panels, names, strict=True):
        if zero:
            panel.axhline(0, color=GREY, linewidth=1)
        draw_lines(panel, frame[frame["panel"] == name], styles)
        plain(panel, x if integers else "")
        panel.set_xlabel(x)
    if y:
        panels[0].set_ylabel(y)
    shown = {style: dashes for style, dashes in styles.items() if style and (frame["style"] == style).any()}
    legend(panels[-1], dict.fromkeys(frame["setting"]), shown, axes is None)
    return panels


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
    frame = tidy(tables, columns)
    frame["y"] *= 100
    panels = _lines(frame, axes, dict(STAGES.values()), y="accuracy on the test set (%)", sharey=True)
    for panel in panels:  # after all are drawn: they share the axis
        end_at_all(panel)
    return figure_of(panels[0])


def conflict(folders: Folders, axes: Given = None) -> Figure:
    """Cosine of local steps with the gradients that they may oppose, along local training (FedSOL Figure 3). Dashed:
    the local gradient; solid: the step taken."""
    tables, label = along_steps(open_runs(folders))
    kinds = [kind for kind in diagnoses.AGAINST if has(tables, f"cos_{kind}")]
    columns = {
        (f"with the {kind} gradient", side): f"{what}_{kind}"
        for kind in kinds
        for what, side in zip(("cos", "move"), SIDES, strict=True)
    }
    width = 0.6 + 3.4 * len(kinds)
    panels = _lines(
        tidy(tables, columns, "step"), axes, SIDES, label, "cosine; below 0: conflict", True, width=width, sharey=True
    )
    for panel in panels:
        panel.set_ylim(-1, 1)
    return figure_of(panels[0])


def losses_along(folders: Folders, axes: Given = None) -> Figure:
    """The losses that local steps may increase, over local steps, a panel for each kind (FedSOL Figure 3(b): L_p,
    the `proximal` one). Means over seeds, clients and rounds."""
    tables, label = along_steps(open_runs(folders))
    columns = {(f"{kind} loss along local training", ""): f"loss_{kind}" for kind in diagnoses.AGAINST}
    frame = tidy(tables, columns, "step")
    width = 0.6 + 3.4 * max(2, frame["panel"].nunique())
    return figure_of(_lines(frame, axes, {"": "-"}, label, "loss before the step (nats)", width=width)[0])


def conflict_over(folders: Folders, key: str, axes: Given = None) -> Figure:
    """Cosine of local steps with the gradients that they may oppose, over `key`, a numeric key in which the runs
    differ; a panel for each kind (FedSOL Figure 3(a): the `proximal` one over rho).

    A point is the mean over the seeds of a combination of the other keys. Dashed: the local gradient; solid: the step
    taken. Means over clients, rounds and steps. Raises `ConfigError` for a key that does not vary or is not numeric.
    """
    import pandas

    runs = open_runs(folders)
    frame = compare(runs)
    key, rows = key_named(frame, key), []
    others = [name for name in keys_of(frame) if name != key]
    exact = digits_lost(frame, others)
    for run, row in zip(runs, frame.to_dict("records"), strict=True):
        try:
            place = float(row[key])
        except (TypeError, ValueError):
            raise ConfigError(f"{run.place}: {key} is {row[key]}; this picture is over numbers") from None
        means = diagnoses.conflict(run).mean()
        setting = describe({name: row[name] for name in others}, exact)
        rows += [
            {"panel": f"with the {kind} gradient", "setting": setting, "style": side, "x": place, "y": means[column]}
            for kind in diagnoses.AGAINST
            for what, side in zip(("cos", "move"), SIDES, strict=True)
            if (column := f"{what}_{kind}") in means
        ]
    over = pandas.DataFrame(rows).groupby(["panel", "setting", "style", "x"])["y"].mean().reset_index()
    width = 0.6 + 3.4 * max(2, over["panel"].nunique())
    panels = _lines(over, axes, SIDES, heading(key), "cosine; below 0: conflict", True, False, width=width, sharey=True)
    return figure_of(panels[0])


def divergence(folders: Folders, axes: Given = None) -> Figure:
    """Weight divergence over rounds (FedSOL Figure 6): of clients from the global model and from each other."""
    title = "weight divergence after local training"
    styles = {"client to global model": "-", "client to client (weighted RMS)": "--"}
    columns = dict(zip([(title, style) for style in styles], ("distance", "between"), strict=True))
    frame = tidy(averaged(open_runs(folders), diagnoses.divergence), columns)
    (panel,) = _lines(frame, axes, styles, y="Euclidean distance of parameters", width=7.2)
    panel.set_ylim(bottom=0)
    return figure_of(panel)


def heterogeneity(folders: Folders, axes: Given = None) -> Figure:
    """zeta and descent at the start of each round: how far the clients' gradients are from the global gradient, and
    how much of a descent along it they share."""
    words = {
        ("zeta: distance of clients' gradients from the global one", ""): "zeta",
        ("descent: share of a global descent in them", ""): "descent",
    }
    return figure_of(_lines(tidy(averaged(open_runs(folders), diagnoses.heterogeneity), words), axes, {"": "-"})[0])


def latent_forgetting(folders: Folders, axes: Given = None) -> Figure:
    """The size of the global update, and with `gradients_every` the gradients at the global model (FedMemo, section
    G); a panel for each number that a run has."""
    cosine = "its cosine with the clients'"
    words = {
        ("variance of the weight update", ""): "wv",
        ("variance of the public data's gradient", ""): "gradient_variance",
        (cosine, ""): "cosine",
        ("trace of the Fisher information", ""): "fisher_trace",
    }
    frame = tidy(averaged(open_runs(folders), diagnoses.gradients), words)
    panels = _lines(frame, axes, {"": "-"}, width=max(7.2, 3.4 * frame["panel"].nunique()), height=3.6)
    for panel in panels:
        if panel.get_title(loc="left") != cosine:
            panel.set_yscale("log")
    return figure_of(panels[0])


# points and bars -----------------------------------------------------------------------------------
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
    plain(over, "round")
    over.set_ylabel("memory loss (KL, nats)")
    shown = {style: styles[style] for style in dict.fromkeys(frame["style"])}
    legend(over, dict.fromkeys(frame["setting"]), shown, axes is None)
    correlated = ["a point a round"]
    for label, seeds, look in _settings(runs):
        for table in map(diagnoses.memory, seeds):
            if "test/acc" in table:
                beside.scatter(table["loss_after"], 100 * table["test/acc"], s=22, alpha=0.7, **look)
        known = [found["loss_after"] for run in seeds if "loss_after" in (found := diagnoses.correlations(run))]
        correlated += [f"{label}: {_of_seeds(known)}"] if known else []
    beside.set_title("\n".join(correlated), fontsize=9, loc="left")  # inside, they would cover points
    beside.set_ylabel(axis_label("test/acc"))
    beside.set_xlabel("memory loss of the local models (KL, nats)")
    plain(beside)
    return figure_of(over)


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
        plain(panel)
    legend(panels[-1], tables, {}, axes is None)
    return figure_of(panels[0])


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
        plain(panel)
    panels[0].set_ylabel("FedSOL's step, to first order")
    panels[0].legend(frameon=False, fontsize=8)
    return figure_of(panels[0])


class DiagnosticFigure(NamedTuple):
    """A figure, with its title and note in a report."""

    figure: Callable[..., Figure]
    title: str
    note: str


FIGURES: Mapping[str, DiagnosticFigure] = {
    "local_forgetting": DiagnosticFigure(
        local_forgetting,
        "What local training forgets",
        "the clients' models after local training, and their aggregate, on the global test set",
    ),
    "conflict": DiagnosticFigure(
        conflict, "Conflicts along local training", "cosines; a step below 0 undoes what should be remembered"
    ),
    "memory": DiagnosticFigure(
        memory, "Memory drift", "how far answers on public data move, and the correlation with accuracy"
    ),
    "divergence": DiagnosticFigure(
        divergence, "Weight divergence", "how far clients move from the global model and each other"
    ),
    "heterogeneity": DiagnosticFigure(heterogeneity, "Heterogeneity", "zeta and descent where each round begins"),
    "layers": DiagnosticFigure(
        layers, "Layer by layer", "FedSOL's Lambda, and how far each layer moves in local training"
    ),
    "latent_forgetting": DiagnosticFigure(
        latent_forgetting, "Size of the update, and gradients", "an update that shrinks may be one that forgets"
    ),
    "propositions": DiagnosticFigure(
        propositions, "FedSOL's propositions", "a point on the line is a step in which the proposition is exact"
    ),
}

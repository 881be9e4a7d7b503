"""A figure for each diagnostic: forgetting and conflicts in local training, drift, divergence, gradients, theory.

`FIGURES` has them by the name of the diagnostic, with a title and a note for a report. Each draws into `axes` if given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from flray.results import diagnoses
from flray.results.blank import figure_of
from flray.results.diagnosis_panels import (
    STAGES,
    averaged,
    correlation_panel,
    cosine_panel,
    has,
    layer_panel,
    legend,
    line_panel,
    recovery_panel,
    row_of,
    sides_panel,
    stages,
)
from flray.results.figures import end_at_all, open_runs
from flray.rundir.reader import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Folders = Iterable[str | Path | Run]


def local_forgetting(folders: Folders, axes: Iterable[Axes] | None = None) -> Figure:
    """Accuracy on the global test set over rounds, of the clients' local models and of their aggregate: on the classes
    that the client holds, and on the others (FedSOL Figure 7).

    The received model is the aggregate of the round before, so it has no line of its own.
    """
    tables = averaged(open_runs(folders), diagnoses.recovery)
    panels = row_of(axes, ["classes that a client holds", "the other classes: what it forgets"], sharey=True)
    for panel, what in zip(panels, ("in", "out"), strict=True):
        recovery_panel(panel, tables, what)
    for panel in panels:  # after all are drawn: they share the axis
        end_at_all(panel)
    panels[0].set_ylabel("accuracy on the test set (%)")
    legend(panels[-1], tables, dict(STAGES[stage] for stage in stages(tables)), axes is None)
    return figure_of(panels[0])


def conflict(folders: Folders, axes: Iterable[Axes] | None = None) -> Figure:
    """Cosine of local steps with the gradients that they may oppose, along local training (FedSOL Figure 3). Dashed:
    the local gradient; solid: the step taken."""
    tables = averaged(open_runs(folders), lambda run: diagnoses.conflict(run, "step"), "step")
    kinds = [kind for kind in diagnoses.AGAINST if has(tables, f"cos_{kind}")]
    panels = row_of(axes, [f"with the {kind} gradient" for kind in kinds], 0.6 + 3.4 * len(kinds), sharey=True)
    for panel, kind in zip(panels, kinds, strict=True):
        cosine_panel(panel, tables, kind)
    panels[0].set_ylabel("cosine; below 0: conflict")
    legend(panels[-1], tables, {"local gradient": "--", "step taken": "-"}, axes is None)
    return figure_of(panels[0])


def memory(folders: Folders, axes: Iterable[Axes] | None = None) -> Figure:
    """Memory loss over rounds; beside it the memory loss of the local models against the accuracy, with Pearson's r.

    FedProj C.4 prints another r, that of the new global model's memory loss: `memory/drift` of `rounds/`,
    `ensemble_drift` here.
    """
    runs = open_runs(folders)
    tables = averaged(runs, diagnoses.memory)
    over, beside = row_of(axes, ["memory drift over rounds", "a point a round"])
    line_panel(over, tables, {"loss_after": "-", "ensemble_drift": ":"})
    over.set_ylabel("memory loss (KL, nats)")
    styles = {"local models": "-"} | ({"global model, of the ensemble": ":"} if has(tables, "ensemble_drift") else {})
    legend(over, tables, styles, axes is None)
    correlation_panel(beside, runs, "loss_after")
    beside.set_xlabel("memory loss of the local models (KL, nats)")
    return figure_of(over)


def divergence(folders: Folders, axes: Iterable[Axes] | None = None) -> Figure:
    """Weight divergence over rounds (FedSOL Figure 6): of clients from the global model and from each other."""
    tables = averaged(open_runs(folders), diagnoses.divergence)
    (panel,) = row_of(axes, ["weight divergence after local training"], 7.2)
    line_panel(panel, tables, {"distance": "-", "between": "--"})
    panel.set_ylabel("Euclidean distance of parameters")
    panel.set_ylim(bottom=0)
    legend(
        panel,
        tables,
        {"client to global model": "-", "client to client (weighted RMS)": "--"},
        axes is None,
    )
    return figure_of(panel)


def heterogeneity(folders: Folders, axes: Iterable[Axes] | None = None) -> Figure:
    """zeta and descent at the start of each round: how far the clients' gradients are from the global gradient, and
    how much of a descent along it they share."""
    tables = averaged(open_runs(folders), diagnoses.heterogeneity)
    words = ["zeta: distance of clients' gradients from the global one", "descent: share of a global descent in them"]
    panels = row_of(axes, words)
    for panel, name in zip(panels, ("zeta", "descent"), strict=True):
        line_panel(panel, tables, {name: "-"})
        panel.set_ylabel(name)
    legend(panels[-1], tables, {}, axes is None)
    return figure_of(panels[0])


def layers(folders: Folders, axes: Iterable[Axes] | None = None) -> Figure:
    """Mean of FedSOL's Lambda, and the distance that each layer moves, by layer (FedSOL Figure 5b)."""
    tables = averaged(open_runs(folders), diagnoses.layers, "layer")
    size = max(len(table) for table in tables.values()) * len(tables)
    panels = row_of(axes, ["mean of Lambda", "distance moved / norm of the layer"], max(7.2, 0.5 * size))
    for panel, column in zip(panels, ("lambda_mean", "relative"), strict=True):
        layer_panel(panel, tables, column)
    legend(panels[-1], tables, {}, axes is None)
    return figure_of(panels[0])


def latent_forgetting(folders: Folders, axes: Iterable[Axes] | None = None) -> Figure:
    """The size of the global update, and with `gradients_every` the gradients at the global model (FedMemo, section
    G); a panel for each number that a run has."""
    tables = averaged(open_runs(folders), diagnoses.gradients)
    known = {
        name: title
        for name, title in (
            ("wv", "variance of the weight update"),
            ("gradient_variance", "variance of the public data's gradient"),
            ("cosine", "its cosine with the clients'"),
            ("fisher_trace", "trace of the Fisher information"),
        )
        if has(tables, name)
    }
    panels = row_of(axes, list(known.values()), max(7.2, 3.4 * len(known)), 3.6)
    for panel, name in zip(panels, known, strict=True):
        line_panel(panel, tables, {name: "-"})
        if name != "cosine":
            panel.set_yscale("log")
    legend(panels[-1], tables, {}, axes is None)
    return figure_of(panels[0])


def propositions(folders: Folders, axes: Iterable[Axes] | None = None) -> Figure:
    """Both sides of FedSOL's propositions; a point is a local step."""
    runs = open_runs(folders)
    panels = row_of(axes, ["Proposition 1: change of L_p in a step", "Proposition 2: change of L_l"], height=4.4)
    sides_panel(panels[0], runs, "prop1_predicted", "prop1_sol")
    sides_panel(panels[1], runs, "prop2_shifted", "prop2_sol")
    for panel in panels:
        panel.set_xlabel("predicted by the proposition")
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

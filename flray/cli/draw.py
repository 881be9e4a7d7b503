"""`flray figure`: a picture of runs, by the name of what is to be seen."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flray.cli.show import runs_in
from flray.cli.unused import refuse_unused
from flray.core.schema.errors import FlrayError, unknown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from flray.rundir.reader import Run

DIAGNOSED = (
    "local_forgetting", "conflict", "memory", "divergence", "heterogeneity", "layers", "latent_forgetting",
    "propositions",
)  # fmt: skip
OPTIONS = {  # of each figure, besides its file
    "curves": ("metric", "x"), "clients": (), "tasks": ("mode",), "drift": ("mode",), "classes": (),
    "regions": ("rounds", "models"),
    "landscape": ("round", "directions", "points", "span"), "ablation": ("metric", "axis"), "ranks": ("metric",),
    "sweep": (), "conflict": ("metric", "axis"),
}  # fmt: skip
FIGURES = tuple(dict.fromkeys((*OPTIONS, *DIAGNOSED)))


def figure(
    ctx: typer.Context,
    kind: Annotated[str, typer.Argument(metavar="|".join(FIGURES), autocompletion=lambda: list(FIGURES))],
    folders: Annotated[
        list[str], typer.Argument(help="run folders (or URIs), or folders that hold them; sweep: sweep folders")
    ],
    out: Annotated[Path, typer.Option(help="PNG, SVG or PDF file; regions: a GIF is a film of the rounds")] = Path(
        "figure.png"
    ),
    metric: Annotated[
        str, typer.Option(help="curves: a column of rounds/; ablation, ranks: of the table of runs; conflict: loss")
    ] = "test/acc",
    axis: Annotated[
        str | None,
        typer.Option(help="ablation, conflict: a key to draw over; ablation, two by comma: a heat map"),
    ] = None,
    x: Annotated[str, typer.Option(help="curves: rounds, steps, bytes, flops or seconds")] = "rounds",
    mode: Annotated[
        str | None,
        typer.Option(help="tasks, drift: an inference mode (tasks: several by comma); default: the first"),
    ] = None,
    rounds: Annotated[
        str | None, typer.Option(help="regions: rounds to show; default: first, a quarter on, last; of a GIF all")
    ] = None,
    models: Annotated[
        str, typer.Option(help="regions: of before (the global model), local (the clients'), after (the global one)")
    ] = "local,after",
    round: Annotated[
        int | None, typer.Option(min=0, help="landscape: the model after so many rounds; default: the final one")
    ] = None,
    directions: Annotated[
        str, typer.Option(help="landscape: eigen (the Hessian's two sharpest) or random (filter-normalised)")
    ] = "eigen",
    points: Annotated[int, typer.Option(help="landscape: points along each direction")] = 21,
    span: Annotated[float, typer.Option(help="landscape: how far it goes to either side")] = 1.0,
) -> None:
    """A picture of runs: learning curves, the clients' personalised accuracies, decision regions (2-D data), a metric
    over a key of an ablation or grid; what was known of each task after each task, or of each class by round, also
    through a drift; methods ranked over many settings, with the critical difference; the loss around the global model;
    what a diagnostic says, by its name.
    `sweep` writes the table and the figures of sweep folders again.
    """
    if kind not in FIGURES:
        raise unknown("figure", kind, FIGURES)
    written = () if kind == "sweep" else ("out",)  # a sweep's pictures lie in its folder
    refuse_unused(ctx, ("kind", "folders", *written, *OPTIONS.get(kind, ())), f"flray figure {kind}")
    if rounds is not None and not all(part.strip().isdecimal() and int(part) for part in rounds.split(",")):
        raise FlrayError(f"--rounds {rounds}: give whole numbers from 1, by comma, e.g. 1,5,20")
    from flray import results
    from flray.results.figures import save

    if kind == "sweep":
        for folder in folders:
            _sweep_report(Path(folder))
        return
    runs = runs_in(folders, sound_only=True)
    if kind == "curves":
        drawn = results.curves(runs, metric, x)
    elif kind == "tasks":
        drawn = results.accuracy_by_task(runs, mode)
    elif kind == "drift":
        drawn = results.accuracy_through_drift(runs, mode)
    elif kind == "classes":
        drawn = _classes(runs)
    elif kind == "conflict":
        drawn = _conflict(runs, None if metric == "test/acc" else metric, axis)
    elif kind == "clients":
        drawn = results.clients(runs)
    elif kind == "ablation":
        drawn = results.ablation(results.compare(runs), axis, metric)
    elif kind == "ranks":
        from flray.results.ranks import diagram, ranks

        drawn = diagram(ranks(results.compare(runs), metric))
    elif kind == "landscape":
        # the numbers lie beside the picture, which is drawn again at once
        drawn = results.landscape(runs, round, directions, points, span, stored=out.with_suffix(".parquet"))
    elif kind in DIAGNOSED:
        from flray.results import diagnosis_figures

        drawn = diagnosis_figures.FIGURES[kind].figure(runs)
    else:
        shown = None if rounds is None else [int(r) for r in rounds.split(",")]
        wanted = [name.strip() for name in models.split(",")]
        if out.suffix.lower() == ".gif":
            print(results.film(runs, out, shown, wanted))
            return
        drawn = results.decision_regions(runs, shown, wanted)
    print(save(drawn, out))


def _classes(runs: list[Run]) -> Figure:
    """Accuracy of the global model by class and round, a panel a setting (FedSOL Figure 7(b))."""
    from flray.results.pictures import by_class

    drawn = by_class(runs)
    if drawn is None:
        raise FlrayError(f"{runs[0].place}: no run was tested in two rounds or more, so there is no class over rounds")
    return drawn


def _conflict(runs: list[Run], metric: str | None, key: str | None) -> Figure:
    """Cosines over local steps, losses over local steps (`metric` loss), or cosines over a key."""
    from flray.results.conflict_figures import conflict_over, losses_along
    from flray.results.diagnosis_figures import conflict

    if metric not in (None, "loss"):
        raise FlrayError(f"--metric {metric}: flray figure conflict draws cosines, or with --metric loss the losses")
    if key is not None and metric is not None:
        raise FlrayError("flray figure conflict: --metric loss is over local steps, --axis over a key; leave one out")
    if metric is not None:
        return losses_along(runs)
    return conflict(runs) if key is None else conflict_over(runs, key)


def _sweep_report(folder: Path) -> None:
    """The sweep's table and figures again; what could not be drawn goes to stderr."""
    from flray.tuning.report import write_report

    report = write_report(folder)
    print(*(report.table, *report.figures), sep="\n")
    for reason in report.skipped:
        print(f"left out: {reason}", file=sys.stderr)

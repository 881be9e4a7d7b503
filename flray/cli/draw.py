"""`flray figure`: a picture of runs, by the name of what is to be seen."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flray.cli.arguments import complete_metric, complete_mode, refuse_unused, runs_in
from flray.cli.output import write
from flray.core.schema.errors import FlrayError, unknown
from flray.log import LOGGER

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from flray.rundir.reader import Run

DIAGNOSED = (
    "local_forgetting", "conflict", "memory", "divergence", "heterogeneity", "layers", "latent_forgetting",
    "propositions",
)  # fmt: skip
OPTIONS = {  # of each figure, besides its file
    "curves": ("metric", "x"), "clients": (), "tasks": ("mode",), "predicted": ("mode",), "drift": ("mode",),
    "classes": (),
    "regions": ("rounds", "models"),
    "landscape": ("round", "directions", "points", "span"), "ablation": ("metric", "axis"), "ranks": ("metric",),
    "sweep": (), "timeline": (), "conflict": ("metric", "axis"),
}  # fmt: skip
FIGURES = tuple(dict.fromkeys((*OPTIONS, *DIAGNOSED)))

Mode = Annotated[
    str | None,
    typer.Option(
        help="tasks, predicted, drift: an inference mode (but drift: several by comma); default: the first",
        autocompletion=complete_mode,
    ),
]
Rounds = Annotated[
    str | None, typer.Option(help="regions: rounds to show; default: first, a quarter on, last; of a GIF all")
]
Models = Annotated[
    str, typer.Option(help="regions: of before (the global model), local (the clients'), after (the global one)")
]
AfterRounds = Annotated[
    int | None, typer.Option(min=0, help="landscape: the model after so many rounds; default: the final one")
]
Directions = Annotated[
    str, typer.Option(help="landscape: eigen (the Hessian's two sharpest) or random (filter-normalised)")
]


def _styles() -> list[str]:
    from flray.results.figures import STYLES

    return list(STYLES)


Metric = Annotated[
    str,
    typer.Option(
        help="curves: a column of rounds/; ablation, ranks: of the table of runs; conflict: loss",
        autocompletion=complete_metric,
    ),
]
Style = Annotated[
    str | None,
    typer.Option(
        help="paper (a column's width) or talk: writes a PDF, an SVG and a PNG, named as --out is",
        autocompletion=_styles,
    ),
]


def figure(
    ctx: typer.Context,
    kind: Annotated[str, typer.Argument(metavar="|".join(FIGURES), autocompletion=lambda: list(FIGURES))],
    folders: Annotated[
        list[str], typer.Argument(help="run folders (or URIs), or folders that hold them; sweep: sweep folders")
    ],
    out: Annotated[Path, typer.Option(help="PNG, SVG or PDF file; regions: a GIF is a film of the rounds")] = Path(
        "figure.png"
    ),
    metric: Metric = "test/acc",
    axis: Annotated[
        str | None,
        typer.Option(help="ablation, conflict: a key to draw over; ablation, two by comma: a heat map"),
    ] = None,
    x: Annotated[
        str,
        typer.Option(
            help="curves: rounds, steps, bytes, up (bytes up), flops, virtual, seconds; or a column of rounds/"
        ),
    ] = "rounds",
    style: Style = None,
    mode: Mode = None,
    rounds: Rounds = None,
    models: Models = "local,after",
    round: AfterRounds = None,
    directions: Directions = "eigen",
    points: Annotated[int, typer.Option(help="landscape: points along each direction")] = 21,
    span: Annotated[float, typer.Option(help="landscape: how far it goes to either side")] = 1.0,
) -> None:
    """A picture of runs: learning curves; the clients' personalised accuracies; decision regions (2-D data); a metric
    over a key of an ablation or grid; the accuracy on each task after each task, on each class by round, or through a
    drift; predicted against true tasks; when each client worked on the virtual clock; ranks of methods over many
    settings, with the critical difference; the loss around the global model; a diagnostic, by its name.
    `sweep` writes the table and the figures of sweep folders again.
    """
    if kind not in FIGURES:
        raise unknown("figure", kind, FIGURES)
    written = () if kind == "sweep" else ("out", "style")  # a sweep's pictures are in its folder
    refuse_unused(ctx, ("kind", "folders", *written, *OPTIONS.get(kind, ())), f"flray figure {kind}")
    if rounds is not None and not all(part.strip().isdecimal() and int(part) for part in rounds.split(",")):
        raise FlrayError(f"--rounds {rounds}: give numbers from 1, with commas, e.g. 1,5,20")
    if out.suffix.lower() == ".gif" and style is not None:
        raise FlrayError(f"--style writes a PDF, an SVG and a PNG, and {out} is a film; leave --style out")
    if kind == "sweep":
        for folder in folders:
            _sweep_report(Path(folder))
        return
    runs = runs_in(folders, sound_only=True)
    if kind == "regions" and out.suffix.lower() == ".gif":
        from flray.results import film

        write(film(runs, out, *_panels(ctx.params)))
        return
    from flray.results.figures import check_style, save, save_styled

    check_style(style)
    drawn = _drawing(kind, runs, ctx.params)
    paths = [save(drawn, out)] if style is None else save_styled(drawn, out, style)
    write("\n".join(map(str, paths)))


def _drawing(kind: str, runs: list[Run], options: Mapping[str, Any]) -> Figure:
    """One figure; `options` are those of the command line."""
    from flray import results

    metric, axis, out = options["metric"], options["axis"], Path(options["out"])
    if kind == "curves":
        return results.curves(runs, metric, options["x"])
    if kind == "tasks":
        return results.accuracy_by_task(runs, options["mode"])
    if kind == "predicted":
        return results.predicted_tasks(runs, options["mode"])
    if kind == "drift":
        return results.accuracy_through_drift(runs, options["mode"])
    if kind == "classes":
        return _classes(runs)
    if kind == "conflict":
        return _conflict(runs, None if metric == "test/acc" else metric, axis)
    if kind == "clients":
        return results.clients(runs)
    if kind == "ablation":
        return results.ablation(results.compare(runs), axis, metric)
    if kind == "ranks":
        from flray.results.ranks import diagram, ranks

        return diagram(ranks(results.compare(runs), metric))
    if kind == "landscape":
        # the losses are stored beside the picture, so the next drawing computes nothing
        of = (options["round"], options["directions"], options["points"], options["span"])
        return results.landscape(runs, *of, stored=out.with_suffix(".parquet"))
    if kind == "timeline":
        if len(runs) > 1:
            raise FlrayError(f"flray figure timeline draws one run, not {len(runs)}; name one of them")
        return results.timeline(runs[0])
    if kind == "regions":
        return results.decision_regions(runs, *_panels(options))
    from flray.results import diagnosis_figures

    return diagnosis_figures.FIGURES[kind].figure(runs)


def _panels(options: Mapping[str, Any]) -> tuple[list[int] | None, list[str]]:
    """The rounds and the models of `flray figure regions`."""
    rounds = None if options["rounds"] is None else [int(number) for number in options["rounds"].split(",")]
    return rounds, [name.strip() for name in options["models"].split(",")]


def _classes(runs: list[Run]) -> Figure:
    """Accuracy of the global model by class and round, a panel a setting (FedSOL Figure 7(b))."""
    from flray.results.drift_figures import by_class

    drawn = by_class(runs)
    if drawn is None:
        raise FlrayError(f"{runs[0].place}: no run was tested in two rounds or more, so there is no class over rounds")
    return drawn


def _conflict(runs: list[Run], metric: str | None, key: str | None) -> Figure:
    """Cosines over local steps, losses over local steps (`metric` loss), or cosines over a key."""
    from flray.results.diagnosis_figures import conflict, conflict_over, losses_along

    if metric not in (None, "loss"):
        raise FlrayError(f"--metric {metric}: flray figure conflict draws cosines, or with --metric loss the losses")
    if key is not None and metric is not None:
        raise FlrayError("flray figure conflict: --metric loss is over local steps, --axis over a key; leave one out")
    if metric is not None:
        return losses_along(runs)
    return conflict(runs) if key is None else conflict_over(runs, key)


def _sweep_report(folder: Path) -> None:
    """The sweep's table and figures again; a warning for each figure that cannot be drawn."""
    from flray.tuning.report import write_report

    report = write_report(folder)
    write("\n".join(map(str, (report.table, *report.figures))))
    for reason in report.skipped:
        LOGGER.warning(f"left out: {reason}")

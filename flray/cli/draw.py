"""`flray figure`: a picture of runs, by the name of what is to be seen."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flray.cli.arguments import complete_metric, complete_mode, refuse_unused
from flray.cli.output import write
from flray.figure_kinds import KINDS, OPTIONS, unknown_kind
from flray.log import LOGGER

FIGURES = (*KINDS, "sweep")

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
        typer.Option(help="curves: rounds, steps, bytes, up (bytes up), flops, virtual, seconds"),
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
    if kind == "sweep":  # its pictures are in its folder
        refuse_unused(ctx, ("kind", "folders"), "flray figure sweep")
        from flray.tuning.report import write_report

        for report in map(write_report, map(Path, folders)):
            write("\n".join(map(str, (report.table, *report.figures))))
            for reason in report.skipped:
                LOGGER.warning(f"left out: {reason}")
        return
    if kind not in KINDS:
        raise unknown_kind(kind, FIGURES)
    from flray.results.drawing import check_out, figure as draw
    from flray.results.readable import runs_in

    named = OPTIONS.get(kind, ())
    refuse_unused(ctx, ("kind", "folders", "out", "style", *named), f"flray figure {kind}")
    options = {name: ctx.params[name] for name in named}
    check_out(kind, out, style, options)  # an error before anything is read
    _, paths = draw(kind, runs_in(folders, sound_only=True), out, style, **options)
    write("\n".join(map(str, paths)))

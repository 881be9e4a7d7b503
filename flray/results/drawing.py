"""A picture of runs by the name of its kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flray import results
from flray.core.schema.errors import ConfigError, FlrayError
from flray.figure_kinds import DEFAULTS, check_kind
from flray.results.continual_figures import by_class
from flray.results.diagnosis_figures import FIGURES, conflict, conflict_over, losses_along
from flray.results.figures import check_style, save, save_styled
from flray.results.ranks import diagram, ranks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from flray.rundir.reader import Run


def drawn(kind: str, runs: Sequence[Run], **options: Any) -> Figure:
    """The figure of a kind.

    Raises `ConfigError` in one line, also if the runs do not have what it shows.
    """
    check_kind(kind, options)
    options = {**DEFAULTS, **options}
    metric, axis, mode = options["metric"], options["axis"], options["mode"]
    plane = (options["round"], options["directions"], options["points"], options["span"])
    figures: dict[str, Callable[[], Figure]] = {
        **{name: partial(known.figure, runs) for name, known in FIGURES.items()},
        "curves": lambda: results.curves(runs, metric, options["x"]),
        "tasks": lambda: results.accuracy_by_task(runs, mode),
        "predicted": lambda: results.predicted_tasks(runs, mode),
        "drift": lambda: results.accuracy_through_drift(runs, mode),
        "classes": lambda: by_class(runs),
        "conflict": lambda: _conflict(runs, None if metric == DEFAULTS["metric"] else metric, axis),
        "clients": lambda: results.clients(runs),
        "ablation": lambda: results.ablation(results.compare(runs), axis, metric),
        "ranks": lambda: diagram(ranks(results.compare(runs), metric)),
        "landscape": lambda: results.landscape(runs, *plane),
        "timeline": lambda: results.timeline(_single(runs)),
        "regions": lambda: results.decision_regions(runs, *panels(options)),
    }
    return figures[kind]()


def panels(options: Mapping[str, Any]) -> tuple[list[int] | None, list[str]]:
    """The rounds and the models of `regions`: text with commas, or lists. Raises `ConfigError` for other rounds."""
    rounds, models = (options.get(name, DEFAULTS[name]) for name in ("rounds", "models"))
    if isinstance(rounds, str):
        rounds = [part.strip() for part in rounds.split(",")]
    if rounds is not None and not all(str(part).isdecimal() and int(part) for part in rounds):
        raise ConfigError(f"--rounds {options['rounds']}: give numbers from 1, with commas, e.g. 1,5,20")
    names = models.split(",") if isinstance(models, str) else models
    return None if rounds is None else [int(part) for part in rounds], [name.strip() for name in names]


def _single(runs: Sequence[Run]) -> Run:
    if len(runs) > 1:
        raise FlrayError(f"the figure timeline shows one run, not {len(runs)}; name one of them")
    return runs[0]


def _conflict(runs: Sequence[Run], metric: str | None, key: str | None) -> Figure:
    """Cosines over local steps, losses over local steps (`metric` loss), or cosines over a key."""
    if metric not in (None, "loss"):
        raise FlrayError(f"metric {metric}: the figure conflict draws cosines, or with metric loss the losses")
    if key is not None and metric is not None:
        raise FlrayError("the figure conflict: metric loss is over local steps, axis over a key; leave one out")
    if metric is not None:
        return losses_along(runs)
    return conflict(runs) if key is None else conflict_over(runs, key)


def check_out(kind: str, out: Path, style: str | None, options: Mapping[str, Any]) -> None:
    """Raises `ConfigError` for other rounds of `regions` than numbers, and for a film with a style."""
    panels(options)
    if style is not None and kind == "regions" and out.suffix.lower() == ".gif":
        raise ConfigError(f"--style writes a PDF, an SVG and a PNG, and {out} is a film; leave --style out")


def figure(
    kind: str, runs: Sequence[Run], out: str | Path | None = None, style: str | None = None, **options: Any
) -> tuple[Figure, list[Path]]:
    """(the figure, the files that were written): `out` is a PNG, SVG or PDF, of `regions` also a GIF; with a `style`
    all three of the first. Raises `ConfigError` in one line."""
    check_style(style)
    check_kind(kind, options)
    if out is None:
        if style is not None:
            raise ConfigError(f"style {style} is of the files that are written; give out, too")
        return drawn(kind, runs, **options), []
    out = Path(out)
    check_out(kind, out, style, options)
    if kind == "regions" and out.suffix.lower() == ".gif":
        return drawn(kind, runs, **options), [results.film(runs, out, *panels(options))]
    shown = drawn(kind, runs, **options)
    return shown, [save(shown, out)] if style is None else save_styled(shown, out, style)

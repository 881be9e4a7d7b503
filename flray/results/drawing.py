"""A picture of runs by the name of its kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flray import results
from flray.core.schema.errors import ConfigError, FlrayError
from flray.figure_kinds import check_kind
from flray.results.continual_figures import by_class
from flray.results.diagnosis_figures import FIGURES, conflict, conflict_over, losses_along
from flray.results.figures import check_style, save, save_styled
from flray.results.ranks import diagram, ranks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from flray.rundir.reader import Run


def panels(
    rounds: str | Iterable[Any] | None = None, models: Any = "local,after"
) -> tuple[list[int] | None, list[str]]:
    """The rounds and the models of `regions`: text with commas, or lists. Raises `ConfigError` for other rounds."""
    parts = [part.strip() for part in rounds.split(",")] if isinstance(rounds, str) else rounds
    if parts is not None and not all(str(part).isdecimal() and int(part) for part in parts):
        raise ConfigError(f"--rounds {rounds}: give numbers from 1, with commas, e.g. 1,5,20")
    names = models.split(",") if isinstance(models, str) else models
    return None if parts is None else [int(part) for part in parts], [name.strip() for name in names]


def _timeline(runs: Sequence[Run]) -> Figure:
    if len(runs) > 1:
        raise FlrayError(f"the figure timeline shows one run, not {len(runs)}; name one of them")
    return results.timeline(runs[0])


def _conflict(runs: Sequence[Run], metric: str | None = "test/acc", axis: str | None = None) -> Figure:
    """Cosines over local steps, losses over local steps (`metric` loss), or cosines over a key."""
    if metric not in (None, "test/acc", "loss"):
        raise FlrayError(f"metric {metric}: the figure conflict draws cosines, or with metric loss the losses")
    if axis is not None and metric == "loss":
        raise FlrayError("the figure conflict: metric loss is over local steps, axis over a key; leave one out")
    if metric == "loss":
        return losses_along(runs)
    return conflict(runs) if axis is None else conflict_over(runs, axis)


# each takes the runs and the options of its kind (`figure_kinds.OPTIONS`)
KINDS: Mapping[str, Callable[..., Figure]] = {
    **{name: known.figure for name, known in FIGURES.items()},
    "curves": results.curves,
    "tasks": results.accuracy_by_task,
    "predicted": results.predicted_tasks,
    "drift": results.accuracy_through_drift,
    "classes": by_class,
    "conflict": _conflict,
    "clients": results.clients,
    "ablation": lambda runs, metric="test/acc", axis=None: results.ablation(results.compare(runs), axis, metric),
    "ranks": lambda runs, metric="test/acc": diagram(ranks(results.compare(runs), metric)),
    "landscape": results.landscape,
    "timeline": _timeline,
    "regions": lambda runs, **asked: results.decision_regions(runs, *panels(**asked)),
}


def drawn(kind: str, runs: Sequence[Run], **options: Any) -> Figure:
    """The figure of a kind. Raises `ConfigError` in one line, also if the runs do not have what it shows."""
    check_kind(kind, options)
    return KINDS[kind](runs, **options)


def check_out(kind: str, out: Path, style: str | None, options: Mapping[str, Any]) -> None:
    """Raises `ConfigError` for other rounds of `regions` than numbers, and for a film with a style."""
    if kind == "regions":
        panels(**options)
        if style is not None and out.suffix.lower() == ".gif":
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
    shown = drawn(kind, runs, **options)
    if kind == "regions" and out.suffix.lower() == ".gif":
        return shown, [results.film(runs, out, *panels(**options))]
    return shown, [save(shown, out)] if style is None else save_styled(shown, out, style)

"""A picture of runs by the name of its kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flray.core.schema.errors import ConfigError, FlrayError
from flray.figure_kinds import DEFAULTS, check_kind

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from flray.rundir.reader import Run


def drawn(kind: str, runs: Sequence[Run], out: Path | None = None, **options: Any) -> Figure:
    """The figure of a kind; `out` is where it will be saved (the losses of `landscape` are stored beside it).

    Raises `ConfigError` in one line, also if the runs do not have what it shows.
    """
    from flray import results

    check_kind(kind, options)
    options = {**DEFAULTS, **options}
    metric, axis = options["metric"], options["axis"]
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
        of = (options["round"], options["directions"], options["points"], options["span"])
        return results.landscape(runs, *of, stored=None if out is None else out.with_suffix(".parquet"))
    if kind == "timeline":
        if len(runs) > 1:
            raise FlrayError(f"the figure timeline shows one run, not {len(runs)}; name one of them")
        return results.timeline(runs[0])
    if kind == "regions":
        return results.decision_regions(runs, *panels(options))
    from flray.results import diagnosis_figures

    return diagnosis_figures.FIGURES[kind].figure(runs)


def panels(options: Mapping[str, Any]) -> tuple[list[int] | None, list[str]]:
    """The rounds and the models of `regions`: text with commas, or lists. Raises `ConfigError` for other rounds."""
    rounds, models = (options.get(name, DEFAULTS[name]) for name in ("rounds", "models"))
    if isinstance(rounds, str):
        rounds = [part.strip() for part in rounds.split(",")]
    if rounds is not None and not all(str(part).isdecimal() and int(part) for part in rounds):
        raise ConfigError(f"--rounds {options['rounds']}: give numbers from 1, with commas, e.g. 1,5,20")
    names = models.split(",") if isinstance(models, str) else models
    return None if rounds is None else [int(part) for part in rounds], [name.strip() for name in names]


def _classes(runs: Sequence[Run]) -> Figure:
    """Accuracy of the global model by class and round, a panel a setting (FedSOL Figure 7(b))."""
    from flray.results.drift_figures import by_class

    drawn = by_class(runs)
    if drawn is None:
        raise FlrayError(f"{runs[0].place}: no run was tested in two rounds or more, so there is no class over rounds")
    return drawn


def _conflict(runs: Sequence[Run], metric: str | None, key: str | None) -> Figure:
    """Cosines over local steps, losses over local steps (`metric` loss), or cosines over a key."""
    from flray.results.diagnosis_figures import conflict, conflict_over, losses_along

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
    from flray.results.figures import check_style, save, save_styled

    check_style(style)
    check_kind(kind, options)
    if out is None:
        if style is not None:
            raise ConfigError(f"style {style} is of the files that are written; give out, too")
        return drawn(kind, runs, **options), []
    out = Path(out)
    check_out(kind, out, style, options)
    if kind == "regions" and out.suffix.lower() == ".gif":
        from flray.results import film

        return drawn(kind, runs, **options), [film(runs, out, *panels(options))]
    shown = drawn(kind, runs, out, **options)
    return shown, [save(shown, out)] if style is None else save_styled(shown, out, style)

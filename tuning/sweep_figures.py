"""The figures of a sweep, and Optuna's own plots of its studies."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flray.tuning.canvas import Skip, canvas, few_ticks, save_atomically, titled
from flray.tuning.curves import curves_figure, history_figure, pareto_figure

if TYPE_CHECKING:
    import pandas
    from optuna.study import Study

    from flray.tuning.trials import Opened

FEW = 8  # finished trials below which the importance of a parameter is noise


def draw(sweep: Opened, frame: pandas.DataFrame) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    """Draws the figures that the trials allow into `FOLDER/figures`; returns the paths, and `NAME: reason` for each one
    left out.

    `frame` is the sweep's table of trials. With several objectives or algorithms the file names end with them
    (`slice-fedprox.png`). An error in one figure becomes its reason; it does not stop a sweep.
    """
    drawn, skipped = [], []
    for name, figure in figures_of(sweep, frame):
        path = sweep.folder / "figures" / f"{name}.png"
        try:
            with canvas():  # a new one each: Optuna's style stays its own
                drawn.append(save_atomically(figure(), path))
        except Skip as reason:
            skipped.append(f"{path.name}: {reason}")
        except Exception as error:
            skipped.append(f"{path.name}: {type(error).__name__}: {' '.join(str(error).split())}")
    return tuple(drawn), tuple(skipped)


def figures_of(sweep: Opened, frame: pandas.DataFrame) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The names of the figures, and the functions that draw them."""
    from functools import partial

    several = len(sweep.objectives) > 1
    with canvas():
        parts = _parts(sweep)
    for place, objective in enumerate(sweep.objectives):
        end = f"-{objective.replace('/', '_')}" if several else ""
        yield f"history{end}", partial(history_figure, sweep, frame, objective)
        for algorithm, study in parts.items():
            behind = f"{'-' if algorithm else ''}{algorithm}{end}"
            yield f"importance{behind}", partial(_importance, sweep, study, algorithm, place)
            yield f"slice{behind}", partial(_slice, sweep, study, algorithm, place)
    for algorithm, study in parts.items():
        yield f"parallel{'-' if algorithm else ''}{algorithm}", partial(_parallel, sweep, study, algorithm)
    if several:
        yield "pareto", partial(pareto_figure, sweep, frame)
    yield "curves", partial(curves_figure, sweep, frame)


# optuna's ----------------------------------------------------------------------------------------
def _parts(sweep: Opened) -> dict[str, Study]:
    """A study for each algorithm, copied in memory, if the algorithms' parameters differ."""
    import optuna
    from optuna.trial import TrialState

    parts = {}
    for name, study in sweep.studies.items():
        trials = study.get_trials(deepcopy=False)
        algorithms = sorted(
            {str(t.params["algorithm"]) for t in trials if "algorithm" in t.params and t.state == TrialState.COMPLETE}
        )
        for algorithm in algorithms or [name]:
            copy = optuna.create_study(directions=study.directions)
            copy.set_metric_names(list(sweep.objectives))
            copy.add_trials([t for t in trials if not algorithms or t.params.get("algorithm") == algorithm])
            parts[algorithm] = copy
    return parts


def _importance(sweep: Opened, study: Study, algorithm: str, place: int) -> Any:
    """PED-ANOVA: the importance of parameters for being among the best trials, at least five of them, or a tenth."""
    from optuna.importance import PedAnovaImportanceEvaluator
    from optuna.visualization.matplotlib import plot_param_importances

    names, count = _varied(study), len(_finished(study))
    if count < FEW:
        raise Skip(f"{count} finished trials, and fewer than {FEW} say nothing about importance")
    if len(names) < 2:
        raise Skip("one parameter varies, so there is nothing to weigh it against")
    quantile = max(0.1, 5 / count)
    evaluator = PedAnovaImportanceEvaluator(target_quantile=quantile)
    objective, target = _target(sweep, place)
    # with a target the evaluator looks for its low values, whatever the study's direction
    sign = -1 if list(sweep.objectives.values())[place] == "max" else 1
    signed = None if target is None else (lambda trial: sign * target(trial))
    axes = plot_param_importances(study, evaluator=evaluator, params=names, target=signed, target_name=objective)
    if (legend := axes.get_legend()) is not None:
        legend.remove()  # one objective, which the title has
    title = f"importance for the best {math.ceil(quantile * count)} of {count} trials by {objective}"
    return titled(axes.figure, sweep, title, algorithm, size=(8, 1.6 + 0.4 * len(names)))


def _slice(sweep: Opened, study: Study, algorithm: str, place: int) -> Any:
    import numpy as np
    from optuna.visualization.matplotlib import plot_slice

    from flray.results.figures import plain

    names = _varied(study)
    objective, target = _target(sweep, place)
    drawn: Any = plot_slice(study, params=names, target=target, target_name=objective)
    axes = np.ravel(drawn)
    figure = axes[0].figure
    for axis in axes:
        few_ticks(axis.xaxis)
        axis.set_facecolor("white")
        plain(axis)
        for points in axis.collections:
            points.set_cmap("viridis_r")  # the light blues of the first trials do not show
    return titled(figure, sweep, f"{objective} over each parameter", algorithm, size=(2 + 3.2 * len(names), 4.4))


def _parallel(sweep: Opened, study: Study, algorithm: str) -> Any:
    from matplotlib.ticker import ScalarFormatter, StrMethodFormatter
    from optuna.visualization.matplotlib import plot_parallel_coordinate

    names = _varied(study)
    several = len(sweep.objectives) > 1
    axes = plot_parallel_coordinate(
        study, params=names, target_name="Pareto rank" if several else next(iter(sweep.objectives))
    )
    (lines,) = axes.collections
    lines.set_cmap("viridis_r" if lines.get_cmap().name.endswith("_r") else "viridis")  # the light blues do not show
    for axis in axes.figure.axes:
        axis.grid(False)
        few_ticks(axis.yaxis)
        # the common factor would be beside the last axis
        if isinstance(axis.yaxis.get_major_formatter(), ScalarFormatter):
            axis.yaxis.set_major_formatter(StrMethodFormatter("{x:.4g}"))
    width = 3 + 1.5 * (len(names) + len(sweep.objectives))
    return titled(axes.figure, sweep, "a line a finished trial", algorithm, size=(width, 5))


def _target(sweep: Opened, place: int) -> tuple[str, Callable[[Any], float] | None]:
    """An objective's name, and the function that reads it from a trial; None for a single objective, Optuna's
    default."""
    return list(sweep.objectives)[place], (lambda trial: trial.values[place]) if len(sweep.objectives) > 1 else None


def _finished(study: Study) -> list[Any]:
    from optuna.trial import TrialState

    return study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))


def _varied(study: Study) -> list[str]:
    """The parameters with at least two values in the finished trials; raises `Skip` if there is none."""
    trials = _finished(study)
    if len(trials) < 2:
        raise Skip(f"{len(trials)} finished trial{'s' if len(trials) != 1 else ''}")
    names = dict.fromkeys(name for trial in trials for name in trial.params)
    varied = [name for name in names if len({trial.params[name] for trial in trials if name in trial.params}) > 1]
    if not varied:
        raise Skip("no parameter has two values in the finished trials")
    return varied

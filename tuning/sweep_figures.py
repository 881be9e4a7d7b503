"""The figures of a sweep: the history, the Pareto front over all studies and the learning curves of its trials, the
importance of its parameters, and the objective over each of them."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flray.algorithms import as_written
from flray.core.schema.errors import CheckpointError, described
from flray.log import quieter
from flray.metrics.names import LAST
from flray.results.colours import colours_of, markers_of
from flray.results.figures import at_whole_numbers, axis_label, few_log_ticks, figure_of, grid_of, one_axis, save
from flray.results.intervals import is_share
from flray.rundir.reader import Run
from flray.tuning.config import CUMULATIVE, RECENT
from flray.tuning.trials import Direction, Opened, best, describe_parameters, front

if TYPE_CHECKING:
    import pandas
    from optuna.study import Study

FEW = 8  # finished trials below which the importance of a parameter is noise
# colour, width, opacity and zorder of a trial's curve, by its state
LINES = {
    "pruned": ("#9aa1a9", 0.8, 0.6, 2.1),
    "failed": ("#D55E00", 0.8, 0.6, 2.2),
    "diverged": ("#D55E00", 0.8, 0.6, 2.2),
    "waiting": ("#E69F00", 1.2, 0.9, 2.4),
    "running": ("#E69F00", 1.2, 0.9, 2.4),
    "finished": ("#56B4E9", 1.0, 0.7, 2.3),
}
BEST = ("#0072B2", 2.2, 1.0, 2.5)


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
            drawn.append(save(figure(), path))
        except Skip as reason:
            skipped.append(f"{path.name}: {reason}")
        except Exception as error:
            skipped.append(f"{path.name}: {described(error)}")
    return tuple(drawn), tuple(skipped)


def figures_of(sweep: Opened, frame: pandas.DataFrame) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The names of the figures, and the functions that draw them."""
    several = len(sweep.objectives) > 1
    parts = _parts(sweep)
    for place, objective in enumerate(sweep.objectives):
        end = f"-{objective.replace('/', '_')}" if several else ""
        yield f"history{end}", partial(history_figure, sweep, frame, objective)
        for algorithm, study in parts.items():
            behind = f"{'-' if algorithm else ''}{algorithm}{end}"
            yield f"importance{behind}", partial(_importance, sweep, study, algorithm, place)
            yield f"slice{behind}", partial(_slice, sweep, study, algorithm, place)
    if several:
        yield "pareto", partial(pareto_figure, sweep, frame)
    yield "curves", partial(curves_figure, sweep, frame)


# trials -------------------------------------------------------------------------------------------
def history_figure(sweep: Opened, frame: pandas.DataFrame, objective: str) -> Any:
    """Every trial by its number: finished ones with the best value so far; others at their last value, or at the
    lower edge without one."""
    if not (frame["state"] == "finished").any():
        raise Skip("no trial has finished")
    studies = [rows for _, rows in frame.groupby("study")] if "study" in frame else [frame]
    axes = grid_of(None, len(studies), "", (2 + 7 * len(studies), 4.6), len(studies), sharey=True)
    for axis, rows in zip(axes, studies, strict=True):
        for state, (colour, *_, above) in LINES.items():
            trials = rows[rows["state"] == state]
            known, unknown = trials.dropna(subset=objective), trials[trials[objective].isna()]
            look = {"color": colour, "marker": "o" if state == "finished" else "x", "s": 30, "zorder": above}
            if len(trials):
                axis.scatter(known["trial"], known[objective], label=f"{len(trials)} {state}", **look)
            if len(unknown):  # in the axis's own height: at its lower edge
                axis.scatter(unknown["trial"], [0.02] * len(unknown), transform=axis.get_xaxis_transform(), **look)
        finished = rows[(rows["state"] == "finished") & rows[objective].notna()].sort_values("trial")
        so_far = finished[objective].cummax() if sweep.objectives[objective] == "max" else finished[objective].cummin()
        if len(finished):
            places, values = [*finished["trial"], rows["trial"].max()], [*so_far, so_far.iloc[-1]]
            axis.step(places, values, where="post", color=BEST[0], label="best so far")
        scale(axis.yaxis, objective, sweep.objectives)
        at_whole_numbers(axis, "trial" + (f" of {as_written(rows['study'].iloc[0])}" if "study" in rows else ""))
        axis.legend(frameon=False, fontsize=8)
    return titled(axes[0], sweep, f"{objective} of all trials")


def pareto_figure(sweep: Opened, frame: pandas.DataFrame) -> Any:
    """Every pair of objectives against each other; the front in full colour, joined for two objectives."""
    finished, ahead = frame[frame["state"] == "finished"], front(frame, sweep.objectives)
    if ahead.empty:
        raise Skip("no trial has finished with a value for every objective")
    names = list(sweep.objectives)
    size = len(names) - 1
    axes = grid_of(None, size * size, "", (2.6 + 3.4 * size, 1.8 + 3 * size), size)
    named = finished["algorithm"].map(as_written)
    algorithms = sorted(named.unique())
    looks = dict(zip(algorithms, zip(colours_of(algorithms), markers_of(algorithms), strict=True), strict=True))
    for row, column in np.ndindex(size, size):
        axis = axes[row * size + column]
        x, y = names[column], names[row + 1]
        if column > row:
            axis.set_axis_off()
            continue
        for algorithm, trials in finished.groupby(named):
            colour, marker = looks[algorithm]
            points = {"color": colour, "marker": marker, "alpha": 0.7, "linewidth": 0, "label": algorithm}
            axis.scatter(trials[x], trials[y], s=26, **points)
        axis.scatter(
            ahead[x], ahead[y], s=48, facecolor="none", edgecolor="black", linewidth=1, zorder=3, label="Pareto front"
        )
        if size == 1:
            axis.plot(ahead[x], ahead[y], color="black", linewidth=0.8, alpha=0.5, zorder=2)
            for number, *point in ahead[["trial", x, y]].itertuples(index=False):
                axis.annotate(str(number), point, xytext=(4, 4), textcoords="offset points", fontsize=8)
        scale(axis.xaxis, x, sweep.objectives)
        scale(axis.yaxis, y, sweep.objectives)
    axes[0].legend(frameon=False)
    return titled(axes[0], sweep, f"Pareto front, {len(ahead)} of {len(finished)} finished trials")


def curves_figure(sweep: Opened, frame: pandas.DataFrame) -> Any:
    """Each recorded objective over rounds, a line a run: further seeds of a trial are dashed, a cross is where it
    was pruned."""
    from matplotlib.lines import Line2D

    names = [name for name in sweep.objectives if name not in CUMULATIVE]
    lines = _lines(sweep, frame, names)
    if not lines:
        raise Skip(
            f"no run folder has a column {' or '.join(names)} in its rounds"
            if names
            else "the objectives are sums over the rounds"
        )
    axes = grid_of(None, len(lines), "", (1.4 + 6.6 * len(lines), 4.6), len(lines))
    for axis, (objective, curves) in zip(axes, lines.items(), strict=True):
        chosen, states = best(frame, {objective: sweep.objectives[objective]}, 1), frame["state"]
        for index, seed, rounds in curves:
            colour, width, opacity, above = BEST if index in chosen.index else LINES[states[index]]
            look = {"color": colour, "alpha": opacity, "zorder": above}
            axis.plot(*rounds.to_numpy(float).T, linewidth=width, linestyle="--" if seed else "-", **look)
            if states[index] == "pruned":
                axis.plot(*rounds.iloc[-1], marker="x", markersize=4, **look)
        shown = {states[index] for index, *_ in curves}
        handles = [
            Line2D([], [], color=LINES[name][0], label=f"{(states == name).sum()} {name}")
            for name in LINES
            if name in shown
        ]
        if len(chosen):
            trial, algorithm = chosen[["trial", "algorithm"]].iloc[0]
            named = f"trial {trial}, {as_written(algorithm)}, {describe_parameters(frame, chosen.index[0])}"
            handles.append(Line2D([], [], color=BEST[0], linewidth=BEST[1], label=f"best: {named}"))
        axis.legend(handles=handles, frameon=False, fontsize=8)
        at_whole_numbers(axis, "round")
        scale(axis.yaxis, objective, sweep.objectives)
    return titled(axes[0], sweep, "learning curves of all trials")


def _lines(
    sweep: Opened, frame: pandas.DataFrame, names: list[str]
) -> dict[str, list[tuple[Any, int, pandas.DataFrame]]]:
    """By objective: (row of the trial, number of its seed, its rounds with `done` and the objective at each)."""
    lines_of: dict[str, list[tuple[Any, int, pandas.DataFrame]]] = {}
    for index, name in frame["folder"].dropna().items():
        folder = sweep.folder / name
        for seed, run in enumerate([folder, *sorted(folder.parent.glob(f"{folder.name}-seed*"))]):
            try:
                rounds = Run(run).rounds
            except CheckpointError:  # just being written, or damaged
                continue
            for objective in names:
                column = RECENT.get(objective, objective)
                known = rounds[["done", column]].dropna() if column in rounds else rounds.iloc[:0]
                if objective in RECENT:
                    known = known.assign(**{column: known[column].rolling(LAST, min_periods=1).mean()})
                if len(known):
                    lines_of.setdefault(objective, []).append((index, seed, known))
    return lines_of


# parameters --------------------------------------------------------------------------------------
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
            with quieter({"optuna": logging.WARNING}):
                copy = optuna.create_study(directions=study.directions)
            # Optuna refuses a value outside of its range; one that was enqueued has no folder
            sound = [t for t in trials if t.state == TrialState.COMPLETE or "folder" in t.user_attrs]
            copy.add_trials([t for t in sound if not algorithms or t.params.get("algorithm") == algorithm])
            parts[algorithm] = copy
    return parts


def _importance(sweep: Opened, study: Study, algorithm: str, place: int) -> Any:
    """PED-ANOVA: the importance of parameters for being among the best trials, at least five of them, or a tenth."""
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    names, count = _varied(study), len(_finished(study))
    if count < FEW:
        raise Skip(f"{count} finished trials, and fewer than {FEW} say nothing about importance")
    if len(names) < 2:
        raise Skip("one parameter varies, so there is nothing to weigh it against")
    quantile, (objective, direction) = max(0.1, 5 / count), list(sweep.objectives.items())[place]
    sign = -1 if direction == "max" else 1  # with a target the evaluator looks for its low values

    def target(trial: Any) -> float:
        return float(sign * trial.values[place])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is experimental, and that it looks for low values
        evaluator = PedAnovaImportanceEvaluator(target_quantile=quantile)
        weights = get_param_importances(study, evaluator=evaluator, params=names, target=target)
    _, axis = one_axis(None, 8, 1.6 + 0.4 * len(names))
    ascending = sorted(weights, key=lambda name: weights[name])
    bars = axis.barh(ascending, [weights[name] for name in ascending], color=BEST[0])
    numbers = [f"{weights[name]:.2f}" if weights[name] >= 0.01 else "<0.01" for name in ascending]
    axis.bar_label(bars, numbers, padding=3)
    axis.margins(x=0.1)  # room for the longest bar's number
    axis.set_xlabel("importance")
    title = f"importance for the best {math.ceil(quantile * count)} of {count} trials by {objective}"
    return titled(axis, sweep, title, algorithm)


def _slice(sweep: Opened, study: Study, algorithm: str, place: int) -> Any:
    """An objective of the finished trials over each parameter, later trials darker."""
    names, objective = _varied(study), list(sweep.objectives)[place]
    axes = grid_of(None, len(names), "", (2 + 3.2 * len(names), 4.4), len(names), sharey=True)
    for axis, name in zip(axes, names, strict=True):
        trials = [trial for trial in _finished(study) if name in trial.params]
        values = [trial.params[name] for trial in trials]
        numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
        look: dict[str, Any] = {"c": [trial.number for trial in trials], "cmap": "viridis_r", "edgecolor": "#9aa1a9"}
        heights = [trial.values[place] for trial in trials]
        points = axis.scatter(values if numbers else list(map(str, values)), heights, **look)
        axis.set_xlabel(name)
        if getattr(trials[0].distributions[name], "log", False):
            axis.set_xscale("log")
            few_log_ticks(axis.xaxis)
    scale(axes[0].yaxis, objective, sweep.objectives)
    figure_of(axes[0]).colorbar(points, ax=axes, label="trial")
    return titled(axes[0], sweep, f"{objective} over each parameter", algorithm)


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
    if any(trial.user_attrs.get("values") for trial in trials):
        raise Skip("population-based training changes the parameters of a trial")
    return varied


# the look ----------------------------------------------------------------------------------------
class Skip(Exception):
    """The reason why a figure cannot be drawn."""


def titled(axis: Any, sweep: Opened, what: str, algorithm: str = "") -> Any:
    """The figure of an axis, with a title: the sweep, the algorithm, the content."""
    figure = figure_of(axis)
    figure.suptitle(", ".join(part for part in (sweep.name, as_written(algorithm)) if part) + f": {what}", fontsize=11)
    return figure


def scale(side: Any, objective: str, objectives: dict[str, Direction]) -> None:
    """Labels one side of an axis (`axis.yaxis`) with an objective in words and its direction; shares in per cent, large
    numbers with a prefix (`1.2 M`)."""
    from matplotlib.ticker import EngFormatter, PercentFormatter

    side.set_label_text(f"{axis_label(objective)}, {objectives[objective]}imised")
    if is_share(objective):
        side.set_major_formatter(PercentFormatter(1.0, symbol=None))
    elif objective in CUMULATIVE:
        side.set_major_formatter(EngFormatter())

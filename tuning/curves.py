"""Figures of a sweep's trials that Optuna does not draw: the history, the Pareto front over all studies, learning
curves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flray.core.schema.errors import CheckpointError
from flray.tuning.canvas import Skip, headed, titled

if TYPE_CHECKING:
    import pandas

    from flray.tuning.trials import Opened

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


def history_figure(sweep: Opened, frame: pandas.DataFrame, objective: str) -> Any:
    """Every trial by its number: finished ones with the best value so far; others at their last value, or at the
    lower edge without one."""
    from matplotlib import pyplot

    from flray.results.figures import at_whole_numbers, plain

    if not (frame["state"] == "finished").any():
        raise Skip("no trial has finished")
    studies = [rows for _, rows in frame.groupby("study")] if "study" in frame else [frame]
    figure, axes = pyplot.subplots(
        1, len(studies), figsize=(2 + 7 * len(studies), 4.6), sharey=True, squeeze=False, layout="constrained"
    )
    for axis, rows in zip(axes[0], studies, strict=True):
        for state, (colour, *_, above) in LINES.items():
            trials = rows[rows["state"] == state]
            known, unknown = trials.dropna(subset=objective), trials[trials[objective].isna()]
            look = {"color": colour, "marker": "o" if state == "finished" else "x", "s": 30, "zorder": above}
            if len(trials):
                axis.scatter(known["trial"], known[objective], label=f"{len(trials)} {state}", **look)
            if len(unknown):  # in the axis's own height: at its lower edge
                axis.scatter(unknown["trial"], [0.02] * len(unknown), transform=axis.get_xaxis_transform(), **look)
        finished = rows[(rows["state"] == "finished") & rows[objective].notna()].sort_values("trial")
        best = finished[objective].cummax() if sweep.objectives[objective] == "max" else finished[objective].cummin()
        axis.step(
            [*finished["trial"], rows["trial"].max()],
            [*best, *best.iloc[-1:]],
            where="post",
            color=BEST[0],
            label="best so far",
        )
        axis.set_xlabel("trial" + (f" of {rows['study'].iloc[0]}" if "study" in rows else ""))
        axis.set_ylabel(headed(objective, sweep.objectives))
        at_whole_numbers(axis.xaxis)
        axis.legend(frameon=False, fontsize=8)
        plain(axis)
    return titled(figure, sweep, f"{objective} of all trials")


def pareto_figure(sweep: Opened, frame: pandas.DataFrame) -> Any:
    """Every pair of objectives against each other; the front in full colour, joined for two objectives."""
    import numpy as np
    from matplotlib import pyplot

    from flray.results.colours import colours_of, markers_of
    from flray.results.figures import plain
    from flray.tuning.trials import front

    finished, best = frame[frame["state"] == "finished"], front(frame, sweep.objectives)
    if best.empty:
        raise Skip("no trial has finished with a value for every objective")
    names = list(sweep.objectives)
    size = len(names) - 1
    figure, axes = pyplot.subplots(
        size, size, figsize=(2.6 + 3.4 * size, 1.8 + 3 * size), squeeze=False, layout="constrained"
    )
    algorithms = sorted(finished["algorithm"].unique())
    looks = dict(zip(algorithms, zip(colours_of(algorithms), markers_of(algorithms), strict=True), strict=True))
    for row, column in np.ndindex(size, size):
        axis: Any = axes[row, column]
        x, y = names[column], names[row + 1]
        if column > row:
            axis.set_axis_off()
            continue
        for algorithm, trials in finished.groupby("algorithm"):
            colour, marker = looks[algorithm]
            points = {"color": colour, "marker": marker, "alpha": 0.7, "linewidth": 0, "label": algorithm}
            axis.scatter(trials[x], trials[y], s=26, **points)
        axis.scatter(
            best[x], best[y], s=48, facecolor="none", edgecolor="black", linewidth=1, zorder=3, label="Pareto front"
        )
        if size == 1:
            axis.plot(best[x], best[y], color="black", linewidth=0.8, alpha=0.5, zorder=2)
            for number, *point in best[["trial", x, y]].itertuples(index=False):
                axis.annotate(str(number), point, xytext=(4, 4), textcoords="offset points", fontsize=8)
        axis.set_xlabel(headed(x, sweep.objectives))
        axis.set_ylabel(headed(y, sweep.objectives))
        plain(axis)
    axes[0, 0].legend(frameon=False)
    return titled(figure, sweep, f"Pareto front, {len(best)} of {len(finished)} finished trials")


def curves_figure(sweep: Opened, frame: pandas.DataFrame) -> Any:
    """Each recorded objective over rounds, a line a run: further seeds of a trial are dashed, a cross is where it
    was pruned."""
    from matplotlib import pyplot
    from matplotlib.lines import Line2D

    from flray.results.figures import at_whole_numbers, plain
    from flray.tuning.config import CUMULATIVE
    from flray.tuning.trials import best, describe_parameters

    names = [name for name in sweep.objectives if name not in CUMULATIVE]
    lines = _lines(sweep, frame, names)
    if not lines:
        raise Skip(
            f"no run folder has a column {' or '.join(names)} in its rounds"
            if names
            else "the objectives are sums over the rounds"
        )
    figure, axes = pyplot.subplots(
        1, len(lines), figsize=(1.4 + 6.6 * len(lines), 4.6), squeeze=False, layout="constrained"
    )
    for axis, (objective, curves) in zip(axes[0], lines.items(), strict=True):
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
            named = f"trial {trial}, {algorithm}, {describe_parameters(frame, chosen.index[0])}"
            handles.append(Line2D([], [], color=BEST[0], linewidth=BEST[1], label=f"best: {named}"))
        axis.legend(handles=handles, frameon=False, fontsize=8)
        axis.set_xlabel("round")
        at_whole_numbers(axis.xaxis)
        axis.set_ylabel(headed(objective, sweep.objectives))
        plain(axis)
    return titled(figure, sweep, "learning curves of all trials")


def _lines(
    sweep: Opened, frame: pandas.DataFrame, names: list[str]
) -> dict[str, list[tuple[Any, int, pandas.DataFrame]]]:
    """By objective: (row of the trial, number of its seed, its rounds with `done` and the objective at each)."""
    from flray.metrics.names import LAST
    from flray.rundir.reader import Run
    from flray.tuning.config import RECENT

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

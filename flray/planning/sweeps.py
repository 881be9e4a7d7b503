"""The plan of a sweep: of one trial, and of so many of them at a time."""

from __future__ import annotations

import math
from typing import Any

from flray.planning.machines import START_S, TRIAL_S, Cluster
from flray.planning.plan import Plan, duration
from flray.tuning.config import Sweep


def trial_experiment(sweep: Sweep) -> Any:
    """The experiment of an example trial: an actor alone, where their number is automatic."""
    experiment = sweep.experiment(sweep.search_space.example())
    if experiment.resources.client_actors != "auto":
        return experiment
    resources = experiment.resources.model_copy(update={"client_actors": 1})
    return experiment.model_copy(update={"resources": resources})


def at_once(slots: int, actors: int, trials: int, concurrency: int | str) -> int:
    """Trials at a time.

    >>> at_once(16, 3, 40, "auto"), at_once(16, 3, 40, 2), at_once(16, 1, 4, "auto")
    (5, 2, 4)
    """
    fits = max(slots // max(actors, 1), 1)
    return min(fits if concurrency == "auto" else min(fits, int(concurrency)), trials)


def sweep_seconds(trial_s: float, trials: int, finals: int, together: int) -> float:
    """Seconds of a sweep whose trials all run to their end, then its final runs; processes start once.

    >>> sweep_seconds(100.0, 40, 3, 5)  # 6.6 s, 8 turns, and 1
    906.6
    """
    return START_S + trial_s * (math.ceil(trials / together) + math.ceil(finals / together))


def sweep_plan(
    sweep: Sweep, trial: Plan, cluster: Cluster, on_gpu: bool
) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """(the row of the table of node numbers, rows of what and plan) of all trials, from the plan of one on one node."""
    slots = cluster.nodes * (cluster.gpus if on_gpu else cluster.cpus)
    actors, trials = max(int(trial.row["actors"]), 1), sweep.trials
    finals = sweep.final.top * sweep.final.seeds
    together = at_once(slots, actors, trials, sweep.concurrency)
    trial_s = trial.row["run_s"] - START_S + TRIAL_S
    seconds = sweep_seconds(trial_s, trials, finals, together)
    if sweep.hours is not None:
        seconds = min(seconds, sweep.hours * 3600 + 2 * trial_s)
    gpu_hours = cluster.nodes * cluster.gpus * seconds / 3600
    row = {
        "nodes": cluster.nodes, "gpus": cluster.nodes * cluster.gpus, "trials": trials, "at_once": together,
        "trial_s": trial_s, "sweep_s": seconds, "gpu_hours": gpu_hours,
        "core_hours": cluster.nodes * cluster.cpus * seconds / 3600,
    }  # fmt: skip
    text = f"{duration(seconds)} for {trials} trials, {together} at a time, and {finals} final runs"
    if sweep.scheduler.name != "none":
        text += f"; at most: {sweep.scheduler.name} stops trials early"
    rows = [{"what": "the sweep", "plan": text}]
    if together * actors < slots:
        rows.append({"what": "change", "plan": f"{slots - together * actors} of {slots} slots are idle: raise trials, "
                     "concurrency or resources.client_actors"})  # fmt: skip
    rows.append({"what": "cost", "plan": f"{gpu_hours:.3g} GPU hours, {row['core_hours']:.3g} CPU-core hours"})
    return row, rows

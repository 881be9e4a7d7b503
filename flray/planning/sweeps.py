"""The plan of a sweep: of one trial, and of so many of them at a time."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from flray.config.experiment import Experiment
from flray.planning.machines import START_S, TRIAL_S, Cluster
from flray.planning.plan import Plan, duration
from flray.tuning.config import Sweep


class Trial(NamedTuple):
    """An example trial, the nodes that its client actors take, and how many trials the cluster holds at a time."""

    experiment: Experiment
    nodes: int
    at_once: int


def trial_of(sweep: Sweep, cluster: Cluster) -> Trial:
    """The example trial as the sweep's own rule places it. Raises `ResourceError` if no trial fits."""
    from flray.engine.ray.capacity import count_fitting
    from flray.tuning.drive import place  # it imports Ray Tune

    experiment = sweep.experiment(sweep.search_space.example())
    node = {"CPU": float(cluster.cpus), "GPU": float(cluster.gpus), "memory": math.inf}
    placed = place(experiment, sweep.concurrency, [node] * cluster.nodes)
    actors = len(placed.group.bundles) - 2  # a driver's and a server's
    resources = experiment.resources.model_copy(update={"client_actors": actors})
    need = {"num_cpus": resources.client.num_cpus, "num_gpus": _share(experiment)}
    a_node = max(count_fitting([(cluster.cpus, cluster.gpus)], need), 1)
    experiment = experiment.model_copy(update={"resources": resources})
    return Trial(experiment, math.ceil(actors / a_node), min(placed.at_once, sweep.trials))


def _share(experiment: Experiment) -> float:
    """The GPU share of a client actor; `place` refuses `auto`."""
    share = experiment.resources.client.num_gpus
    return 0.0 if isinstance(share, str) else share


def sweep_seconds(trial_s: float, trials: int, finals: int, together: int) -> float:
    """Seconds of a sweep whose trials all run to their end, then its final runs; processes start once.

    >>> sweep_seconds(100.0, 40, 3, 5)  # 6.6 s, 8 turns, and 1
    906.6
    """
    return START_S + trial_s * (math.ceil(trials / together) + math.ceil(finals / together))


def sweep_plan(
    sweep: Sweep, trial: Trial, planned: Plan, cluster: Cluster
) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """(the row of the table of node numbers, rows of what and plan) of all trials, from the plan of one."""
    together, trials, finals = trial.at_once, sweep.trials, sweep.final.top * sweep.final.seeds
    trial_s = planned.row["run_s"] - START_S + TRIAL_S
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
    each, have, what = trial.experiment.resources.client.num_cpus, cluster.nodes * cluster.cpus, "CPUs"
    if _share(trial.experiment):
        each, have, what = _share(trial.experiment), cluster.nodes * cluster.gpus, "GPUs"
    used = each * int(planned.row["actors"]) * together
    if used + each <= have:
        text = f"{have - used:g} of {have} {what} are idle: raise trials, concurrency or resources.client_actors"
        rows.append({"what": "change", "plan": text})
    rows.append({"what": "cost", "plan": f"{gpu_hours:.3g} GPU hours, {row['core_hours']:.3g} CPU-core hours"})
    return row, rows

"""One run in a few lines, for the terminal: `flray show RUN`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from flray.core.schema.errors import CheckpointError
from flray.metrics.classification import worst_class
from flray.results.alarms import alarms
from flray.results.answers import COSTS, spent
from flray.results.by_mode import TRAINED, over_clients
from flray.results.continual import tested_set
from flray.results.diagnoses import asked_for, in_words
from flray.results.rendering import shown_value, spans
from flray.results.tables import edited, planned_rounds, settings
from flray.rundir.by_task import class_counts
from flray.rundir.reader import Run

BARS = "▁▂▃▄▅▆▇█"
WIDTH = 40  # places of a sparkline
EPSILONS = {"dp/epsilon": "", "dp/epsilon_if_poisson": ", as if each client had been drawn independently"}
FATES = {"late": "late", "partial": "stopped early", "lost": "left", "stale": "too old"}  # `clients_...` of rounds/


def essentials(run: Run) -> dict[str, str]:
    """A run in a few lines: name of the line -> text. A damaged table gives a line `damaged`, one that has lost rows a
    `RowsMissingWarning`. Raises `CheckpointError` for a folder that is not a run."""
    config = settings(run)
    facts = {"run": about(config) or run.place, "status": run.standing}
    problems = []
    if not config and run.status != "starting":
        problems.append("config.yaml is missing: the run's settings are not known; restore it from a copy")
    for part in (conditions, _rounds, _curves, _costs, _classes, _clients, _diagnostics):
        try:
            facts |= part(run, config)
        except CheckpointError as error:
            problems.append(str(error))
    if why := edited(run):
        problems.append(why)
    return facts | ({"damaged": "; ".join(dict.fromkeys(problems))} if problems else {})


def about(config: Mapping[str, Any]) -> str:
    """A configuration (`tables.settings`) in a line: algorithm, data, partition, tasks, drift, seed."""
    names = [shown_value(key, config[key]) for key in ("algorithm.name", "data.source") if config.get(key) is not None]
    parts = [" on ".join(names)]
    if config.get("partition.name"):
        alpha = config.get("partition.alpha")
        split = f"{config['partition.name']}{'' if alpha is None else f' {alpha:g}'}"
        clients, size = config.get("partition.clients"), config.get("cohort.size")
        over = "" if clients is None else f" over {_count(clients)}"  # a table, or a file, has their number
        parts.append(f"{split}{over}" + (f", {size} a round" if size else ""))
    if config.get("tasks.num_tasks"):
        parts.append(f"{config['tasks.num_tasks']} tasks")
    if config.get("drift.name"):
        parts.append(f"drift {config['drift.name']}")
    for change in json.loads(config.get("schedule") or "[]"):
        values = ", ".join(f"{key} {value}" for key, value in change["algorithm"].items())
        parts.append(f"from round {change['from_round']} {values}")
    return "; ".join([part for part in parts if part] + ([f"seed {config['seed']}"] if "seed" in config else []))


def sparkline(values: Iterable[float], width: int = WIDTH, ends: tuple[float, float] | None = None) -> str:
    """Values as a line of bars; the lowest bar is the smallest value, the highest the largest, or those of `ends`.

    More than `width` values become the means of equal parts. A blank is NaN or infinite.
    """
    numbers = np.asarray(list(values), np.float64)
    if len(numbers) > width:
        numbers = np.array([_mean(part) for part in np.array_split(numbers, width)])
    present = numbers[np.isfinite(numbers)]
    if not len(present):
        return " " * len(numbers)
    low, high = ends or (float(present.min()), float(present.max()))
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    places = np.rint((np.where(np.isfinite(numbers), numbers, low) - low) * scale)
    return "".join(BARS[int(p)] if math.isfinite(v) else " " for p, v in zip(places, numbers, strict=True))


def _mean(part: np.ndarray) -> float:
    present = part[np.isfinite(part)]
    return float(present.mean()) if len(present) else math.nan


# the lines ----------------------------------------------------------------------------------------
def _rounds(run: Run, config: Mapping[str, Any]) -> dict[str, str]:
    total = planned_rounds(config)
    done = len(run.rounds)
    seconds = float(run.rounds["time/round_s"].sum()) if "time/round_s" in run.rounds else math.nan
    took = "" if math.isnan(seconds) or not done else f" in {shown_value('time/s', seconds)}"
    return {"rounds": f"{done} of {total}{took}" if total else str(done)}


def _curves(run: Run, config: Mapping[str, Any]) -> dict[str, str]:
    """The last value of each metric, its curve, and the best value: the largest accuracy, the smallest loss. Over tasks
    there is no best: each round is tested on the classes so far, so the first task's rounds are the easiest."""
    lines = {}
    split, rounds = tested_set(config), run.rounds
    for name in (f"{split}/acc", f"{split}/loss", "train/loss"):
        present = rounds.dropna(subset=name) if name in rounds else rounds.iloc[:0]
        if present.empty:
            continue
        values = present[name].to_numpy(float)
        best = int(values.argmax() if name.endswith("/acc") else values.argmin())
        last, top = (_number(name, value) for value in (values[-1], values[best]))
        when = int(present["done"].iloc[best])
        best_text = "" if config.get("tasks.name") else f"  best {top} in round {when}"
        lines[name] = f"{last:>9}  {sparkline(values)}{best_text}"
    return lines


def _number(name: str, value: float) -> str:
    return f"{100 * value:.2f} %" if name.endswith("/acc") else f"{value:.4g}"


def _costs(run: Run, _: Mapping[str, Any]) -> dict[str, str]:
    took = [(name, total) for name, total in spent(run).items() if total and not name.startswith("time/")]
    parts = [f"{shown_value(name, total)} {COSTS[name].removeprefix('bytes ')}" for name, total in took]
    return ({"cost": ", ".join(parts)} if parts else {}) | _sent(run)


def _sent(run: Run) -> dict[str, str]:
    """Bytes sent, by field of the messages, for a direction with more than one field."""
    ways = []
    for way in ("up", "down"):
        start = f"comm/{way}_bytes/"
        names = [name for name in dict.fromkeys([*run.rounds, *run.tasks]) if str(name).startswith(start)]
        sizes = {name: sum(t[name].sum() for t in (run.rounds, run.tasks) if name in t) for name in names}
        if len(sizes) > 1:
            parts = [f"{name.removeprefix(start)} {shown_value('comm/bytes', size)}" for name, size in sizes.items()]
            ways.append(f"{way}: {', '.join(parts)}")
    return {"sent": "; ".join(ways)} if ways else {}


def _classes(run: Run, config: Mapping[str, Any]) -> dict[str, str]:
    counts = class_counts(run.tests, tested_set(config)) if len(run.tests) else None
    if counts is None:
        return {}
    number, value = worst_class(counts.right[-1], counts.total[-1])
    return {} if number < 0 else {"worst class": f"class {number} with {_number('/acc', value)}"}


def _clients(run: Run, _: Mapping[str, Any]) -> dict[str, str]:
    lines: dict[str, str] = {}
    for what, row in over_clients(run).items():
        mean, p10, worst = (_number("/acc", row[f"client/acc_{name}"]) for name in ("mean", "p10", "worst"))
        said = f"mean {mean}, p10 {p10}, worst {worst}, Gini {row['client/gini']:.3f} over {_count(row['clients'])}"
        if "client/acc_minority" in row:
            said += f"; minority {_number('/acc', row['client/acc_minority'])} ({_count(row['minority'])})"
        trained = f"{said}: {what}, after local training in round {row['done']:.0f}"
        lines |= {"clients": trained} if what == TRAINED else {what: said}
    return lines


def _count(clients: float) -> str:
    return "1 client" if clients == 1 else f"{clients:.0f} clients"


def _diagnostics(run: Run, _: Mapping[str, Any]) -> dict[str, str]:
    lines = {}
    if run.diagnostics:
        lines["diagnostics"] = ", ".join(f"{name} ({len(table)} rows)" for name, table in run.diagnostics.items())
        lines |= in_words(run)
    silent = [name for name in asked_for(run) if name not in run.diagnostics] if len(run.rounds) else []
    if silent:
        lines["no rows of"] = f"{', '.join(silent)}: not due yet, or the algorithm's messages carry no model"
    alarm_rounds = [
        f"{name}: {f'in rounds {spans(rounds.tolist())}' if len(rounds) else 'none'}"
        for name, rounds in alarms(run).items()
    ]
    return lines | ({"alarms": "; ".join(alarm_rounds)} if alarm_rounds else {})


# what differs from the usual setting -----------------------------------------------------------------
def conditions(run: Run, config: Mapping[str, Any]) -> dict[str, str]:
    """Name of the line -> text, for what differs from the default; `config`: `tables.settings`."""
    lines = {}
    rule = config.get("aggregation.name", config.get("aggregation"))
    if rule is not None:
        lines["aggregation"] = _with_options(rule, _options(config, "aggregation"))
    steps = json.loads(config.get("uplink") or "[]")
    if steps:
        lines["uplink"] = "; ".join(_with_options(step["name"], _read(step)) for step in steps)
    if epsilon := privacy(run):
        lines["privacy"] = epsilon
    if config.get("coordination.name", "synchronous") != "synchronous":
        text = _with_options(config["coordination.name"], _options(config, "coordination"))
        lines["coordination"] = "; ".join([text, *_fates(run)])
    return lines


def privacy(run: Run) -> str:
    """The epsilon that the run has spent, with its delta; "" for a run that is not private."""
    for column, assumed in EPSILONS.items():
        if {column, "dp/delta"} <= set(run.rounds) and len(rows := run.rounds.dropna(subset=column)):
            last = rows.iloc[-1]
            return f"epsilon {last[column]:.2f} at delta {last['dp/delta']:g}{assumed}"
    return ""


def _fates(run: Run) -> list[str]:
    """Of each fate that kept an update away, or cut it short: its clients, as the mean over rounds."""
    means = {
        words: run.rounds[f"clients_{fate}"].mean() for fate, words in FATES.items() if f"clients_{fate}" in run.rounds
    }
    return [f"{mean:.1f} clients a round {words}" for words, mean in means.items() if mean > 0]


def _options(config: Mapping[str, Any], section: str) -> dict[str, Any]:
    return {key.removeprefix(f"{section}."): value for key, value in config.items() if key.startswith(f"{section}.")}


def _read(step: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a transform that have an effect: a fixed norm reads none of `adaptive`'s."""
    fixed = step["name"] == "clip" and step.get("adaptive") is None
    return {key: value for key, value in step.items() if not (fixed and key.startswith("adaptive"))}


def _with_options(name: str, options: Mapping[str, Any]) -> str:
    """`clip norm 1`, `deadline seconds 10, late drop`."""
    given = {key: value for key, value in options.items() if key != "name" and value is not None}
    words = [f"{key} {value:g}" if isinstance(value, float) else f"{key} {value}" for key, value in given.items()]
    return f"{name} {', '.join(words)}".strip()

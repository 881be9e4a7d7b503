"""What a run has besides the usual setting, in words: its rule of aggregation, its uplink, its coordination."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from flray.rundir.reader import Run

EPSILONS = {"dp/epsilon": "", "dp/epsilon_if_poisson": ", as if each client had been drawn independently"}
FATES = {"late": "late", "partial": "stopped early", "lost": "left", "stale": "too old"}  # `clients_...` of rounds/


def conditions(run: Run, config: Mapping[str, Any]) -> dict[str, str]:
    """Name of the line -> text, for what differs from the default; `config`: `tables.settings`."""
    lines = {}
    rule = config.get("aggregation.name", config.get("aggregation"))
    if rule is not None:
        lines["aggregation"] = _in_words(rule, _options(config, "aggregation"))
    steps = json.loads(config.get("uplink") or "[]")
    if steps:
        lines["uplink"] = "; ".join(_in_words(step["name"], _read(step)) for step in steps)
    if spent := privacy(run):
        lines["privacy"] = spent
    if config.get("coordination.name", "synchronous") != "synchronous":
        text = _in_words(config["coordination.name"], _options(config, "coordination"))
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


def _in_words(name: str, options: Mapping[str, Any]) -> str:
    """`clip norm 1`, `deadline seconds 10, late drop`."""
    given = {key: value for key, value in options.items() if key != "name" and value is not None}
    words = [f"{key} {value:g}" if isinstance(value, float) else f"{key} {value}" for key, value in given.items()]
    return f"{name} {', '.join(words)}".strip()

"""Gauges of a run for the Prometheus that watches a cluster; `configs/cluster/grafana.json` draws them.

Ray exports them from every node, with the prefix `ray_`. A Ray that flray starts has no such export.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

GAUGES = {
    "flray_round": "rounds done, over all tasks",
    "flray_accuracy": "accuracy of the global model, 0 to 1",
    "flray_loss": "mean training loss of the last round's clients",
    "flray_clients_per_second": "clients that the last round trained, by its seconds",
    "flray_up_bytes": "bytes that the last round's clients sent",
    "flray_down_bytes": "bytes that the last round's clients were sent",
    "flray_repeated_work": "pieces of work that were repeated because a process died",
}


class Gauges:
    """The gauges of one run, tagged `run` (the experiment's name) and `seed`."""

    def __init__(self, run: str, seed: int) -> None:
        from ray.util.metrics import Gauge

        self._gauges = {name: Gauge(name, text, ("run", "seed")) for name, text in GAUGES.items()}
        self._tags = {"run": run, "seed": str(seed)}

    def set(self, row: Mapping[str, Any], repeated: int) -> None:
        clients = row["cohort_size"] - row.get("clients_dropped", 0)
        values = {
            "flray_round": row["done"],
            "flray_accuracy": row.get("test/acc", row.get("val/acc")),
            "flray_loss": row.get("train/loss"),
            "flray_clients_per_second": clients / row["time/round_s"] if row.get("time/round_s") else None,
            "flray_up_bytes": row["comm/up_bytes"],
            "flray_down_bytes": row["comm/down_bytes"],
            "flray_repeated_work": repeated,
        }
        for name, value in values.items():
            if value is not None:
                self._gauges[name].set(float(value), self._tags)

"""A run that weighs its processes after every round: memory that no other process shares (kB), and open files."""

import json
import os
import re
from pathlib import Path
from typing import Any

from flray.algorithms import ALGORITHMS
from flray.algorithms.fedavg import FedAvg
from flray.core.messages import Cohort, Metrics
from flray.core.protocol.context import Context

SHARED = Path("/dev/shm")


def weight() -> dict[str, int]:
    """Of this process."""
    found = re.search(r"^RssAnon:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return {"memory": int(found[1]), "files": len(os.listdir("/proc/self/fd"))}


class Weighed(FedAvg, frozen=True):
    """FedAvg, whose actors weigh themselves."""

    def report(self, ctx: Context, local: Any) -> Metrics:
        mine = {f"client/{name}": value for name, value in weight().items()}
        return {**super().report(ctx, local), **mine, "client/pid": os.getpid()}

    def aggregate(self, ctx: Context, state: Any, updates: Any, cohort: Cohort) -> tuple[Any, Metrics]:
        state, metrics = super().aggregate(ctx, state, updates, cohort)
        return state, {**metrics, **{f"server/{name}": value for name, value in weight().items()}}


ALGORITHMS.add("weighed", Weighed)


def main(config: str, folder: str, weights: str) -> None:
    """Run a configuration of `weighed` in this process.

    `weights` gets a line of JSON a round, with the driver's own weight and the number of names in /dev/shm.
    """
    from flray.config.loader import load_config
    from flray.running import play

    with Path(weights).open("w") as file:
        for row in play(load_config(config)[0], Path(folder)):
            found = {f"driver/{name}": value for name, value in weight().items()}
            found |= {name: value for name, value in row.items() if name.startswith(("server/", "client/"))}
            found |= {"done": row["done"], "shared": len(list(SHARED.iterdir()))}
            file.write(json.dumps(found) + "\n")

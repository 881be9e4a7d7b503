"""An algorithm whose trials crash: in its own code, or with the trial's whole process; else its bits are FedAvg's."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any, Literal

from flray.algorithms import ALGORITHMS
from flray.algorithms.fedavg import FedAvg
from flray.core.messages import Cohort, Metrics
from flray.core.protocol.clock import Clock
from flray.core.protocol.context import Context
from flray.core.schema.hp import hp
from flray.engine.simulation import Simulation

ROUND = 3  # in which it happens, from 0


class Crashing(FedAvg, frozen=True):
    how: Literal["not", "raises", "dies once", "dies"] = hp("not", doc="what happens")
    log: str = hp("", doc="a folder that gets a file for each death")

    def aggregate(self, ctx: Context, state: Any, updates: Any, cohort: Cohort) -> tuple[Any, Metrics]:
        if self.how == "raises" and ctx.clock.round == ROUND:
            raise ArithmeticError("made up by the test")
        return super().aggregate(ctx, state, updates, cohort)


computed = Simulation._round


def dies(self: Simulation, run: Any, clock: Clock, *arguments: Any, **options: Any) -> Any:
    """The process of the trial is gone when the round is computed and before it is committed."""
    found, algorithm = computed(self, run, clock, *arguments, **options), self.experiment.algorithm
    if isinstance(algorithm, Crashing) and algorithm.how.startswith("dies") and clock.round == ROUND:
        name = Path(self.folder).name
        deaths = len(list(Path(algorithm.log).glob(f"{name} *")))
        if algorithm.how == "dies" or deaths == 0:
            (Path(algorithm.log) / f"{name} {os.getpid()}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
    return found


Simulation._round = dies  # type: ignore[method-assign]
ALGORITHMS.add("crashing", Crashing)

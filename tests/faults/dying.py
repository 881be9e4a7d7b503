"""A driver that is gone at once, as by `kill -9`: when a round is computed and before it is committed.

`FLRAY_DIES=TASK,ROUND` in the environment says which round; without it nothing happens, so that a resume goes on.
"""

from __future__ import annotations

import os
import signal
from typing import Any

from flray.engine.simulation import Simulation

if "FLRAY_DIES" in os.environ:
    WHERE = tuple(map(int, os.environ["FLRAY_DIES"].split(",")))
    computed = Simulation._round

    def dies(self: Any, run: Any, clock: Any, *arguments: Any, **options: Any) -> Any:
        found = computed(self, run, clock, *arguments, **options)
        if (clock.task, clock.round) == WHERE:
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    Simulation._round = dies  # type: ignore[method-assign]

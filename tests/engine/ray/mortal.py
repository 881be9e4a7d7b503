"""SCAFFOLD, which has client states, in processes that die at a place the test names, or take their time."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from flray.algorithms import ALGORITHMS
from flray.algorithms.scaffold import Scaffold
from flray.core.protocol.context import Context
from flray.core.protocol.samples import ClientData
from flray.core.schema.hp import hp


class Mortal(Scaffold, frozen=True):
    """The process that gets to `dies` in round `round` is killed there, once: it leaves the file `unless`."""

    dies: Literal["never", "training", "evaluation"] = hp("never", doc="where")
    round: int = hp(1, doc="when, from 0")
    unless: str = hp("", doc="a file: while it is there nobody dies")
    pause_s: float = hp(0.0, doc="seconds that a client takes in that round")

    def at(self, place: str, ctx: Context) -> None:
        if (place, self.round) != (self.dies, ctx.clock.round) or Path(self.unless).exists():
            return
        Path(self.unless).touch()
        os.kill(os.getpid(), signal.SIGKILL)

    def end(self, ctx: Context, broadcast: Any, client: Any, local: Any, data: ClientData) -> tuple[Any, Any]:
        self.at("training", ctx)
        if self.pause_s and ctx.clock.round == self.round and not (self.unless and Path(self.unless).exists()):
            time.sleep(self.pause_s)
        return super().end(ctx, broadcast, client, local, data)

    def predict(self, ctx: Context, published: Any, x: Tensor) -> Tensor:
        self.at("evaluation", ctx)
        return super().predict(ctx, published, x)


ALGORITHMS.add("mortal", Mortal)

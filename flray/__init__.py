"""flray: federated learning that does not forget, on Ray.

What the command line does, in Python:

    import flray
    result = flray.run("configs/quickstart.yaml", rounds=10)
    result.rounds            # a DataFrame, one row a round
    flray.load("runs/...")   # the same for a run on disk
    runs = flray.run("configs/quickstart.yaml", algorithm=["fedavg", "fedsol"], seed=range(5))
    flray.compare(runs, against="fedavg")
    flray.figure("curves", runs, out="curves.png")
    flray.close()            # end the processes that flray keeps for the next run, and its Ray
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HERE = os.path.dirname(os.path.abspath(__file__))
if not os.path.isdir(os.path.join(_HERE, "tuning")):  # a checkout has flray.tuning beside flray/, a package inside
    __path__.append(os.path.dirname(_HERE))

if TYPE_CHECKING:
    from flray import data as data
    from flray.api import (
        ablate as ablate,
        compare as compare,
        figure as figure,
        report as report,
        run as run,
        sweep as sweep,
    )
    from flray.config.experiment import Experiment as Experiment
    from flray.core.protocol.algorithm import Algorithm as Algorithm
    from flray.core.protocol.context import Context as Context
    from flray.core.protocol.exchange import Exchange as Exchange
    from flray.core.schema.errors import FlrayError as FlrayError
    from flray.core.schema.hp import hp as hp
    from flray.results.notebook import Run as Run, Runs as Runs, load as load
    from flray.running import close as close, resume as resume

# imported on first use: a worker process that needs one of them does not pay for all
_NAMES = {
    "flray.api": ("ablate", "compare", "figure", "report", "run", "sweep"),
    "flray.config.experiment": ("Experiment",),
    "flray.core.protocol.algorithm": ("Algorithm",),
    "flray.core.protocol.context": ("Context",),
    "flray.core.protocol.exchange": ("Exchange",),
    "flray.core.schema.errors": ("FlrayError",),
    "flray.core.schema.hp": ("hp",),
    "flray.results.notebook": ("Run", "Runs", "load"),
    "flray.running": ("close", "resume"),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}
__all__ = sorted(_HOME)


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    import importlib

    if name == "data":  # flray.data.from_torch
        return importlib.import_module("flray.data")
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'flray' has no attribute {name!r}")

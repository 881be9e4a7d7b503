"""flray: federated learning that does not forget, on Ray.

import flray
result = flray.run("configs/quickstart.yaml", rounds=10)
result.rounds            # a DataFrame, one row a round
flray.load("runs/...")   # the same for a run on disk
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from flray import data as data
    from flray.api import resume as resume
    from flray.api import run as run
    from flray.config.experiment import Experiment as Experiment
    from flray.core.protocol.algorithm import Algorithm as Algorithm
    from flray.core.protocol.context import Context as Context
    from flray.core.protocol.exchange import Exchange as Exchange
    from flray.core.schema.errors import FlrayError as FlrayError
    from flray.core.schema.hp import hp as hp
    from flray.results.notebook import Run as Run
    from flray.results.notebook import load as load

# imported on first use: a worker process that needs one of them does not pay for all
_HOME = {
    "Algorithm": "flray.core.protocol.algorithm",
    "Context": "flray.core.protocol.context",
    "Exchange": "flray.core.protocol.exchange",
    "Experiment": "flray.config.experiment",
    "FlrayError": "flray.core.schema.errors",
    "Run": "flray.results.notebook",
    "hp": "flray.core.schema.hp",
    "load": "flray.results.notebook",
    "resume": "flray.api",
    "run": "flray.api",
}
__all__ = ["Algorithm", "Context", "Exchange", "Experiment", "FlrayError", "Run", "hp", "load", "resume", "run"]


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    import importlib

    if name == "data":  # flray.data.from_torch
        return importlib.import_module("flray.data")
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'flray' has no attribute {name!r}")

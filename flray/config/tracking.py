"""The trackers of `track:` and their options. `rundir/trackers.py` sends results to them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal

from pydantic import Field

from flray.core.schema.registry import Registry
from flray.core.schema.section import Section


class Tracker(Section, ABC):
    """The options of a tracker of your own, as fields; named in `TRACKERS` or by an entry point of `flray.trackers`.

    `package`: the package that it needs; "": none.
    """

    package: ClassVar[str] = ""

    @abstractmethod
    def backend(self) -> Any:
        """The tracker's run, a new `flray.rundir.trackers.Backend`."""


class Mlflow(Section):
    """MLflow, its tracking store and its artifacts (`pip install 'flray[mlflow]'`)."""

    uri: str | None = Field(
        None, description="tracking store; none: MLFLOW_TRACKING_URI, or mlflow.db beside the run folder"
    )
    experiment: str | None = Field(None, description="MLflow's experiment; none: the run's name")


class Wandb(Section):
    """Weights & Biases (`pip install 'flray[wandb]'`)."""

    project: str | None = Field(None, description="none: the run's name")
    entity: str | None = Field(None, description="user or team; none: the logged-in user")
    mode: Literal["online", "offline"] | None = Field(
        None, description="offline: files below wandb/, for `wandb sync`; none: WANDB_MODE, or online"
    )


TRACKERS = Registry(
    "tracker",
    {"mlflow": "flray.config.tracking:Mlflow", "wandb": "flray.config.tracking:Wandb"},
    base="flray.config.tracking:Tracker",
)

"""Whom the server waits for: all clients of a round, those in time, the first ones, or any K of those at work."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field, model_validator

from flray.core.schema.errors import ConfigError
from flray.core.schema.section import Section
from flray.core.schema.shares import floor_share
from flray.data.cache import Array
from flray.scenario.devices import check_own


class Staleness(Section):
    """The weight s of an update by its age d, the server steps since its broadcast (Xie et al. 2019, section 5.2).

    `constant`: 1. `polynomial`: (d + 1)^-a; FedBuff has a = 1/2. `hinge`: 1 up to the age b, then 1 / (a (d - b) + 1).
    """

    shorthand: ClassVar = {str: "name"}
    name: Literal["constant", "polynomial", "hinge"] = Field("polynomial", description="how the weight falls with age")
    a: float | None = Field(None, gt=0, description="polynomial: the exponent, default 0.5; hinge: the slope")
    b: int | None = Field(None, ge=0, description="hinge: the age up to which the weight is 1")

    @model_validator(mode="after")
    def _own(self) -> Staleness:
        needs = {"constant": (), "polynomial": (), "hinge": ("a", "b")}[self.name]
        reads = ("a",) if self.name == "polynomial" else needs
        for option in ("a", "b"):
            given = getattr(self, option) is not None
            if given and option not in reads:
                raise ConfigError(f"coordination.staleness: {self.name} does not read {option}; leave it out")
            if option in needs and not given:
                raise ConfigError(f"coordination.staleness: hinge needs {option}; add it")
        return self

    def weights(self, ages: Array) -> Array:
        """s `[K]` of updates of these ages `[K]`, float64; 1 at age 0."""
        ages = np.asarray(ages, dtype=np.float64)
        if self.name == "hinge":
            assert self.a is not None and self.b is not None
            return np.where(ages <= self.b, 1.0, 1 / (self.a * np.maximum(ages - self.b, 0) + 1))
        return np.ones_like(ages) if self.name == "constant" else (ages + 1) ** -(self.a or 0.5)


class Coordination(Section):
    """When a round ends on the virtual clock (`devices`), and whose updates it then has.

    `synchronous`: with the last update. `deadline` (Nishio and Yonetani, ICC 2019; Bonawitz et al., MLSys 2019): after
    `seconds`, or with the last update before. Who is later is dropped, and its state does not change; with
    `late: partial` it stops in time and delivers the local steps that it has taken (FedProx: Li et al., MLSys 2020,
    section 3.2), and is dropped only if it has taken none. `over_selected`
    (Bonawitz et al., section 2.2): K (1 + share) clients are drawn, rounded up, and the first K to deliver count; of
    two at one moment the first in cohort order. A client that drops out (`cohort.dropout`) never delivers.
    `buffered` (FedBuff: Nguyen et al., AISTATS 2022): `concurrency` clients are at work at any time, each from the
    model of its dispatch; a round is a server step on every `size`-th arrival.
    """

    shorthand: ClassVar = {str: "name"}
    name: Literal["synchronous", "deadline", "over_selected", "buffered"] = Field(
        "synchronous", description="whom a round waits for: all, those in time, the first K, or any K of those at work"
    )
    seconds: float | None = Field(None, gt=0, description="deadline: virtual seconds that a round takes at most")
    late: Literal["drop", "partial"] | None = Field(
        None, description="deadline: late updates are dropped (default), or hold the steps taken in time"
    )
    share: float | None = Field(None, gt=0, description="over_selected: more clients drawn, as a share of K")
    size: int | None = Field(None, ge=1, description="buffered: arrivals that make a server step (K)")
    concurrency: int | None = Field(None, ge=1, description="buffered: clients at work; default: the cohort")
    staleness: Staleness | None = Field(None, description="buffered: weight by age; default: polynomial with 0.5")
    max_staleness: int | None = Field(None, ge=0, description="buffered: updates of a greater age are dropped")

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, data: Any) -> Any:
        """Writes out the default of a deadline, so that the saved configuration is complete."""
        late = isinstance(data, dict) and data.get("name") == "deadline" and data.get("late") is None
        return {**data, "late": "drop"} if late else data

    @model_validator(mode="after")
    def _own(self) -> Coordination:
        needs = {"seconds": "deadline", "share": "over_selected", "size": "buffered"}
        buffered = ("concurrency", "staleness", "max_staleness")
        check_own("coordination", self, needs, {"late": "deadline", **dict.fromkeys(buffered, "buffered")})
        return self

    @property
    def age_weights(self) -> Staleness:
        """The weight of an update by its age."""
        return self.staleness or Staleness()

    def asked(self, size: int) -> int:
        """The number of clients that are to be drawn for a cohort of `size`."""
        return size if self.share is None else size - floor_share(-self.share, size)

    def drawn(self, size: int, population: int) -> int:
        """The number of clients that are drawn for a cohort of `size` among `population`."""
        return min(self.asked(size), population)

    def delivered(self, seconds: Array, size: int, missing: int = 0) -> Arrivals:
        """Who delivers, of the clients whose updates arrive after these `seconds` `[M]`, in cohort order.

        `size`: K. Infinite seconds: it never does. `missing`: the number of clients that drop out, stop early or leave,
        for which a deadline is waited.
        """
        if self.seconds is not None:
            within = seconds <= self.seconds
            waits = bool(missing) or not within.all()
            return Arrivals(within, self.seconds if waits else float(seconds.max(initial=0.0)))
        within = np.isfinite(seconds)
        if self.share is not None and len(seconds) > size:
            within[np.argsort(seconds, kind="stable")[size:]] = False
        return Arrivals(within, float(seconds[within].max(initial=0.0)))


class Until(Section):
    """An end of the run before its last round."""

    virtual_s: float = Field(
        gt=0, description="the run ends with the last round that ends by then on the virtual clock"
    )


class Arrivals(NamedTuple):
    """`within`: bool `[M]`, whose updates the round has. `seconds`: how long the round takes on the virtual clock."""

    within: Array
    seconds: float

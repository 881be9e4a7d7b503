"""Whom the server waits for in a round: all, those in time, or the first ones."""

from __future__ import annotations

import math
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field, model_validator

from flray.core.schema.errors import ConfigError
from flray.core.schema.section import Section
from flray.data.cache import Array


class Coordination(Section):
    """When a round ends on the virtual clock (`devices`), and whose updates it then has.

    `synchronous`: with the last update. `deadline` (Nishio and Yonetani, ICC 2019; Bonawitz et al., MLSys 2019): after
    `seconds`, or with the last update before; who is later is dropped, and its state does not change. `over_selected`
    (Bonawitz et al., section 2.2): K (1 + share) clients are drawn, rounded up, and the first K to deliver count; of
    two at one moment the first in cohort order. A client that drops out (`cohort.dropout`) never delivers.
    """

    shorthand: ClassVar = {str: "name"}
    name: Literal["synchronous", "deadline", "over_selected"] = Field(
        "synchronous", description="whom a round waits for: all, or those in time, or the first K"
    )
    seconds: float | None = Field(None, gt=0, description="deadline: virtual seconds that a round takes at most")
    share: float | None = Field(None, gt=0, description="over_selected: more clients drawn, as a share of K")

    @model_validator(mode="after")
    def _own(self) -> Coordination:
        for option, owner in (("seconds", "deadline"), ("share", "over_selected")):
            given = getattr(self, option) is not None
            if given and self.name != owner:
                raise ConfigError(f"coordination: {option} is read by {owner}, not by {self.name}; leave it out")
            if not given and self.name == owner:
                raise ConfigError(f"coordination: {owner} needs {option}; add it")
        return self

    def drawn(self, size: int, population: int) -> int:
        """The number of clients that are drawn for a cohort of `size` among `population`."""
        return size if self.share is None else min(math.ceil(size * (1 + self.share)), population)

    def delivered(self, seconds: Array, size: int, missing: int = 0) -> Arrivals:
        """Who delivers, of the clients whose updates arrive after these `seconds` `[M]`, in cohort order.

        `size`: K. `missing`: the number of clients that drop out, for which a deadline is waited.
        """
        if self.seconds is not None:
            within = seconds <= self.seconds
            waits = bool(missing) or not within.all()
            return Arrivals(within, self.seconds if waits else float(seconds.max(initial=0.0)))
        within = np.ones(len(seconds), dtype=bool)
        if self.share is not None and len(seconds) > size:
            within[np.argsort(seconds, kind="stable")[size:]] = False
        return Arrivals(within, float(seconds[within].max(initial=0.0)))


class Arrivals(NamedTuple):
    """`within`: bool `[M]`, whose updates the round has. `seconds`: how long the round takes on the virtual clock."""

    within: Array
    seconds: float

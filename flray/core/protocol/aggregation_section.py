"""What a configuration reads of a rule of aggregation; importing it imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from flray.core.protocol.algorithm_section import AlgorithmSection, MethodSection
from flray.core.schema.section import Section

Pooled = Literal["mean", "each", "streamed"]


class AggregationSection(MethodSection, frozen=True):
    """The section `aggregation`: what each rule declares of itself."""

    # how the rule gets the clients' `w` and `b`: their weighted mean, all of them, or all of them one at a time
    pooled: ClassVar[Pooled] = "mean"
    # True: the next model is a linear combination of this round's client models, with the aggregation weights
    linear: ClassVar[bool] = False
    # whether it works with `coordination: buffered`: it asks for no second exchange
    asynchronous: ClassVar[bool] = True
    # True: it mixes a client's model with the present one, whatever model the client started from
    mixes: ClassVar[bool] = False

    def misfit(self, algorithm: AlgorithmSection) -> str:
        """Why this rule does not fit the algorithm with its options; "": it fits."""
        rules, reason = algorithm.fitting_rules()
        itself = isinstance(algorithm, AggregationSection) or algorithm.centralized
        fits = rules == "any" or self.linear  # the mean of `w` is part of every server half
        return "" if fits and not itself else reason

    def check(self, algorithm: AlgorithmSection, uplink: Sequence[Section]) -> None:
        """Raises `ConfigError` for local training, or a part of the `uplink`, that hides what this rule reads."""

    @property
    def key(self) -> str:
        """The configuration's key of this section: `algorithm` where a method is its own rule."""
        return "algorithm" if isinstance(self, AlgorithmSection) else "aggregation"

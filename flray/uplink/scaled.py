"""Attackers scale their update up, so that it outweighs the others in a mean (model replacement, Bagdasaryan et al.,
AISTATS 2020)."""

from __future__ import annotations

from flray.core.schema.hp import hp
from flray.uplink.attack import Attack


class Scaled(Attack, frozen=True):
    """Attackers send w + f (w_k - w) and b + f (b_k - b)."""

    factor: float = hp(10.0, linear=(-20.0, 20.0), doc="factor of the differences (f); negative: also their opposite")

    @property
    def multiplier(self) -> float:
        return self.factor

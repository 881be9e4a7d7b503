"""Attackers send the opposite of their update (the sign-flipping attack of Li et al., AAAI 2019, RSA)."""

from __future__ import annotations

from flray.uplink.attack import Attack


class SignFlip(Attack, frozen=True):
    """Attackers send w - (w_k - w) and b - (b_k - b): the broadcast minus their own differences to it."""

    @property
    def multiplier(self) -> float:
        return -1.0

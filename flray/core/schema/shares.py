"""Exact shares of counts: 0.29 of 100 is 29, although `int(0.29 * 100)` is 28."""

from __future__ import annotations

import math
from fractions import Fraction


def floor_share(share: float, count: int) -> int:
    """floor(share count), exact for the shortest decimal of `share`, as written in a configuration."""
    return math.floor(Fraction(repr(float(share))) * count)


def is_less_than_one(share: float, count: int | None) -> bool:
    """Whether a share above 0 is not one of so many; False where `count` is unknown (None)."""
    return bool(share) and count is not None and floor_share(share, count) == 0

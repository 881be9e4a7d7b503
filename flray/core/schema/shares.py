"""Exact shares of counts: 0.29 of 100 is 29, although `int(0.29 * 100)` is 28."""

from __future__ import annotations

import math
from fractions import Fraction


def floor_share(share: float, count: int) -> int:
    """floor(share count), exact for the shortest decimal of `share`, as written in a configuration."""
    return math.floor(Fraction(repr(float(share))) * count)

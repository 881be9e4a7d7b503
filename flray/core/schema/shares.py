"""Shares of whole things: 0.29 of 100 is 29, although `int(0.29 * 100)` is 28."""

from __future__ import annotations

import math
from fractions import Fraction


def floor_share(share: float, count: int) -> int:
    """floor(share count), exact: `share` is the decimal that its shortest spelling says, as in a configuration."""
    return math.floor(Fraction(repr(float(share))) * count)

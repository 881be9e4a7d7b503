"""The detector's share of a round is a share, and next to nothing even where a step is small."""

from __future__ import annotations

from flray.bench.detector import share


def test_the_share_is_measured():
    value, detail = share(1, {"name": "mlp", "hidden": [8]}, side=8)
    assert 0 < value < 1 and "of 210 steps" in detail

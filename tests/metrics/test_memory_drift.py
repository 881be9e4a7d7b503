"""Memory drift and label flips: two samples by hand, and Proposition 5.3 on random answers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from flray.metrics.memory_drift import flips


def test_two_samples_by_hand() -> None:
    """Sample 1: p = (3/4, 1/4), q = (1/4, 3/4): KL = ln 3 / 2, gap 1/2, flipped. Sample 2: p = q = (4/5, 1/5)."""
    teacher = torch.tensor([[3.0, 1.0], [4.0, 1.0]]).log()
    student = torch.tensor([[1.0, 3.0], [4.0, 1.0]]).log()
    assert flips(teacher, student) == pytest.approx(
        {"drift": math.log(3) / 4, "flips": 0.5, "gap": (0.5 + 0.6) / 2, "safe": 0.5, "flips_safe": 0}, abs=1e-6
    )


LOGITS = arrays.arrays(np.float64, (6, 4), elements=st.floats(-6, 6, allow_nan=False))


@given(LOGITS, LOGITS, st.floats(0, 1))
def test_no_sample_flips_whose_divergence_is_below_an_eighth_of_its_squared_gap(z, noise, size) -> None:
    """Proposition 5.3: from ||p - q||_1 <= sqrt(2 KL), so `flips_safe` is 0 whatever the answers are."""
    found = flips(torch.from_numpy(z), torch.from_numpy(z + size * noise))
    assert found["flips_safe"] == 0 and found["drift"] >= -1e-12

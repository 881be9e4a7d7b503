"""`accumulation` against the sums it abbreviates."""

import pytest

from flray.ops.control import effective_steps


@pytest.mark.parametrize(("steps", "momentum", "shrink"), [(7, 0.0, 0.0), (7, 0.9, 0.0), (7, 0.0, 0.2), (0, 0.9, 0.0)])
def test_accumulation_is_how_far_a_constant_gradient_of_1_moves_at_rate_1(steps, momentum, shrink):
    """buf = m buf + 1; w = (1 - shrink) w - buf from 0."""
    w = buf = 0.0
    for _ in range(steps):
        buf = momentum * buf + 1
        w = (1 - shrink) * w - buf
    assert effective_steps(steps, momentum, shrink) == pytest.approx(-w, rel=1e-12)


def test_accumulation_with_both_is_the_original_optimisers_count():
    """m = 1/2, lr mu = 1/4: counter 1, 3/2, 7/4; a = (0 + 1) 3/4 + 1 = 7/4; (7/4 + 3/2) 3/4 + 1 = 55/16; (55/16 + 7/4)
    3/4 + 1 = 313/64."""
    assert effective_steps(3, 0.5, 0.25) == 313 / 64

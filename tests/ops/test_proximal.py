"""The proximal terms of closed form, against autograd and in places where rounding would be all that is left."""

import pytest
import torch

from flray.ops.proximal import ProximalTerm


@pytest.mark.parametrize("linear", [False, True])
@pytest.mark.parametrize("strength", [None, 1.0, 0.3])
def test_the_gradient_is_that_of_the_value(linear, strength):
    """<l, w> + s/2 sum_i (w_i - a_i)^2, differentiated by autograd in float64."""
    draws = torch.Generator().manual_seed(0)
    w, slope, a = (torch.randn(7, generator=draws, dtype=torch.float64) for _ in range(3))
    w.requires_grad_()
    expected = (slope * w).sum() * linear + (strength or 0.0) / 2 * ((w - a) ** 2).sum()
    term = ProximalTerm(slope if linear else None, None if strength is None else a, strength or 1.0)
    torch.testing.assert_close(term.value(w.detach()), expected.detach(), check_dtype=False)
    found = term.gradient(w.detach(), torch.full((7,), 9.0, dtype=torch.float64))
    torch.testing.assert_close(found, torch.autograd.grad(expected, w)[0])


def test_at_the_anchor_the_gradient_is_the_linear_part_to_the_bit():
    """s w - s w_g would leave rounding of the size of s w beside it."""
    w, slope = torch.full((3,), 1e4) / 3, torch.tensor([1e-6, -2e-6, 0.0])
    assert torch.equal(ProximalTerm(slope, w.clone(), 0.7).gradient(w, torch.empty(3)), slope)
    assert not ProximalTerm(anchor=w.clone()).gradient(w, torch.empty(3)).any()

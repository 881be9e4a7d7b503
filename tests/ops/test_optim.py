"""The same numbers as `torch.optim`, over several steps."""

import pytest
import torch

from flray.ops.optim import Moments, adam_direction_, clip_, sgd_direction_
from tests.support.small_cases import normal

STEPS = 7


def gradient_of(w):
    """Gradient of sum(w^4)/4 - sum(w): state-dependent, so that an error at one step shows at the next."""
    return w**3 - 1


def reference(optimizer, w0):
    parameter = torch.nn.Parameter(w0.clone())
    optimizer = optimizer([parameter])
    for _ in range(STEPS):
        parameter.grad = gradient_of(parameter.detach())
        optimizer.step()
    return parameter.detach()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_sgd(momentum, weight_decay):
    w = normal(33)
    expected = reference(lambda p: torch.optim.SGD(p, lr=0.05, momentum=momentum, weight_decay=weight_decay), w)
    moments = Moments(torch.zeros_like(w), w[:0], 0)
    for step in range(STEPS):
        w = w - 0.05 * sgd_direction_(w, gradient_of(w), moments.replace(steps=step), momentum, weight_decay)
    torch.testing.assert_close(w, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_adam(weight_decay):
    w = normal(33)
    expected = reference(lambda p: torch.optim.Adam(p, lr=0.05, weight_decay=weight_decay), w)
    moments = Moments(torch.zeros_like(w), torch.zeros_like(w), 0)
    for step in range(STEPS):
        w = w - 0.05 * adam_direction_(w, gradient_of(w), moments.replace(steps=step), weight_decay)
    torch.testing.assert_close(w, expected, rtol=1e-5, atol=1e-6)


def test_weights_are_not_touched():
    w = normal(5)
    before = w.clone()
    moments = Moments(torch.zeros(5), torch.zeros(5), 0)
    sgd_direction_(w, normal(5, seed=1), moments, 0.9, 0.1)
    adam_direction_(w, normal(5, seed=1), moments, 0.1)
    assert torch.equal(w, before)


@pytest.mark.parametrize("largest", [0.5, 100.0])
def test_clip_has_the_numbers_of_torch(largest):
    parameters = [torch.nn.Parameter(torch.zeros(4)), torch.nn.Parameter(torch.zeros(3, 2))]
    g = 2 * normal(10)
    parameters[0].grad, parameters[1].grad = g[:4].clone(), g[4:].clone().view(3, 2)
    torch.nn.utils.clip_grad_norm_(parameters, largest)
    clip_(g, largest)
    torch.testing.assert_close(g, torch.cat([p.grad.flatten() for p in parameters]), rtol=1e-6, atol=0)


def test_what_no_gradient_reached_does_not_decay():
    """g + 0.1 w = (0.6, 0.45) where gradients reached both parameters, (0.6, 0.25) where only the first; Adam's first
    step has length 1 in every coordinate that has a direction."""
    w, g, first = torch.tensor([1.0, 2.0]), torch.tensor([0.5, 0.25]), torch.tensor([1.0, 0.0])
    moments = Moments(torch.zeros(2), torch.zeros(2), 0)
    for reached, expected in ((None, [0.6, 0.45]), (first, [0.6, 0.25])):
        assert sgd_direction_(w, g.clone(), moments, 0.0, 0.1, reached).tolist() == pytest.approx(expected)
    found = adam_direction_(w, torch.zeros(2), moments, 0.1, first)
    assert found.tolist() == pytest.approx([1.0, 0.0])

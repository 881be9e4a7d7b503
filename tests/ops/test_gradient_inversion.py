"""Inputs from gradients, where the answer is known."""

import pytest
import torch
from torch.nn import functional as F

from flray.core.network.objective import Objective
from flray.core.network.threads import threads
from flray.models.base import count_parameters
from flray.models.cnn import LeNet
from flray.ops import gradient_inversion
from flray.ops.gradient_inversion import (
    encoder_gradient,
    infer_label,
    invert_gradients,
    perturb_inputs,
    reconstruct_inputs,
)
from tests.support.small_cases import normal


def test_perturbing_a_quadratic():
    """loss |x - a|^2 / 2: x_n = a + (1 - lr)^n (x_0 - a)."""
    x, a = normal(1, 3), normal(1, 3, seed=1)
    found = perturb_inputs(lambda z: 0.5 * (z - a).square().sum(), x, 0.2, 7)
    torch.testing.assert_close(found, a + 0.8**7 * (x - a))
    assert torch.equal(x, normal(1, 3)) and not found.requires_grad
    assert torch.equal(perturb_inputs(lambda z: z.sum(), x, 0.2, 0), x)


def linear(weight, bias, y):
    """Gradients of cross-entropy of each sample with respect to a linear layer: (p - e_y) x^T, p - e_y."""

    def gradients(x):
        error = (x @ weight.T + bias).softmax(dim=1) - F.one_hot(y, len(bias))
        return error[:, :, None] * x[:, None], error

    return gradients


def test_the_gradient_of_a_linear_encoder_gives_its_input_back():
    """Of two at once, each its own."""
    weight, bias, y = normal(5, 6), normal(5, seed=1), torch.tensor([3, 0])
    x = normal(2, 6, seed=2)
    gradients = linear(weight, bias, y)
    target = [part.detach() for part in gradients(x)]
    found = reconstruct_inputs(gradients, target, normal(2, 6, seed=3), lr=0.5, iterations=60, keep=4)
    assert found.shape == (4, 2, 6)
    torch.testing.assert_close(found[-1], x, rtol=0, atol=2e-3)
    short = reconstruct_inputs(gradients, target, normal(2, 6, seed=3), lr=0.5, iterations=3)
    assert short.shape == (3, 2, 6)


def test_an_iterate_that_is_not_finite_is_not_kept():
    def gradients(x):
        return (torch.where(x > 0.5, x * torch.inf, 10 * x),)

    found = reconstruct_inputs(gradients, [torch.full((1, 2), 100.0)], torch.zeros(1, 2), lr=1.0, iterations=5, keep=3)
    assert found.shape == (3, 1, 2) and torch.isfinite(found).all()


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 8, 8), (1, 5, 6)])
def test_the_label_is_in_the_gradient_of_the_encoders_last_weight(shape):
    torch.manual_seed(0)
    encoder = LeNet(shape, 7)
    for y in range(7):
        loss = F.cross_entropy(encoder(normal(1, *shape, seed=y)), torch.tensor([y]))
        (g,) = torch.autograd.grad(loss, encoder.head.weight)
        assert int(infer_label(g)) == y
    assert infer_label(torch.stack([g, -g])).shape == (2,)


def test_lenet_is_that_of_the_code():
    """912 + 3612 + 3612 of the convolutions; 768 * 100 + 100 of the linear layer; values in -0.5 to 0.5."""
    encoder = LeNet((3, 32, 32), 100)
    assert count_parameters(encoder) == 912 + 2 * 3612 + 76_900
    values = torch.cat([p.flatten() for p in encoder.parameters()])
    assert values.abs().max() <= 0.5 and abs(float(values.detach().std()) - 1 / 12**0.5) < 0.01


@pytest.mark.slow
def test_images_come_back_from_lenets_gradients():
    """By torch's own optimiser, one image after the other: the same images, and nearer than where the search began."""
    torch.manual_seed(0)
    encoder, x = Objective(LeNet((2, 8, 8), 4), trains=False), normal(2, 2, 8, 8)
    start, labels = normal(2, 2, 8, 8, seed=1), torch.tensor([2, 0])
    pool = torch.stack([encoder_gradient(encoder, x[i : i + 1], labels[i : i + 1]) for i in range(2)])
    found, y = invert_gradients(encoder, pool, start, lr=0.1, iterations=4, keep=3)
    assert found.shape == (6, 2, 8, 8) and y.tolist() == [2, 0] * 3
    model = encoder.at(*encoder.initial(), grad=True)
    for i in range(2):
        z = start[i : i + 1].clone().requires_grad_()
        optimizer = torch.optim.LBFGS([z], lr=0.1)
        target = [entry.view(pool[i]) for entry in encoder.layout.entries]

        def closure(z=z, i=i, target=target):
            loss = F.cross_entropy(model(z), labels[i : i + 1])
            parts = torch.autograd.grad(loss, model.leaves, create_graph=True)
            distance = sum((g - t).square().sum() for g, t in zip(parts, target, strict=True))
            z.grad = torch.autograd.grad(distance, z)[0].contiguous()
            return distance

        for _ in range(4):
            optimizer.step(closure)
        torch.testing.assert_close(found[4 + i], z[0].detach(), rtol=1e-2, atol=1e-2)
        assert (found[4 + i] - x[i]).norm() < (start[i] - x[i]).norm()


def test_one_thread_searches_for_images(monkeypatch):
    """With two, on a machine with other work, a round of GLFC took fifty times as long."""
    computed, search = [], gradient_inversion.reconstruct_inputs

    def watched(*args):
        computed.append(torch.get_num_threads())
        return search(*args)

    monkeypatch.setattr(gradient_inversion, "reconstruct_inputs", watched)
    encoder, x = Objective(LeNet((1, 8, 8), 2), trains=False), normal(1, 1, 8, 8)
    gradient = encoder_gradient(encoder, x, torch.tensor([1]))
    with threads(2):
        invert_gradients(encoder, gradient[None], x, 0.1, 1, 1)
        assert torch.get_num_threads() == 2
    assert computed == [1]

"""Hessian-vector products against the dense Hessian in double precision."""

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from flray.core.network.objective import Objective
from flray.core.schema.errors import AlgorithmError
from tests.support.networks import Branches, Conv, Frozen, Mlp, Norm, Tied, build, inputs


def dense(kind, objective, w, b, x, y):
    """The Hessian of the mean cross-entropy over the trained tensors, in the order of the layout without its gaps,
    float64.
    """
    module = build(kind).double().eval()
    module.load_state_dict({n: t.double() for n, t in objective.state_dict(w, b).items()}, strict=False)
    entries = objective.layout.entries
    flat = torch.cat([entry.view(w).reshape(-1) for entry in entries]).double()

    def loss(flat):
        parts = torch.split(flat, [entry.numel for entry in entries])
        named = {entry.name: part.view(entry.shape) for entry, part in zip(entries, parts, strict=True)}
        return cross_entropy(functional_call(module, named, (x.double(),)), y)

    return torch.autograd.functional.hessian(loss, flat)


@pytest.mark.parametrize("kind", [Mlp, Norm, Conv, Tied, Frozen, Branches])
def test_the_product_is_that_of_the_dense_hessian(kind):
    """Batch norm in eval, whose statistics are not those that it began with."""
    objective, (x, y) = Objective(build(kind)), inputs(kind, 6)
    w, b = objective.initial()
    b.add_(torch.rand(b.shape, generator=torch.Generator().manual_seed(2)))
    before = b.clone()
    v = torch.randn(w.shape, generator=torch.Generator().manual_seed(3))
    product = objective.hvp(lambda f: cross_entropy(f(x), y), w, b, v)
    entries = objective.layout.entries
    along, found = (torch.cat([entry.view(flat).reshape(-1) for entry in entries]) for flat in (v, product))
    expected = dense(kind, objective, w, b, x, y) @ along.double()
    torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-5)
    assert expected.abs().max() > 0.1 and torch.equal(b, before)
    assert not product[objective.layout.mask(lambda name: True) == 0].any()


def test_a_linear_loss_has_no_curvature():
    objective, (x, _) = Objective(nn.Linear(5, 3)), inputs(Mlp, 4)
    w, b = objective.initial()
    assert not objective.hvp(lambda f: f(x).sum(), w, b, torch.ones_like(w)).any()


class Attention(nn.Module):
    """PyTorch's fused attention, whose kernels have no second derivative."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(5, 12)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        q, k, v = self.qkv(x.view(-1, 2, 5)).unsqueeze(1).chunk(3, dim=-1)
        return self.head(nn.functional.scaled_dot_product_attention(q, k, v).flatten(0, 2))


def test_fused_attention_is_differentiated_twice():
    objective, (x, y) = Objective(build(Attention)), inputs(Mlp, 6)
    w, b = objective.initial()
    v = torch.randn(w.shape, generator=torch.Generator().manual_seed(3))
    product = objective.hvp(lambda f: cross_entropy(f(x), y), w, b, v)
    slopes = [objective.value_and_grad(lambda f: cross_entropy(f(x), y), w + s * 1e-2 * v, b)[1] for s in (1, -1)]
    torch.testing.assert_close(product, (slopes[0] - slopes[1]) / 2e-2, rtol=0.05, atol=2e-3)


def test_what_gradients_reached_does_not_change():
    """An optimiser that asks after a product hears of its own gradients only: the head's alone here, though the product
    reaches all.
    """
    objective, (x, y) = Objective(build(Mlp)), inputs(Mlp, 4)
    w, b = objective.initial()
    objective.value_and_grad(lambda f: cross_entropy(f.head(torch.ones(4, 7)), y), w, b)
    objective.hvp(lambda f: cross_entropy(f(x), y), w, b, torch.ones_like(w))
    assert torch.equal(objective.reached(), objective.mask("head"))


@pytest.mark.parametrize(
    ("loss", "says"),
    [
        (lambda value: None, r"returned None \(a return is missing\); a loss is one number"),
        (lambda value: value.expand(6), r"returned a Tensor \[6\]; a loss is one number"),
        (lambda value: (value, value), r"returned \(Tensor, Tensor\); a loss is one number"),
        (lambda value: value.item(), "returned a float; a loss is one number"),
        (lambda value: value.detach(), "returned a number without a gradient"),
    ],
)
def test_a_loss_that_is_not_one_number_with_a_gradient_is_one_line(loss, says):
    objective, (x, y) = Objective(build(Mlp)), inputs(Mlp, 6)
    w, b = objective.initial()
    with pytest.raises(AlgorithmError, match=says):
        objective.hvp(lambda f: loss(cross_entropy(f(x), y)), w, b, torch.ones_like(w))

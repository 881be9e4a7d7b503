"""Perturbed points against NumPy and `torch.nn.functional.normalize` on the tensors' logical shapes."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import normalize

from flray.core.network.objective import Objective
from flray.core.schema.errors import ConfigError
from flray.ops.perturb import (
    adaptive_scale,
    ascend,
    check_head,
    magnitude,
    parameter_subset,
    scratch_copy,
    subset_gradient,
)
from tests.support.networks import Conv, Mlp, Norm, Tied, build, inputs
from tests.support.small_cases import normal


class Odd(nn.Module):
    """The head in the middle; a first dimension of 1, a tensor without dimensions, sizes that leave gaps."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.ones(1, 1, 3))
        self.scale = nn.Parameter(torch.ones(()))
        self.head = nn.Linear(3, 2)
        self.last = nn.Conv2d(2, 3, 2)


class TiedHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 3)
        self.head = nn.Linear(3, 3)
        self.head.weight = self.body.weight


def vector(objective: Objective, seed: int) -> torch.Tensor:
    """Random numbers in the tensors, zeros in the gaps."""
    return normal(objective.layout.size, seed=seed) * objective.mask("all")


# the point ------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["head", "body", "all"])
@pytest.mark.parametrize("scaled", [False, True])
def test_ascend_against_numpy(name, scaled):
    """w + rho * scale * g / (||g|| + eps) on the part, with the part's own norm; a large eps shows where it stands."""
    objective = Objective(Odd())
    w, g, scale = (vector(objective, seed) for seed in (0, 1, 2))
    mask = objective.mask(name).numpy().astype(np.float64)
    chosen = parameter_subset(objective, name)
    marker = torch.full_like(w, 7.0)
    found = ascend(w, g, 0.5, chosen.spans, scale if scaled else None, eps=0.25, out=marker)
    g64 = g.double().numpy() * mask
    expected = w.double().numpy() + 0.5 * (scale.double().numpy() if scaled else 1) * g64 / (np.linalg.norm(g64) + 0.25)
    inside = np.concatenate([np.arange(s.start, s.stop) for s in chosen.spans])
    np.testing.assert_allclose(found.numpy()[inside], expected[inside], rtol=1e-6, atol=1e-7)
    assert (np.delete(found.numpy(), inside) == 7).all(), "the rest of `out` is not written"
    assert set(np.flatnonzero(mask)) <= set(inside)
    aliased = ascend(w, g, 0.5, chosen.spans, marker.copy_(scale), eps=0.25, out=marker) if scaled else found
    torch.testing.assert_close(
        aliased[inside], found[inside] if not scaled else torch.from_numpy(expected[inside]).float()
    )


def test_ascend_stays_at_w_without_a_gradient_with_rho_0_and_below_the_smallest_norm():
    w, g = normal(32), normal(32, seed=1)
    assert torch.equal(ascend(w, torch.zeros(32), 1.5), w)
    assert torch.equal(ascend(w, g, 0.0), w)
    norm = float(g.norm())
    assert torch.equal(ascend(w, g, 1.5, min_norm=1.01 * norm), w)
    moved = ascend(w, g, 1.5, min_norm=0.99 * norm)
    assert float((moved - w).norm()) == pytest.approx(1.5, rel=1e-5)
    assert not torch.isfinite(ascend(w, g * float("nan"), 1.5, min_norm=1.0)).any(), "a NaN is not hidden"


# Lambda ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", [Mlp, Norm, Conv, Odd])
def test_columnwise_is_torch_normalize_along_dimension_0(kind):
    objective = Objective(build(kind))
    w, anchor = vector(objective, 0), vector(objective, 1)
    found = objective.views(
        adaptive_scale(w, anchor, parameter_subset(objective, "all"), "columnwise", torch.empty_like(w))
    )
    for name, difference in objective.views((w - anchor).abs()).items():
        torch.testing.assert_close(found[name], normalize(difference, dim=0), rtol=2e-6, atol=0)


@pytest.mark.parametrize("name", ["head", "body", "all"])
def test_tensor_and_layer_divide_by_one_norm_each(name):
    """|d| / ||d|| with d over one tensor, or over the weight and bias of a module (Eq. 7)."""
    objective = Objective(build(Conv))
    w, anchor = vector(objective, 0), vector(objective, 1)
    d = {n: v.double().numpy() for n, v in objective.views((w - anchor).abs()).items()}
    chosen = parameter_subset(objective, name)
    for how in ("tensor", "layer"):
        found = objective.views(adaptive_scale(w, anchor, chosen, how, torch.full_like(w, 7.0)))
        for entry in objective.layout.entries:
            if entry not in chosen.entries:
                assert (found[entry.name] == 7).all()
                continue
            owner = entry.name.partition(".")[0]
            joined = [
                v.ravel() for n, v in d.items() if n == entry.name or (how == "layer" and n.partition(".")[0] == owner)
            ]
            np.testing.assert_allclose(
                found[entry.name].numpy(), d[entry.name] / np.linalg.norm(np.concatenate(joined)), rtol=1e-5
            )


@pytest.mark.parametrize("how", ["columnwise", "tensor", "layer"])
def test_no_distance_is_lambda_0_and_a_tiny_one_is_divided_by_the_smallest_divisor(how):
    """max(norm, 1e-12): differences of 1e-14 give 1e-14 / 1e-12."""
    objective = Objective(build(Mlp))
    w = vector(objective, 0)
    whole = parameter_subset(objective, "all")
    assert (adaptive_scale(w, w, whole, how, torch.empty_like(w)) == 0).all()
    tiny = 1e-14 * objective.mask("all")
    found = adaptive_scale(tiny, torch.zeros_like(tiny), whole, how, torch.empty_like(w))
    torch.testing.assert_close(found, 0.01 * objective.mask("all"), rtol=1e-4, atol=0)


# ASAM -----------------------------------------------------------------------------------------
def test_magnitude_of_the_weights():
    objective = Objective(build(Norm))
    w = vector(objective, 0)
    entries = objective.layout.entries
    of_all = objective.views(magnitude(w, entries, 0.2, "all", torch.empty_like(w)))
    of_weights = objective.views(magnitude(w, entries, 0.2, "weights", torch.empty_like(w)))
    assert {"norm.weight", "norm.bias", "head.bias"} < of_all.keys()
    for name, view in objective.views(w).items():
        np.testing.assert_array_equal(of_all[name].numpy(), np.abs(view.numpy()) + np.float32(0.2))
        expected = np.abs(view.numpy()) + np.float32(0.2) if name.endswith("weight") else 1
        np.testing.assert_array_equal(of_weights[name].numpy(), expected)


# parts ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(("name", "count"), [("head", 1), ("body", 2), ("all", 1)])
def test_a_part_is_as_few_spans_as_it_can_be(name, count):
    objective = Objective(Odd())
    chosen = parameter_subset(objective, name)
    assert len(chosen.spans) == count
    covered = torch.zeros(objective.layout.size)
    for span in chosen.spans:
        covered[span] += 1
    assert torch.equal(covered * objective.mask("all"), objective.mask(name))


def test_gradient_of_a_part_is_that_slice_of_the_whole_gradient():
    objective = Objective(build(Conv))
    x, _ = inputs(Conv, 4)
    w, b = objective.initial()
    whole = objective.value_and_grad(lambda f: f(x).square().sum(), w, b, "eval")[1]
    for name in ("head", "body"):
        model = objective.at(w, b, "eval", grad=True)
        out = torch.full_like(w, float("nan"))
        found = subset_gradient(model(x).square().sum(), model, parameter_subset(objective, name), out)
        inside = objective.mask(name) == 1
        assert torch.equal(found[inside], whole[inside])
        for span in parameter_subset(objective, name).spans:
            assert torch.isfinite(found[span]).all(), "gaps hold zeros"
        assert torch.isnan(found[objective.mask(name) + 1 - objective.mask("all") == 0]).all()


def test_a_head_must_exist_and_be_its_own():
    check_head(Objective(build(Conv)))
    check_head(Objective(build(Tied)))
    with pytest.raises(ConfigError, match="declares no trainable `head`"):
        check_head(Objective(nn.Sequential(nn.Linear(2, 2))))
    objective = Objective(TiedHead())
    with pytest.raises(ConfigError, match="shares parameters with its body"):
        check_head(objective)


def test_still_is_a_copy():
    objective = Objective(build(Norm))
    _, b = objective.initial()
    copy = scratch_copy(objective, b)
    assert torch.equal(copy, b)
    copy.add_(1)
    assert not torch.equal(copy, b)

"""The projection rules against NumPy in float64, and the properties that define them (FedProj A.4)."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given, strategies as st
from hypothesis.extra.numpy import arrays

from flray.core.network.layout import Layout
from flray.ops.project import project
from tests.support.small_cases import normal

VECTOR = arrays(np.float32, 6, elements=st.floats(-10, 10, width=32))


def by_numpy(g, m, rule, delta, eps):
    """The three rules as printed, float64."""
    g, m = np.asarray(g, np.float64), np.asarray(m, np.float64)
    a, q = g @ m, m @ m
    if rule == "threshold":
        return g if q <= delta or a >= 0 else g - (a / q) * m
    if rule == "epsilon" and a >= 0:
        return g
    return g - a / (q + eps) * m


@pytest.mark.parametrize("rule", ["threshold", "epsilon", "always"])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("scale", [1.0, 1e-3])
def test_rules_against_numpy(rule, sign, scale):
    g = normal(40)
    m = scale * (sign * g + 0.3 * normal(40, seed=1))
    # delta between the two scales' ||m||^2, eps large enough to matter at the small one
    result, conflict = project(g, m, rule, delta=1e-3, eps=1e-4)
    np.testing.assert_allclose(result.numpy(), by_numpy(g, m, rule, 1e-3, 1e-4), rtol=1e-4, atol=1e-5)
    changed = {"threshold": sign < 0 and scale == 1.0, "epsilon": sign < 0, "always": True}[rule]
    assert bool(conflict.projected) is changed
    cosine = float(g.double() @ m.double() / (g.double().norm() * m.double().norm()))
    assert float(conflict.cosine) == pytest.approx(cosine, rel=1e-4)


@given(VECTOR, VECTOR)
def test_the_result_meets_the_constraint_and_is_the_nearest_that_does(g, m):
    """KKT of min 1/2||g'-g||^2 s.t. <g', m> >= 0: feasible, g'-g = lambda m with lambda >= 0, lambda <g', m> = 0."""
    g64, m64 = g.astype(np.float64), m.astype(np.float64)
    assume(m64 @ m64 > 1e-6)
    result, _ = project(torch.from_numpy(g), torch.from_numpy(m), "threshold", delta=1e-12)
    found = result.double().numpy()
    slack = 1e-5 * (np.linalg.norm(g64) * np.linalg.norm(m64) + 1)
    assert found @ m64 >= -slack
    multiplier = (found - g64) @ m64 / (m64 @ m64)
    assert multiplier >= -1e-5
    np.testing.assert_allclose(found - g64, multiplier * m64, atol=1e-4 * (1 + np.linalg.norm(g64)))
    assert abs(multiplier * (found @ m64)) <= slack * (1 + abs(multiplier))


@pytest.mark.parametrize("rule", ["threshold", "epsilon", "always"])
def test_a_memory_gradient_of_zero_leaves_the_gradient(rule):
    g = normal(8)
    result, conflict = project(g, torch.zeros(8), rule, delta=0.0)
    assert torch.equal(result, g) and torch.isfinite(conflict.cosine)


def test_threshold_is_inclusive():
    """q <= delta skips: with m = (2, 0), q = 4."""
    g, m = torch.tensor([-1.0, 1.0]), torch.tensor([2.0, 0.0])
    assert torch.equal(project(g, m, delta=4.0)[0], g)
    assert torch.equal(project(g, m, delta=3.9)[0], torch.tensor([0.0, 1.0]))


def test_in_place_output_is_the_same():
    g, m = normal(16), -normal(16)
    expected, _ = project(g.clone(), m)
    result, _ = project(g, m, out=g)
    assert result is g and torch.equal(g, expected)


def test_per_tensor_projects_each_tensor_by_itself():
    layout = Layout({"a": (3, 2), "b": (5,), "c": (20,)})
    tensors = {n: normal(*e.shape, seed=i) for i, (n, e) in enumerate(zip("abc", layout.entries, strict=True))}
    memory = {n: t * s for (n, t), s in zip(tensors.items(), (-1.0, 2.0, -3.0), strict=True)}
    memory["c"] = memory["c"] + normal(20, seed=9)
    g, m = layout.flatten(tensors), layout.flatten(memory)
    before = g.clone()
    result, conflict = project(g, m, entries=layout.entries)
    assert torch.equal(g, before)
    for name, view in layout.views(result).items():
        expected = by_numpy(tensors[name].flatten(), memory[name].flatten(), "threshold", 1e-12, 0)
        np.testing.assert_allclose(view.flatten().numpy(), expected, atol=1e-5)
    # a and c stand against the memory, b does not
    assert float(conflict.projected) == pytest.approx(2 / 3)
    assert not result[layout.mask(lambda name: True) == 0].any()
    assert not torch.allclose(result, project(g, m)[0])

"""The losses of made inputs against NumPy, written from the papers' formulas."""

import functools

import numpy as np
import pytest
import scipy
import torch
from torch import nn
from torch.nn import functional as F

from flray.core.network.objective import Objective
from flray.ops import generate as g
from tests.support.networks import Conv, Norm, build


def drawn(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape)).float()


softmax = functools.partial(scipy.special.softmax, axis=1)


def statistics(norms=2, channels=3, seed=0):
    found = []
    for i in range(norms):
        mean, running = drawn(channels, seed=seed + 4 * i), drawn(channels, seed=seed + 4 * i + 1)
        var, known = (drawn(channels, seed=seed + 4 * i + 2 + j).abs() + 0.1 for j in range(2))
        found.append(g.NormStatistics(mean, var, running, known))
    return found


def test_batch_norms_sees_what_enters_and_follows_the_gradient():
    """A norm of [B, C, 2, 2]: mean and biased variance over samples and pixels, by NumPy; one without running
    statistics, and what runs outside of the block, are not there."""
    norm, none = nn.BatchNorm2d(3), nn.BatchNorm2d(3, track_running_stats=False)
    network = nn.Sequential(norm, none).eval()
    x = drawn(5, 3, 2, 2).requires_grad_()
    with g.batch_norms(network) as seen:
        network(x)
    network(x)
    (found,) = seen
    a = x.detach().numpy()
    np.testing.assert_allclose(found.mean.detach(), a.mean((0, 2, 3)), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.var.detach(), a.var((0, 2, 3)), rtol=1e-5)
    assert found.running_mean is norm.running_mean
    (grad,) = torch.autograd.grad(found.mean.sum(), x)
    torch.testing.assert_close(grad, torch.full_like(x, 1 / 20))


def test_it_reads_the_statistics_of_the_point_that_the_model_is_at():
    objective = Objective(build(Norm))
    w, b = objective.initial()
    x = torch.randn(4, *objective_input(objective))
    with g.batch_norms(objective.module) as seen:
        objective.at(w, b + 2)(x)
    assert all((norm.running_mean == 2).all() and (norm.running_var == 3).all() for norm in seen) and seen


def objective_input(objective):
    first = next(m for m in objective.module.modules() if isinstance(m, nn.Linear))
    return (first.in_features,)


def test_distance_of_statistics():
    """sum_l ||v - v'||_2 + ||mu - mu'||_2, with momentum 0.9: v' = 0.1 batch + 0.9 average."""
    seen, before = statistics(), statistics(seed=50)
    plain = sum(np.linalg.norm(s.running_var - s.var) + np.linalg.norm(s.running_mean - s.mean) for s in seen)
    np.testing.assert_allclose(g.statistics_distance(seen), plain, rtol=1e-6)
    average = g.average_statistics(before)
    assert all(
        torch.equal(mean, s.mean) and torch.equal(var, s.var) for (mean, var), s in zip(average, before, strict=True)
    )
    mixed = 0.0
    for s, t in zip(seen, before, strict=True):
        mixed += np.linalg.norm(s.running_var - (0.1 * s.var + 0.9 * t.var))
        mixed += np.linalg.norm(s.running_mean - (0.1 * s.mean + 0.9 * t.mean))
    np.testing.assert_allclose(g.statistics_distance(seen, average), mixed, rtol=1e-5)
    after = g.average_statistics(seen, average)
    np.testing.assert_allclose(after[1][0], 0.9 * before[1].mean + 0.1 * seen[1].mean, rtol=1e-5)
    np.testing.assert_allclose(after[1][1], 0.9 * before[1].var + 0.1 * seen[1].var, rtol=1e-5)
    assert g.statistics_distance([]) == 0


def test_kl_of_statistics():
    """mean_l mean_ch KL(N(mu, v) || N(mu', v')), the divergence of two normals by torch.distributions."""
    seen = statistics()
    total = 0.0
    for s in seen:
        known = torch.distributions.Normal(s.running_mean, (s.running_var + 1e-8).sqrt())
        batch = torch.distributions.Normal(s.mean, (s.var + 1e-8).sqrt())
        total += torch.distributions.kl_divergence(known, batch).mean()
    torch.testing.assert_close(g.statistics_kl(seen), total / 2)
    assert g.statistics_kl([]) == 0


def test_adversarial_counts_samples_on_which_both_agree():
    """-(1/B) sum_i [argmax s_i = argmax t_i] sum_c p_c (ln p_c - ln q_c)."""
    t, s = drawn(6, 4), drawn(6, 4, seed=1)
    s[0], s[1] = t[0] * 0.5, t[1] + 0.1 * drawn(4, seed=2)
    p, q = softmax(t.numpy()), softmax(s.numpy())
    agree = t.numpy().argmax(1) == s.numpy().argmax(1)
    assert 0 < agree.sum() < 6
    expected = -((p * np.log(p / q)).sum(1) * agree).mean()
    np.testing.assert_allclose(g.adversarial_loss(t, s), expected, rtol=1e-5)
    t.requires_grad_()
    g.adversarial_loss(t, s).backward()
    assert (t.grad[~torch.from_numpy(agree)] == 0).all() and (t.grad != 0).any()


def test_own_class_and_entropy():
    """-mean_i ln softmax(o / 1000)_{argmax o}; 1 + sum_c p_c ln p_c / ln q with p the batch's mean softmax."""
    o = 300 * drawn(5, 7)
    expected = -np.log(softmax(o.numpy().astype(np.float64) / 1000))[np.arange(5), o.numpy().argmax(1)].mean()
    np.testing.assert_allclose(g.pseudo_label_loss(o), expected, rtol=1e-6)
    p = softmax(drawn(5, 7).numpy()).mean(0)
    np.testing.assert_allclose(g.information_entropy(drawn(5, 7)), 1 + (p * np.log(p)).sum() / np.log(7), rtol=1e-5)
    assert abs(float(g.information_entropy(100 * torch.eye(4)))) < 1e-6, "all classes alike"
    one = torch.tensor([[200.0, 0.0, 0.0]], requires_grad=True)
    value = g.information_entropy(one)
    value.backward()
    assert float(value.detach()) == 1 and torch.isfinite(one.grad).all()
    assert g.information_entropy(drawn(5, 1)) == 0


def test_smoothing_is_the_codes_own():
    """Tap (i, j) ~ exp(-((i-2)/2)^2 - ((j-2)/2)^2), and the convolution by hand with NumPy's reflecting pad."""
    taps = np.array([[np.exp(-(((i - 2) / 2) ** 2) - ((j - 2) / 2) ** 2) for j in range(5)] for i in range(5)])
    taps /= taps.sum()
    np.testing.assert_allclose(g.smoothing_kernel(), taps, rtol=1e-6)
    x = drawn(2, 3, 6, 5)
    padded = np.pad(x.numpy(), ((0, 0), (0, 0), (2, 2), (2, 2)), mode="reflect")
    smooth = sum(taps[i, j] * padded[:, :, i : i + 6, j : j + 5] for i in range(5) for j in range(5))
    np.testing.assert_allclose(g.smoothness_loss(x), ((x.numpy() - smooth) ** 2).mean(), rtol=1e-5)
    assert g.smoothness_loss(drawn(4, 9)) == 0 and float(g.smoothness_loss(torch.ones(1, 1, 4, 4))) < 1e-12


def test_mfcl_loss_is_the_sum_of_its_terms():
    x, o, seen = drawn(4, 1, 8, 8), drawn(4, 3, seed=1), statistics()
    weights = g.MFCLWeights(ie=2.0, bn=3.0, noise=5.0, temperature=10.0)
    parts = [
        F.cross_entropy(o / 10, o.argmax(1)),
        2 * g.information_entropy(o),
        3 * g.statistics_kl(seen),
        5 * g.smoothness_loss(x),
    ]
    torch.testing.assert_close(g.mfcl_loss(x, o, seen, weights), sum(parts))
    assert g.PUBLISHED == (1.0, 50.0, 1e-3, 1000.0)


@pytest.mark.parametrize(("radius", "left"), [(0.0, 4.0), (1.5, 2.5), (5.0, 0.0)])
def test_outside_is_one_hinge_for_the_whole_batch(radius, left):
    """MSE of 0 and 2 everywhere is 4."""
    assert g.bounding_loss(torch.zeros(3, 5), torch.full((3, 5), 2.0), radius) == left


def test_balanced_labels():
    """23 labels of 5 classes: each four times in order, then three drawn, the same at the same address."""
    y = g.balanced_labels(23, 5, np.random.default_rng(0))
    assert y[:20].tolist() == list(range(5)) * 4 and len(y) == 23 and y.max() < 5
    assert torch.equal(y, g.balanced_labels(23, 5, np.random.default_rng(0)))
    assert g.balanced_labels(3, 5, np.random.default_rng(0)).shape == (3,)


def test_what_is_kept_is_cut_off_to_eight_bits():
    """floor(255 x) of 0.999 is 254: as `(x * 255).astype(uint8)`."""
    x = torch.tensor([-0.1, 0.0, 0.5, 0.999, 1.0, 1.2]).view(1, 1, 2, 3)
    kept = g.eight_bit(x)
    assert kept.flatten().tolist() == [0, 0, 127, 254, 255, 255] and kept.dtype == torch.uint8
    torch.testing.assert_close(g.pixels(kept).flatten()[2], torch.tensor(127 / 255))
    table = drawn(3, 4)
    assert torch.equal(g.pixels(g.eight_bit(table)), table)


def test_a_student_is_drawn_anew():
    """Xavier: std^2 = 2 / (fan_in + fan_out); biases N(0, 1); norms N(1, 0.02) and 0; the draws alone decide."""
    objective = Objective(nn.Sequential(nn.Linear(200, 300), nn.BatchNorm1d(300), nn.ReLU(), nn.Linear(300, 5)))
    w, b = g.reinitialised(objective, np.random.default_rng(0))
    named = objective.views(w)
    assert abs(float(named["0.weight"].std()) / (2 / 500) ** 0.5 - 1) < 0.02
    assert abs(float(named["0.bias"].std()) - 1) < 0.2
    assert abs(float(named["1.weight"].mean()) - 1) < 0.01 and abs(float(named["1.weight"].std()) - 0.02) < 0.005
    assert (named["1.bias"] == 0).all() and torch.equal(b, objective.initial()[1])
    assert torch.equal(w, g.reinitialised(objective, np.random.default_rng(0))[0])
    assert not torch.equal(w, g.reinitialised(objective, np.random.default_rng(1))[0])
    assert g.reinitialised(Objective(build(Conv)), np.random.default_rng(0))[0].isfinite().all()


def test_crops_and_mirrors_by_hand():
    """Every image is a window of its zero-padded self, mirrored or not; its pixels get the gradient 1 where they are
    seen."""
    x = torch.arange(1.0, 25).view(2, 1, 3, 4).repeat(20, 1, 1, 1).requires_grad_()
    found = g.crop_and_flip(x, np.random.default_rng(0), 1)
    padded = F.pad(x.detach(), (1, 1, 1, 1))
    seen = set()
    for i in range(40):
        places = {(r, c): padded[i, :, r : r + 3, c : c + 4] for r in range(3) for c in range(3)}
        fits = [
            (at, m)
            for at, window in places.items()
            for m in (0, 1)
            if torch.equal(found[i], window.flip(2) if m else window)
        ]
        assert fits
        seen.add(fits[0])
    assert len(seen) > 9
    (grad,) = torch.autograd.grad(found.sum(), x)
    assert set(grad.unique().tolist()) == {0.0, 1.0}
    assert torch.equal(found, g.crop_and_flip(x, np.random.default_rng(0), 1))
    assert torch.equal(g.crop_and_flip(x, np.random.default_rng(0), 0, flip=False), x)
    table = drawn(3, 4)
    assert g.crop_and_flip(table, np.random.default_rng(0), 1) is table

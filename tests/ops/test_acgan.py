"""The losses of the proxy GAN against PyTorch's own, one step of its training against a plain loop, its labels."""

import copy

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from flray.core.network.objective import Objective
from flray.models.generators import ProxyDiscriminator, ProxyGenerator
from flray.ops.acgan import (
    cyclic_labels,
    discriminator_loss,
    fit_gan,
    generate_samples,
    generator_loss,
    with_one_hot,
    wrong_labels,
)
from tests.support.small_cases import normal


def networks(shape=(1, 8, 8), classes=3):
    torch.manual_seed(0)
    return Objective(ProxyGenerator(shape), trains=False), Objective(ProxyDiscriminator(shape, classes), trains=False)


def test_losses_are_the_printed_sigmoid_and_binary_cross_entropy():
    real, fake, y, fake_y = (normal(6), normal(6, 3)), (normal(6, seed=1), normal(6, 3, seed=1)), None, None
    y, fake_y = torch.tensor([0, 1, 2, 0, 1, 2]), torch.tensor([2, 2, 1, 1, 0, 0])
    ones, zeros = torch.ones(6), torch.zeros(6)
    plain = F.binary_cross_entropy(real[0].sigmoid(), ones) + F.binary_cross_entropy(fake[0].sigmoid(), zeros)
    classes = F.nll_loss(real[1].log_softmax(1), y) + F.nll_loss(fake[1].log_softmax(1), fake_y)
    torch.testing.assert_close(discriminator_loss(real, fake, None, None), plain)
    torch.testing.assert_close(discriminator_loss(real, fake, y, fake_y), plain + classes)
    torch.testing.assert_close(
        generator_loss(fake, fake_y), F.binary_cross_entropy(fake[0].sigmoid(), ones) + F.cross_entropy(fake[1], fake_y)
    )


@pytest.mark.parametrize("labels", [True, False])
def test_training_is_a_plain_loop_with_torch_optim(labels):
    """Three batches by backward() and torch.optim.Adam on copies of the modules, with the same draws."""
    generator, judge = networks()
    x, y = normal(20, 1, 8, 8).tanh(), torch.arange(20) % 3 if labels else None
    w, b, losses = fit_gan(generator, judge, x, y, 3, np.random.default_rng(5), epochs=1, batch_size=8, lr=1e-3)

    torch.manual_seed(0)
    g, d = ProxyGenerator((1, 8, 8)), ProxyDiscriminator((1, 8, 8), 3)
    steps = [torch.optim.Adam(m.parameters(), 1e-3, betas=(0.5, 0.999)) for m in (g, d)]
    draws, seen = np.random.default_rng(5), []
    for index in np.split(draws.permutation(20), [8, 16]):
        fake_y = torch.from_numpy(draws.integers(0, 3, len(index))) if labels else None
        z = torch.from_numpy(draws.standard_normal((len(index), 100), dtype=np.float32))
        if labels:
            z[:, :3] = F.one_hot(fake_y, 3)
        fake = g(z)
        loss_d = discriminator_loss(d(x[index]), d(fake.detach()), y[index] if labels else None, fake_y)
        steps[1].zero_grad()
        loss_d.backward()
        steps[1].step()
        loss_g = generator_loss(d(fake), fake_y)
        steps[0].zero_grad()
        loss_g.backward()
        steps[0].step()
        seen.append([float(loss_d), float(loss_g)])
    np.testing.assert_allclose(losses.numpy(), np.mean(seen, axis=0, keepdims=True), rtol=1e-4)
    expected = copy.deepcopy(g.state_dict())
    for name, tensor in generator.state_dict(w, b).items():
        if "num_batches" not in name:
            torch.testing.assert_close(tensor, expected[name], rtol=1e-3, atol=1e-4)


def test_labels_condition_the_noise_and_noise_changes_them():
    z = normal(4, 10)
    assert with_one_hot(z, None, 3) is z
    out = with_one_hot(z, torch.tensor([0, 2, 1, 0]), 3)
    assert out[:, :3].argmax(1).tolist() == [0, 2, 1, 0] and out[:, :3].sum() == 4 and torch.equal(out[:, 3:], z[:, 3:])
    y = cyclic_labels(50, 5)
    assert torch.bincount(y).tolist() == [10] * 5
    wrong = wrong_labels(y, 0.2, 5, np.random.default_rng(0))
    assert int((wrong != y).sum()) == 10 and wrong.min() >= 0 and wrong.max() < 5
    assert torch.equal(wrong_labels(y, 0.0, 5, np.random.default_rng(0)), y)


def test_samples_do_not_depend_on_how_they_are_cut():
    generator, _ = networks()
    w, b = generator.initial()
    one = generate_samples(generator, w, b, 7, cyclic_labels(7, 3), 3, np.random.default_rng(1), batch_size=7)
    two = generate_samples(generator, w, b, 7, cyclic_labels(7, 3), 3, np.random.default_rng(1), batch_size=3)
    torch.testing.assert_close(one, two)

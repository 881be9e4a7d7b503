"""The GAN of FedMemo's proxy data: training and sampling (FedMemo appendix E).

A conditional generator reads noise whose first entries are the one-hot label. The discriminator returns (logit of being
real, logits of the class). Loss: non-saturating BCE, plus the NLL of the class on real and on fake samples (AC-GAN,
Odena et al., ICML 2017).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from flray.core.network.objective import Objective
from flray.core.protocol.progress import StepProgress, no_step_progress
from flray.ops.distill import index_batches
from flray.ops.generate import noise
from flray.ops.optim import Moments, adam_direction_

BETAS = (0.5, 0.999)


def with_one_hot(z: Tensor, y: Tensor | None, classes: int) -> Tensor:
    """Noise `z [B, noise]` whose first `classes` entries are the one-hot label `y [B]`; z itself without labels."""
    if y is None:
        return z
    return torch.cat([F.one_hot(y, classes).to(z.dtype), z[:, classes:]], dim=1)


def discriminator_loss(
    real: tuple[Tensor, Tensor], fake: tuple[Tensor, Tensor], y: Tensor | None, fake_y: Tensor | None
) -> Tensor:
    """BCE(real, 1) + BCE(fake, 0), plus the NLL of both labels if they are given (0-dim).

    `real` and `fake` are the discriminator's outputs: logits `[B]` of being real, logits `[B, C]` of the class.
    """
    value = F.softplus(-real[0]).mean() + F.softplus(fake[0]).mean()
    if y is None or fake_y is None:
        return value
    return value + F.cross_entropy(real[1], y) + F.cross_entropy(fake[1], fake_y)


def generator_loss(fake: tuple[Tensor, Tensor], fake_y: Tensor | None) -> Tensor:
    """BCE(fake, 1), which does not saturate, plus the NLL of the conditional label (0-dim)."""
    value = F.softplus(-fake[0]).mean()
    return value if fake_y is None else value + F.cross_entropy(fake[1], fake_y)


def fit_gan(
    generator: Objective,
    discriminator: Objective,
    x: Tensor,
    y: Tensor | None,
    classes: int,
    draws: np.random.Generator,
    *,
    epochs: int = 100,
    batch_size: int = 64,
    lr: float = 2e-4,
    progress: StepProgress = no_step_progress,
) -> tuple[Tensor, Tensor, Tensor]:
    """(generator `w [P]`, `b [Q]`, mean losses `[epochs, 2]` of discriminator and generator) after `epochs` on `x [n,
    ...]` (images in -1..1), from the networks' initial values.

    With labels `y [n]` it is conditional. Each step trains the discriminator, then the generator on the same fake
    batch, by Adam with betas (0.5, 0.999). An epoch's last batch is left out if it has one sample, which batch norm
    cannot read."""
    (w, b), (v, c) = generator.initial(), discriminator.initial()
    adam_w, adam_v = (Moments(torch.zeros_like(p), torch.zeros_like(p), 0) for p in (w, v))
    g_w, g_v, losses = torch.zeros_like(w), torch.zeros_like(v), []
    for epoch in range(epochs):
        progress(epoch, epochs)
        total, count = torch.zeros(2, device=w.device), 0
        for index in index_batches(draws.permutation(len(x)), batch_size):
            if len(index) < 2:
                continue
            chosen = torch.from_numpy(index).to(x.device)
            real, labels = x[chosen], None if y is None else y[chosen]
            fake_y = None if y is None else torch.from_numpy(draws.integers(0, classes, len(index))).to(x.device)
            z = with_one_hot(noise(draws, len(index), generator.module.noise, device=w.device), fake_y, classes)  # type: ignore[arg-type]
            fake_model = generator.at(w, b, "train", grad=True)
            fake = fake_model(z)

            def critic_loss(
                f: Any, real: Tensor = real, fake: Tensor = fake, y: Any = labels, fake_y: Any = fake_y
            ) -> Tensor:
                return discriminator_loss(f(real), f(fake.detach()), y, fake_y)

            loss_v, g_v = discriminator.value_and_grad(critic_loss, v, c, "train", g_v)
            v.add_(adam_direction_(v, g_v, adam_v, 0.0, betas=BETAS), alpha=-lr)
            output: Any = discriminator.at(v, c, "train")(fake)
            loss_w = generator_loss(output, fake_y)
            g_w = generator.gradient(loss_w, fake_model.leaves, g_w)
            w.add_(adam_direction_(w, g_w, adam_w, 0.0, betas=BETAS), alpha=-lr)
            adam_w, adam_v = (m.replace(steps=m.steps + 1) for m in (adam_w, adam_v))
            total += torch.stack([loss_v, loss_w.detach()])
            count += 1
        losses.append(total / max(count, 1))
    return w, b, torch.stack(losses) if losses else torch.zeros(0, 2)


def generate_samples(
    generator: Objective,
    w: Tensor,
    b: Tensor,
    size: int,
    y: Tensor | None,
    classes: int,
    draws: np.random.Generator,
    batch_size: int = 500,
) -> Tensor:
    """`size` samples of a generator in eval mode; of a conditional one with the labels `y [size]`."""
    fake_model, parts = generator.at(w, b), []
    with torch.no_grad():
        for index in index_batches(np.arange(size), batch_size):
            z = noise(draws, len(index), generator.module.noise, device=w.device)  # type: ignore[arg-type]
            labels = None if y is None else y[torch.from_numpy(index).to(y.device)]
            parts.append(fake_model(with_one_hot(z, labels, classes)))
    return torch.cat(parts)


def cyclic_labels(size: int, classes: int) -> Tensor:
    """Labels `[size]` (int64): 0, 1, ..., classes - 1, repeated."""
    return torch.arange(size) % classes


def wrong_labels(y: Tensor, share: float, classes: int, draws: np.random.Generator) -> Tensor:
    """`y [n]` with round(share n) labels, drawn without replacement, changed to another class, each as likely."""
    wrong = torch.from_numpy(draws.permutation(len(y))[: round(share * len(y))])
    shift = torch.from_numpy(draws.integers(1, max(classes, 2), len(wrong)))
    y = y.clone()
    y[wrong.to(y.device)] = (y[wrong.to(y.device)] + shift.to(y.device)) % classes
    return y

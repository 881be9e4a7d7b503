"""Losses of synthetic inputs (TARGET, LANDER with NAYER, MFCL), their labels, augmentation and storage.

The teacher is the frozen classifier, in eval mode, that the losses read; the student learns from synthetic inputs.
Logits `[B, C]` are those of the classes that the teacher has learned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from math import log
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from flray.core.network.objective import Objective


# statistics at the batch norms ------------------------------------------------------------------
class NormStatistics(NamedTuple):
    """One batch norm, all `[channels]`: `mean` and biased `var` of a batch's inputs, with a gradient, and the running
    ones."""

    mean: Tensor
    var: Tensor
    running_mean: Tensor
    running_var: Tensor


@contextmanager
def batch_norms(network: nn.Module) -> Iterator[list[NormStatistics]]:
    """Inside the context, collects the statistics of each batch norm's inputs, in the order in which the norms run.

    Norms without running statistics are left out.
    """
    seen: list[NormStatistics] = []

    def note(norm: nn.Module, given: tuple[Tensor, ...]) -> None:
        channels = given[0].transpose(0, 1).flatten(1)
        mean, var = channels.mean(1), channels.var(1, unbiased=False)
        seen.append(NormStatistics(mean, var, norm.running_mean, norm.running_var))  # type: ignore[arg-type]

    with ExitStack() as hooks:
        for norm in network.modules():
            if isinstance(norm, _BatchNorm) and norm.running_mean is not None:
                hooks.callback(norm.register_forward_pre_hook(note).remove)
        yield seen


AveragedStatistics = tuple[tuple[Tensor, Tensor], ...]  # (mean, var) of each norm, averaged over batches


def statistics_distance(
    seen: Sequence[NormStatistics], average: AveragedStatistics = (), momentum: float = 0.9
) -> Tensor:
    """sum over the norms of ||v' - v||_2 + ||mu' - mu||_2 (0-dim; 0 without a norm): TARGET's and NAYER's term.

    mu, v are the running statistics; mu', v' those of the batch, or (1 - momentum) batch + momentum `average` if there
    is an average of earlier batches. Zhang et al. 2023, code.
    """
    total = torch.zeros(())
    for i, norm in enumerate(seen):
        mean, var = norm.mean, norm.var
        if average:
            mean = (1 - momentum) * mean + momentum * average[i][0]
            var = (1 - momentum) * var + momentum * average[i][1]
        distance = torch.linalg.vector_norm(norm.running_var - var) + torch.linalg.vector_norm(norm.running_mean - mean)
        total = total.to(distance.device) + distance
    return total


def average_statistics(
    seen: Sequence[NormStatistics], average: AveragedStatistics = (), momentum: float = 0.9
) -> AveragedStatistics:
    """The next average: momentum average + (1 - momentum) batch; the batch itself at first."""
    now = tuple((norm.mean.detach(), norm.var.detach()) for norm in seen)
    if not average:
        return now
    return tuple(
        (momentum * mean + (1 - momentum) * new_mean, momentum * var + (1 - momentum) * new_var)
        for (mean, var), (new_mean, new_var) in zip(average, now, strict=True)
    )


def statistics_kl(seen: Sequence[NormStatistics]) -> Tensor:
    """mean over the norms of mean over channels of ln(v'/v)/2 - (1 - (v + (mu - mu')^2) / v')/2 (0-dim): MFCL's term.

    It is the KL divergence of N(mu, v), the running statistics, from N(mu', v'), those of the batch; 1e-8 is added to
    both variances. 0 without a norm. Babakniya et al. 2023, code.
    """
    if not seen:
        return torch.zeros(())
    terms = []
    for norm in seen:
        batch, known = norm.var + 1e-8, norm.running_var + 1e-8
        shift = (norm.running_mean - norm.mean) ** 2
        terms.append((0.5 * (batch / known).log() - 0.5 * (1 - (known + shift) / batch)).mean())
    return torch.stack(terms).mean()


# terms on logits --------------------------------------------------------------------------------
def adversarial_loss(teacher: Tensor, student: Tensor) -> Tensor:
    """-mean over the batch of [argmax s = argmax t] KL(softmax t || softmax s), of logits `[B, C]`: L_adv of TARGET.

    It favours inputs on which the student agrees in class but differs in distribution. Gradients go through both.
    """
    agree = (student.argmax(1) == teacher.argmax(1)).to(student.dtype)
    apart = F.kl_div(student.log_softmax(1), teacher.softmax(1), reduction="none").sum(1)
    return -(apart * agree).mean()


def pseudo_label_loss(logits: Tensor, temperature: float = 1000.0) -> Tensor:
    """CE(o / temperature, argmax o) of logits `o [B, q]`: MFCL's first term."""
    return F.cross_entropy(logits / temperature, logits.argmax(1))


def information_entropy(logits: Tensor) -> Tensor:
    """1 + sum_c p_c ln p_c / ln q with p the batch mean of softmax(o `[B, q]`): 0 if all classes are as frequent.

    With q = 1 it is 0. MFCL's second term (0-dim).
    """
    q = logits.shape[1]
    if q == 1:
        return logits.new_zeros(())
    p = logits.softmax(1).mean(0)
    return 1 + (p * p.clamp_min(1e-30).log()).sum() / log(q)  # p ln p is 0 at p = 0, without a NaN in its gradient


# terms on inputs and features -------------------------------------------------------------------
def smoothing_kernel() -> Tensor:
    """`[5, 5]`, sum 1, entry (i, j) ~ exp(-((i - 2) / 2)^2 - ((j - 2) / 2)^2), float32: as in the code, whose sigma of
    1 is a standard deviation of sqrt(2)."""
    steps = (torch.arange(5, dtype=torch.float64) - 2) / 2
    line = torch.exp(-(steps**2))
    kernel = line[:, None] * line
    return (kernel / kernel.sum()).float()


def smoothness_loss(x: Tensor) -> Tensor:
    """MSE(x, Gauss(x)) of images `x [B, C, H, W]` with the 5x5 kernel by channel, reflected at the border (0-dim).

    0 for features. MFCL's image prior.
    """
    if x.dim() != 4:
        return x.new_zeros(())
    kernel = smoothing_kernel().to(x.device).expand(x.shape[1], 1, 5, 5)
    return F.mse_loss(x, F.conv2d(F.pad(x, (2, 2, 2, 2), mode="reflect"), kernel, groups=x.shape[1]))


def bounding_loss(u: Tensor, v: Tensor, radius: float) -> Tensor:
    """B(u, v) = max(0, MSE(u, v) - r): 0 for features `u [B, E]` within the radius of their embeddings.

    One hinge on the mean over the whole batch; `v [B, E]` gets no gradient. LANDER (Tran et al. 2024), Eq. of L_LTC.
    """
    return F.relu(F.mse_loss(u, v.detach()) - radius)


class MFCLWeights(NamedTuple):
    """Weights of the terms of :func:`mfcl_loss`, and the temperature of the first one."""

    ie: float = 1.0
    bn: float = 50.0
    noise: float = 1e-3
    temperature: float = 1000.0


PUBLISHED = MFCLWeights()


def mfcl_loss(x: Tensor, logits: Tensor, seen: Sequence[NormStatistics], weights: MFCLWeights = PUBLISHED) -> Tensor:
    """The loss of MFCL's generator: pseudo-label CE + w_ie entropy + w_bn statistics + w_noise smoothness (0-dim).

    `x` are its outputs, `logits [B, q]` the teacher's over the learned classes, `seen` the statistics at the teacher's
    batch norms.
    """
    value = pseudo_label_loss(logits, weights.temperature) + weights.ie * information_entropy(logits)
    value = value + weights.bn * statistics_kl(seen).to(value.device)
    return value + weights.noise * smoothness_loss(x)


# labels, noise and storage ----------------------------------------------------------------------
def noise(draws: np.random.Generator, *shape: int, device: torch.device | str = "cpu") -> Tensor:
    """Standard normal float32 of a shape, from the addressed generator."""
    return torch.from_numpy(draws.standard_normal(shape, dtype=np.float32)).to(device)


def crop_and_flip(x: Tensor, draws: np.random.Generator, padding: int, flip: bool = True) -> Tensor:
    """Images `[B, C, H, W]`, each padded with zeros and cropped to its size at a random place, half of them mirrored;
    differentiable. Features are returned as they are.
    """
    if x.dim() != 4:
        return x
    n, _, height, width = x.shape
    first = draws.integers(0, 2 * padding + 1, (n, 2))
    rows, columns = first[:, :1] + np.arange(height), first[:, 1:] + np.arange(width)
    if flip:
        columns = np.where(draws.random(n)[:, None] < 0.5, columns[:, ::-1], columns)
    across, down = (torch.from_numpy(places.copy()).to(x.device) for places in (columns, rows))
    padded = F.pad(x, (padding,) * 4)
    tall = padded.gather(2, down[:, None, :, None].expand(n, x.shape[1], height, padded.shape[3]))
    return tall.gather(3, across[:, None, None, :].expand(n, x.shape[1], height, width))


def renew_noisy_layers_(layers: Mapping[str, Tensor], draws: np.random.Generator) -> None:
    """Draws the generator's layers with names `noisy.*` anew, in place: weights N(0, 1), biases 0 (NAYER)."""
    for name, layer in layers.items():
        if name.startswith("noisy."):
            layer.copy_(noise(draws, *layer.shape, device=layer.device)) if layer.dim() > 1 else layer.zero_()


def balanced_by_rejection(
    batches: Iterable[tuple[Tensor, Tensor]], size: int, asked: int, classes: int
) -> tuple[Tensor, Tensor]:
    """The first `size` samples `(x [n, ...], y [n])` of batches, at most ceil(size / asked) of each class; `asked`
    classes of all `classes` are wanted.

    Reads batches until there are `size`. If they do not suffice, rejected samples fill the rest in their order.
    """
    quota, counts = -(-size // asked), torch.zeros(classes, dtype=torch.int64)
    accepted, rejected = list[tuple[Tensor, Tensor]](), list[tuple[Tensor, Tensor]]()
    for x, y in batches:
        # the sample's number, from 1, within its class and this batch
        order = F.one_hot(y, classes).cumsum(0).gather(1, y[:, None])[:, 0]
        fits = order + counts.to(y.device)[y] <= quota
        accepted.append((x[fits], y[fits]))
        rejected.append((x[~fits], y[~fits]))
        counts += torch.bincount(y[fits].cpu(), minlength=classes)
        if counts.sum() >= size:
            break
    x, y = (torch.cat(parts) for parts in zip(*accepted, *rejected, strict=True))
    return x[:size], y[:size]


def balanced_labels(size: int, classes: int, draws: np.random.Generator) -> Tensor:
    """`[size]` (int64): every class size // classes times in turn, then random classes for the rest (NAYER)."""
    every = torch.arange(classes).repeat(size // classes)
    return torch.cat([every, torch.from_numpy(draws.integers(0, classes, size % classes))])


def eight_bit(x: Tensor) -> Tensor:
    """Images on the 0..1 scale as uint8: clamped, times 255, truncated, as both codes store them. Features `[B, d]`
    are returned as they are."""
    return (x.clamp(0, 1) * 255).to(torch.uint8) if x.dim() == 4 else x


def pixels(stored: Tensor) -> Tensor:
    """The inverse of :func:`eight_bit`: float32 on the 0..1 scale; features as they are."""
    return stored.float() / 255 if stored.dtype == torch.uint8 else stored


def reinitialised(objective: Objective, draws: np.random.Generator) -> tuple[Tensor, Tensor]:
    """`(w [P], b [Q])` of a new student with the same network, drawn as in TARGET's code.

    Convolutions and linear layers: Xavier normal, their biases N(0, 1); batch norm: scale N(1, 0.02), shift 0; all
    other tensors and the statistics have their initial values."""
    w, b = objective.initial()
    named = objective.views(w)
    for owner, module in objective.module.named_modules():
        weight, bias = (named.get(f"{owner}.{part}".lstrip(".")) for part in ("weight", "bias"))
        if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.Linear):
            if weight is not None:
                fan_in, fan_out = nn.init._calculate_fan_in_and_fan_out(weight)
                std = (2 / (fan_in + fan_out)) ** 0.5
                weight.copy_(std * noise(draws, *weight.shape, device=weight.device))
            if bias is not None:
                bias.copy_(noise(draws, *bias.shape, device=bias.device))
        elif isinstance(module, _BatchNorm):
            if weight is not None:
                weight.copy_(1 + 0.02 * noise(draws, *weight.shape, device=weight.device))
            if bias is not None:
                bias.zero_()
    return w, b

"""Losses on logits. KL is "batchmean", the teacher is the first argument and gets no gradient."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from flray.core.protocol.classes import ClassSet

Direction = Literal["forward", "reverse"]


def cross_entropy(logits: Tensor, y: Tensor, classes: ClassSet | None = None) -> Tensor:
    """Mean cross-entropy of `logits [B, C]` and labels `y [B]`, among the classes in use where these are given."""
    if classes is not None:
        logits, y = classes.narrow(logits), classes.local(y)
    return F.cross_entropy(logits, y)


def kl(teacher: Tensor, student: Tensor, temperature: float = 1.0, direction: Direction = "forward") -> Tensor:
    """(1/B) sum_rows KL(P || Q) of logits `[B, C]` at a temperature; `forward`: P teacher, Q student. No factor T^2."""
    log_p = torch.log_softmax(teacher.detach() / temperature, dim=1)
    log_q = torch.log_softmax(student / temperature, dim=1)
    if direction == "reverse":
        log_p, log_q = log_q, log_p
    # sum q - sum p is 0; with it the gradient at equal logits is exactly 0. FedSOL scales gradients to length rho, and
    # would scale rounding errors too
    return F.kl_div(log_q, log_p, reduction="batchmean", log_target=True) + (log_q.exp() - log_p.exp()).sum() / len(
        log_q
    )


def not_true_kl(teacher: Tensor, student: Tensor, y: Tensor, temperature: float = 1.0) -> Tensor:
    """T^2 KL(teacher || student) over the C - 1 classes that are not the true one (FedNTD, Lee et al. 2022, section 4).

    Logits `[B, C]`, labels `y [B]`; the softmax is over the other classes, so the true class's logit gets no gradient.
    """
    place = torch.arange(teacher.shape[1] - 1, device=y.device)
    others = place + (place >= y[:, None])
    return temperature**2 * kl(teacher.gather(1, others), student.gather(1, others), temperature)


def soft_cross_entropy(teacher: Tensor, student: Tensor, temperature: float = 2.0) -> Tensor:
    """-(1/B) sum_rows sum_c softmax(t / T)_c log softmax(s / T)_c of logits `[B, C]`: the KD of TARGET and LANDER.

    The teacher gets no gradient. No factor T^2; it is the KL divergence plus the teacher's entropy.
    """
    p = torch.softmax(teacher.detach() / temperature, dim=1)
    return -(p * torch.log_softmax(student / temperature, dim=1)).sum() / len(student)


def inter_task_loss(logits: Tensor, new: ClassSet, old: ClassSet) -> Tensor:
    """-log(e^b / (e^a + e^b)), mean over the batch, a = logsumexp of the old classes' logits, b of the new ones'.

    The inter-task part of LODE (Liang and Li, NeurIPS 2023): samples of the new task get new classes. Logits `[B, C]`.
    """
    a, b = old.narrow(logits).logsumexp(dim=1), new.narrow(logits).logsumexp(dim=1)
    return F.softplus(a - b).mean()

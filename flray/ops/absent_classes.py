"""Which classes the clients of a round hold, read off the head's update, and a sequential test for classes that vanish.

The gradient of the cross-entropy in row c of the last layer is sum_x (p_c(x) - 1[y = c]) h(x). Where the features h are
not negative (after a ReLU) and no sample has the label c, no element is negative, and SGD raises no weight of the row.
So a row with a raised weight names a class that somebody holds (Wainakh et al., PoPETs 2022, properties 1 and 2, for
one gradient). It holds for sums of steps, momentum, Adam, means over clients, and a pull towards the start (FedProx);
not for features of both signs, control variates, noise, or weight decay, which is stronger than the small gradient of
a class that has been gone for long.

Class c is held in a round with probability q_c, and in none after it vanished. The likelihood ratio of "vanished i
rounds ago" is L_c = (1 - q_c)^-i if c was absent in all of these rounds, else 0. A set of vanished classes has the
product. Each number of classes from 1 to C has the same prior weight, and so has each set of as many classes:
((C + 1) int_0^1 prod_c (1 - p + p L_c) dp - 1) / C, a mixture as in Xie and Siegmund (Ann. Stat. 2013). The evidence
is its sum over i (Shiryaev and Roberts). Without a change, evidence minus rounds is a martingale. So an alarm at
evidence 1 / rate comes after at least 1 / rate rounds in the mean, for independent or negatively associated classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flray.core.messages import Record

Floats = NDArray[np.float64]

HELD = 1e-3  # raised share of a row; float32 rounding raises less
LONGEST = 30  # rounds since the change, at most
NODES = 64  # of the integral over p, at most


def raised_shares(before: Mapping[str, Tensor], after: Mapping[str, Tensor], head: Iterable[str]) -> Tensor | None:
    """sum_j max(d_cj, 0) / sum_j |d_cj| `[C]` (float64) of the change d of the last matrix `[C, F]` among the tensors
    `head`; 0 for a row that did not move. None without a matrix."""
    matrices = [name for name in head if before[name].ndim == 2]
    if not matrices:
        return None
    change = after[matrices[-1]].detach().double() - before[matrices[-1]].detach().double()
    moved = change.abs().sum(1)
    return torch.where(moved > 0, change.clamp_min(0).sum(1) / moved, 0.0).cpu()


class Presence(Record):
    """Of `rounds` without an alarm, in how many each class was `held [C]`; for how many rounds each has been `absent
    [C]`; the newest rounds, `pending [g, C]`, not yet counted. float64, C = 0 before the first round."""

    rounds: int
    held: Tensor
    absent: Tensor
    pending: Tensor

    @classmethod
    def start(cls, classes: int = 0) -> Presence:
        none = torch.zeros(classes, dtype=torch.float64)
        return cls(0, none, none, none[None][:0])


def seen(presence: Presence, raised: Tensor) -> Presence:
    """The state with the rounds of absence after one more round. Another number of classes starts anew."""
    known = presence if len(presence.absent) == len(raised) else Presence.start(len(raised))
    return known.replace(absent=torch.where(raised > HELD, 0.0, known.absent + 1))


def counted(presence: Presence, raised: Tensor, alarm: bool, guard: int) -> Presence:
    """The state after the round: its classes wait for `guard` more rounds before they count for q; an alarm drops it
    and those that wait."""
    if alarm:
        return presence.replace(pending=presence.pending[:0])
    pending = torch.cat([presence.pending, (raised > HELD).double()[None]])
    ready = max(0, len(pending) - guard)
    held = presence.held + pending[:ready].sum(0)
    return presence.replace(rounds=presence.rounds + ready, held=held, pending=pending[ready:])


def evidence(presence: Presence) -> tuple[float, Floats]:
    """(ln of the evidence that classes vanished, the posterior probability `[C]` of each class to be one of them).

    1 - q_c is (absent rounds + 1/2) / (rounds + 1), the mean under Jeffreys' prior. Without an absent class the
    evidence is 0.
    """
    absent, held, classes = presence.absent.numpy(), presence.held.numpy(), len(presence.absent)
    rarity = -np.log((presence.rounds - held + 0.5) / (presence.rounds + 1))
    p, weights = _nodes(classes)
    present, total, inside = np.log1p(-p), -np.inf, np.zeros(classes)
    for ago in range(1, min(LONGEST, int(absent.max(initial=0))) + 1):
        gone = absent >= ago
        vanished = np.log(p)[:, None] + ago * rarity[gone]  # [nodes, classes absent for so long]
        either = np.logaddexp(present[:, None], vanished)
        terms = np.log(weights) + either.sum(1) + (classes - gone.sum()) * present
        ratio = np.logaddexp.reduce(terms) + np.log(classes + 1)
        mixture = ratio + np.log1p(-np.exp(-ratio)) - np.log(classes)  # without the empty set
        before, total = total, np.logaddexp(total, mixture)
        inside *= np.exp(before - total)
        inside[gone] += (1 + 1 / classes) * np.exp(terms - total) @ np.exp(vanished - either)
    return float(total), inside


def _nodes(classes: int) -> tuple[Floats, Floats]:
    """Gauss-Legendre nodes and weights on [0, 1]: exact for polynomials of degree `classes`, up to 127."""
    places, weights = np.polynomial.legendre.leggauss(min(classes // 2 + 1, NODES))
    return (places + 1) / 2, weights / 2

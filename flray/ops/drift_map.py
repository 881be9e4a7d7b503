"""Class means of an old model's features, carried over to a new model (LDC: Gomez-Villa et al., "Exemplar-free
continual representation learning via learnable drift compensation", ECCV 2024), from moments that add over clients.

u and v are the unit vectors of one sample's features under the old and under the new model. v is predicted by u A, with
A = argmin sum ||u A - v||^2 + p ||A - I||^2. The paper fits A by gradient descent on all samples, without the penalty.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

# Both found on seed 100 of configs/evidence/cifar100_10tasks_16px.yaml: 0.1 to 1 and 10 to 14 do as well there.
PENALTY = 0.3
CONCENTRATION = 12.0


def drift_moments(old: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    """`(sum u^T u, sum u^T (v - u))`, each `[d, d]`, of the same samples' features `old [n, d]` and `new [n, d]`."""
    u, v = F.normalize(old.double(), dim=1), F.normalize(new.double(), dim=1)
    return (u.T @ u).float(), (u.T @ (v - u)).float()


def drift_map(second: Tensor, change: Tensor) -> Tensor:
    """A `[d, d]`, float64, of the summed moments `second` and `change`. p is `PENALTY` times the mean of the diagonal
    of `second`; without any sample A is the identity."""
    second, one = second.double(), torch.eye(len(second), dtype=torch.float64, device=second.device)
    level = second.diagonal().mean()
    penalty = torch.where(level > 0, PENALTY * level, 1.0)
    return one + torch.linalg.solve(second + penalty * one, change.double())


def log_density(distances: Tensor) -> Tensor:
    """The log density `[B]` of a task, but for a constant: an equal mixture of von Mises-Fisher distributions of
    concentration `CONCENTRATION` about its class means. `distances [B, C]`: minus the squared distances of unit vectors
    to the means (:func:`flray.ops.exemplars.nearest_mean`)."""
    return (CONCENTRATION / 2 * distances).logsumexp(dim=1)

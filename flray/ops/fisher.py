"""The diagonal of the Fisher information matrix of a classifier, F = E_x E_{y ~ p(y | x)} (grad log p(y | x))^2 (EWC,
Kirkpatrick et al. 2017; FedCurv, Shoham et al. 2019).

With a label drawn from p for each sample of a batch, the gradients of the B samples are independent and have mean 0: so
E (sum_i g_i)^2 = sum_i E g_i^2, and B times the squared gradient of the batch's mean loss has the expectation of the
mean of the samples' squares. A batch costs one backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from flray.core.messages import Batch
from flray.core.network.objective import BoundModel, Objective


def fisher_diagonal(
    objective: Objective,
    w: Tensor,
    b: Tensor,
    batches: Iterable[Batch],
    draws: np.random.Generator,
    narrow: Callable[[Tensor], Tensor] = lambda logits: logits,
) -> Tensor:
    """The estimate `[P]` at `(w [P], b [Q])`, a new tensor: the mean over the samples of at least one batch.

    `narrow` gives the logits `[B, c]` among which the model predicts. Batch norm uses the statistics `b`.
    """
    total, count, out = torch.zeros_like(w), 0, objective.scratch("Fisher gradient", w)
    for batch in batches:
        u = torch.from_numpy(draws.random((len(batch.x), 1), dtype=np.float32)).to(w.device)

        def loss(model: BoundModel, x: Tensor = batch.x, u: Tensor = u) -> Tensor:
            logits = narrow(model(x))
            return F.cross_entropy(logits, sampled_labels(logits.detach(), u))

        _, g = objective.value_and_grad(loss, w, b, "eval", out)
        total.addcmul_(g, g, value=float(len(batch.x) ** 2))
        count += len(batch.x)
    return total.div_(max(count, 1))


def sampled_labels(logits: Tensor, u: Tensor) -> Tensor:
    """Labels `[B]` drawn from the softmax of `logits [B, c]` by uniform numbers `u [B, 1]` in [0, 1)."""
    cumulated = torch.softmax(logits, dim=1).cumsum(dim=1)
    return torch.searchsorted(cumulated, u, right=True).squeeze(1).clamp(max=logits.shape[1] - 1)

"""FedAvg on losses of closed form."""

import torch

from flray.algorithms.fedavg import FedAvg
from tests.support.rounds import Data


def two_clients() -> Data:
    """The first numbers are 2 and -1, of 3 and 9 samples: 1 and 3 batches of 3, and shares 1/4 and 3/4."""
    return [(torch.full((n, 5), a), torch.zeros(n, dtype=torch.long)) for n, a in ((3, 2.0), (9, -1.0))]


class Quadratic(FedAvg, frozen=True):
    """f_k(w) = 1/2 ||w - a_k||^2 with a_k = the first number of the client's data in every place."""

    def gradient(self, ctx, broadcast, client, local, batch):
        difference = local.w - batch.x[0, 0]
        return 0.5 * (difference**2).sum(), difference.clone()


class Linear(FedAvg, frozen=True):
    """f_k(w) = s_k sum(w), s_k the first number of the client's data: the gradient is s_k everywhere."""

    def gradient(self, ctx, broadcast, client, local, batch):
        return batch.x[0, 0] * local.w.sum(), torch.full_like(local.w, float(batch.x[0, 0]))

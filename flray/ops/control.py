"""The effective number of local steps of an update: FedNova's a_k, SCAFFOLD's tau."""

from __future__ import annotations


def effective_steps(steps: int, momentum: float = 0.0, shrink: float = 0.0) -> float:
    """a = norm_1 of the vector with w_g - w_k = lr sum_t a_t g_t over `steps` local steps of SGD (FedNova, section 4).

    * plain: `steps`; momentum m: sum_j (1 - m^j) / (1 - m) = [steps - m (1 - m^steps) / (1 - m)] / (1 - m);
    * proximal term mu, `shrink` = lr mu: a <- a (1 - lr mu) + 1 at every step;
    * both: as the counters of the original optimiser (JYWa/FedNova, `distoptim/FedNova.py`).
    """
    if momentum and not shrink:
        return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)
    total = counter = 0.0
    for _ in range(steps):
        if momentum:
            counter = momentum * counter + 1
            total += counter
        total = total * (1 - shrink) + 1
    return total

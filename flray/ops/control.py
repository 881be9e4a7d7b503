"""What a client's move tells about its mean gradient, and plain sums over a cohort that is averaged with weights."""

from __future__ import annotations

from typing import Literal


def accumulation(steps: int, momentum: float = 0.0, shrink: float = 0.0) -> float:
    """a = norm_1 of the vector with w_g - w_k = lr sum_t a_t g_t over `steps` local steps of SGD (FedNova, section 4).

    * plain: `steps`; momentum m: sum_j (1 - m^j) / (1 - m) = [steps - m (1 - m^steps) / (1 - m)] / (1 - m);
    * proximal term mu, `shrink` = lr mu: a <- a (1 - lr mu) + 1 at every step;
    * both: the counters of the original optimiser (JYWa/FedNova, `distoptim/FedNova.py`), which add both.
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


def mass(weighting: Literal["examples", "uniform"], num_examples: int) -> float:
    """m_k of a client: its aggregation weight is p_k = m_k / sum_j m_j over the clients that delivered.

    A client that sends x_k / m_k gives the server the plain sum: sum_k x_k = (sum_k m_k) (sum_k p_k x_k / m_k), whoever
    was skipped.
    """
    return float(num_examples) if weighting == "examples" else 1.0

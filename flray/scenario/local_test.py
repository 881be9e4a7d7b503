"""The share of the global test set on which one client is tested.

Shares of different clients may overlap.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from flray.data.cache import Array


def local_test(
    labels: Array,
    test_labels: Array,
    num_classes: int,
    rule: Literal["proportional", "classes"],
    rng: np.random.Generator,
    size: int = 1000,
) -> Array:
    """Ascending sample numbers (int64) of the test share of a client.

    `labels [n_k]` are those of its training samples, `test_labels [n_test]` those of the test set.

    `proportional` (Lee-Gihun/FedSOL): of every class c, floor(size * n_kc / n_k) samples drawn without replacement,
    or all there are. `classes` (FedZoo-Bench): every sample of every class the client holds; nothing is drawn.
    """
    counts = np.bincount(labels, minlength=num_classes)
    if rule == "classes":
        return np.flatnonzero(counts[test_labels])
    # whole numbers: floor(size * (n_kc / n_k)) in floating point can come out one too low
    wanted = size * counts // max(len(labels), 1)
    shares = [np.zeros(0, np.int64)]
    for c in np.flatnonzero(wanted):
        there = np.flatnonzero(test_labels == c)
        shares.append(rng.choice(there, min(int(wanted[c]), len(there)), replace=False))
    return np.sort(np.concatenate(shares))

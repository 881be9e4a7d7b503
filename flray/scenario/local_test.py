"""The share of the global test set on which a client is tested. Shares of clients may overlap."""

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
    """Sample numbers (int64, ascending) of a client's test share.

    `labels [n_k]` are those of its training samples, `test_labels [n_test]` those of the test set.

    `proportional` (Lee-Gihun/FedSOL): floor(size * n_kc / n_k) samples of each class c, drawn without replacement, or
    all that exist. `classes` (FedZoo-Bench): all samples of the client's classes; nothing is drawn.
    """
    counts = np.bincount(labels, minlength=num_classes)
    if rule == "classes":
        return np.flatnonzero(counts[test_labels])
    # in integers: in floating point floor(size * (n_kc / n_k)) may be one too low
    wanted = size * counts // max(len(labels), 1)
    shares = [np.zeros(0, np.int64)]
    for c in np.flatnonzero(wanted):
        there = np.flatnonzero(test_labels == c)
        shares.append(rng.choice(there, min(int(wanted[c]), len(there)), replace=False))
    return np.sort(np.concatenate(shares))

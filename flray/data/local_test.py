"""A client's own share of the test set (spec 2.5), for personalised evaluation. Different clients may share test samples."""

from __future__ import annotations

from typing import Literal

import numpy as np

from flray.data.cache import Array

Rule = Literal["proportional", "classes"]


def local_test(labels: Array, test_labels: Array, num_classes: int, rule: Rule, rng: np.random.Generator, size: int = 1000) -> Array:
    """Test sample numbers (int64, ascending) of a client with training `labels [n_k]`.

    `proportional` (Lee-Gihun/FedSOL): min(available, int(size * f_c)) samples of class c without replacement, f_c the share of c
    among `labels`. `classes` (FedZoo-Bench): every test sample of every class in `labels`; draws nothing.
    """
    counts = np.bincount(np.asarray(labels), minlength=num_classes)
    test = np.asarray(test_labels)
    chosen = []
    for c in np.flatnonzero(counts):
        pool = np.flatnonzero(test == c)
        if rule == "proportional":
            pool = rng.choice(pool, min(len(pool), int(size * counts[c] / len(labels))), replace=False)
        chosen.append(pool)
    return np.sort(np.concatenate(chosen)) if chosen else np.zeros(0, np.int64)

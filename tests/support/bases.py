"""Matrices and orthonormal bases."""

import numpy as np
import torch


def matrix(d, m, seed=0, rank=None):
    """Float64 `[d, m]`, of lower rank where that is said, singular values falling."""
    draws = np.random.default_rng(seed)
    rank = min(d, m) if rank is None else rank
    left, right = draws.normal(size=(d, rank)), draws.normal(size=(rank, m))
    return torch.from_numpy(left * np.geomspace(1, 0.05, rank) @ right)


def orthonormal(d, q, seed=0):
    return torch.linalg.qr(matrix(d, q, seed)).Q

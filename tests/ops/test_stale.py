"""Models from older global models, moved to the present one: FedBuff's sum of differences, in NumPy."""

import numpy as np
import torch

from flray.ops.stale import RebasedModels, rebased_mean

ROOM = np.random.default_rng(0)
W = ROOM.standard_normal((5, 7))  # of five clients
OLD = {v: ROOM.standard_normal(7) for v in (3, 4, 6)}  # w_v
VERSIONS = [3, 3, 4, 6, 6]
P = np.array([0.1, 0.3, 0.2, 0.25, 0.15])
S = np.array([0.5, 0.5, 1 / np.sqrt(3), 1.0, 1.0])


def tensors() -> dict[int, torch.Tensor]:
    return {v: torch.from_numpy(w) for v, w in OLD.items()}


def test_the_mean_is_the_sum_of_differences() -> None:
    """w_6 + sum_k p_k s_k (w_k - w_v); the engine pools with q_k = p_k s_k / sum."""
    q = P * S / (P * S).sum()
    right = OLD[6] + sum(p * s * (w - OLD[v]) for p, s, w, v in zip(P, S, W, VERSIONS, strict=True))
    before = tensors()
    moved = rebased_mean(torch.from_numpy(q @ W), before[6], before, VERSIONS, torch.from_numpy(S), torch.from_numpy(q))
    np.testing.assert_allclose(moved.numpy(), right, rtol=1e-12)


def test_nothing_moves_where_all_have_the_present_model() -> None:
    """The very tensor, so that a step without age keeps every bit."""
    present, mean = torch.ones(7), torch.rand(7)
    weights = torch.full((3,), 1 / 3, dtype=torch.float64)
    assert rebased_mean(mean, present, {2: present}, [2, 2, 2], torch.ones(3, dtype=torch.float64), weights) is mean


def test_each_model_is_moved_where_it_is_read() -> None:
    before = tensors()
    models = [torch.from_numpy(w) for w in W]
    moved = RebasedModels(models, before[6], [before[v] for v in VERSIONS], S.tolist())
    right = [OLD[6] + s * (w - OLD[v]) for s, w, v in zip(S, W, VERSIONS, strict=True)]
    np.testing.assert_allclose(torch.stack(list(moved)).numpy(), right, rtol=1e-12)
    assert len(moved) == 5 and moved[3] is models[3]
    np.testing.assert_allclose(torch.stack(moved[1:3]).numpy(), right[1:3], rtol=1e-12)

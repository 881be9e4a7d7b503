"""Models that clients trained from older global models, moved to the present one (FedBuff: Nguyen et al., AISTATS 2022,
Algorithm 1, line 11, which adds differences: w <- w + eta sum_k p_k s_k (w_k - w_v))."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def rebased_mean(
    mean: Tensor, present: Tensor, before: Mapping[int, Tensor], versions: Sequence[int], s: Tensor, weights: Tensor
) -> Tensor:
    """w_t + S sum_k q_k (w_k - w_v) from the `mean` sum_k q_k w_k, with q_k = p_k s_k / S and S = sum_k p_k s_k.

    `present` is w_t `[P]`, `before` has w_v by version, `versions` [K] are those of the clients, `s [K]` the weights of
    their ages, and `weights [K]` the q_k up to a factor. Returns `mean` itself where every client has w_t and s = 1.
    """
    q = (weights / weights.sum()).double()
    w, moved = mean, torch.empty_like(present)  # one buffer for all: fresh memory costs page faults
    for version in sorted(set(versions)):
        if before[version] is not present:
            part = float(q[torch.tensor([v == version for v in versions])].sum())
            torch.sub(present, before[version], out=moved)
            w = torch.add(w, moved.mul_(part), out=None if w is mean else w)
    if bool((s == 1).all()):
        return w
    return torch.sub(w, present, out=moved).mul_(float(1 / (q / s).sum())).add_(present)


class RebasedModels(Sequence[Any]):
    """Each client's w_t + s_k (w_k - w_v), made when it is read."""

    def __init__(self, models: Sequence[Tensor], present: Tensor, before: Sequence[Tensor], s: Sequence[float]) -> None:
        """`models` w_k, `before` w_v and `s`, one a client; `present`: w_t `[P]`."""
        self._models, self._present, self._before, self._s = models, present, before, s

    def __len__(self) -> int:
        return len(self._models)

    def __getitem__(self, client: Any) -> Any:
        if isinstance(client, slice):
            return tuple(self[i] for i in range(*client.indices(len(self))))
        model, before, s = self._models[client], self._before[client], self._s[client]
        if before is self._present and s == 1:
            return model
        return self._present + s * (model - before)

"""The choice of the next token: SuperGen's repetition rule, then greedy or among the `k` likeliest, with its score.

Meng et al. 2022 (arXiv:2202.04538), section 3.2; the rule for one value is Keskar et al. 2019 (CTRL, arXiv:1909.05858).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor


def repetition(scores: Tensor, rewarded: Tensor, penalised: Tensor, reward: Tensor, penalty: Tensor) -> Tensor:
    """Logits `[B, V]` after the repetition rule: `s a` if `s < 0`, else `s / a`, for every token that occurred before.

    `rewarded`, `penalised`: bool `[B, V]`, the tokens of the first text and all others so far. `reward`, `penalty`:
    their `a`, `[B, 1]`. A token in both is penalised: the first text may be repeated once (as in SuperGen's code).
    """
    a = torch.where(penalised, penalty, reward)
    return torch.where(penalised | rewarded, torch.where(scores < 0, scores * a, scores / a), scores)


def choose(scores: Tensor, temperature: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
    """The next token of each text, int64 `[B]`, and the log-probability by which texts are ranked, `[B]`.

    Without noise: the likeliest token, and its log-softmax among all. With Gumbel noise `[B, k]`: one of the `k`
    likeliest tokens, drawn with probability softmax(scores / temperature `[B, 1]`) among these (`argmax(z + noise)` is
    such a draw: Gumbel 1954), and its log-softmax among them at temperature 1, which makes texts of several
    temperatures comparable.
    """
    if noise is None:
        token = scores.argmax(1, keepdim=True)
        return token[:, 0], scores.log_softmax(1).gather(1, token)[:, 0]
    values, tokens = scores.topk(min(noise.shape[1], scores.shape[1]), 1)
    pick = (values / temperature + noise[:, : values.shape[1]]).argmax(1, keepdim=True)
    return tokens.gather(1, pick)[:, 0], values.log_softmax(1).gather(1, pick)[:, 0]


class Decoding:
    """A logits processor for Hugging Face's greedy `generate`: leaves only the token of :func:`choose`.

    Each text has its own draws, so the other texts of a batch do not change it. `log_probabilities` has `[B]` for each
    step.
    """

    def __init__(
        self,
        ids: Tensor,
        mask: Tensor,
        spans: Sequence[tuple[int, int]],
        vocabulary: int,
        reward: float | None,
        penalty: float,
        temperature: Sequence[float],
        noise: np.ndarray | None,
    ) -> None:
        """`ids [B, L]`, padded on the left where `mask` is 0; `spans`: where the first text lies in the unpadded ids,
        (0, 0) without one. `noise`: Gumbel `[B, steps, k]` of texts that are sampled, None: greedy."""
        B, L = ids.shape
        new: dict[str, Any] = {"dtype": torch.bool, "device": ids.device}
        place = torch.arange(L, device=ids.device)[None] - (L - mask.sum(1, keepdim=True))
        ends = torch.tensor(spans, device=ids.device).reshape(B, 2)
        first = (place >= ends[:, :1]) & (place < ends[:, 1:]) & (reward is not None)
        self.rewarded, self.penalised = torch.zeros(B, vocabulary, **new), torch.zeros(B, vocabulary, **new)
        _mark(self.rewarded, ids, first)
        _mark(self.penalised, ids, mask.bool() & ~first)
        self.reward = torch.full((B, 1), 1.0 if reward is None else reward, device=ids.device)
        self.penalty = torch.full((B, 1), penalty, device=ids.device)
        self.temperature = torch.tensor(temperature, dtype=torch.float32, device=ids.device).reshape(B, 1)
        self.noise = None if noise is None else torch.from_numpy(noise).to(ids.device, torch.float32)
        self.log_probabilities: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        step = len(self.log_probabilities)
        if step:
            self.penalised.scatter_(1, input_ids[:, -1:], True)
        scores = repetition(scores.float(), self.rewarded, self.penalised, self.reward, self.penalty)
        token, score = choose(scores, self.temperature, None if self.noise is None else self.noise[:, step])
        self.log_probabilities.append(score)
        return torch.full_like(scores, -torch.inf).scatter_(1, token[:, None], 0.0)


def _mark(table: Tensor, ids: Tensor, where: Tensor) -> None:
    row, column = where.nonzero(as_tuple=True)
    table[row, ids[row, column]] = True

"""Task prediction by the share of the features in each task's final-layer subspace (FedProTIP, Eqs. 10 and 11).

Tasks are numbered by their place in the arguments. `omega [n, B]` are relevances to B blocks, without NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor


def relevance(features: Tensor, blocks: Sequence[Tensor]) -> Tensor:
    """`[ ||F P||_F ]` over the `blocks` P `[d, r]`: `[..., B]` of features `[..., b, d]`, b samples for each omega."""
    norms = [(features @ block).square().sum(dim=(-2, -1)).sqrt() for block in blocks]
    return torch.stack(norms, dim=-1) if norms else features.new_zeros((*features.shape[:-2], 0))


def batch_relevance(omega: Tensor, size: int, mean: bool = False) -> Tensor:
    """The relevance `[ceil(m / size), B]` of each `size` consecutive samples, from those of every sample `[m, B]`:
    squares add. `mean`: divided by the root of their number, so that batches of different sizes compare."""
    number, blocks = -(-len(omega) // size), omega.shape[1]
    short = number * size - len(omega)
    squares = torch.cat([omega.square(), omega.new_zeros(short, blocks)])
    parts = squares.reshape(number, size, blocks).sum(dim=1)
    if mean and number:
        parts[:-1] /= size
        parts[-1] /= size - short
    return parts.sqrt()


def window_relevance(omega: Tensor, size: int, mean: bool = False) -> Tensor:
    """The relevance `[m, B]` of each sample together with the `size - 1` before it, at the beginning with
    fewer; `mean` as in :func:`batch_relevance`."""
    squares = torch.cat([omega.new_zeros(size - 1, omega.shape[1]), omega.square()])
    windows = squares.unfold(0, size, 1).sum(dim=-1) if len(omega) else omega
    if mean:
        windows = windows / torch.arange(1, len(omega) + 1, device=omega.device).clamp(max=size)[:, None]
    return windows.sqrt()


def similarity(omega: Tensor, references: Tensor) -> Tensor:
    """`s = mean_b cos(omega, omega_b)`, `[n]`, of relevances `[n, B]` and a client's references to a task `[m, B]`; a
    vector of length 0 counts as 0."""
    return _unit(omega) @ _unit(references).mean(dim=0)


def _unit(omega: Tensor) -> Tensor:
    length = omega.norm(dim=-1, keepdim=True)
    return omega / torch.where(length > 0, length, 1.0)


def vote(similarities: Tensor, ties: Literal["similarity", "lowest"] = "similarity") -> Tensor:
    """The task `[n]` that most clients find the most similar, of similarities `[n, K, T]`.

    A client without references to a task has -inf there; one without any does not vote. Ties: the task with the largest
    sum of the voters' similarities wins, then the lowest; `lowest` (official): the lowest.
    """
    voters = (similarities > -torch.inf).any(dim=(0, 2))
    voting = similarities[:, voters]
    votes = torch.nn.functional.one_hot(voting.argmax(dim=2), similarities.shape[2]).sum(dim=1)
    if ties == "lowest":
        return votes.argmax(dim=1)
    most = votes == votes.amax(dim=1, keepdim=True)
    sums = torch.where(most, voting.sum(dim=1), -torch.inf)
    # argmax takes the first of equal ones; a task without a vote does not win with a sum of -inf
    best = most & (sums == sums.amax(dim=1, keepdim=True))
    return best.int().argmax(dim=1)


def vote_by_length(omega: Tensor, means: tuple[float, float]) -> Tensor:
    """The task `[n]`, 0 or 1, by the relevance `[n]` to the second task's block alone (the official rule at t = 2).

    Task 0 below its own mean `means[0]`, else task 1 above `means[1]`, else the nearer mean, the first of equal ones.
    """
    first, second = means
    nearer = (omega - second).abs() < (omega - first).abs()
    return torch.where(omega < first, False, (omega > second) | nearer).long()


def predict_tasks(
    omega: Tensor, references: Sequence[Sequence[Tensor | None]], ties: Literal["similarity", "lowest"] = "similarity"
) -> Tensor:
    """The task `[n]` that the clients vote for, from relevances `omega [n, B]` (Eq. 11).

    `references[k][tau] [m, B']` are client k's of task tau, or None; with B' < B later blocks count as 0. A single task
    is 0. If two tasks have one block (the official set, without the first) cosines are all 1, and
    :func:`vote_by_length` decides, by the mean over clients of each client's mean.
    """
    tasks = len(references[0]) if references else 1
    if tasks == 1:
        return torch.zeros(len(omega), dtype=torch.int64, device=omega.device)
    if tasks == 2 and omega.shape[1] == 1:
        means = [
            [float(_padded(own, omega).mean()) for own in of_clients if own is not None]
            for of_clients in zip(*references, strict=True)
        ]
        if all(means):  # else only one task has references, and the cosines vote for it
            return vote_by_length(omega[:, 0], (sum(means[0]) / len(means[0]), sum(means[1]) / len(means[1])))
    missing = omega.new_full((len(omega),), -torch.inf)
    by_client = [
        torch.stack([missing if r is None else similarity(omega, _padded(r, omega)) for r in own], dim=1)
        for own in references
    ]
    return vote(torch.stack(by_client, dim=1), ties)


def _padded(references: Tensor, omega: Tensor) -> Tensor:
    return torch.nn.functional.pad(references, (0, omega.shape[1] - references.shape[1]))

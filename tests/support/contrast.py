"""The relaxed contrastive loss, sample by sample."""

import torch


def by_loops(z, y, tau, threshold, form):
    """(scl, penalty) of one level in double precision, sample by sample, as fedrcl.py's docstring has it."""
    u = [row / row.norm() for row in z]
    count, scl, penalty = len(u), [], []
    for i in range(count):
        positives, negatives, near = [], [], []
        for j in range(count):
            s = u[i] @ u[j]
            if y[j] != y[i]:
                negatives.append(s)
            elif j != i:
                near.append(s)
        own = u[i] @ u[i]
        if form == "code":
            positives = [min([*near, own])]
            negatives = sorted(negatives)[-2:]
            least = min(near) if near else torch.tensor(-1.0, dtype=z.dtype)
            near = [least if least >= threshold else torch.tensor(-1.0, dtype=z.dtype)]
        else:
            positives, near = near, [s for s in near if s >= threshold]
        terms = [
            -torch.log(torch.exp(p / tau) / (torch.exp(p / tau) + sum(torch.exp(n / tau) for n in negatives)))
            for p in positives
        ]
        scl.append(sum(terms, torch.zeros((), dtype=z.dtype)))
        penalty.append(
            -torch.log(torch.exp(own / tau) / (torch.exp(own / tau) + sum(torch.exp(s / tau) for s in near)))
        )
    return sum(scl) / count, sum(penalty) / count

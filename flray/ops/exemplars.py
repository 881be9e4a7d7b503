"""Choice of the samples that a client stores: herding (iCaRL; GLFC, Dong et al. 2022) and a reservoir (SCR); features
and class means."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from flray.core.messages import Batch
from flray.core.network.objective import BoundModel


def exemplars_per_class(memory_size: int, learned: int) -> int:
    """m = floor(M / learned): a client's `memory_size` M over the number of classes `learned` so far."""
    return memory_size // max(learned, 1)


def extract_features(model: BoundModel, batches: Iterable[Batch]) -> tuple[Tensor, Tensor]:
    """(features `[n, F]`, labels `[n]`) of all samples of at least one batch, in order, without a gradient."""
    with torch.no_grad():
        z, y = zip(*((model.features(batch.x), batch.y) for batch in batches), strict=True)
    return torch.cat(z), torch.cat(y)


def herding(features: Tensor, count: int) -> Tensor:
    """Places `[count]` (int64) of samples of one class, best first: their running mean stays nearest the class mean.

    Of `features [n, F]`, which are brought to unit length, with mean mu: the (i + 1)-th is
    argmin_x || mu - (sum of the i chosen + f_x) / (i + 1) ||, the first one where several are as near. A sample may be
    chosen again. Without samples the result is empty. The first m choices do not depend on `count`.
    """
    if not len(features):
        return torch.zeros(0, dtype=torch.int64, device=features.device)
    units = F.normalize(features.double(), dim=1)
    mean, total = units.mean(dim=0), torch.zeros_like(units[0])
    chosen = []
    for i in range(count):
        nearest = (mean - (total + units) / (i + 1)).norm(dim=1).argmin()
        total = total + units[nearest[None]][0]  # by a vector: a single place would be read by the host
        chosen.append(nearest)
    return torch.stack(chosen) if chosen else torch.zeros(0, dtype=torch.int64, device=features.device)


def nearest_to_mean(features: Tensor) -> Tensor:
    """The place of a class's prototype: the sample of `features [n, F]` nearest the mean of their unit vectors."""
    return herding(features, 1)[0]


def places_by_class(y: Tensor) -> dict[int, Tensor]:
    """The places `[n_c]` (int64) of each class's samples among the labels `y [n]`, by class, ascending.

    They lie on the device of `y`. The labels are copied to the host once; a mask of each class would make a GPU wait.
    """
    labels = y.cpu().numpy()
    return {int(c): torch.from_numpy(np.flatnonzero(labels == c)).to(y.device) for c in np.unique(labels)}


def reservoir(stored: np.ndarray, arriving: np.ndarray, seen: int, size: int, draws: np.random.Generator) -> np.ndarray:
    """The sample numbers `[m]`, m <= `size`, in a reservoir after `arriving [n]` (Vitter 1985, algorithm R).

    `stored [m]` is the reservoir after the first `seen` samples. The t-th sample of all replaces a place drawn
    uniformly from t, if that place is one of the reservoir's: every sample so far is stored with the same probability.
    """
    numbers = list(stored.tolist())
    for t, number in enumerate(arriving.tolist(), seen + 1):
        if len(numbers) < size:
            numbers.append(number)
        elif (place := int(draws.integers(t))) < size:
            numbers[place] = number
    return np.array(numbers, np.int64)


def class_means(features: Tensor, y: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Unit vectors `[C, F]`, the means of the unit vectors of each class's `features [n, F]`, and which of the classes
    have a sample among the labels `y [n]`: float `[C]`, 1 or 0. Of the others the row is 0."""
    units = F.normalize(features, dim=1)
    sums = units.new_zeros(num_classes, units.shape[1]).index_add_(0, y, units)
    return F.normalize(sums, dim=1), torch.zeros_like(sums[:, 0]).index_fill_(0, y, 1.0)


def nearest_mean(features: Tensor, means: Tensor, known: Tensor) -> Tensor:
    """Minus the squared distance `[B, C]` of the unit vectors of `features [B, F]` to the unit vectors `means [C, F]`.

    A class without a mean (`known [C]` is 0) is farther away than any other can be, -5.
    """
    distance = 2 - 2 * F.normalize(features, dim=1) @ means.T
    return torch.where(known > 0, -distance, -5.0)

"""kNN-Per (Marfoq et al., ICML 2022, section 4): FedAvg, then each client mixes the global model with its nearest
training samples.

    q_c(z) = sum_j [y_j = c] e^(-D_j / (F scale)) / sum_j e^(-D_j / (F scale)),   prediction: argmax lam q + (1 - lam) h

over the k stored samples j nearest to the query's feature z `[F]` by squared Euclidean distance D_j. The probabilities
h are those among the classes seen so far.
"""

from __future__ import annotations

import itertools
from typing import Literal, cast

import numpy as np
import torch
from torch import Tensor

from flray.algorithms.fedavg import FedAvg, OwnStatistics
from flray.core.messages import Broadcast
from flray.core.network.objective import BoundModel
from flray.core.protocol.algorithm import Predictor
from flray.core.protocol.algorithm_section import of_fine_tuned_models
from flray.core.protocol.context import ClientContext
from flray.core.protocol.samples import FineTuning
from flray.core.schema.hp import hp
from flray.ops.exemplars import extract_features


class KNNPer(FedAvg, frozen=True):
    cautions = (of_fine_tuned_models,)
    k: int = hp(5, choice=(1, 3, 5, 7, 10), ge=1, doc="number of neighbours")
    lam: float = hp(
        0.5, linear=(0.0, 1.0), ge=0, le=1, doc="weight of the neighbours (lambda); 0: the fine-tuned model alone"
    )
    capacity: int = hp(500, choice=(50, 100, 200, 500, 1000), ge=1, doc="samples in a client's store, drawn uniformly")
    scale: float = hp(1.0, log=(0.01, 100.0), gt=0, doc="width of the kernel e^(-D / (F scale))")
    mix: Literal["probabilities", "logits"] = hp("probabilities", doc="output of the model that is mixed with q (h)")
    store_augment: bool = hp(
        False, doc="store the augmented images of the first epoch of fine-tuning; without fine-tuning plain ones"
    )

    def personalize(
        self, ctx: ClientContext, broadcast: Broadcast, client: OwnStatistics, batches: FineTuning
    ) -> Predictor:
        model = cast(BoundModel, super().personalize(ctx, broadcast, client, batches))
        keys, labels = self.store(ctx, model, batches)

        def predictor(x: Tensor) -> Tensor:
            with torch.no_grad():
                z = model.features(x)
                logits = model.head(z)
                h = logits if self.mix == "logits" else torch.softmax(ctx.seen(logits), dim=1)
                if h.shape != logits.shape:  # no mass on classes to come, as in q
                    h = torch.zeros_like(logits).index_copy_(1, ctx.in_use.seen.index, h)
                q = neighbour_probabilities(z, keys, labels, self.k, self.scale, h.shape[1])
                return self.lam * q + (1 - self.lam) * h

        return predictor

    def store(self, ctx: ClientContext, model: BoundModel, batches: FineTuning) -> tuple[Tensor, Tensor]:
        """(features `[n, F]`, labels `[n]`) of at most `capacity` training samples of the client."""
        epoch = int(self.epoch_batches(np.array(ctx.num_examples)))
        source = itertools.islice(batches, epoch) if self.store_augment and len(batches) else batches.plain
        keys, labels = extract_features(model, source)
        if len(keys) > self.capacity:
            chosen = torch.from_numpy(ctx.rng("store").choice(len(keys), self.capacity, replace=False)).to(keys.device)
            keys, labels = keys[chosen], labels[chosen]
        return keys, labels


def neighbour_probabilities(z: Tensor, keys: Tensor, labels: Tensor, k: int, scale: float, classes: int) -> Tensor:
    """q `[B, C]` of queries `z [B, F]` from the stored `keys [n, F]`, `labels [n]`; min_j D_j is taken off before exp
    (same q)."""
    distances, nearest = search(z.cpu().contiguous().numpy(), keys.cpu().numpy(), min(k, len(keys)))
    similar = np.exp(-(distances - distances[:, :1]) / (z.shape[1] * scale))
    share = torch.from_numpy(similar / similar.sum(axis=1, keepdims=True)).to(z)
    return z.new_zeros(len(z), classes).scatter_add_(1, labels[torch.from_numpy(nearest).to(labels.device)], share)


def search(queries: np.ndarray, keys: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """(squared Euclidean distances, row numbers in `keys`), both `[B, k]`, nearest first."""
    try:
        import faiss  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        from sklearn.neighbors import NearestNeighbors

        neighbours = (
            NearestNeighbors(n_neighbors=k, algorithm="brute", metric="sqeuclidean").fit(keys).kneighbors(queries)
        )
        return neighbours[0], neighbours[1]
    index = faiss.IndexFlatL2(keys.shape[1])
    index.add(keys)
    return index.search(queries, k)  # type: ignore[no-any-return, unused-ignore]

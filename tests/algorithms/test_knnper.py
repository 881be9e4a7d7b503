"""kNN-Per: training is FedAvg's; the scores by loops over queries, neighbours and classes in NumPy."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from flray.algorithms.fedavg import FedAvg
from flray.algorithms.knnper import KNNPer, neighbour_probabilities
from flray.core.messages import Broadcast, equal
from flray.core.network.objective import Objective
from flray.core.protocol.classes import Classes
from tests.support.networks import Norm, build, inputs
from tests.support.personal import Epochs, client_context, optimise
from tests.support.rounds import play
from tests.support.small_cases import normal
from tests.support.unequal import pair

OPTIONS = {"lr": 0.1, "local_epochs": 1, "batch_size": 4}


def q_by_loops(queries, keys, labels, k, scale, classes):
    """The formula of the card, float64, every exponent as it stands."""
    q = np.zeros((len(queries), classes))
    for row, z in enumerate(queries.astype(np.float64)):
        distances = [((z - key) ** 2).sum() for key in keys.astype(np.float64)]
        nearest = sorted(range(len(keys)), key=distances.__getitem__)[:k]
        weights = [np.exp(-distances[j] / (len(z) * scale)) for j in nearest]
        for j, weight in zip(nearest, weights, strict=True):
            q[row, labels[j]] += weight / sum(weights)
    return q


@pytest.mark.parametrize(("k", "scale"), [(5, 1.0), (1, 1.0), (7, 0.1), (50, 3.0)])
def test_q_is_the_kernel_weighted_share_of_the_nearest(k, scale):
    """k = 50 of 12 stored: all of them."""
    queries, keys, labels = normal(6, 4), normal(12, 4, seed=1), torch.arange(12) % 3
    found = neighbour_probabilities(queries, keys, labels, k, scale, 5)
    expected = q_by_loops(queries.numpy(), keys.numpy(), labels.numpy(), k, scale, 5)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-7)
    assert found.dtype == torch.float32 and found.shape == (6, 5)


def test_large_distances_keep_their_shares():
    """Exponents of -4e6: without min_j D_j every weight underflows.

    Squared distances 4 * 1000^2 and 4 * (1000^2 + 1), F = 4:

    weights 1 and e^-1 after the shift.
    """
    keys = torch.tensor([[1000.0] * 4, [-1000.0] * 4])
    query = torch.full((1, 4), 1 / 4000)  # (1000 - e)^2 - (1000 + e)^2 = -4000 e = -1 a coordinate
    found = neighbour_probabilities(query, keys, torch.tensor([0, 1]), 2, 1.0, 2)
    np.testing.assert_allclose(found.numpy(), [[1 / (1 + np.exp(-1)), np.exp(-1) / (1 + np.exp(-1))]], rtol=1e-3)


@pytest.mark.parametrize("mix", ["probabilities", "logits"])
@pytest.mark.parametrize("finetune_epochs", [0, 2])
def test_scores_mix_neighbours_and_the_fine_tuned_model(mix, finetune_epochs):
    """Against a module fine-tuned by torch.optim: features in eval mode, lam q + (1 - lam) h."""
    objective = Objective(build(Norm))
    x, y = inputs(Norm, 11)
    test, _ = inputs(Norm, 7, seed=5)
    algorithm = KNNPer(**OPTIONS, momentum=0.9, lr_decay=0.5, k=3, lam=0.3, scale=0.7, mix=mix)
    batches = Epochs(x, y, 4, finetune_epochs)
    predictor = algorithm.personalize(
        client_context(objective, x, round=1), Broadcast(*objective.initial()), (), batches
    )
    module = build(Norm)
    optimise(module, torch.optim.SGD(module.parameters(), 0.1 * 0.5, 0.9), batches)
    with torch.no_grad():
        h = module(test) if mix == "logits" else torch.softmax(module(test), dim=1)
        q = q_by_loops(module.features(test).numpy(), module.features(x).numpy(), y.numpy(), 3, 0.7, 3)
        np.testing.assert_allclose(predictor(test).numpy(), 0.3 * q + 0.7 * h.numpy(), rtol=1e-5, atol=1e-6)


def test_over_tasks_the_models_probabilities_are_those_of_the_classes_seen():
    """Classes 0 and 2 of three: outputs of a class to come took their share of h, and q's weight grew."""
    objective = Objective(build(Norm))
    x, y = inputs(Norm, 11)
    y, seen = torch.where(y == 1, 0, y), Classes([[0], [2]], 3)
    ctx = client_context(objective, x, classes=seen)
    algorithm = KNNPer(**OPTIONS, k=3, lam=0.3, scale=0.7)
    found = algorithm.personalize(ctx, Broadcast(*objective.initial()), (), Epochs(x, y, 4, 0))(x)
    module = build(Norm).eval()
    with torch.no_grad():
        h = torch.zeros(11, 3)
        h[:, [0, 2]] = torch.softmax(module(x)[:, [0, 2]], dim=1)
        q = q_by_loops(module.features(x).numpy(), module.features(x).numpy(), y.numpy(), 3, 0.7, 3)
    np.testing.assert_allclose(found.numpy(), 0.3 * q + 0.7 * h.numpy(), rtol=1e-5, atol=1e-6)


def test_training_has_the_bits_of_fedavg_and_lam_0_its_predictions():
    objective = Objective(build(Norm))
    data, (x, _) = pair(Norm, 6, 10), inputs(Norm, 16)
    states, _, _ = play(KNNPer(**OPTIONS), objective, data, 2)
    plain, _, _ = play(FedAvg(**OPTIONS), objective, data, 2)
    assert all(equal(a, b) for a, b in zip(states, plain, strict=True))
    ctx, broadcast = client_context(objective, data[0][0]), Broadcast(states[-1].w, states[-1].b)
    own = KNNPer(**OPTIONS, lam=0.0).personalize(ctx, broadcast, (), Epochs(*data[0], 4, 1))(x)
    other = FedAvg(**OPTIONS).personalize(ctx, broadcast, (), Epochs(*data[0], 4, 1))(x)
    torch.testing.assert_close(own, torch.softmax(other, dim=1))


def stored(objective, client=0, capacity=500, epochs=1, **options):
    """What a client stores; its augmented images are the plain ones + 10."""
    x, y = inputs(Norm, 11)
    algorithm = KNNPer(**OPTIONS, capacity=capacity, **options)
    model = objective.at(*objective.initial())
    return algorithm.store(client_context(objective, x, client=client), model, Epochs(x + 10, y, 4, epochs, plain=x))


def test_the_store_holds_plain_images_unless_told():
    objective = Objective(build(Norm))
    x, y = inputs(Norm, 11)
    with torch.no_grad():
        plain, augmented = (build(Norm).eval().features(images) for images in (x, x + 10))
    for options, expected in (
        ({}, plain),
        ({"store_augment": True}, augmented),
        ({"store_augment": True, "epochs": 0}, plain),
    ):
        keys, labels = stored(objective, **{"epochs": 3, **options})
        torch.testing.assert_close(keys, expected)
        assert torch.equal(labels, y), "one epoch, whatever the number of fine-tuning epochs"


def test_capacity_draws_without_replacement_and_by_address():
    objective = Objective(build(Norm))
    everything, labels = stored(objective)
    seen = set()
    for client in range(8):
        keys, own = stored(objective, client, capacity=6)
        rows = [int((everything == key).all(dim=1).nonzero()[0]) for key in keys]
        assert len(set(rows)) == 6 and torch.equal(own, labels[rows])
        assert torch.equal(keys, stored(objective, client, capacity=6)[0])
        seen.add(tuple(sorted(rows)))
    assert len(seen) > 1


def test_faiss_is_used_where_it_is_installed(monkeypatch):
    """A stand-in for IndexFlatL2, whose search is exact as well: the same q."""
    queries, keys, labels = normal(6, 4), normal(12, 4, seed=1), torch.arange(12) % 3
    expected = neighbour_probabilities(queries, keys, labels, 5, 1.0, 3)
    searched = []

    class IndexFlatL2:
        def __init__(self, dimension):
            assert dimension == 4

        def add(self, rows):
            self.rows = rows

        def search(self, queries, k):
            searched.append(k)
            distances = ((queries[:, None] - self.rows[None]) ** 2).sum(axis=2)
            order = np.argsort(distances, axis=1)[:, :k]
            return np.take_along_axis(distances, order, axis=1), order

    monkeypatch.setitem(sys.modules, "faiss", SimpleNamespace(IndexFlatL2=IndexFlatL2))
    torch.testing.assert_close(neighbour_probabilities(queries, keys, labels, 5, 1.0, 3), expected)
    assert searched == [5]

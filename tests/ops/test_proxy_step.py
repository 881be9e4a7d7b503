"""FedMemo's second step: its weight by hand, its training against torch.optim, its single step against the gradient."""

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch import nn

from flray.core.messages import Batch
from flray.core.network.objective import Objective
from flray.core.protocol.classes import ClassSet
from flray.core.protocol.samples import TensorProxy
from flray.ops.proxy_step import full_gradient, mixing_weight, train_on_proxy, two_step
from tests.support.personal import optimise
from tests.support.small_cases import normal


@given(st.lists(st.integers(1, 500), min_size=1, max_size=6), st.integers(1, 5000))
def test_step_two_is_the_weighted_mean_over_clients_and_proxy(sizes, size):
    """(sum N_i w_i + N_p w_p) / (sum N_i + N_p), from the clients' models themselves."""
    models = [normal(8, seed=k).double() for k in range(len(sizes))]
    w_p = normal(8, seed=99).double()
    w = sum(n * m for n, m in zip(sizes, models, strict=True)) / sum(sizes)
    expected = (sum(n * m for n, m in zip(sizes, models, strict=True)) + size * w_p) / (sum(sizes) + size)
    torch.testing.assert_close(two_step(w, w_p, mixing_weight(sum(sizes), size)), expected, rtol=1e-9, atol=1e-12)


def test_mixing_weight_by_hand():
    assert mixing_weight(5000, 5000) == 0.5
    assert mixing_weight(1000, 250) == pytest.approx(0.2)
    assert mixing_weight(1000, 0) == 0 == mixing_weight(0, 0)


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_training_on_proxy_data_is_plain_sgd(mode):
    objective, known = Objective(model()), model()
    w, b = objective.initial()
    proxy, order = TensorProxy(normal(10, 4), torch.arange(10) % 3), [np.arange(4), np.arange(4, 10)]
    batches = [Batch(proxy.x[index], proxy.y[index]) for index in order]
    optimise(known, torch.optim.SGD(known.parameters(), 0.1), batches, training=mode == "train")
    kept = w.clone(), b.clone()
    found = objective.state_dict(*train_on_proxy(objective, w, b, proxy, order, lr=0.1, mode=mode))
    assert torch.equal(w, kept[0]) and torch.equal(b, kept[1])
    for name, tensor in known.state_dict().items():
        if "num_batches" not in name:
            torch.testing.assert_close(found[name], tensor)


def test_the_full_gradient_does_not_depend_on_its_batches():
    objective = Objective(model())
    w, b = objective.initial()
    proxy, everything = TensorProxy(normal(11, 4), torch.arange(11) % 2), np.arange(11)
    classes = ClassSet([0, 1], 3)
    whole = full_gradient(objective, w, b, proxy, everything, classes=classes)
    parts = full_gradient(objective, w, b, proxy, everything, batch_size=4, classes=classes)
    torch.testing.assert_close(parts[0], whole[0])
    torch.testing.assert_close(parts[1], whole[1])
    loss, g = objective.value_and_grad(lambda f: nn.functional.cross_entropy(f(proxy.x)[:, :2], proxy.y), w, b, "eval")
    torch.testing.assert_close(whole[0], loss)
    torch.testing.assert_close(whole[1], g)

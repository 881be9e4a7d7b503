"""A proxy over tensors is read as the configured one is."""

import numpy as np
import pytest
import torch

from flray.core.protocol.samples import TensorProxy
from flray.core.schema.errors import DataError
from flray.data import Normalizer
from flray.engine.runtime import ArraySamples


def test_it_answers_as_the_configured_proxy_does():
    x, y = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32), np.arange(7) % 3
    mean, std = (0.1, 0.2, 0.3, 0.4), (1.0, 2.0, 3.0, 4.0)
    normalizer = Normalizer(mean, std, torch.device("cpu"))
    stored, made = ArraySamples(x, y, normalizer, True), TensorProxy(normalizer(x), torch.from_numpy(y))
    index = np.array([5, 0, 0, 6])
    assert (made.size, made.same_labels) == (stored.size, stored.same_labels) == (7, True)
    assert torch.equal(made.inputs(index), stored.inputs(index))
    assert torch.equal(made.labels(index), stored.labels(index))
    assert made.labels(index).tolist() == [2, 0, 0, 0]
    some = ArraySamples(x, y, normalizer, True, rows=np.array([6, 2, 5]))
    assert some.size == 3 and torch.equal(some.inputs(np.array([2, 0])), stored.inputs(np.array([5, 6])))
    assert some.labels(np.array([1])).tolist() == [2]


def test_without_labels_it_says_so():
    made = TensorProxy(torch.zeros(3, 4))
    assert not made.same_labels
    with pytest.raises(DataError, match="without labels"):
        made.labels(np.array([0]))
    with pytest.raises(DataError, match="3 samples was given 2 labels"):
        TensorProxy(torch.zeros(3, 4), torch.zeros(2, dtype=torch.int64))

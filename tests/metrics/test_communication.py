"""Table 14 of FedProTIP, from the shapes of flray's own ResNet-18."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from flray.metrics.communication import activation_mib, bases_mib, model_mib, references_mib
from flray.models import ModelConfig, build_model, count_parameters

UNUSED = 2048 * 512 + 512  # the code's linear layer that only LANDER reads
MODEL = (46.686, 46.764, 46.842, 46.920, 46.998, 47.077, 47.155, 47.233, 47.311, 47.389)


@pytest.fixture(scope="module")
def network():
    return build_model(ModelConfig(name="resnet18", pool_out=[2, 2]), (3, 32, 32), 10, 0)


def test_the_model_of_every_task(network):
    features = network.head.in_features
    backbone = count_parameters(network) - count_parameters(network.head)
    assert (features, backbone) == (2048, 11_168_832)
    found = [model_mib(backbone, features, 10, task, UNUSED) for task in range(1, 11)]
    assert found == pytest.approx(MODEL, abs=6e-4)
    assert found[1] - found[0] == pytest.approx(0.0782, abs=5e-5)


def test_the_activations_of_fot(network):
    """Ten convolutions of the last two stages, which are not frozen: 24,576 inputs."""
    last = [m for block in network.blocks[4:] for m in block.modules() if isinstance(m, nn.Conv2d)]
    widths = [m.weight[0].numel() for m in last]
    assert (len(widths), sum(widths)) == (10, 24_576) and activation_mib(widths) == 48.0


def test_bases_and_references():
    """(4 x 2 + 6 x 3) and 4 x 1 numbers: their mean is 15. Twenty batches of ten tasks on ten blocks: 2,000 numbers."""
    sent = [{"a": torch.zeros(4, 2), "b": torch.zeros(6, 3)}, {"a": torch.zeros(4, 1)}]
    assert bases_mib(sent) == pytest.approx(4 * 15 / 2**20)
    assert references_mib(10, 10) == pytest.approx(8000 / 2**20)

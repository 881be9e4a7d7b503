"""Training generators without data: against torch.optim on the modules themselves."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from flray.core.classes import ClassSet
from flray.core.objective import Objective
from flray.models.generators import MFCLGenerator
from flray.ops.generate import batch_norms, mfcl_loss
from flray.ops.synthesis import Teacher, fit_mfcl_generator


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 5)

    def features(self, x):
        return torch.relu(self.norm(self.conv(x))).mean((2, 3))

    def forward(self, x):
        return self.head(self.features(x))


def teacher(classes=None):
    torch.manual_seed(1)
    net = Net()
    net.train()(torch.randn(64, 1, 8, 8) * 2 + 1)  # some statistics
    objective = Objective(net)
    return net, Teacher(objective, *objective.initial(), classes)


def test_mfcls_generator_learns_as_with_torchs_adam():
    """Three steps on the same noise by `torch.optim.Adam` on the module: the same images and losses."""
    net, frozen = teacher(ClassSet([0, 2, 3], 5))
    torch.manual_seed(2)
    generator = Objective(MFCLGenerator((1, 8, 8), noise=6))
    torch.manual_seed(2)
    other = MFCLGenerator((1, 8, 8), noise=6)
    w, b = generator.initial()
    start = w.clone(), b.clone()
    found_w, found_b, losses = fit_mfcl_generator(
        generator, w, b, frozen, np.random.default_rng(3), steps=3, batch_size=10
    )
    assert torch.equal(w, start[0]) and torch.equal(b, start[1]), "the arguments are as they were"
    draws, expected = np.random.default_rng(3), []
    optimizer = torch.optim.Adam(other.parameters(), lr=1e-3)
    bound = frozen.objective.at(frozen.w, frozen.b)
    for _ in range(3):
        x = other(torch.from_numpy(draws.standard_normal((10, 6), dtype=np.float32)))
        with batch_norms(net) as seen:
            o = bound(x)[:, [0, 2, 3]]
        loss = mfcl_loss(x, o, seen)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        expected.append(loss.detach())
    torch.testing.assert_close(losses, torch.stack(expected))
    # a bias before a norm has a gradient of rounding alone, of which Adam makes whole steps: compare what is made
    z = torch.randn(10, 6)
    made = generator.at(found_w, found_b, "train")(z)
    torch.testing.assert_close(made, other.train()(z), rtol=1e-3, atol=1e-4)
    assert losses[-1] < losses[0]

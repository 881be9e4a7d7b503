"""The proxy GAN: the stack that appendix E prints, and what other inputs make of it."""

import pytest
import torch

from flray.core.schema.errors import ConfigError
from flray.models.generators import ProxyDiscriminator, ProxyGenerator, stack


def test_it_is_the_printed_stack_for_32_pixels():
    """FC(100 -> 4096), (256, 4, 4), ConvT 128, 64, 3; Conv 64, 128, 256, and 4 x 4 for the answers."""
    generator, judge = ProxyGenerator((3, 32, 32)), ProxyDiscriminator((3, 32, 32), 10)
    shapes = [tuple(p.shape) for p in generator.parameters() if p.dim() > 1]
    assert shapes == [(4096, 100), (256, 128, 4, 4), (128, 64, 4, 4), (64, 3, 4, 4)]
    assert sum(p.numel() for p in generator.parameters()) == 1_073_219
    shapes = [tuple(p.shape) for p in judge.parameters() if p.dim() > 1]
    assert shapes == [(64, 3, 4, 4), (128, 64, 4, 4), (256, 128, 4, 4), (1, 256, 4, 4), (10, 256, 4, 4)]
    made = generator(torch.randn(5, 100))
    assert made.shape == (5, 3, 32, 32) and made.abs().max() <= 1
    real, label = judge(made)
    assert real.shape == (5,) and label.shape == (5, 10)
    std = torch.cat([p.flatten() for p in judge.parameters() if p.dim() == 4]).std()
    assert float(std.detach()) == pytest.approx(0.02, rel=0.02)


@pytest.mark.parametrize(
    ("side", "expected"),
    [(8, ((64,), 4)), (28, ((128, 64), 7)), (32, ((256, 128, 64), 4)), (64, ((512, 256, 128, 64), 4))],
)
def test_other_sides_have_more_or_fewer_levels(side, expected):
    assert stack((1, side, side)) == expected
    made = ProxyGenerator((1, side, side))(torch.randn(2, 100))
    assert made.shape == (2, 1, side, side) and ProxyDiscriminator((1, side, side), 3)(made)[1].shape == (2, 3)


def test_features_and_what_cannot_be_made():
    made = ProxyGenerator((7,))(torch.randn(3, 100))
    assert made.shape == (3, 7) and ProxyDiscriminator((7,), 2)(made)[0].shape == (3,)
    for shape in ((3, 32, 28), (3, 6, 6), (3, 27, 27), (1, 18, 18)):
        with pytest.raises(ConfigError, match=r"set data\.resize"):
            ProxyGenerator(shape)

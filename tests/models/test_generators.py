"""The generators of the data-free methods: sizes as published, ranges, and what is refused."""

import pytest
import torch

from flray.core.schema.errors import ConfigError
from flray.models import count_parameters
from flray.models.generators import MFCLGenerator, NoisyLabelGenerator, TargetGenerator


def test_sizes_are_those_of_the_papers():
    """Counted by hand for 3x32x32: linear n m + m, norm 2 c, convolution 9 a b (+ b).

    TARGET: 256 8192 + 8192 + 256 + 9 128^2 + 256 + 9 128 64 + 128 + 9 64 3 + 3; MFCL has noise 1000 and biases.
    """
    tail = 256 + 9 * 128 * 128 + 256 + 9 * 128 * 64 + 128 + 9 * 64 * 3 + 3
    assert count_parameters(TargetGenerator((3, 32, 32))) == 256 * 8192 + 8192 + tail
    assert count_parameters(MFCLGenerator((3, 32, 32))) == 1000 * 8192 + 8192 + tail + 128 + 64
    noisy = 2 * 512 + 26 * (512 * 256 + 256)
    assert count_parameters(NoisyLabelGenerator((3, 32, 32))) == noisy + 256 * 8192 + 8192 + tail


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 12, 20), (5,)])
def test_shapes_and_ranges(shape):
    target, mfcl = TargetGenerator(shape, 7), MFCLGenerator(shape, 7)
    made = target(torch.randn(6, 7))
    assert made.shape == (6, *shape)
    if len(shape) == 3:
        assert made.min() > 0 and made.max() < 1
    x = mfcl(torch.randn(6, 7)).transpose(0, 1).flatten(1)
    torch.testing.assert_close(x.mean(1), torch.zeros(shape[0]), rtol=0, atol=1e-5)
    assert x.var(1, unbiased=False).max() < 1.01


def test_every_ten_rows_have_a_linear_layer_of_their_own():
    """Rows 0-9 and 10-14 of equal embeddings differ between the blocks alone; the norm's shift keeps them off 0."""
    torch.manual_seed(0)
    made = NoisyLabelGenerator((1, 8, 8), embedding=4, noise=6, batch=20)
    e = torch.ones(15, 4)
    torch.nn.init.constant_(made.norm.bias, 1.0)
    x = made.eval()(e).flatten(1)
    assert torch.allclose(x[:10], x[:1].expand(10, -1)) and torch.allclose(x[10:], x[10:11].expand(5, -1))
    assert not torch.allclose(x[0], x[10])
    assert len(made.noisy) == 2


def test_sides_that_cannot_be_halved_twice_are_refused():
    with pytest.raises(ConfigError, match=r"sides divisible by 4, the data have 28x30; set data\.resize"):
        MFCLGenerator((1, 28, 30))

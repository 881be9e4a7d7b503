"""What every process knows of the network's inputs."""

import numpy as np
import pytest
import torch

from flray.core.protocol.inputs import Inputs
from flray.core.schema.errors import ConfigError
from flray.data import Normalizer


def test_made_pixels_are_normalised_as_stored_images_are():
    """The data's own normaliser reads bytes [n, H, W, C]; here the same values stand on the 0..1 scale."""
    stored = np.random.default_rng(0).integers(0, 256, (5, 4, 6, 3), dtype=np.uint8)
    mean, std = (0.1, 0.5, 0.7), (0.2, 0.3, 1.0)
    pixels = torch.from_numpy(stored).permute(0, 3, 1, 2).float() / 255
    found = Inputs((3, 4, 6), mean, std).normalised(pixels)
    torch.testing.assert_close(found, Normalizer(mean, std)(stored), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(Inputs((3, 4, 6), mean, std).pixels(found), pixels, rtol=1e-5, atol=1e-6)


def test_features_are_as_they_are_and_texts_are_refused():
    x = torch.randn(3, 4)
    assert Inputs((4,)).normalised(x) is x
    Inputs((4,)).require_numbers("a generator")
    with pytest.raises(ConfigError, match="a generator makes images or feature vectors, the data are texts"):
        Inputs((12,), text=True).require_numbers("a generator")

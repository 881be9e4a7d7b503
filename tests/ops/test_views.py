"""Random views of images: each operation alone, against what it must do."""

import colorsys

import numpy as np
import pytest
import torch

from flray.ops.views import random_views, rotate_hue

NOTHING = {"scale": (1.0, 1.0), "jitter_share": 0.0, "grey_share": 0.0}


def images(count=6, channels=3, side=8):
    return torch.rand(count, channels, side, side, generator=torch.Generator().manual_seed(0))


def views(x, seed=0, **options):
    return random_views(x, np.random.default_rng(seed), **{**NOTHING, **options})


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_shape_range_and_draws(channels):
    x = images(channels=channels)
    found = random_views(x, np.random.default_rng(1))
    assert found.shape == x.shape and found.min() >= 0 and found.max() <= 1
    assert torch.equal(found, random_views(x, np.random.default_rng(1)))
    assert not torch.equal(found, random_views(x, np.random.default_rng(2)))


def test_a_crop_of_a_constant_image_is_that_image_and_of_a_ramp_a_part_of_it():
    """A horizontal ramp stays one, along half of its range or more in a crop of a quarter of the area, either way."""
    assert torch.allclose(views(torch.full((4, 3, 8, 8), 0.3), scale=(0.2, 1.0)), torch.tensor(0.3))
    ramp = ((torch.arange(64) + 0.5) / 64).expand(9, 1, 64, 64)
    found = views(ramp, scale=(0.25, 0.25))
    assert torch.allclose(found, found[:, :, :1], atol=1e-5), "rows are alike"
    steps = found[:, 0, 0].diff(dim=1)
    assert {tuple(np.unique(np.sign(row.numpy().round(6)))) for row in steps} <= {
        (1.0,),
        (-1.0,),
        (0.0, 1.0),
        (-1.0, 0.0),
    }
    width = found[:, 0, 0].amax(1) - found[:, 0, 0].amin(1)
    assert (width > np.sqrt(0.25 * 3 / 4) - 0.03).all() and (width < np.sqrt(0.25 * 4 / 3) + 0.01).all()
    assert {bool(row[0] < row[-1]) for row in found[:, 0, 0]} == {True, False}, "some are mirrored"


def test_grey_has_three_equal_channels():
    found = views(images(), grey_share=1.0)
    assert torch.allclose(found, found[:, :1].expand_as(found), atol=1e-6)


def test_the_hue_is_turned_as_colorsys_does():
    x = images(2, side=3)
    x[0, :, 0, 0] = 0.4  # grey has no hue
    turn = torch.tensor([0.1, -0.35])
    found = rotate_hue(x, turn[:, None, None])
    for i, row, column in np.ndindex(2, 3, 3):
        h, s, v = colorsys.rgb_to_hsv(*x[i, :, row, column].tolist())
        expected = colorsys.hsv_to_rgb((h + float(turn[i])) % 1, s, v)
        np.testing.assert_allclose(found[i, :, row, column], expected, atol=1e-5)

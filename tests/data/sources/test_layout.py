"""Arrays of images: where the channels are, and what each type becomes. The right values are NumPy's."""

import numpy as np
import pytest
import torch

import flray
from flray.core.schema.errors import DataError
from flray.data import DataConfig, load_dataset
from tests.support.messages import facts

DRAWS = np.random.default_rng(3)
Y = np.arange(12) % 2


def samples(*shape, high=256, dtype=np.uint8):
    return DRAWS.integers(0, high, (12, *shape)).astype(dtype)


def read(x, **options):
    section = flray.data.from_arrays((x, Y), **options)
    return load_dataset(DataConfig(**section, test_fraction=0, leak_check=False))


@pytest.mark.parametrize("shape", [(1, 6, 5), (3, 8, 8), (4, 28, 28), (2, 6, 5), (13, 8, 8), (4, 6, 5)])
def test_channels_first_are_taken_where_the_shape_says_so(shape):
    x = samples(*shape)
    np.testing.assert_array_equal(read(x).train.x, np.moveaxis(x, 1, 3))


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        ((28, 28, 4), "images of shape [28, 28, 4] have their channels last; say channels='first' or channels='last'"),
        ((6, 5, 2), "images of shape [6, 5, 2] have their channels last"),
        ((8, 8, 13), "images of shape [8, 8, 13] have their channels last"),
        ((3, 3, 3), "images of shape [3, 3, 3]: it is open which axis has the channels; say channels='first'"),
        ((3, 8, 3), "images of shape [3, 8, 3]: it is open"),
        ((4, 9, 1), "images of shape [4, 9, 1]: it is open"),
        ((5, 6, 7), "images of shape [5, 6, 7]: it is open"),
        ((8, 8, 8), "images of shape [8, 8, 8]: it is open"),
    ],
)
def test_another_shape_is_refused_until_the_layout_is_said(root, shape, says):
    """By arrays, a torch data set, and a folder, whose layout is in the configuration of the run."""
    x = samples(*shape)
    torch_set = torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(Y))
    (root / "scans").mkdir()
    np.save(root / "scans/train_x.npy", x)
    np.save(root / "scans/train_y.npy", Y)
    folder = {"source": "scans", "test_fraction": 0, "leak_check": False}
    for call in (
        lambda: read(x),
        lambda: flray.data.from_torch(torch_set),
        lambda: load_dataset(DataConfig(**folder)),
    ):
        with pytest.raises(DataError, match=facts(says)):
            call()
    for channels, want in (("last", x), ("first", np.moveaxis(x, 1, 3))):
        np.testing.assert_array_equal(read(x, channels=channels).train.x, want)
        given = DataConfig(**flray.data.from_torch(torch_set, channels=channels), test_fraction=0, leak_check=False)
        np.testing.assert_array_equal(load_dataset(given).train.x, want)
        config = DataConfig(**folder, options={"channels": channels})
        assert DataConfig(**config.model_dump(mode="json")) == config
        np.testing.assert_array_equal(load_dataset(config).train.x, want)


def test_the_test_split_has_the_layout_of_train():
    """[4, 6, 2] alone is open; train of [4, 6, 5] has its channels first."""
    with pytest.raises(DataError, match=r"test samples are uint8 \[6, 2, 4\] and train samples uint8 \[6, 5, 4\]"):
        flray.data.from_arrays((samples(4, 6, 5), Y), (samples(4, 6, 2), Y))


BASE = samples(2, 6, 5)
FLOATS = DRAWS.normal(size=(12, 2, 6, 5)) * 300


@pytest.mark.parametrize(
    ("x", "want"),
    [
        (BASE, BASE),
        (BASE[:, :, ::-1, ::-1], BASE[:, :, ::-1, ::-1]),
        (np.asfortranarray(BASE), BASE),
        (BASE > 99, np.where(BASE > 99, np.uint8(255), np.uint8(0))),
        (BASE.astype(">u2") * 257, BASE.astype(np.float32) * 257),
        (BASE.astype(np.int16) - 200, BASE.astype(np.float32) - 200),
        (BASE.astype(np.int8), BASE.astype(np.int8).astype(np.float32)),
        (FLOATS, FLOATS.astype(np.float32)),
        (FLOATS.astype(">f4"), FLOATS.astype(np.float32)),
        (FLOATS.astype(np.float16), FLOATS.astype(np.float16).astype(np.float32)),
        (BASE / np.float32(255), BASE / np.float32(255)),
        (np.ma.masked_array(BASE, mask=False), BASE),
    ],
)
def test_types_keep_their_levels(x, want):
    x = x.view()
    x.flags.writeable = False
    found = read(x)
    assert found.train.x.dtype == want.dtype
    np.testing.assert_array_equal(found.train.x, np.moveaxis(want, 1, 3))
    if want.dtype == np.float32:
        np.testing.assert_allclose(found.mean, want.mean((0, 2, 3), dtype=np.float64), rtol=1e-5, atol=1e-4)
    grey = read(x[:, 0])
    np.testing.assert_array_equal(grey.train.x[..., 0], want[:, 0])


@pytest.mark.parametrize(
    ("x", "says"),
    [
        (BASE.astype(np.int64), "train images are int64; give uint8 with 0..255, (u)int16 or floats"),
        (BASE.astype(object), "train samples are object, not numbers"),
        (BASE.astype(complex), "train samples are complex128, not numbers"),
        (np.ma.masked_array(BASE, mask=BASE > 250), "masked values, the first in row"),
        (torch.from_numpy(BASE).to_sparse(), "is a Tensor that is no array"),
        ([np.zeros(3), np.zeros(4)] * 6, "is a list that is no array"),
    ],
)
def test_values_that_are_no_pixels_are_one_line(x, says):
    with pytest.raises(DataError, match=facts(says)):
        read(x)


def test_masked_labels_are_refused():
    with pytest.raises(DataError, match="train has 1 masked values, the first in row 3"):
        flray.data.from_arrays((BASE, np.ma.masked_array(Y, mask=np.arange(12) == 3)))


def test_what_was_read_is_said():
    assert "images: 2 channels, 5x6, uint8 [H, W, C]" in read(BASE).reading


def test_published_constants_are_for_the_scale_of_0_to_1(root):
    """Levels of 16 bits in a folder called `mnist` are normalised by their own mean; floats of 0..1 by MNIST's."""
    for scale, mean in ((1.0, 0.1307), (65535.0, None)):
        x = (samples(6, 5, high=1000) / np.float32(999) * np.float32(scale)).astype(np.float32)
        (root / "mnist").mkdir(exist_ok=True)
        np.save(root / "mnist/train_x.npy", x)
        np.save(root / "mnist/train_y.npy", Y)
        found = load_dataset(DataConfig(source="mnist", test_fraction=0, leak_check=False))
        np.testing.assert_allclose(found.mean, [x.mean(dtype=np.float64) if mean is None else mean], rtol=1e-6)

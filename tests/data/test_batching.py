"""Batches against torchvision and against a loop over single images."""

import functools

import numpy as np
import pytest
import torch

from flray.core.protocol.seeding import rng
from flray.core.schema.errors import ConfigError
from flray.data import Augment, Batches, Normalizer, augment as augmenting, batching as module

MEAN, STD = (0.49, 0.48, 0.45), (0.247, 0.243, 0.262)
X = np.random.default_rng(0).integers(0, 256, (90, 12, 10, 3), dtype=np.uint8)
Y = np.arange(90) % 7
X.flags.writeable = Y.flags.writeable = False  # as a read-only memory map


def draws(purpose, epoch):
    return rng(0, purpose, 5, epoch)


def batches(indices=None, **kw):
    kw = {"batch_size": 8, "epochs": 2, "rng": draws, "normalizer": Normalizer(MEAN, STD)} | kw
    return Batches(X, Y, np.arange(50) if indices is None else indices, **kw)


def test_normalizer_equals_torchvision():
    from torchvision.transforms import Compose, Normalize, ToTensor

    transform = Compose([ToTensor(), Normalize(MEAN, STD)])
    got = Normalizer(MEAN, STD)(X.copy())
    want = torch.stack([transform(image.copy()) for image in X])
    assert got.dtype == torch.float32 and got.shape == (90, 3, 12, 10)
    assert got.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


def test_float_images_are_normalised_and_augmented_on_their_own_scale():
    """The constants apply, 255 does not; nothing is rounded or clipped, and the samples stay."""
    x = np.random.default_rng(0).normal(size=(9, 6, 5, 2)).astype(np.float32) * 40
    before, mean, std = x.copy(), np.array([1.5, -3]), np.array([2, 40.0])
    normalizer = Normalizer(mean, std)
    out = normalizer(x)
    np.testing.assert_allclose(out.numpy(), ((x - mean) / std).transpose(0, 3, 1, 2), rtol=2e-6, atol=1e-6)
    assert out.is_contiguous(memory_format=torch.channels_last) and (x == before).all()
    factor = torch.linspace(0, 2, 9)
    bright = augmenting.apply_brightness(torch.from_numpy(x), augmenting.AugmentDraws(None, None, None, None, factor))
    np.testing.assert_array_equal(bright.numpy(), x * factor.numpy()[:, None, None, None])
    whole = torch.tensor([[0, 0, 6, 5]]).expand(9, 4)
    stretched = augmenting.apply_resized_crop(
        torch.from_numpy(x), augmenting.AugmentDraws(None, None, None, whole, None)
    )
    np.testing.assert_array_equal(stretched.numpy(), x)


def test_normalizer_leaves_features_and_checks_channels():
    x = torch.randn(4, 3)
    assert Normalizer((), ())(x) is x
    with pytest.raises(ValueError, match="constants for 1 channels and the images have 3"):
        Normalizer((0.5,), (0.5,))(X.copy())


@pytest.mark.parametrize(
    "n, size, policy, want",
    [
        (23, 10, "drop", [10, 10]),
        (23, 10, "merge", [10, 13]),
        (21, 10, "keep", [10, 10, 1]),
        (20, 10, "drop", [10, 10]),
        (20, 10, "merge", [10, 10]),
        (3, 10, "drop", [3]),  # the only one stays: a client trains on what it has
        (3, 10, "merge", [3]),
        (0, 10, "drop", []),
        (0, 10, "merge", []),
        (90, 1, "merge", [1] * 90),
    ],
)
def test_the_last_batch_is_kept_dropped_or_merged(monkeypatch, n, size, policy, want):
    indices = np.arange(90)[::-1][:n]
    for chunk in (1, 20, 512):
        monkeypatch.setattr(module, "CHUNK", chunk)
        made = list(batches(indices, batch_size=size, last_batch=policy))
        assert [len(b.y) for b in made] == want * 2 and len(made) == len(
            batches(indices, batch_size=size, last_batch=policy)
        )
        for epoch in (0, 1):
            order = indices[draws("batches", epoch).permutation(n)][: sum(want)]
            assert [y for b in made[epoch * len(want) :][: len(want)] for y in b.y.tolist()] == Y[order].tolist()


def one_image(image, dy, dx, flip, centre, p, mode, cut):
    """Pad, crop, flip, normalise, cut out: one image at a time, as the torchvision pipeline does."""
    h, w, _ = image.shape
    padded = np.pad(image, ((p, p), (p, p), (0, 0)), mode="reflect" if mode == "reflect" else "constant")
    out = padded[dy : dy + h, dx : dx + w]
    if flip:
        out = out[:, ::-1]
    out = ((out / 255 - np.array(MEAN)) / np.array(STD)).transpose(2, 0, 1)
    cy, cx = centre
    out[:, max(0, cy - cut // 2) : max(0, cy - cut // 2 + cut), max(0, cx - cut // 2) : max(0, cx - cut // 2 + cut)] = 0
    return out


@pytest.mark.parametrize("mode", ["constant", "reflect"])
def test_augmentation_equals_a_loop(mode):
    augment = Augment(crop_padding=3, crop_mode=mode, flip=True, cutout=5)
    got = torch.cat([b.x for b in batches(augment=augment, epochs=1)])
    g = draws("augment", 0)
    shift, flip, centre = g.integers(0, 7, (50, 2)), g.random(50) < 0.5, g.integers(0, [12, 10], (50, 2))
    order = draws("batches", 0).permutation(50)
    for i, row in enumerate(order):
        want = one_image(X[row], *shift[i], flip[i], centre[i], 3, mode, 5)
        np.testing.assert_allclose(got[i].numpy(), want, rtol=1e-5, atol=1e-5)
    assert flip.any() and not flip.all()


def test_brightness_is_that_of_torchvision():
    """Bit for bit, at the factors that the epoch's generator draws in 1 - b ... 1 + b; before normalisation."""
    from torchvision.transforms.functional import adjust_brightness

    got = torch.cat([b.x for b in batches(augment=Augment(brightness=63 / 255), epochs=1)])
    factors = draws("augment", 0).uniform(1 - 63 / 255, 1 + 63 / 255, 50).astype(np.float32)
    images = torch.from_numpy(X[draws("batches", 0).permutation(50)]).permute(0, 3, 1, 2)
    pairs = zip(images, factors.tolist(), strict=True)
    want = torch.stack([adjust_brightness(image, factor) for image, factor in pairs]).permute(0, 2, 3, 1)
    assert torch.equal(got, Normalizer(MEAN, STD)(want.contiguous()))
    assert (want == 255).any() and not torch.equal(want, images.permute(0, 2, 3, 1))


@pytest.mark.parametrize("together", [1, 2**22])
def test_a_resized_crop_is_that_of_torchvision(monkeypatch, together):
    """Of the same boxes: within one level, because torchvision rounds once an axis on some machines; mirrored after."""
    from torchvision.transforms.functional import hflip, resized_crop

    monkeypatch.setattr(augmenting, "AT_ONCE", together)
    augment = Augment(resized_crop=(0.08, 1.0), flip=True)
    drawn = augmenting.draw(augment, draws("augment", 0), 50, (12, 10))
    images = torch.from_numpy(X[:50].copy())
    got = augmenting.apply_crop_flip(augmenting.apply_resized_crop(images, drawn), augment, drawn).permute(0, 3, 1, 2)
    assert got.dtype == torch.uint8
    for image, found, box, flip in zip(images.permute(0, 3, 1, 2), got, drawn.box.tolist(), drawn.flip, strict=True):
        want = resized_crop(image.float(), *box, [12, 10], antialias=False).round()
        want = hflip(want) if flip else want
        assert (found - want).abs().max() <= 1 and (found == want).float().mean() > 0.99
    again = torch.cat([b.x for b in batches(augment=augment, epochs=1)])
    assert again.shape == (50, 3, 12, 10) and torch.isfinite(again).all()


def test_boxes_have_the_law_of_torchvision():
    """Their area's share is uniform, the logarithm of their ratio too, as far as whole pixels allow; all lie within the
    image; where no size fits there is one box, in the middle."""
    found = augmenting.boxes(np.random.default_rng(0), 4000, 300, 300, (0.08, 0.5))
    top, left, height, width = found.T
    assert (found >= 0).all() and (top + height <= 300).all() and (left + width <= 300).all()
    share, ratio = height * width / 300**2, np.log(width / height) / np.log(4 / 3)
    for value, low, high in ((share, 0.08, 0.5), (ratio, -1, 1), (left / (300 - width), 0, 1)):
        quantiles = (np.quantile(value, [0.1, 0.5, 0.9]) - low) / (high - low)
        np.testing.assert_allclose(quantiles, [0.1, 0.5, 0.9], atol=0.03)
    assert (augmenting.boxes(np.random.default_rng(0), 20, 30, 300, (1.0, 1.0)) == [0, 130, 30, 40]).all()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"resized_crop": (0.0, 1.0)}, r"data.augment.resized_crop: \[0, 1\] is not a range of shares"),
        ({"resized_crop": (0.9, 0.1)}, r"the smaller one first"),
        ({"resized_crop": (0.1, 1.0), "crop_padding": 2}, r"exclude each other; leave one out"),
    ],
)
def test_a_crop_that_cannot_be_says_so(options, match):
    with pytest.raises(ConfigError, match=match):
        Augment(**options)


def test_bits_do_not_depend_on_the_chunk(monkeypatch):
    augment = Augment(resized_crop=(0.2, 0.9), flip=True, brightness=0.3, cutout=4)
    want = [b.x.clone() for b in batches(augment=augment)]
    for chunk in (1, 16, 40):
        monkeypatch.setattr(module, "CHUNK", chunk)
        got = [b.x for b in batches(augment=augment)]
        assert all(torch.equal(p, q) for p, q in zip(got, want, strict=True))


@pytest.mark.parametrize("chunk", [1, 512])
@pytest.mark.parametrize(("policy", "last"), [("keep", [[2, 0, 0]]), ("drop", []), ("merge", [[3, 5, 2]])])
def test_rows_of_every_batch_are_what_one_of_several_workers_cuts(monkeypatch, policy, last, chunk):
    """Rows 0-2, 3-7 and 8-9 of 50 samples in batches of 8: together the batches. Of the 2 samples that are left over
    the first worker has both, or nobody any, or a last batch of 10 samples its share each."""
    monkeypatch.setattr(module, "CHUNK", chunk)
    made = functools.partial(batches, augment=Augment(crop_padding=2, flip=True, cutout=4), last_batch=policy)
    whole, shares = list(made()), [list(made(rows=rows)) for rows in ((0, 3), (3, 8), (8, 10))]
    usual = [[3, 5, 0]] * (5 if policy == "merge" else 6)
    assert [[len(part.y) for part in parts] for parts in zip(*shares, strict=True)] == (usual + last) * 2
    for one, *parts in zip(whole, *shares, strict=True):
        for field in ("x", "y"):
            assert torch.equal(getattr(one, field), torch.cat([getattr(part, field) for part in parts]))


def test_epochs_differ_and_sources_stay():
    before = X.copy()
    made = list(batches(augment=Augment(crop_padding=2, cutout=4)))
    assert not torch.equal(made[0].x, made[7].x) and np.array_equal(X, before)
    for b in made:
        b.x.add_(1)  # a batch is the client's own
    assert np.array_equal(X, before)


def test_tensor_source_gives_the_same():
    want = [b.x for b in batches()]
    got = Batches(
        torch.tensor(X),
        torch.tensor(Y),
        np.arange(50, dtype=np.int32),
        batch_size=8,
        epochs=2,
        rng=draws,
        normalizer=Normalizer(MEAN, STD),
    )
    assert all(torch.equal(p, q.x) for p, q in zip(want, got, strict=True))


def test_wrong_arguments():
    with pytest.raises(ValueError, match="batch_size 0"):
        batches(batch_size=0)
    with pytest.raises(ValueError, match="augmentation needs a generator"):
        batches(rng=None, augment=Augment(flip=True))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_gpu_equals_cpu():
    augment = Augment(crop_padding=2, flip=True, cutout=4)
    want = [b.x for b in batches(augment=augment)]
    got = list(batches(augment=augment, normalizer=Normalizer(MEAN, STD, "cuda:0")))
    for p, q in zip(want, got, strict=True):
        torch.testing.assert_close(p, q.x.cpu(), rtol=1e-6, atol=1e-6)

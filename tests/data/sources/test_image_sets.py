"""CINIC-10, PathMNIST, TissueMNIST, SVHN and MNIST as three channels, in the layouts in which they are published."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from flray.core.schema.errors import ConfigError, DataError
from flray.data import Augment, DataConfig
from tests.support.data_files import LABEL, image_column, images, load, write, write_mnist

CINIC_CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def parquet(folder):
    """Two RGB images a split, with class names."""
    for i, split in enumerate(("train", "test")):
        write(folder, split, {"img": image_column(images(2, (32, 32, 3), 90 + i)), "label": pa.array([0, 1])}, LABEL)


# CINIC-10 --------------------------------------------------------------------------------------
@pytest.fixture
def cinic(root):
    """Three images a class and part, the first of all grey; written in an order that is not the names'."""
    x = {part: images(30, (32, 32, 3), i) for i, part in enumerate(("train", "valid", "test"))}
    for part, pixels in x.items():
        for c, name in enumerate(CINIC_CLASSES):
            folder = root / "cinic10" / part / name
            folder.mkdir(parents=True)
            for i in (2, 0, 1):
                Image.fromarray(pixels[3 * c + i]).save(folder / f"n{i:05d}_1.png")
            (folder / ".DS_Store").write_bytes(b"not an image")
            (folder / "._n00000_1.png").write_bytes(b"what macOS writes beside a file")
    Image.fromarray(x["train"][0, ..., 0]).save(root / "cinic10/train/airplane/n00000_1.png")
    x["train"][0] = x["train"][0, ..., :1]
    return root / "cinic10", x


def test_cinic10(cinic):
    _, x = cinic
    d = load("cinic10")
    assert np.array_equal(d.train.x, x["train"]) and np.array_equal(d.test.x, x["test"])
    assert (
        d.classes == tuple(CINIC_CLASSES)
        and d.train.y.tolist() == np.repeat(range(10), 3).tolist() == d.test.y.tolist()
    )
    assert d.mean == (0.47889522, 0.47227842, 0.43047404) and d.std == (0.24205776, 0.23828046, 0.25874835)
    more = load("cinic10", options={"include_valid": True})
    assert np.array_equal(more.train.x, np.concatenate([x["train"], x["valid"]])) and np.array_equal(
        more.test.x, x["test"]
    )
    assert more.train.y.tolist() == 2 * np.repeat(range(10), 3).tolist()
    assert load("cinic10", resize=16).input_shape == (3, 16, 16)


def test_cinic10_is_decoded_once_and_again_when_a_file_changes(cinic, monkeypatch):
    folder, _ = cinic
    first = load("cinic10")
    from flray.data.sources import pictures

    real = pictures.decode
    monkeypatch.setattr(pictures, "decode", None)
    assert load("cinic10").fingerprint == first.fingerprint
    monkeypatch.setattr(pictures, "decode", real)
    path = folder / "test/cat/n00000_1.png"
    Image.fromarray(images(1, (32, 32, 3), 77)[0]).save(path)
    os.utime(path, ns=(1, 1))
    changed = load("cinic10")
    assert changed.fingerprint != first.fingerprint and np.array_equal(changed.test.x[9], images(1, (32, 32, 3), 77)[0])


def test_cinic10_as_parquet(root):
    parquet(root / "cinic10")
    d = load("cinic10")
    assert np.array_equal(d.train.x, images(2, (32, 32, 3), 90)) and d.classes == ("cat", "dog")
    assert d.std == (0.24205776, 0.23828046, 0.25874835)
    with pytest.raises(DataError, match=r"include_valid: .*cinic10 holds Parquet files, .* leave it out"):
        load("cinic10", options={"include_valid": True})


@pytest.mark.parametrize(
    "damage, text",
    [
        (lambda cinic: (cinic / "test").rename(cinic / "tset"), r"cinic10/test is missing; unpack the archive again"),
        (
            lambda cinic: (cinic / "test/cat").rename(cinic / "test/kitten"),
            r"test and train have different class folders \(cat, kitten\); unpack",
        ),
        (
            lambda cinic: [path.unlink() for path in (cinic / "train/dog").glob("*.png")],
            r"cinic10/train/dog holds no PNG images; unpack",
        ),
        (
            lambda cinic: (cinic / "train/dog/n00001_1.png").write_bytes(b"\x89PNG no"),
            r"cinic10/train/dog/n00001_1.png is not a readable image",
        ),
        (
            lambda cinic: Image.fromarray(images(1, (30, 32, 3))[0]).save(cinic / "train/dog/n00001_1.png"),
            r"train/dog/n00001_1.png has 32x30 pixels and the first image 32x32; set data.resize",
        ),
    ],
    ids=["part", "class", "empty", "image", "size"],
)
def test_damaged_cinic10(cinic, damage, text):
    damage(cinic[0])
    with pytest.raises(DataError, match=text):
        load("cinic10")


# MedMNIST --------------------------------------------------------------------------------------
def archive(path, shape, classes, **changes):
    """Keys, dtypes and shapes of the published files: labels are uint8 [n, 1]."""
    arrays = {}
    for i, (part, n) in enumerate((("train", 20), ("val", 6), ("test", 9))):
        arrays[f"{part}_images"] = images(n, shape, i)
        arrays[f"{part}_labels"] = (np.arange(n) % classes).astype(np.uint8)[:, None]
    arrays = {key: value for key, value in {**arrays, **changes}.items() if value is not None}
    path.parent.mkdir(exist_ok=True)
    np.savez_compressed(path, **arrays)
    return arrays


@pytest.mark.parametrize("place", ["pathmnist.npz", "medmnist/pathmnist.npz"])
def test_pathmnist(root, place):
    arrays = archive(root / place, (28, 28, 3), 9)
    d = load("pathmnist")
    assert np.array_equal(d.train.x, np.concatenate([arrays["train_images"], arrays["val_images"]]))
    assert d.train.y.tolist() == [*(np.arange(20) % 9), *(np.arange(6) % 9)]
    assert np.array_equal(d.test.x, arrays["test_images"]) and d.test.y.tolist() == list(range(9))
    assert d.num_classes == 9 and d.classes[5] == "smooth muscle" and d.input_shape == (3, 28, 28)
    assert d.mean == d.std == (0.5, 0.5, 0.5)


def test_tissuemnist(root):
    arrays = archive(root / "tissuemnist.npz", (28, 28), 8)
    grey = load("tissuemnist")
    assert grey.input_shape == (1, 28, 28) and grey.num_classes == 8 and grey.classes[7] == "Thick Ascending Limb"
    assert np.array_equal(grey.train.x[20:, ..., 0], arrays["val_images"]) and grey.mean == grey.std == (0.5,)
    colour = load("tissuemnist", channels=3)  # as PIL's convert("RGB") in FedSOL's code
    assert colour.input_shape == (3, 28, 28) and colour.mean == colour.std == (0.5, 0.5, 0.5)
    assert np.array_equal(colour.test.x[4], np.asarray(Image.fromarray(arrays["test_images"][4]).convert("RGB")))


def test_pathmnist_as_parquet(root):
    parquet(root / "pathmnist")
    archive(root / "pathmnist.npz", (28, 28, 3), 9)
    assert load("pathmnist").input_shape == (3, 32, 32)


@pytest.mark.parametrize(
    "changes, text",
    [
        ({"val_images": None}, r"pathmnist.npz is not a MedMNIST archive: it has no val_images; download it again"),
        ({"test_labels": np.full((9, 1), 9, np.uint8)}, r"test.y holds class 9; classes are 0..8"),
        ({"test_labels": np.zeros((7, 1), np.uint8)}, r"test.y is int64 \(7,\); make it int64 \[9\]"),
        ({"train_images": np.zeros((20, 28, 28, 3))}, r"train.x is float64"),
    ],
)
def test_wrong_archives(root, changes, text):
    archive(root / "pathmnist.npz", (28, 28, 3), 9, **changes)
    with pytest.raises(DataError, match=text):
        load("pathmnist")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut off", b"<html>not found</html>"])
def test_damaged_archive(root, content):
    (root / "pathmnist.npz").write_bytes(content)
    with pytest.raises(DataError, match=r"pathmnist.npz is not a readable .npz archive .*; download it again"):
        load("pathmnist")


def test_download_through_the_package(root, monkeypatch):
    """The package's own interface: MedMNIST classes download to `root` when they are made."""

    def made(split, download, root):
        assert os.path.isdir(root) and download
        archive(Path(root) / "tissuemnist.npz", (28, 28), 8)

    folder = root / "new"
    monkeypatch.setitem(sys.modules, "medmnist", SimpleNamespace(TissueMNIST=made))
    assert len(load("tissuemnist", root=str(folder), download=True).train.y) == 26
    monkeypatch.setitem(sys.modules, "medmnist", None)  # not installed, and not needed any more
    assert len(load("tissuemnist", root=str(folder), download=True).train.y) == 26
    with pytest.raises(
        DataError, match=r"needs the package medmnist \(pip install 'flray\[medmnist\]'\); or put pathmnist.npz"
    ):
        load("pathmnist", download=True)

    def broken(**_):
        raise RuntimeError("Something went wrong when downloading!")

    monkeypatch.setitem(sys.modules, "medmnist", SimpleNamespace(PathMNIST=broken))
    with pytest.raises(DataError, match=r"medmnist cannot download pathmnist to .*check the network"):
        load("pathmnist", download=True)


# SVHN and MNIST in torchvision's layout -----------------------------------------------------------
def test_svhn_without_its_extra_split(root, monkeypatch):
    """`.mat` files hold images [32, 32, 3, n] and labels 1..10, 10 for the digit 0."""
    from scipy.io import savemat
    from torchvision.datasets import SVHN

    monkeypatch.setattr(SVHN, "_check_integrity", lambda self: True)  # checksums of the published files
    x = {split: images(n, (32, 32, 3), n) for split, n in (("train", 11), ("test", 5))}
    for split, pixels in x.items():
        savemat(
            root / f"{split}_32x32.mat",
            {"X": pixels.transpose(1, 2, 3, 0), "y": (np.arange(len(pixels)) % 10 + 1)[:, None]},
        )
    first = load("svhn")
    assert np.array_equal(first.train.x, x["train"]) and np.array_equal(first.test.x, x["test"])
    assert first.train.y.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    assert first.mean == (0.4376821, 0.4437697, 0.47280442) and first.std == (0.19803012, 0.20101562, 0.19703614)
    savemat(root / "extra_32x32.mat", {"X": images(7, (32, 32, 3)).transpose(1, 2, 3, 0), "y": np.ones((7, 1))})
    assert load("svhn").fingerprint == first.fingerprint and len(load("svhn").train.y) == 11


def test_mnist_with_three_channels(root):
    """FedSOL repeats the channel after normalising with MNIST's constants: the same constants three times."""
    from flray.models import ModelConfig, build_model, count_parameters

    raw = write_mnist(root, {"train": 12, "t10k": 10})
    d = load("mnist", channels=3, augment="fedsol")
    assert d.input_shape == (3, 28, 28) and d.mean == (0.1307,) * 3 and d.std == (0.3081,) * 3
    assert all(np.array_equal(d.train.x[..., c], images(12, (28, 28), 12)) for c in range(3))
    assert count_parameters(build_model(ModelConfig(name="fedavg_cnn"), d.input_shape, d.num_classes, 0)) == 1_664_970
    grey = load("mnist")
    assert grey.mean == (0.1307,) and grey.test.y.tolist() == list(range(10))
    (raw / "t10k-images-idx3-ubyte").unlink()
    with pytest.raises(DataError, match=r"mnist files in .* are incomplete or damaged"):
        load("mnist")


# where nothing is ---------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "source, text",
    [
        (
            "cinic10",
            r"looked for Parquet files in ROOT/cinic10 and images ROOT/cinic10/\{train,test\}/<class>/\*.png; "
            r"unpack CINIC-10.tar.gz \(https://",
        ),
        (
            "pathmnist",
            r"looked for Parquet files in ROOT/pathmnist and ROOT/pathmnist.npz and ROOT/medmnist/pathmnist.npz; put "
            r"pathmnist.npz "
            r"\(https://medmnist.com\) into .*, or set `download: true`",
        ),
        ("svhn", r"looked for Parquet files in ROOT/svhn and torchvision's svhn files in ROOT; .*or `download: true`"),
    ],
)
def test_missing(root, source, text):
    with pytest.raises(DataError, match=text.replace("ROOT", str(root))):
        load(source)


def test_a_name_of_the_hub_is_told_how_it_is_written(root):
    with pytest.raises(DataError, match="one of the Hugging Face Hub is data=hf:uoft-cs/cifar10; else set `root`"):
        load("uoft-cs/cifar10")


@pytest.mark.parametrize("source", ["cinic10", "pathmnist", "tissuemnist", "svhn"])
def test_no_root(source):
    with pytest.raises(
        DataError, match=rf"data set '{source}' not found; neither `root` nor FLRAY_DATA is set; .*FLRAY_DATA"
    ):
        load(source)


@pytest.mark.parametrize(
    ("source", "option", "text"),
    [
        *(
            (name, {"options": {"valid": True}}, f"data.options: {name} does not read 'valid'")
            for name in ("cinic10", "pathmnist", "svhn")
        ),
        ("cinic10", {"label": "label"}, r"data.label: cinic10 has no columns"),
    ],
)
def test_options_that_are_not_read(cinic, source, option, text):
    with pytest.raises(DataError, match=text):
        load(source, **option)


# augmentation by name --------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "source, want",
    [  # as in the code of Lee-Gihun/FedSOL
        ("mnist", {"crop_padding": 4, "flip": True, "cutout": 16}),
        ("cifar10", {"crop_padding": 4, "flip": True, "cutout": 16}),
        ("svhn", {"crop_padding": 4, "flip": True}),
        ("cinic10", {"crop_padding": 4, "flip": True, "crop_mode": "reflect"}),
        ("pathmnist", {"flip": True}),
        ("tissuemnist", {"flip": True}),
        ("hf:/data/cifar10/", {"crop_padding": 4, "flip": True, "cutout": 16}),
    ],
)
def test_fedsol_augmentation_is_written_out(source, want):
    config = DataConfig(source=source, augment="fedsol")
    assert config.augment == Augment(**want)
    saved = config.model_dump(mode="json")
    none = {"crop_padding": 0, "crop_mode": "constant", "flip": False, "cutout": 0, "brightness": 0.0}
    assert saved["augment"] == {**none, "resized_crop": None, **want}
    assert DataConfig(**saved) == config


def test_augmentation_that_is_not_known():
    with pytest.raises(
        ConfigError,
        match=r"data.augment: fedsol exists for mnist, .*tissuemnist, not for 'cifar100'; write crop_padding",
    ):
        DataConfig(source="cifar100", augment="fedsol")
    with pytest.raises(ConfigError, match=r"data.augment: unknown preset 'fedsl' \(did you mean 'fedsol'\?\)"):
        DataConfig(source="mnist", augment="fedsl")


def test_an_experiment_saves_the_record():
    """`augment: fedsol` in a file, the record in the text of the experiment, and the same experiment from it."""
    from flray.config.loader import load_config

    file = {
        "rounds": 1,
        "data": {"source": "cifar10", "augment": "fedsol"},
        "partition": {"name": "iid", "clients": 2},
        "model": {"name": "fedavg_cnn"},
        "algorithm": {"name": "fedavg"},
    }
    (experiment,) = load_config(file)
    assert load_config(experiment.dump())[0] == experiment
    (other,) = load_config(file, ["data.source=svhn"])  # the preset is resolved after the overrides
    assert other.data.augment.cutout == 0
    (saved,) = load_config(experiment.dump(), ["data.augment.cutout=0"])
    assert saved.data.augment == Augment(crop_padding=4, flip=True)

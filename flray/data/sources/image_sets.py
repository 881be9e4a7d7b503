"""Image sets in their published layout: folders of PNG files (CINIC-10), `.npz` archives (MedMNIST), torchvision's
files (CIFAR, MNIST, SVHN)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from flray.core.schema.errors import DataError
from flray.data.cache import Array, digest, file_digest, listing_digest
from flray.data.data_config import DataConfig
from flray.data.sources.options import check_options, data_root, no_columns, not_found
from flray.data.sources.table_sources import parquet_folder, table
from flray.data.splits import Split, Splits, cached

MEDMNIST = {  # name of the class in the package medmnist, class names
    "pathmnist": (
        "PathMNIST",
        (
            "adipose",
            "background",
            "debris",
            "lymphocytes",
            "mucus",
            "smooth muscle",
            "normal colon mucosa",
            "cancer-associated stroma",
            "colorectal adenocarcinoma epithelium",
        ),
    ),
    "tissuemnist": (
        "TissueMNIST",
        (
            "Collecting Duct, Connecting Tubule",
            "Distal Convoluted Tubule",
            "Glomerular endothelial cells",
            "Interstitial endothelial cells",
            "Leukocytes",
            "Podocytes",
            "Proximal Tubule Segments",
            "Thick Ascending Limb",
        ),
    ),
}


# CINIC-10 --------------------------------------------------------------------------------------
def cinic10(config: DataConfig) -> Splits:
    """CINIC-10 (Darlow et al. 2018): 90,000 train and 90,000 test images of 32x32 in CIFAR-10's classes.

    From `root/cinic10/{train,test}/<class>/*.png`, or Parquet files in `root/cinic10`. `options: {include_valid: true}`
    adds the validation part (another 90,000) to the train split; FedSOL's code does not use it.
    """
    options = check_options(config, {"include_valid": False})
    folder = parquet_folder(config)
    if folder is not None:
        if options["include_valid"]:
            raise DataError(
                f"data.options.include_valid: {folder} holds Parquet files, whose train split is taken as it is; leave "
                "it out"
            )
        return table(config)
    no_columns(config)
    folder = cinic10_folder(config)
    if folder is None:
        root = data_root(config)
        place = None if root is None else root / "cinic10"
        looked = [] if place is None else [f"Parquet files in {place}", f"images {place}/{{train,test}}/<class>/*.png"]
        get = "unpack CINIC-10.tar.gz (https://datashare.is.ed.ac.uk/handle/10283/3192) into the folder cinic10"
        raise not_found(config, looked, f"{get} below `root` or FLRAY_DATA")
    names = ["train", "valid", "test"] if options["include_valid"] else ["train", "test"]
    parts = {name: _listing(folder / name) for name in names}
    for name, files in parts.items():
        if files.keys() != parts["train"].keys():
            odd = sorted(files.keys() ^ parts["train"].keys())
            raise DataError(
                f"{folder}: {name} and train have different class folders ({', '.join(odd[:5])}); unpack the archive "
                "again"
            )
    key = digest(
        "images 2",
        listing_digest([path for files in parts.values() for paths in files.values() for path in paths]),
        config.resize,
    )
    return cached(key, lambda: _image_splits(parts, config.resize))


def cinic10_folder(config: DataConfig) -> Path | None:
    """The folder `root/cinic10` if it has a folder `train`, else None."""
    root = data_root(config)
    return root / "cinic10" if root is not None and (root / "cinic10" / "train").is_dir() else None


def _listing(folder: Path) -> dict[str, list[str]]:
    """The PNG files of each class folder, without hidden ones (`._x.png`); classes and files are sorted by name, as in
    torchvision's ImageFolder."""
    if not folder.is_dir():
        raise DataError(f"{folder} is missing; unpack the archive again")
    classes = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    files = {
        name: sorted(
            e.path for e in os.scandir(folder / name) if e.name.lower().endswith(".png") and not e.name.startswith(".")
        )
        for name in classes
    }
    empty = [name for name, paths in files.items() if not paths]
    if empty or not files:
        raise DataError(f"{folder / empty[0] if empty else folder} holds no PNG images; unpack the archive again")
    return files


def _image_splits(parts: dict[str, dict[str, list[str]]], resize: int | None) -> Splits:
    from flray.data.sources.pictures import Encoded, decode

    names = [[name for name in parts if name != "test"], ["test"]]
    files = [[path for name in split for paths in parts[name].values() for path in paths] for split in names]
    labels = [
        [label for name in split for label, paths in enumerate(parts[name].values()) for _ in paths] for split in names
    ]
    # some images are grey; all are read as RGB
    decoded = decode([Encoded(each.__getitem__, len(each), each.__getitem__) for each in files], resize, "RGB")
    train, test = (Split(x, np.array(y, np.int64)) for x, y in zip(decoded.arrays, labels, strict=True))
    return Splits(train, test, tuple(parts["train"]), reading=(decoded.reading,))


# MedMNIST --------------------------------------------------------------------------------------
def pathmnist(config: DataConfig) -> Splits:
    """PathMNIST (MedMNIST, Yang et al. 2023): 100,000 train and 7,180 test images of colon tissue, 28x28, colour, 9
    classes.

    From `root/pathmnist.npz`, `root/medmnist/pathmnist.npz`, or Parquet files in `root/pathmnist`. The archive's train
    and validation part are the train split, as in FedSOL's code. `download: true` needs the package medmnist.
    """
    return _medmnist(config)


def tissuemnist(config: DataConfig) -> Splits:
    """TissueMNIST (MedMNIST): 189,106 train and 47,280 test images of kidney cells, 28x28, grey, 8 classes.

    Read from `root/tissuemnist.npz` or `root/medmnist/tissuemnist.npz`, as published, or from Parquet files in
    `root/tissuemnist`. The archive's train and validation part together are the train split, as in FedSOL's code, which
    also makes RGB of it: `channels: 3`. `download: true` needs the package medmnist.
    """
    return _medmnist(config)


def _medmnist(config: DataConfig) -> Splits:
    check_options(config, {})
    folder = parquet_folder(config)
    if folder is not None:
        return table(config)
    no_columns(config)
    name, root, path = config.source, data_root(config), medmnist_file(config)
    if path is None:
        if config.download:
            path = _download(name, root)
        else:
            looked = [] if root is None else [f"Parquet files in {root / name}", *map(str, _places(name, root))]
            get = f"put {name}.npz (https://medmnist.com) into the folder that `root` or FLRAY_DATA names"
            raise not_found(config, looked, f"{get}, or set `download: true`")
    return cached(digest("medmnist", name, file_digest([path])), lambda: _archive(name, path))


def medmnist_file(config: DataConfig) -> Path | None:
    """The archive `root/NAME.npz` or `root/medmnist/NAME.npz`, None if there is neither."""
    root = data_root(config)
    places = [] if root is None else _places(config.source, root)
    return next((place for place in places if place.is_file()), None)


def _places(name: str, root: Path) -> list[Path]:
    return [root / f"{name}.npz", root / "medmnist" / f"{name}.npz"]


def _download(name: str, root: Path | None) -> Path:
    if root is None:
        raise DataError(f"data set {name!r}: `download: true` needs a folder to download to; set `root` or FLRAY_DATA")
    try:
        import medmnist as package
    except ImportError as error:
        raise DataError(
            f"data set {name!r}: `download: true` needs the package medmnist (pip install 'flray[medmnist]'); "
            f"or put {name}.npz (https://medmnist.com) into {root}"
        ) from error
    try:
        root.mkdir(parents=True, exist_ok=True)
        getattr(package, MEDMNIST[name][0])(split="test", download=True, root=str(root))
    except (OSError, RuntimeError) as error:
        raise DataError(f"medmnist cannot download {name} to {root} ({error}); check the network") from error
    return root / f"{name}.npz"


def _archive(name: str, path: Path) -> Splits:
    parts: dict[str, Array] = {}
    try:
        with np.load(path, allow_pickle=False) as archive:
            for part in ("train", "val", "test"):
                parts[part], parts[f"{part}_y"] = archive[f"{part}_images"], archive[f"{part}_labels"]

        def split(*names: str) -> Split:
            x, y = (np.concatenate([parts[n + suffix] for n in names]) for suffix in ("", "_y"))
            return Split(x if x.ndim == 4 else x[..., None], y.reshape(-1).astype(np.int64))

        return Splits(split("train", "val"), split("test"), MEDMNIST[name][1])
    except KeyError as error:
        raise DataError(
            f"{path} is not a MedMNIST archive: it has no {error.args[0].split()[0]}; download it again"
        ) from error
    except Exception as error:  # zip, zlib and NumPy raise different kinds for damaged files
        raise DataError(f"{path} is not a readable .npz archive ({error}); download it again") from error


# torchvision -----------------------------------------------------------------------------------
_VISION = {  # class in torchvision.datasets, where its files lie below root
    "cifar10": ("CIFAR10", "cifar-10-batches-py/*"),
    "cifar100": ("CIFAR100", "cifar-100-python/*"),
    "mnist": ("MNIST", "MNIST/raw/*"),
    "fashion_mnist": ("FashionMNIST", "FashionMNIST/raw/*"),
    "svhn": ("SVHN", "t*_32x32.mat"),
}


def torchvision_files(name: str, root: Path, download: bool) -> list[Path]:
    """The files of a torchvision data set below `root`, downloaded if `download`; [] if there are none."""
    pattern = _VISION[name][1]
    if download and not any(root.glob(pattern)):
        try:
            for split in (True, False):
                _vision(name, root, split, download=True)
        except (OSError, RuntimeError) as error:
            raise DataError(f"torchvision cannot download {name} to {root} ({error}); is there a network?") from error
    return sorted(path for path in root.glob(pattern) if path.is_file())


def torchvision_splits(name: str, root: Path) -> Splits:
    """The official train and test split (SVHN: without its extra split), NHWC. Raises `DataError`."""
    try:
        train, test = _vision(name, root, True), _vision(name, root, False)
        return Splits(_vision_split(train), _vision_split(test), tuple(getattr(train, "classes", map(str, range(10)))))
    except Exception as error:  # torchvision's readers raise many kinds for damaged files
        raise DataError(
            f"torchvision's {name} files in {root} are incomplete or damaged; delete them and download again"
        ) from error


def _vision(name: str, root: Path, train: bool, download: bool = False) -> Any:
    import torchvision

    kind = getattr(torchvision.datasets, _VISION[name][0])
    if name == "svhn":
        return kind(root, split="train" if train else "test", download=download)
    return kind(root, train=train, download=download)


def _vision_split(data: Any) -> Split:
    x = np.asarray(data.data)
    if x.ndim == 3:
        x = x[..., None]
    elif x.shape[1] == 3 and x.shape[-1] != 3:  # SVHN is stored NCHW
        x = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    return Split(
        x.astype(np.uint8), np.asarray(getattr(data, "targets", getattr(data, "labels", None)), dtype=np.int64)
    )

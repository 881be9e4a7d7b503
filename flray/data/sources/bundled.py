"""Sources without files: scikit-learn's small data sets, and synthetic ones."""

from __future__ import annotations

import math

import numpy as np

from flray.core.protocol.seeding import rng
from flray.core.schema.errors import DataError, shown
from flray.data.cache import digest
from flray.data.data_config import DataConfig
from flray.data.sources.options import check_options, no_columns
from flray.data.splits import Split, Splits, cached

SYNTHETIC = 2**32  # numbers in a synthetic data set: 16 GB
DEFAULT = {"num_train": 2000, "num_test": 500, "shape": [28, 28, 1], "num_classes": 10, "noise": 0.5}


def iris(config: DataConfig) -> Splits:
    """Fisher's Iris: 150 samples, 4 features in cm, 3 classes (scikit-learn's copy)."""
    return _sklearn(config, "iris")


def digits(config: DataConfig) -> Splits:
    """UCI digits: 1,797 grey images of 8x8 pixels, values 0..16 stretched to 0..255 (scikit-learn's copy)."""
    return _sklearn(config, "digits")


def _sklearn(config: DataConfig, name: str) -> Splits:
    check_options(config, {})
    no_columns(config)

    def build() -> Splits:
        import sklearn.datasets

        bunch = getattr(sklearn.datasets, f"load_{name}")()
        x = bunch.data.astype(np.float32)
        if name == "digits":
            x = np.rint(bunch.images * (255 / 16)).astype(np.uint8)[..., None]
        return Splits(Split(x, bunch.target.astype(np.int64)), None, tuple(str(c) for c in bunch.target_names))

    return cached(digest("sklearn", name), build)


def synthetic(config: DataConfig) -> Splits:
    """Gaussian classes: a random template for each class plus noise, drawn from `split_seed`.

    Options: num_train 2000, num_test 500, shape [28, 28, 1] (one number: tabular), num_classes 10, noise 0.5.
    Labels are balanced: sample i has class i mod num_classes.
    """
    options = check_options(config, DEFAULT)
    no_columns(config)
    seed, classes, *shape = template_of(config)
    if len(shape) not in (1, 3) or not all(type(s) is int and 0 < s < 10_000 for s in shape):
        raise DataError(
            f"data.options.shape: {shown(list(shape))} is neither [H, W, C] nor [d]; write, for example, [28, 28, 1]"
        )
    sizes = {name: options[name] for name in ("num_train", "num_classes", "num_test")}
    if (
        min(sizes["num_train"], sizes["num_classes"]) < 1
        or sizes["num_test"] < 0
        or sum(sizes.values()) * math.prod(shape) > SYNTHETIC
    ):
        raise DataError(
            f"data.options: {sizes} of shape {list(shape)} is no sample, or more than {SYNTHETIC:,} numbers; choose "
            "other sizes"
        )
    if not 0 <= options["noise"] <= 1e6:
        raise DataError(f"data.options.noise: {options['noise']} is not in 0..1e6; write a standard deviation")

    def build() -> Splits:
        template = rng(seed, "synthetic", "template").standard_normal((classes, *shape), dtype=np.float32)

        def split(name: str, n: int) -> Split:
            y = np.arange(n, dtype=np.int64) % classes
            x = rng(seed, "synthetic", name).standard_normal((n, *shape), dtype=np.float32)
            x *= np.float32(options["noise"])
            x += template[y]
            if len(shape) == 3:  # two standard deviations either side of mid grey
                x = np.clip(x * 40 + 128, 0, 255).astype(np.uint8)
            return Split(x, y)

        test = split("test", options["num_test"]) if options["num_test"] else None
        return Splits(split("train", options["num_train"]), test, tuple(str(c) for c in range(classes)))

    return cached(digest("synthetic", options, seed), build)


def template_of(config: DataConfig) -> list[int]:
    """What the templates of a synthetic data set are drawn from: the seed, the number of classes and the shape."""
    options = check_options(config, DEFAULT)
    shape = options["shape"]
    return [config.split_seed, int(options["num_classes"]), *(shape if isinstance(shape, list | tuple) else [shape])]

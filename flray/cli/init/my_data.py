"""A data set of your own, `data: {source: my_data}`: two half circles; put your own arrays in their place.

Images are uint8 `[n, H, W, C]` or floats in [0, 1], tables float32 `[n, d]`, labels int64 `[n]`. The section `data`
comes as `config`; its table `options` is yours.
"""

import numpy as np
from sklearn.datasets import make_moons

from flray.data import SOURCES
from flray.data.splits import Split, Splits


def my_data(config):
    """(train, test, names of the classes)."""
    x, y = make_moons(1000, noise=config.options.get("noise", 0.2), random_state=config.split_seed)
    x, y = x.astype(np.float32), y.astype(np.int64)
    return Splits(Split(x[:800], y[:800]), Split(x[800:], y[800:]), classes=("upper", "lower"))


SOURCES.add("my_data", my_data)

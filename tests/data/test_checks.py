"""The warning of columns on raw scales. Right standard deviations are those of the statistics module."""

import statistics
import warnings

import numpy as np
import pandas
import pytest

from flray.config.loader import load_config
from flray.data import ScaleWarning
from flray.data.checks import note_scales
from flray.engine.prepare import build_data

RUN = {"rounds": 1, "partition": {"name": "iid", "clients": 3}, "model": "mlp", "algorithm": "fedavg"}
rng = np.random.default_rng(6)
AGE, SMOKES, RATIO = rng.integers(18, 99, 3000), np.arange(3000) % 2, rng.normal(size=3000)


def said(*columns, names=()):
    x = np.stack(columns, axis=1).astype(np.float32)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        note_scales(x, names, "mine")
    return [str(one.message) for one in caught if one.category is ScaleWarning]


def test_two_columns_are_named_with_their_deviations():
    wide, narrow = (statistics.pstdev(column.tolist()) for column in (AGE, SMOKES))
    want = f"'age' has the standard deviation {wide:.3g} and column 'smokes' has the standard deviation {narrow:.3g};"
    (text,) = said(RATIO, AGE, SMOKES, names=("ratio", "age", "smokes"))
    assert text.startswith(f"data set 'mine': column {want} write data.standardize=true")
    assert "column 1 has the standard" in said(RATIO, AGE, SMOKES)[0]


@pytest.mark.parametrize(
    "columns",
    [
        (RATIO, SMOKES),
        (AGE, AGE * 3 + 1),  # large, and alike
        (RATIO * 5, RATIO / 50),  # a column that is nearly constant does no harm
        (AGE, np.full(3000, 0.1)),
        (np.full(3000, 0.1), np.full(3000, 7)),
    ],
)
def test_scales_that_are_alike_or_small_are_no_noise(columns):
    assert said(*columns) == []


def warned(**data):
    experiment = load_config({**RUN, "data": data})[0]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        build_data(experiment)
    return [str(one.message) for one in caught if one.category is ScaleWarning]


@pytest.mark.parametrize("name", ["iris", "digits"])
def test_data_sets_of_flray_are_no_noise(name):
    assert warned(source=name) == []


def test_standardised_columns_are_no_noise(tmp_path):
    table = pandas.DataFrame({"age": AGE, "smokes": SMOKES, "ratio": RATIO, "label": rng.integers(0, 2, 3000)})
    table.to_csv(tmp_path / "all.csv", index=False)
    assert "column 'age' has" in warned(source=f"hf:{tmp_path}/all.csv")[0]
    assert warned(source=f"hf:{tmp_path}/all.csv", standardize=True) == []

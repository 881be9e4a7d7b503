"""A method has one colour in every figure; the methods of a table are apart for every eye, their lines also in grey.

Vision without red or green cones: Machado, Oliveira and Fernandes, "A physiologically-based model for simulation of
color vision deficiency" (IEEE TVCG 2009), severity 1, on linear RGB. Distance: CIE 1976, in CIELAB (D65).
"""

import functools
import itertools
import math

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from numpy.typing import NDArray

from flray.algorithms import as_written, built_in
from flray.results.colours import (
    MARKERS,
    METHODS,
    OTHERS,
    colour_of,
    colours_of,
    markers_of,
    styles_of,
)

TABLES = (  # methods that the papers' tables compare
    "fedavg fedprox scaffold fednova feddyn moon fedntd fedsam fedasam fedsol fedrcl",
    "fedavg perfedavg fedbabu knnper ditto local fedsol",
    "fedavg fedprox fednova scaffold feddyn moon feddf fedet fedproj",
    "fedavg fedprox target lander mfcl glfc lga fot fedpec fedscr fedprotip er der ewc fedcurv centralized",
    "fedavg fedprox target lander mfcl fedmemo centralized",
    "fedavg fedavgm fedadam fedyogi fedadagrad",
    "fedavg fedsol fedproj fedprotip fedmemo",
    "global task_aware tip_sample tip_batch tip_window",
)
APART = 18.0  # smallest distance of two colours of a table


def methods(table: str) -> list[str]:
    return list(map(as_written, table.split()))


def test_the_table_names_every_algorithm_of_flray():
    assert [name for name in map(as_written, built_in()) if name not in METHODS] == []


@pytest.mark.parametrize("table", TABLES)
def test_no_two_methods_of_a_table_are_near_for_any_vision(table):
    found = colours_of(methods(table))
    assert min(distance(*pair) for pair in itertools.combinations(found, 2)) >= APART
    assert max(map(lightness, found)) < 80, "a line is seen on white"


@pytest.mark.parametrize("table", TABLES)
def test_two_lines_that_are_alike_in_grey_differ_in_marker_or_style(table):
    labels = methods(table)
    looks = list(zip(styles_of(labels), markers_of(labels), strict=True))
    grey = [lightness(colour) for colour in colours_of(labels)]
    for one, other in itertools.combinations(range(len(labels)), 2):
        assert abs(grey[one] - grey[other]) > 10 or looks[one] != looks[other]


def test_a_method_has_its_colour_in_every_figure_whichever_others_are_there():
    for table in TABLES:
        names = methods(table)
        own = [colour_of(name) for name in names]
        assert colours_of(names) == own and colours_of(names[::-1]) == own[::-1]
    assert colour_of("FedAvg") == "#0072B2" and colours_of(["FedAvg, median", "FedSOL"])[0] == "#0072B2"
    assert colour_of("my_own") in OTHERS and colour_of("FedAvg") not in OTHERS


def test_distance_and_vision_by_known_values():
    """sRGB red is CIELAB (53.24, 80.09, 67.20); a red and the green that protanopes confuse with it come close."""
    assert lab("#FF0000") == pytest.approx((53.24, 80.09, 67.20), abs=0.01)
    assert lightness("#FFFFFF") == pytest.approx(100)
    assert distance("#FFFFFF", "#000000") == pytest.approx(100, abs=0.1)
    normal = math.dist(lab("#AA4400"), lab("#556600"))
    assert distance("#AA4400", "#556600") < 0.4 * normal


def test_settings_of_one_method_are_shades_of_its_colour_from_dark_to_light():
    labels = [f"FedSOL, rho={rho}" for rho in range(5)]
    found = colours_of([*labels, "FedAvg"])
    assert found[-1] == colour_of("FedAvg") and len(set(found)) == 6
    brightness = [sum(to_rgb(colour)) for colour in found[:-1]]
    assert brightness == sorted(brightness)
    assert colours_of(["FedSOL, rho=1", "FedSOL, rho=2"])[0] == colour_of("FedSOL")
    looks = set(zip(found[:-1], styles_of(labels), markers_of(labels), strict=True))
    assert len({look[1:] for look in looks}) == 5  # different without any colour


def test_lines_repeat_a_marker_with_another_style():
    labels = [str(number) for number in range(4 * len(MARKERS))]
    assert len(set(zip(styles_of(labels), markers_of(labels), strict=True))) == len(labels)


# how far two colours are apart ---------------------------------------------------------------------
VISIONS: dict[str, NDArray[np.float64]] = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
}
_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)
_WHITE = _XYZ @ np.ones(3)


@functools.cache
def lab(colour: str, vision: str = "normal") -> tuple[float, float, float]:
    """CIELAB (L in 0..100, a, b) of `#RRGGBB` as it is seen with a vision of `VISIONS`."""
    srgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    ratio = _XYZ @ np.clip(VISIONS[vision] @ linear, 0, 1) / _WHITE
    f = np.where(ratio > (6 / 29) ** 3, np.cbrt(ratio), ratio / (3 * (6 / 29) ** 2) + 4 / 29)
    return float(116 * f[1] - 16), float(500 * (f[0] - f[1])), float(200 * (f[1] - f[2]))


@functools.cache
def distance(one: str, other: str) -> float:
    """The smallest CIELAB distance of two colours over the visions of `VISIONS`."""
    return min(float(np.hypot.reduce(np.subtract(lab(one, v), lab(other, v)))) for v in VISIONS)


def lightness(colour: str) -> float:
    """L of CIELAB, 0 to 100: what is left of a colour in grey."""
    return lab(colour)[0]

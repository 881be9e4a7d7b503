"""Methods of a figure are far apart for every eye; its lines differ in style without colour."""

from __future__ import annotations

import itertools
import math

import pytest
from matplotlib.colors import to_rgb

from flray.algorithms import ALGORITHMS
from flray.results.colours import (
    APART,
    COLOURS,
    MARKERS,
    METHODS,
    OTHERS,
    colour_of,
    colours_of,
    distance,
    lab,
    lightness,
    markers_of,
    same_colours,
    styles_of,
)

TABLES = (  # methods that the papers' tables compare
    "fedavg fedprox scaffold fednova feddyn moon fedntd fedsam fedasam fedsol",
    "fedavg perfedavg fedbabu knnper ditto local fedsol",
    "fedavg fedprox fednova scaffold feddyn moon feddf fedet fedproj",
    "fedavg fedprox target lander mfcl glfc lga fot fedpec fedscr fedprotip er der ewc fedcurv centralized",
    "fedavg fedprox target lander mfcl fedmemo centralized",
    "fedavg fedavgm fedadam fedyogi fedadagrad",
    "global task_aware tip_sample tip_batch tip_window",
)


def test_the_table_names_every_algorithm_of_flray():
    own = [name for name in ALGORITHMS.names() if ALGORITHMS.get(name).__module__.startswith("flray.")]
    assert [name for name in own if name not in METHODS] == []


@pytest.mark.parametrize("names", TABLES)
def test_no_two_methods_of_a_table_share_a_colour(names):
    found = colours_of(names.split())
    assert len(set(found)) == len(found) and COLOURS[6] not in found


@pytest.mark.parametrize("names", ["fedavg feddf fedproj", "fedavg fedsam", "fedavg fedprox fedsol feddf fedproj"])
def test_methods_of_a_figure_are_apart_also_without_red_or_green_cones(names):
    """Their own colours are not: feddf's and fedproj's are both green, fedavg's and fedsam's alike without green."""
    own = [colour_of(name) for name in names.split()]
    assert min(distance(*pair) for pair in itertools.combinations(own, 2)) < APART
    found = colours_of(names.split())
    assert min(distance(*pair) for pair in itertools.combinations(found, 2)) > APART
    assert found[0] == colour_of("fedavg")


@pytest.mark.parametrize("names", TABLES)
def test_two_lines_that_are_alike_in_grey_differ_in_marker_or_style(names):
    labels = names.split()
    looks = list(zip(styles_of(labels), markers_of(labels), strict=True))
    grey = [lightness(colour) for colour in colours_of(labels)]
    for one, other in itertools.combinations(range(min(len(labels), len(MARKERS))), 2):
        assert abs(grey[one] - grey[other]) > 10 or looks[one] != looks[other]


def test_the_colours_of_a_figure_do_not_depend_on_the_order_of_its_lines():
    names = TABLES[0].split()
    assert dict(zip(names, colours_of(names), strict=True)) == dict(
        zip(names[::-1], colours_of(names[::-1]), strict=True)
    )


def test_within_a_report_a_method_has_one_colour():
    names = ["fedavg", "feddf", "fedproj", "my_own"]
    with same_colours(names):
        page = dict(zip(names, colours_of(names), strict=True))
        for pair in itertools.permutations(names, 2):
            assert colours_of(pair) == [page[name] for name in pair]
    assert colours_of(["fedproj"]) == [colour_of("fedproj")] != [page["fedproj"]]
    assert colour_of("my_own") in OTHERS and colour_of("fedavg") not in OTHERS


def test_distance_and_vision_by_known_values():
    """sRGB red is CIELAB (53.24, 80.09, 67.20); a red and the green that protanopes confuse with it come close."""
    assert lab("#FF0000") == pytest.approx((53.24, 80.09, 67.20), abs=0.01)
    assert lightness("#FFFFFF") == pytest.approx(100)
    assert distance("#FFFFFF", "#000000") == pytest.approx(100, abs=0.1)
    normal = math.dist(lab("#AA4400"), lab("#556600"))
    assert distance("#AA4400", "#556600") < 0.4 * normal


def test_settings_of_one_method_are_shades_of_its_colour_from_dark_to_light():
    labels = [f"fedsol, rho={rho}" for rho in range(5)]
    found = colours_of([*labels, "fedavg"])
    assert found[-1] == colour_of("fedavg") and len(set(found)) == 6
    brightness = [sum(to_rgb(colour)) for colour in found[:-1]]
    assert brightness == sorted(brightness)
    assert colours_of(["fedsol, rho=1", "fedsol, rho=2"])[0] == colour_of("fedsol")
    looks = set(zip(found[:-1], styles_of(labels), markers_of(labels), strict=True))
    assert len({look[1:] for look in looks}) == 5  # different without any colour

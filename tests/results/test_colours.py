"""The same method has the same colour everywhere; lines of a figure differ in colour, and in style without it."""

from __future__ import annotations

import itertools

import pytest
from matplotlib.colors import to_rgb

from flray.algorithms import ALGORITHMS
from flray.results.colours import COLOURS, METHODS, OTHERS, colour_of, colours_of, markers_of, styles_of

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


def test_an_algorithm_keeps_its_colour_whoever_stands_beside_it():
    alone = {name: colours_of([name])[0] for name in (*METHODS, "my_own")}
    for one, other in itertools.permutations([*TABLES[0].split(), "my_own"], 2):
        found = colours_of([one, other])
        assert found[0] == alone[one] and (found[1] == alone[other] or alone[one] == alone[other])
    assert colour_of("my_own") in OTHERS and colour_of("fedavg") not in OTHERS


def test_settings_of_one_method_are_shades_of_its_colour_from_dark_to_light():
    labels = [f"fedsol, rho={rho}" for rho in range(5)]
    found = colours_of([*labels, "fedavg"])
    assert found[-1] == colour_of("fedavg") and len(set(found)) == 6
    brightness = [sum(to_rgb(colour)) for colour in found[:-1]]
    assert brightness == sorted(brightness)
    assert colours_of(["fedsol, rho=1", "fedsol, rho=2"])[0] == colour_of("fedsol")
    looks = set(zip(found[:-1], styles_of(labels), markers_of(labels), strict=True))
    assert len({look[1:] for look in looks}) == 5  # different without any colour

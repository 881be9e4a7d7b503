"""Grids over keys whose values are lists or mappings, and how such values are printed."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from flray.config.grid import labels
from flray.config.loader import load_config, with_values
from flray.config.overrides import count_cells, several
from flray.core.schema.errors import ConfigError
from flray.core.schema.plain import read, written
from flray.results.paired import paired
from flray.results.tables import planned
from flray.tuning.comparison import axes
from tests.support.messages import facts

BASE = {
    "rounds": 1,
    "data": {"source": "digits"},
    "partition": {"name": "iid", "clients": 4},
    "model": {"name": "mlp", "hidden": [16]},
    "algorithm": {"name": "fedavg", "lr": 0.05},
}
CHANGE = {"from_round": 1, "algorithm.lr": 0.1}


@pytest.mark.parametrize(
    ("override", "values"),
    [
        # a key of lists: lists in a list are a grid, a list alone is one value
        ("data.input=[[a],[b, c]]", [["a"], ["b", "c"]]),
        ("data.input=[a, b]", [["a", "b"]]),
        ("data.input=[[a], null]", [["a"], None]),
        ("data.drop=[[], [x]]", [[], ["x"]]),
        ("data.drop=[[]]", [[]]),
        ("diagnostics=[[], [divergence], [{name: divergence}]]", [[], ["divergence"], [{"name": "divergence"}]]),
        ("diagnostics=[divergence, {name: landscape}]", [["divergence", {"name": "landscape"}]]),
        ("schedule=[[], [{from_round: 1, algorithm.lr: 0.1}]]", [[], [CHANGE]]),
        ("schedule=[{from_round: 1, algorithm.lr: 0.1}]", [[CHANGE]]),
        ("model.hidden=[[8], [8, 4]]", [[8], [8, 4]]),
        # a key of lists of lists
        ("partition.table=[[1, 2], [3, 4]]", [[[1, 2], [3, 4]]]),
        ("partition.table=[[[1, 2]], [[3, 4]]]", [[[1, 2]], [[3, 4]]]),
        ("drift.rows=[[1, 2], [3, 4]]", [[[1, 2], [3, 4]]]),
        # a section has no lists: its elements are values
        (
            "partition=[iid, {name: dirichlet, alpha: 0.1}]",
            ["iid", {"name": "dirichlet", "alpha": 0.1}],
        ),
        ("drift=[none, {name: remove_classes, classes: [0]}]", ["none", {"name": "remove_classes", "classes": [0]}]),
        ("seed=[0, 1]", [[0, 1]]),  # a key of numbers has none: as text the error is that of the value
    ],
)
def test_values_in_brackets(override, values):
    key, _, text = override.partition("=")
    assert several(key, text) == values
    if key == "seed":
        assert several(key, [0, 1]) == several(key, range(2)) == [0, 1], "in Python it is a grid"
    else:
        assert several(key, read(text, "")) == values, "so it is from Python"
    assert count_cells([override]) == len(values)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("data.input=[a, [b, c]]", ["some elements are lists and a is not", "'data.input=[[a], [b, c]]'"]),
        ("data.input=[a],[b]", ["several values", "'data.input=[[a],[b]]'"]),
        ("partition={name: iid},{name: dirichlet}", ["'partition=[{name: iid},{name: dirichlet}]'"]),
        ("data.drop=[[a],[a]]", ["data.drop=[a],[a]", "['a'] is given twice"]),
        ("partition.table=[[[1]], [2]]", ["some elements are lists"]),
        ("data.drop=[[a]", ["not valid YAML"]),
    ],
)
def test_what_could_mean_two_things_is_one_line(override, words):
    with pytest.raises(ConfigError, match=facts(f"override {override.partition('=')[0]}", *words)):
        several(*override.split("=", 1))


def test_the_list_that_an_error_writes_for_none_is_read():
    with pytest.raises(ConfigError) as error:
        several("uplink", "[[{name: sign_flip, clients: 0.2}], none, topk]")
    advice = str(error.value).rpartition("'uplink=")[2].removesuffix("'")
    assert advice == "[[{name: sign_flip, clients: 0.2}], [], [topk]]"
    assert [len(cell.uplink) for cell in load_config(BASE, [f"uplink={advice}"])] == [1, 0, 1]


def test_a_grid_of_lists_and_sections_as_experiments_folders_and_tables():
    overrides = [
        "schedule=[[], [{from_round: 1, algorithm.lr: 0.1}]]",
        "partition=[iid, {name: dirichlet, clients: 4, alpha: 0.1}]",
        "seed=0..1",
    ]
    cells = load_config(BASE, overrides)
    assert [(len(c.schedule), c.partition.name, c.seed) for c in cells] == [
        (changes, name, seed) for changes in (0, 1) for name in ("iid", "dirichlet") for seed in (0, 1)
    ]
    names = labels(cells)
    assert len(set(names)) == 8 and all(set(name) <= SAFE for name in names)
    assert names[1::2] == [
        f"fedavg-seed1-partition{name}-schedule{changes}"
        for changes in ("none", "from_round1-algorithmlr0.1")
        for name in ("iid", "dirichlet")
    ]
    assert axes(overrides) == ["schedule", "partition"]
    frame = planned(cells, [Path(name) for name in names])
    assert set(frame["schedule"]) == {"[]", "[{from_round: 1, algorithm: {lr: 0.1}}]"}
    assert len(paired(frame, "schedule=[],partition.name=iid")) == 4


SAFE = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.")


def test_a_list_in_a_folder_s_name_has_what_differs():
    """Names of the entries, then the options that differ between the cells; values that read alike get a checksum."""
    probes = "[[], [divergence], [{name: landscape, every: 5}], [{name: landscape, every: 7}]]"
    cells = load_config(BASE, [f"diagnostics={probes}"])
    assert [name.partition("-")[2] for name in labels(cells)] == [
        "diagnosticsnone",
        "diagnosticsdivergence",
        "diagnosticslandscape-every5",
        "diagnosticslandscape-every7",
    ]
    alike = labels(load_config({**BASE, "data": {"source": "digits"}}, ["data.drop=[[a-b], [a, b]]"]))
    assert len(set(alike)) == 2 and all(name.startswith("fedavg-dropa-b-") for name in alike)


def test_sections_of_one_kind_with_other_options_have_folders_of_their_own():
    removed = "{name: remove_classes, from_round: 1, classes: [%d]}"
    drifts = f"[none, {removed % 0}, {removed % 1}]"
    assert [name.removeprefix("fedavg-") for name in labels(load_config(BASE, [f"drift={drifts}"]))] == [
        "driftnone",
        "classes0-driftremove_classes",
        "classes1-driftremove_classes",
    ]
    uplinks = load_config(BASE, ["uplink=[[], [{name: topk, fraction: 0.1}], [{name: topk, fraction: 0.2}]]"])
    assert [name.removeprefix("fedavg-") for name in labels(uplinks)] == [
        "uplinknone",
        "uplinktopk-fraction0.1",
        "uplinktopk-fraction0.2",
    ]


def test_values_that_are_set_make_no_grid():
    """A sweep's trial and a resumed one get each value as it is: a comma and a list in a list are no grid."""
    assert with_values(BASE, {"model.hidden": [8, 4], "name": "a,b"}).name == "a,b"
    assert with_values(BASE, {"diagnostics": ["divergence"]}).diagnostics == ("divergence",)
    with pytest.raises(ConfigError, match=facts("data.drop")):
        with_values(BASE, {"data.drop": [["a"], ["b"]]})


text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | text
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3))


@settings(max_examples=300, deadline=None)
@given(values)
def test_what_is_printed_is_read_back(value: Any) -> None:
    line = written(value)
    assert "\n" not in line
    assert repr(read(line, "")) == repr(value), "also the types: 1, 1.0 and true differ"

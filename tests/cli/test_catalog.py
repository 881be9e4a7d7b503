"""The cards of the algorithms: complete, and printed with what stands at the top of their files."""

from __future__ import annotations

from pathlib import Path

import pytest

from flray.algorithms import ALGORITHMS, GROUPS, built_in
from flray.cli.catalog import cards, catalog, detail, kinds, page
from flray.config.grid import dotted
from flray.config.loader import load_config
from flray.core.schema.errors import ConfigError
from flray.core.schema.hp import hyperparameters
from flray.tuning.sweep_file import load_sweep
from tests.support.messages import facts

CONFIGS = Path(__file__).parents[2] / "configs"
QUICK, SWEEP = CONFIGS / "quickstart.yaml", CONFIGS / "sweeps" / "fedsol_rho.yaml"


@pytest.mark.parametrize("name", built_in())
def test_a_card_says_what_a_reader_needs(name):
    """Paper, fields of its own in the symbol table, traffic, state and cost."""
    text, options = detail("algorithms", name)
    first = " ".join(text.split("\n\n")[0].split())
    assert ":" in first and len(first) > 40, "name, paper and one line of purpose"
    for word in ("| paper |", "Down:", "Up:", "State:", "Cost per step:"):
        assert word in text, f"the card of {name} has no {word!r}"
    own = [
        hp.name
        for hp in hyperparameters(ALGORITHMS.get(name))
        if hp.name.partition(".")[0] in vars(ALGORITHMS.get(name)).get("__annotations__", {})
    ]
    assert [field for field in own if f"`{field}`" not in text] == []
    assert all(option["meaning"] for option in options)


def test_the_page_of_cards_has_each_algorithm_once_in_the_order_of_the_table():
    assert list(cards()) == built_in()
    files = {ALGORITHMS.get(name).__module__ for name in built_in()}
    assert len(set(cards().values())) == len(files), "one card a file"
    assert [line[3:] for line in page().split("\n") if line.startswith("## ")] == built_in()


def test_what_an_algorithm_is_stands_in_one_line_of_the_list():
    """Its first paragraph, also where that has two lines in the file."""
    rows = {row["name"]: row["about"] for row in catalog("algorithms")}
    assert set(built_in()) <= set(rows)
    assert rows["fedprox"].startswith("FedProx (Li et al.") and rows["fedprox"].endswith("with a quadratic penalty.")
    assert all(row.endswith(".") and "\n" not in row for name, row in rows.items() if name in built_in())


def test_every_key_of_an_experiment_and_of_a_sweep_is_listed_with_its_default_and_meaning():
    """Each key of complete configurations, as they are written, is one that the list has."""
    rows = {(row["of"], row["key"]): row for row in catalog("config")}
    written = load_config(QUICK, ["evaluate.validation={}"])[0].dump()
    free = ("algorithm", "model", "data.normalize", "proxy")  # of the chosen name; written out as numbers; as `data`
    missing = [key for key in dotted(written) if ("experiment", key) not in rows and not key.startswith(free)]
    assert missing == []
    sweep = load_sweep(SWEEP).model_dump(by_alias=True)
    assert [key for key in sweep if ("sweep", key) not in rows] == []
    assert rows["experiment", "rounds"]["default"] == "required"
    assert rows["experiment", "cohort.sampling"]["bounds"] == "addressed | numpy_round_seed"
    assert (
        rows["experiment", "evaluate.finetune_epochs"]["type"],
        rows["experiment", "evaluate.finetune_epochs"]["default"],
    ) == (
        "list of int",
        "[]",
    )
    assert rows["sweep", "concurrency"]["type"] == "auto | int"
    named = {
        "data",
        "partition",
        "partition.name",
        "model",
        "model.name",
        "algorithm",
        "data.normalize.mean",
        "data.normalize.std",
    }
    assert {key for (_, key), row in rows.items() if not row["meaning"]} <= {
        *named,
        *(k for (_, k), r in rows.items() if r["type"] == "section"),
    }
    assert [row["key"] for row in detail("config", "checkpoint")[1]] == [
        "checkpoint",
        "checkpoint.every",
        "checkpoint.keep",
    ]
    with pytest.raises(ConfigError, match=facts("'evalute'", "'evaluate'")):
        detail("config", "evalute")


def test_every_algorithm_is_in_one_group_and_listed_there():
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(built_in())
    rows = [row for row in catalog("algorithms") if row["name"] in built_in()]
    assert list(dict.fromkeys(row["group"] for row in rows)) == list(GROUPS)


def test_the_kinds_have_as_many_names_as_their_lists():
    assert {row["kind"]: row["names"] for row in kinds()} | {"config": 0} == {
        row["kind"]: len(catalog(row["kind"])) for row in kinds()
    } | {"config": 0}

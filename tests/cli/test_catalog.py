"""The cards of the algorithms: complete, printed, and the page made of them is the present one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from flray.algorithms import ALGORITHMS, built_in
from flray.cli.catalog import catalog, detail, page
from flray.core.errors import ConfigError
from flray.core.hp import hyperparameters
from flray.grid import dotted
from flray.loader import load_config
from tuning.sweep_file import load_sweep

CONFIGS = Path(__file__).parents[2] / "configs"
QUICK, SWEEP = CONFIGS / "quickstart.yaml", CONFIGS / "sweeps" / "fedsol_rho.yaml"
PAGE = Path(sys.modules["flray.algorithms"].__file__).with_name("CARDS.md")


@pytest.mark.parametrize("name", built_in())
def test_a_card_says_what_a_reader_needs(name):
    """Paper, fields of its own in the symbol table, traffic, state and cost."""
    text, options = detail("algorithms", name)
    first = text.split("\n")[0]
    assert ":" in first and len(first) > 40, "name, paper and one line of purpose"
    for word in ("| paper |", "Down:", "Up:", "State:", "Cost per step:"):
        assert word in text, f"the card of {name} has no {word!r}"
    own = [
        hp.name
        for hp in hyperparameters(ALGORITHMS.get(name))
        if hp.name in vars(ALGORITHMS.get(name)).get("__annotations__", {})
    ]
    assert [field for field in own if f"`{field}`" not in text] == []
    assert all(option["meaning"] for option in options)


def test_the_page_of_cards_is_the_present_one():
    assert PAGE.read_text() == page(), "run: flray list algorithms --format markdown > flray/algorithms/CARDS.md"
    assert [line[3:] for line in page().split("\n") if line.startswith("## ")] == built_in()
    assert set(built_in()) <= {row["name"] for row in catalog("algorithms")}


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
    with pytest.raises(ConfigError, match=r"unknown key 'evalute' \(did you mean 'evaluate'\?\)"):
        detail("config", "evalute")

"""The cards of the algorithms: complete, and printed with what stands at the top of their files."""

import json
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import pytest

from flray.aggregations import AGGREGATIONS
from flray.algorithms import ALGORITHMS, GROUPS, built_in
from flray.algorithms.fedavg import FedAvg
from flray.cli.catalog import cards, catalog, detail, kinds, page
from flray.config.grid import dotted
from flray.config.loader import load_config
from flray.core.schema.errors import ConfigError
from flray.core.schema.hp import hp, hyperparameters
from flray.tuning.sweep_file import load_sweep
from tests.support.commands import succeeded
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
        each.name
        for each in hyperparameters(ALGORITHMS.get(name))
        if each.name.partition(".")[0] in vars(ALGORITHMS.get(name)).get("__annotations__", {})
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
    assert rows["experiment", "cohort.sampling"]["bounds"] == "addressed | poisson | numpy_round_seed"
    assert (
        rows["experiment", "evaluate.finetune_epochs"]["type"],
        rows["experiment", "evaluate.finetune_epochs"]["default"],
    ) == (
        "list of int",
        "[]",
    )
    options = {row["option"]: row["default"] for row in detail("datasets", "iris")[1]}
    assert (options["root"], options["download"]) == ("null", "false"), "as YAML writes them"
    rate = {row["option"]: row for row in detail("algorithms", "fedproj")[1]}["projection_rate"]
    assert (rate["default"], rate["bounds"]) == ("1.0", ">= 0 <= 1")
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
    for row in kinds():
        listing = json.loads(listed(row["kind"], "--format", "json"))
        assert listing and (row["kind"] == "config" or len(listing) == row["names"])


def listed(*words):
    return succeeded("list", *words).stdout


def test_a_list_ends_with_the_names_that_it_leaves_out():
    for word in ("timm:NAME", "torchvision:NAME", "hf:NAME", "--import MODULE"):
        assert word in listed("models").splitlines()[-1]
    for word in ("hf:NAME", "from_arrays", "from_torch", "from_hf", "floats", "--import MODULE"):
        assert word in listed("datasets").splitlines()[-1]
    assert "--import MODULE" in listed("algorithms").splitlines()[-1]
    assert "--import" not in listed("metrics")


@pytest.mark.parametrize(("name", "package"), [("timm:resnet18", "timm"), ("hf:vit", "transformers")])
def test_a_network_of_another_library_is_explained_with_its_option(name, package):
    pytest.importorskip(package)
    text, options = detail("models", name)
    assert package in text and f"model={name}" in text
    assert [row["option"] for row in options] == ["pretrained"] and options[0]["meaning"]


@pytest.mark.parametrize(
    ("kind", "name", "says"),
    [
        ("models", "resnet50", ("timm:NAME", "torchvision:NAME", "hf:NAME", "--import MODULE")),
        ("algorithms", "nowhere_registered", ("nowhere_registered", "--import MODULE")),
        ("datasets", "my_data", ("my_data", "hf:NAME", "--import MODULE")),
    ],
)
def test_the_error_for_an_unknown_name_says_where_others_come_from(kind, name, says):
    with pytest.raises(ConfigError, match=facts(*says)):
        detail(kind, name)


def test_trackers_are_listed_with_their_options():
    assert {"mlflow", "wandb"} <= {row["name"] for row in catalog("trackers")}
    assert all(row["about"].endswith(".") for row in catalog("trackers"))
    assert [row["option"] for row in detail("trackers", "wandb")[1]] == ["project", "entity", "mode"]


def test_partitions_and_sources_from_files_have_lines_of_their_own():
    partitions = {row["name"]: row["about"] for row in catalog("partitions")}
    assert "`sample,client`" in partitions["csv"] and "data.test_fraction" in detail("partitions", "csv")[0]
    assert len(set(partitions.values())) == len(partitions)
    leaf = [row["about"] for row in catalog("datasets") if row["name"] in ("femnist", "shakespeare", "stack_overflow")]
    assert len(set(leaf)) == 3 and not any("Raises" in text for text in leaf)


def test_no_table_of_options_where_there_are_none():
    assert "options of" not in listed("metrics", "test/acc") + listed("models", "vgg11")
    assert "options of mlp" in listed("models", "mlp")


def test_the_matrix_of_fits_has_each_pair_and_the_reason():
    rows = {row["algorithm"]: row for row in json.loads(listed("fits", "--format", "json"))}
    assert list(rows) == ALGORITHMS.names() and [*rows["fedavg"]] == [
        "algorithm",
        *AGGREGATIONS.names(),
        "why no other",
    ]
    assert all(rows["fedavg"][rule] for rule in AGGREGATIONS.names()) and not rows["fedavg"]["why no other"]
    assert rows["scaffold"]["mean"] and not rows["scaffold"]["krum"]
    assert rows["scaffold"]["why no other"] == "its control variate c moves with the same mean"
    assert "it is fedavg with the rule of that name" in listed("fits", "fedadam")


class Mode(Enum):
    SOFT = "soft"
    HARD = "hard"


@dataclass(frozen=True)
class Shape:
    width: int = 3


class OwnTypes(FedAvg, frozen=True):
    """Mine."""

    mode: Mode = hp(Mode.SOFT, doc="how")
    shape: Shape = hp(Shape(), doc="what")
    layers: frozenset[str] = hp(frozenset({"b", "a"}), doc="which")


def test_a_default_is_printed_as_a_configuration_takes_it(monkeypatch):
    monkeypatch.setattr(ALGORITHMS, "_table", {**ALGORITHMS._table, "mine": OwnTypes})
    rows = {row["option"]: row for row in detail("algorithms", "mine")[1]}
    assert (rows["mode"]["default"], rows["mode"]["bounds"]) == ("soft", "soft | hard")
    assert (rows["shape"]["default"], rows["layers"]["default"]) == ('{"width": 3}', '["a", "b"]')
    given = {f"algorithm.{option}": rows[option]["default"] for option in ("mode", "shape", "layers")}
    (experiment,) = load_config(QUICK, {"algorithm": "mine", **given})
    assert (experiment.algorithm.mode, experiment.algorithm.shape) == (Mode.SOFT, Shape())


def test_each_attack_says_what_it_does_and_what_all_have_in_common():
    texts = [detail("uplinks", name)[0] for name in ("sign_flip", "scaled")]
    for text, first in zip(texts, ("Attackers send the opposite", "Attackers scale their update up"), strict=True):
        assert text.startswith(first) and "The draw is the same in all rounds" in text

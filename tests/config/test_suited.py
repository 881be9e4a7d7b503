"""A method in a setting that its card calls unsuited says so before it runs."""

from __future__ import annotations

import pytest

from flray.config.loader import load_config
from flray.config.suited import cautions

TASKS = ("tasks.name=class_incremental", "tasks.num_tasks=5")


def said(*overrides: str) -> str:
    return " | ".join(cautions(load_config("configs/quickstart.yaml", list(overrides))))


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("algorithm=feddf",), "move a weight by at most about 2e-05"),  # 2 steps of 1e-5
        (("algorithm=fedproj", "algorithm.distill_epochs=3"), "6 distillation steps"),
        (("algorithm=fot",), "fot: there is one task"),
        (("algorithm=moon", "rounds=3"), "1.5 rounds on average"),  # 3 rounds x 10 of 20 clients
        (("algorithm=fedmemo", "rounds=9"), "judges from round 10 on, and the run has 9"),
    ],
)
def test_an_unsuited_setting_is_named(overrides, words):
    assert words in said(*overrides)


@pytest.mark.parametrize(
    "overrides",
    [
        ("algorithm=fedavg",),
        ("algorithm=feddf", "algorithm.distill_lr=1e-3"),
        ("algorithm=fot", *TASKS),
        ("algorithm=moon",),
        ("algorithm=fedmemo",),
        ("algorithm=mfcl", "algorithm.from_round=5"),
    ],
)
def test_a_setting_that_suits_is_not(overrides):
    assert said(*overrides) == ""


def test_a_grid_says_each_thing_once():
    cells = load_config("configs/quickstart.yaml", ["algorithm=fedavg,feddf", "seed=0..2"])
    assert len(cells) == 6 and len(cautions(cells)) == 1

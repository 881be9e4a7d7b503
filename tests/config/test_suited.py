"""A method in a setting that its card calls unsuited says so before it runs."""

from __future__ import annotations

import pytest

from flray.config.loader import load_config
from flray.config.suited import cautions

FINE = "evaluate.finetune_epochs=[1]"
DITTO = ("algorithm=ditto", "algorithm.lam=1", FINE)
TASKS = ("tasks.name=class_incremental", "tasks.num_tasks=5")

BUFFERED = ("devices.speed=equal", "coordination={name: buffered, size: 4}")


def said(*overrides: str) -> str:
    return " | ".join(cautions(load_config("configs/quickstart.yaml", list(overrides))))


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("algorithm=feddf",), "move a weight by at most about 2e-05"),  # 2 steps of 1e-5
        (("algorithm=fedproj", "algorithm.distill_epochs=3"), "6 distillation steps"),
        (("algorithm=fot",), "fot: there is one task"),
        (("algorithm=scaffold", "rounds=3"), "scaffold: a client takes part in 1.5 rounds"),
        (("algorithm=scaffold", "algorithm.divisor=steps", "algorithm.momentum=0.9"), "c_k up to 10 times too large"),
        (
            ("algorithm=scaffold", "algorithm.corrects=weights", "algorithm.momentum=0.9"),
            "corrects=weights needs divisor",
        ),
        (("algorithm=fedbabu",), "fedbabu: its subject is each client's fine-tuned model"),
        (("algorithm=knnper",), "evaluate.finetune_epochs=[5]"),
        (("algorithm=ditto", "algorithm.lam=2", "algorithm.lr=1.5", FINE), "lr x lam = 3 is above 2"),
        (
            (*DITTO, "algorithm.lr=0.1", "schedule=[{from_round: 4, algorithm.lr: 5}]"),
            "ditto from round 4 on: lr x lam = 5 is above 2",
        ),
        (
            (*DITTO, "algorithm.lr=0.1", "schedule=[{from_round: 2, algorithm.lr: 5, algorithm.lr_decay: 0.5}]"),
            "ditto from round 2 on: lr x lam = 5 is above 2",
        ),
        (("algorithm=fedet", "cohort.size=1", "algorithm.distill_lr=1e-3"), "no two disagree"),
        (("algorithm=moon", "rounds=3"), "1.5 rounds on average"),  # 3 rounds x 10 of 20 clients
        (("algorithm=fedmemo", "rounds=9"), "judges from round 10 on, and the run has 9"),
        (("aggregation=trimmed_mean", "cohort.size=9"), "trimmed_mean: trim=0.1 of 9 clients is less than one"),
        (("aggregation=krum", "cohort.size=4"), "krum: faulty=0.2 of 4 clients is less than one"),
        (("aggregation=multi_krum", *BUFFERED), "multi_krum: faulty=0.2 of 4 clients is less than one"),
        # resources that the executor does not read
        (("resources.executor=local", "resources.server.num_gpus=1"), "resources.server.num_gpus=1.0 changes nothing"),
        (
            ("resources.executor=local", "resources.client_actors=2", "address=auto"),
            "address=auto, resources.client_actors=2 change nothing: resources.executor=local computes in this process",
        ),
        (("resources.executor=local", "resources.client.num_gpus=auto"), "resources.client.num_gpus=auto changes"),
        (("precision=tf32", "resources.executor=local"), "precision=tf32 changes nothing"),
        (("precision=tf32", "resources.executor=calls"), "precision=tf32 changes nothing: only GPUs have TF32"),
        (("algorithm=centralized", "resources.server.num_gpus=1"), "resources.server.num_gpus=1.0 changes nothing"),
    ],
)
def test_an_unsuited_setting_is_named(overrides, words):
    assert words in said(*overrides)


@pytest.mark.parametrize(
    "overrides",
    [
        ("algorithm=fedavg",),
        # 5 x 0.5^3 in round 4, 1 there by its own decay, whose rate of round 1 is 8
        (*DITTO, "algorithm.lr=0.1", "algorithm.lr_decay=0.5", "schedule=[{from_round: 4, algorithm.lr: 5}]"),
        (*DITTO, "algorithm.lr=0.1", "schedule=[{from_round: 4, algorithm.lr: 1, algorithm.lr_decay: 0.5}]"),
        (*DITTO, "algorithm.lr=5", "schedule=[{from_round: 1, algorithm.lr: 1}]"),
        ("algorithm=feddf", "algorithm.distill_lr=1e-3"),
        ("algorithm=fot", *TASKS),
        ("algorithm=moon",),
        ("aggregation=trimmed_mean",),  # 0.1 of 10
        ("aggregation={name: trimmed_mean, trim: 0}", "cohort.size=2"),
        ("aggregation=krum", "cohort.size=5"),
        ("algorithm=fedmemo",),
        ("algorithm=mfcl", "algorithm.from_round=5"),
        ("algorithm=scaffold",),
        ("algorithm=scaffold", "algorithm.divisor=steps", "algorithm.momentum=0"),
        ("algorithm=scaffold", "algorithm.divisor=steps", "algorithm.corrects=weights", "algorithm.momentum=0.9"),
        ("algorithm=ditto", "algorithm.lam=2", "algorithm.lr=0.9", FINE),
        ("algorithm=perfedavg", FINE),
        ("algorithm=fedet", "algorithm.distill_lr=1e-3"),
        ("algorithm=fedet", "cohort.size=1", "algorithm.fedet=paper", "algorithm.distill_lr=1e-3"),
        ("resources.executor=local",),
        ("resources.server.num_gpus=1",),
        ("resources.executor=local", "resources.client.num_cpus=2"),  # as many threads as CPUs
    ],
)
def test_a_setting_that_suits_is_not(overrides):
    assert said(*overrides) == ""


def test_a_grid_says_each_thing_once():
    cells = load_config("configs/quickstart.yaml", ["algorithm=fedavg,feddf", "seed=0..2"])
    assert len(cells) == 6 and len(cautions(cells)) == 1

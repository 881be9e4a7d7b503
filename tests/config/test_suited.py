"""A method in a setting that its card calls unsuited says so before it runs."""

import pytest

from flray.algorithms import ALGORITHMS
from flray.algorithms.fedavg import FedAvg
from flray.config.loader import load_config
from flray.config.schedule import Change
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


class Milestones(FedAvg, frozen=True):
    """Its rate falls to a tenth at each of these rounds."""

    lr_decay: tuple[int, ...] | None = (2,)


class Cosine(FedAvg, frozen=True):
    lr_decay: str = "cosine"


class Rates(FedAvg, frozen=True):
    """A rate of each layer."""

    lr: tuple[float, ...] = (0.1, 0.05)


class Between(FedAvg, frozen=True):
    """Rounds between two steps of the rate."""

    lr_decay: int = 30


@pytest.mark.parametrize(
    ("kind", "options", "change"),
    [
        (Milestones, {}, {"lr_decay": [4]}),
        (Milestones, {"lr_decay": None}, {"lr": 0.5}),
        (Cosine, {}, {"lr_decay": "linear"}),
        (Rates, {"lr_decay": 0.5}, {"lr_decay": 0.25}),
        (Between, {}, {"lr": 0.5}),
        (Between, {}, {"lr_decay": 60}),
    ],
)
def test_an_algorithm_of_ones_own_reads_its_rate_and_its_decay_as_it_likes(monkeypatch, kind, options, change):
    monkeypatch.setattr(ALGORITHMS, "_table", {**ALGORITHMS._table})
    ALGORITHMS.add("mine", kind)
    (plain,) = load_config("configs/quickstart.yaml", ["rounds=300"])
    config = plain.model_copy(update={"algorithm": kind(**options)})
    later = config.model_copy(update={"schedule": (Change(from_round=250, algorithm=change),)})
    assert cautions([config, later]) == [] and later.versions[1].algorithm == kind(**options | change)


def test_a_grid_says_each_thing_once():
    cells = load_config("configs/quickstart.yaml", ["algorithm=fedavg,feddf", "seed=0..2"])
    assert len(cells) == 6 and len(cautions(cells)) == 1

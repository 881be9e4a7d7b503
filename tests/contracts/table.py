"""One row per algorithm: a tiny experiment, what it reduces to, and a value of every hyper-parameter that must matter.

Adding an algorithm: its file, its line in `flray/algorithms/__init__.py`, and a row here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.options import sectioned


@dataclass(frozen=True)
class Change:
    """A value that must change the outcome, under `base` (other hyper-parameters that make it matter).

    The outcome is the server's state; `personal`: the scores of the clients' own predictors; `tested`: what the test
    counts in every inference mode.
    """

    value: Any
    base: Mapping[str, Any] = field(default_factory=dict)
    personal: bool = False
    tested: bool = False
    rounds: int = 3  # after which it must have mattered
    sections: Mapping[str, Any] | None = None  # of the experiment; None: the row's

    @property
    def outcome(self) -> str:
        """What must differ."""
        return "personal" if self.personal else "tested" if self.tested else "state"


@dataclass(frozen=True)
class Reduction:
    """With `options` the algorithm has the bits of `other` (with `other_options`); with `switched_on` it has not."""

    options: Mapping[str, Any]
    other: str
    switched_on: Mapping[str, Any]
    other_options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    options: Mapping[str, Any]
    changes: Mapping[str, Change]
    reductions: tuple[Reduction, ...] = ()
    grows: frozenset[str] = frozenset()  # state fields whose shape may differ after the first round
    imports: tuple[str, ...] = ()
    silent: bool = False  # nothing travels
    head: bool = True  # the model that is trained has a head with a row for each class
    images: bool = False  # it reads nothing else: the experiments' data are small images
    # sections of the experiment in which options matter, such as tasks: its outcome is that of a task's end then
    sections: Mapping[str, Any] = field(default_factory=dict)


FEDAVG_OPTIONS = {"lr": 0.05, "local_epochs": 2, "batch_size": 4}
FEDAVG_CHANGES = {
    "lr": Change(0.06),
    "last_batch": Change("drop"),
    "lr_decay": Change(0.9),
    "optimizer": Change("adam"),
    "momentum": Change(0.5),
    "weight_decay": Change(0.1),
    "local_epochs": Change(3),
    "batch_size": Change(5),
    "weighting": Change("uniform"),
    "buffers": Change("keep"),
}
FEDDF_OPTIONS = {**FEDAVG_OPTIONS, "distill_lr": 1e-3, "distill_batch_size": 8}
FEDDF_CHANGES = {
    "distill_lr": Change(2e-3),
    "distill_schedule": Change("cosine"),
    "distill_epochs": Change(2),
    "distill_batch_size": Change(10),
    "distill_clip": Change(1e-3),
    "distill_weight_decay": Change(0.1),
    "student_bn": Change("eval"),
    "teacher": Change("avg_losses"),
    "temperature": Change(1.0),
    "squared": Change(False, {"distill_clip": 1e-3, "temperature": 0.1}),
    "kl_direction": Change("reverse"),
}
FEDPROJ_CHANGES = {
    "projection_rate": Change(0.5),
    "rule": Change("always"),
    "delta": Change(1e3),
    "eps": Change(1.0, {"rule": "epsilon"}),
    "scope": Change("tensor"),
    "project_stage": Change("update"),
    "memory_loss": Change("ce_labels"),
    "round0": Change("skip"),
    "memory_size": Change(8),
    "memory_batch": Change("full"),
    "memory_batch_size": Change(3),
    "memory_bn": Change("eval"),
    "alpha": Change(0.3),
    "wd_anchor": Change("average", {"alpha": 0.3}),
}

FEDSAM_CHANGES = {
    "rho": Change(0.5),
    "eps": Change(1.0),
    "perturb": Change("head"),
    "bn_passes": Change("first"),
}

GLFC_OPTIONS = {**FEDAVG_OPTIONS, "memory_size": 12, "proto_steps": 3, "inversion_steps": 2, "inversion_images": 2}
GLFC_CHANGES = {
    "memory_size": Change(6),
    "replay": Change("first_round", rounds=4),
    "transition": Change("entropy"),
    "entropy_rise": Change(0.01, {"transition": "entropy"}),
    "proto_lr": Change(50.0),
    "proto_steps": Change(0, {"proto_lr": 50.0}),
    "inversion_lr": Change(0.5),
    "inversion_steps": Change(1),
    "inversion_images": Change(1),
    "reset_best": Change(False),
}
GLFC_GROWS = frozenset({"x", "y", "best_1.w", "best_1.b", "best_2.w", "best_2.b"})
PEC_OPTIONS = {"lr": 0.01, "local_epochs": 2, "batch_size": 4, "width": 8, "outputs": 16, "teacher_factor": 10}

FEDOPT_CHANGES = {
    "server_lr": Change(0.05),
    "beta_1": Change(0.5),
    "beta_2": Change(0.9),
    "tau": Change(1e-2),
    "v_0": Change(0.1),
}

FEW_TASKS: Mapping[str, Any] = {"rounds": 2, "tasks": {"num_tasks": 2}, "partition": {"name": "iid", "clients": 3}}
THREE_TASKS = {**FEW_TASKS, "rounds": 1, "tasks": {"num_tasks": 3}}
TASKS = {  # of wide layers, so that a randomised SVD is one
    "rounds": 2,
    "tasks": {"num_tasks": 2},
    "data": {"source": "synthetic", "options": {"shape": 4, "num_classes": 6, "num_train": 900, "num_test": 60}},
    "partition": {"name": "dirichlet", "clients": 4, "alpha": 1.0, "variant": "plain", "min_size": 10},
    "model": {"name": "tests.contracts.networks:Layered"},
    "cohort": {"size": 2},
}

FEDMEMO_OPTIONS = {
    **FEDAVG_OPTIONS,
    "trigger": "scheduled",  # the detector has no say in three rounds
    "proxy.gan_epochs": 2,
    "proxy.gan_batch_size": 8,
    "proxy.size": 30,
    "proxy.batch_size": 8,
    "proxy.labeller_epochs": 2,
    "proxy.generator_steps": 2,
}
ALARMED = {
    "trigger": "while_alarm",
    "detector.W": 5,
    "detector.m": 1,
    "detector.rho": 0.3,
    "detector.guard": 0,
    "detector.warmup": 5,
    "min_on": 1,
    "lr_decay": 0.9,
}
BY_CLIENTS = {"mode": "client"}
BY_TRANAD = {
    **ALARMED,
    "lr_decay": 1.0,
    "detector.method": "tranad",
    "detector.warmup": 8,
    "trigger": "scheduled",
    "r0": 100,
}
GONE: Mapping[str, Any] = {"drift": {"name": "remove_classes", "classes": [0, 1], "from_round": 7}}
BY_CUSUM = {**ALARMED, "lr_decay": 1.0, "detector.method": "cusum", "trigger": "scheduled", "r0": 100}
FEDMEMO_CHANGES = {
    "detector.per_cohort": Change(True, {"detector.guard": 0}),
    "detector.slack": Change(0.05, {**BY_CUSUM, "detector.slack": 0.1}, rounds=9),
    "detector.rate": Change(
        0.1, {**BY_CUSUM, "detector.method": "classes", "detector.rate": 1e-5}, rounds=9, sections=GONE
    ),
    "detector.method": Change("tranad", ALARMED, rounds=9),
    "detector.tranad_threshold": Change("quantile", {**BY_TRANAD, "detector.tranad_level": 0.9}, rounds=11),
    "detector.tranad_level": Change(0.1, {**BY_TRANAD, "detector.tranad_threshold": "quantile"}, rounds=11),
    "detector.W": Change(6, {**ALARMED, "detector.warmup": 100}, rounds=9),
    "detector.m": Change(2, ALARMED, rounds=9),
    "detector.rho": Change(0.995, ALARMED, rounds=9),
    "detector.rho_off": Change(0.01, {**ALARMED, "detector.rho_off": 0.99}, rounds=9),
    "detector.guard": Change(1, ALARMED, rounds=9),
    "detector.warmup": Change(8, ALARMED, rounds=9),
    "detector.confirm": Change(2, ALARMED, rounds=9),
    "min_on": Change(3, {**ALARMED, "detector.rho_off": 0.99}, rounds=9),
    "delay": Change(1, {**ALARMED, "trigger": "delayed"}, rounds=9),
    "trigger": Change("while_alarm"),
    "r0": Change(2),
    "r1": Change(3),
    "gamma": Change(1.0),
    "detector.layers": Change("head"),
    "detector.last": Change(1, {"detector.layers": "last"}),
    "mode": Change("client"),
    "proxy.data": Change("real"),
    "proxy.labels": Change("per_class"),
    "proxy.labeller_epochs": Change(3, {"proxy.labels": "teacher"}),
    "proxy.size": Change(24),
    "proxy.refresh": Change(True),
    "proxy.label_noise": Change(0.5),
    "proxy.gan_epochs": Change(3),
    "proxy.gan_batch_size": Change(6),
    "proxy.gan_lr": Change(1e-3),
    "proxy.generator_steps": Change(3, BY_CLIENTS),
    "proxy.generator_lr": Change(1e-2, BY_CLIENTS),
    "proxy.lr": Change(0.02),
    "proxy.batch_size": Change(6),
    "proxy.epochs": Change(2),
    "proxy.one_step": Change(True),
    "proxy.bn": Change("update"),
    "client_exchange": Change("piggyback", BY_CLIENTS),
}
PICTURES = {  # images, so that what generators are asked for is all there
    "rounds": 2,
    "tasks": {"num_tasks": 2},
    "data": {
        "source": "synthetic",
        "options": {"shape": [8, 8, 1], "num_classes": 5, "num_train": 150, "num_test": 50},
    },
    "partition": {"name": "dirichlet", "clients": 4, "alpha": 1.0, "variant": "plain", "min_size": 8},
    "model": {"name": "tests.contracts.networks:Pictured"},
    "cohort": {"size": 2},
}
POOL_OPTIONS = {
    **FEDAVG_OPTIONS,
    "weight_decay": 0.0,
    "pool_size": 20,
    "noise_dim": 5,
    "warmup": 1,
    "syn_round": 4,
    "syn_batch": 8,
    "g_steps": 3,
    "kd_steps": 5,
    "kd_batch": 6,
    "student_lr": 0.1,
}

TABLE: dict[str, Row] = {
    "fedavg": Row(FEDAVG_OPTIONS, FEDAVG_CHANGES),
    "fedprox": Row(FEDAVG_OPTIONS, {"mu": Change(1.0)}, (Reduction({"mu": 0.0}, "fedavg", {"mu": 1.0}),)),
    "fednova": Row(
        FEDAVG_OPTIONS,
        {
            "mu": Change(0.1, {"momentum": 0.0}),
            "gmf": Change(0.5),
            "nova_compat": Change(True, {"optimizer": "adam", "mu": 0.1}),
            "ccvr": Change("fixed"),
        },
    ),
    "scaffold": Row(
        FEDAVG_OPTIONS,
        {
            "option": Change("I"),
            "divisor": Change("steps"),
            "corrects": Change("weights"),
            "server_lr": Change(0.5),
            "c_over": Change("cohort"),
        },
    ),
    "feddyn": Row(
        FEDAVG_OPTIONS,
        {
            "weighting": Change("examples"),
            "alpha": Change(0.2),
            "official": Change(True),
            "clip": Change(0.01),
        },
    ),
    "fedavgm": Row(FEDAVG_OPTIONS, {"server_lr": Change(0.5), "beta": Change(0.5), "nesterov": Change(True)}),
    "fedadam": Row(FEDAVG_OPTIONS, FEDOPT_CHANGES),
    "fedyogi": Row(FEDAVG_OPTIONS, {}),
    "fedadagrad": Row(FEDAVG_OPTIONS, {"server_lr": Change(0.05), "beta_1": Change(0.5)}),
    "feddf": Row(
        FEDDF_OPTIONS,
        FEDDF_CHANGES,
        # the mean of reverse KL terms has the gradient of the reverse KL of the mean logits
        (
            Reduction(
                {"teacher": "avg_losses", "kl_direction": "reverse"},
                "feddf",
                {"teacher": "avg_losses"},
                {"kl_direction": "reverse"},
            ),
        ),
    ),
    "fedproj": Row(
        FEDDF_OPTIONS,
        FEDPROJ_CHANGES,
        (
            Reduction({"projection_rate": 0.0}, "feddf", {"projection_rate": 1.0}),
            Reduction({"delta": 1e30}, "feddf", {"delta": 1e-12}),
            Reduction({"projection_rate": 0.0, "alpha": 0.0}, "feddf", {"projection_rate": 0.0, "alpha": 0.3}),
        ),
        grows=frozenset({"rule.logits"}),
    ),
    "fedsam": Row(
        FEDAVG_OPTIONS,
        FEDSAM_CHANGES,
        (Reduction({"rho": 0.0, "bn_passes": "first"}, "fedavg", {"bn_passes": "first"}),),
    ),
    "fedasam": Row(
        FEDAVG_OPTIONS,
        {"rho": Change(0.5), "eta": Change(0.0), "scaled": Change("all")},
        (
            Reduction({"rho": 0.0, "bn_passes": "first"}, "fedavg", {"rho": 0.7, "bn_passes": "first"}),
            Reduction(
                {"rho": 0.0, "eta": 0.0, "scaled": "all", "bn_passes": "first"}, "fedavg", {"eta": 0.0, "scaled": "all"}
            ),
        ),
    ),
    "fedsol": Row(
        FEDAVG_OPTIONS,
        {
            "rho": Change(0.5),
            "adaptive": Change("tensor"),
            "perturb": Change("all"),
            "temperature": Change(1.0),
            "proximal": Change("l2"),
            "strategy": Change("S3"),
            "beta": Change(2.0, {"strategy": "S3"}),
            "min_gp_norm": Change(10.0),
            "alpha": Change(0.5, {"proximal": "feddyn"}),
            "tau": Change(5.0, {"proximal": "moon", "perturb": "all"}),
        },
        (
            Reduction({"rho": 0.0}, "fedavg", {"rho": 1.5}),
            Reduction({"rho": 0.0, "perturb": "all"}, "fedavg", {"rho": 1.5, "perturb": "all"}),
            Reduction({"rho": 0.0, "proximal": "l2"}, "fedavg", {"rho": 1.5, "proximal": "l2"}),
            Reduction(
                {"rho": 0.0, "proximal": "moon", "perturb": "body"}, "fedavg", {"proximal": "moon", "perturb": "body"}
            ),
            Reduction({"strategy": "S0"}, "fedavg", {"strategy": "S1"}),
            Reduction({"strategy": "S5", "beta": 0.0}, "fedavg", {"strategy": "S5", "beta": 1.0}),
            Reduction(
                {"strategy": "S3", "beta": 0.0, "perturb": "all"}, "fedsol", {"strategy": "S3"}, {"perturb": "all"}
            ),
            # SAM: the loss that is climbed is the local one alone
            Reduction(
                {"strategy": "S4", "beta": 0.0, "adaptive": "none", "perturb": "all", "rho": 0.1},
                "fedsam",
                {"strategy": "S4", "adaptive": "none", "perturb": "all", "rho": 0.1},
                {"eps": 1e-12, "bn_passes": "first"},
            ),
            Reduction(
                {"strategy": "S4", "beta": 0.0, "adaptive": "none", "rho": 0.1},
                "fedsam",
                {"strategy": "S4", "adaptive": "none", "rho": 0.1},
                {"perturb": "head", "eps": 1e-12, "bn_passes": "first"},
            ),
            # the proximal objective of Eq. 2 is the base method of Table 4
            Reduction({"strategy": "S5", "proximal": "l2", "beta": 0.5}, "fedprox", {"proximal": "l2"}, {"mu": 0.5}),
            Reduction({"strategy": "S5", "proximal": "scaffold"}, "scaffold", {"proximal": "scaffold"}),
            Reduction({"strategy": "S5", "proximal": "fednova"}, "fednova", {"proximal": "fednova"}, {"ccvr": "fixed"}),
        ),
    ),
    "moon": Row(
        FEDAVG_OPTIONS,
        {"mu": Change(5.0), "tau": Change(0.1)},
        (Reduction({"mu": 0.0}, "fedavg", {"mu": 1.0}),),
    ),
    "fedntd": Row(
        FEDAVG_OPTIONS,
        {"beta": Change(0.3), "tau": Change(3.0)},
        (Reduction({"beta": 0.0}, "fedavg", {"beta": 1.0}),),
    ),
    "fedrcl": Row(
        FEDAVG_OPTIONS,
        {
            "rcl": Change("paper"),
            "tau": Change(0.1),
            "threshold": Change(0.99),
            "scl_weight": Change(0.5),
            "penalty_weight": Change(0.5),
            "levels": Change([1]),
            "clip": Change(0.1),
        },
        (
            Reduction({"scl_weight": 0.0, "penalty_weight": 0.0}, "fedavg", {"penalty_weight": 0.0}),
            Reduction({"scl_weight": 0.0, "penalty_weight": 0.0}, "fedavg", {"scl_weight": 0.0}),
        ),
    ),
    "fedet": Row(FEDDF_OPTIONS, {"fedet": Change("paper"), "diversity": Change(0.5), "temperature": Change(1.0)}),
    "perfedavg": Row(
        FEDAVG_OPTIONS,
        {
            "form": Change("code"),
            "beta": Change(0.02),
            "hf": Change(True),
            "delta": Change(0.1, {"hf": True}),
            "adaptation": Change("meta", personal=True),
        },
    ),
    "fedbabu": Row(FEDAVG_OPTIONS, {}),
    "knnper": Row(
        {**FEDAVG_OPTIONS, "capacity": 10},
        {
            "k": Change(3, personal=True),
            "lam": Change(0.3, personal=True),
            "capacity": Change(6, personal=True),
            "scale": Change(0.5, personal=True),
            "mix": Change("logits", personal=True),
            "store_augment": Change(True, personal=True),
        },
    ),
    "ditto": Row(
        FEDAVG_OPTIONS,
        {"lam": Change(0.1, personal=True), "personal_epochs": Change(3, personal=True)},
    ),
    "local": Row(
        FEDAVG_OPTIONS,
        {},
        silent=True,
    ),
    "fedpec": Row(
        PEC_OPTIONS,
        {
            "lr": Change(0.06),
            "optimizer": Change("sgd"),
            "batch_size": Change(5),
            "schedule": Change("constant"),
            "width": Change(6),
            "outputs": Change(12),
            "teacher_factor": Change(5),
        },
        head=False,
    ),
    "fedscr": Row(
        {**FEDAVG_OPTIONS, "memory_batch": 6},
        {
            "tau": Change(0.5),
            "memory_size": Change(5),
            "memory_batch": Change(3),
            "projection": Change(16),
        },
        head=False,
    ),
    "er": Row(
        {**FEDAVG_OPTIONS, "memory_batch": 6},
        {"memory_size": Change(5), "memory_batch": Change(3)},
        (Reduction({"memory_batch": 0}, "fedavg", {"memory_batch": 6}),),
    ),
    "der": Row(
        {**FEDAVG_OPTIONS, "memory_batch": 6, "alpha": 0.5},
        {"memory_size": Change(5), "memory_batch": Change(3), "alpha": Change(0.2), "beta": Change(0.5)},
        (
            Reduction({"alpha": 0.0}, "fedavg", {"alpha": 0.5}),
            Reduction({"memory_batch": 0}, "fedavg", {"memory_batch": 6}),
        ),
    ),
    "ewc": Row(
        FEDAVG_OPTIONS,
        {"lam": Change(1.0), "fisher_batch": Change(5), "fisher_batches": Change(1)},
        (Reduction({"lam": 0.0}, "fedavg", {"lam": 100.0}),),
        sections=FEW_TASKS,
    ),
    "fedcurv": Row(
        FEDAVG_OPTIONS,
        {"lam": Change(0.1), "fisher_batch": Change(5), "fisher_batches": Change(1)},
        (Reduction({"lam": 0.0}, "fedavg", {"lam": 1.0}),),
    ),
    "fedprotip": Row(
        FEDAVG_OPTIONS,
        {
            "n_batches": Change(2),
            "basis_dtype": Change("float32"),
            "eps": Change(0.95),
            "delta_eps": Change(0.2),
            "criterion": Change("sigma_sum"),
            "count_rule": Change("gpm_strict_first"),
            "columns": Change(20),
            "svd": Change("randomized"),
            "space_rank": Change("threshold"),
            "space_first": Change(10),
            "space_later": Change(10),
            "references": Change("held_out"),
            "held_out": Change(0.3, {"references": "held_out"}),
            "simple_predictors": Change(True, tested=True),
            "merge": Change("sequential"),
            "append": Change("official"),
            "rank_tol": Change(0.9),
            "norm_affine": Change("official", {"weight_decay": 0.1}),
            "decay_projection": Change("project", {"weight_decay": 0.1}),
            "block_set": Change("skip_first"),
            "reference_update": Change("frozen_prefix"),
            "tip_window": Change(3, tested=True),
            "tip_batch_size": Change(3, tested=True),
            "vote_ties": Change("lowest", {"n_batches": 1}, tested=True),
            "magnitude": Change("raw", {"block_set": "skip_first"}, tested=True),
        },
        (Reduction({"eps": 0.0, "norm_affine": "train"}, "fedavg", {"norm_affine": "train"}),),
        sections=TASKS,
    ),
    "fot": Row(
        FEDAVG_OPTIONS,
        {
            "eps": Change(0.95),
            "delta_eps": Change(0.2),
            "weighting": Change("examples"),
            "ratio": Change("norm", {"eps": 0.8, "delta_eps": 0.12}),
            "sketch": Change(50),
            "count_rule": Change("strict"),
        },
        (Reduction({"eps": 0.0, "delta_eps": 0.0}, "fedavg", {}, {"weighting": "uniform"}),),
        sections=TASKS,
    ),
    "fedmemo": Row(
        FEDMEMO_OPTIONS,
        FEDMEMO_CHANGES,
        (
            Reduction({"r0": 100}, "fedavg", {"r0": 1}),  # no alarm, no second step
            Reduction({"proxy.lr": 1e-30}, "fedavg", {"proxy.lr": 1e-3}),  # w_p is w'
            Reduction({"mode": "client", "r0": 100}, "fedavg", {"mode": "client"}),
            Reduction(
                {"proxy.epochs": 1, "proxy.batch_size": 100}, "fedmemo", {"proxy.epochs": 2}, {"proxy.one_step": True}
            ),
        ),
        grows=frozenset(
            f"rule.{record}.{name}"
            for record, names in (("detection", ("recent", "reference", "pending")), ("generators", ("w", "b")))
            for name in names
        ),
    ),
    "target": Row(
        {**POOL_OPTIONS, "syn_bs": 4},
        {
            **{name: FEDAVG_CHANGES[name] for name in ("batch_size", "lr", "momentum", "weight_decay")},
            "lode": Change(1.0),
            "kd_temperature": Change(1.0),
            "crop_padding": Change(3),
            "pool_crop": Change("resized"),
            "flip": Change(False),
            "syn_bs": Change(3),
            "pool_size": Change(10),
            "noise_dim": Change(4),
            "warmup": Change(2),
            "syn_round": Change(2),
            "syn_batch": Change(6),
            "g_steps": Change(2),
            "lr_g": Change(0.01),
            "bn": Change(0.0),
            "oh": Change(5.0),
            "adv": Change(100.0),
            "bn_mmt": Change(0.0),
            "kd_steps": Change(2, {"adv": 100.0}),
            "kd_batch": Change(3, {"adv": 100.0}),
            "student_lr": Change(0.3, {"adv": 100.0}),
            "student_weight_decay": Change(0.5, {"adv": 100.0}),
            "student_temperature": Change(1.0, {"adv": 100.0}),
            "lambda_kd": Change(1.0),
            "official_pool": Change(True),
            "lr_z": Change(0.5),
            "official_adv": Change(True, {"adv": 100.0}),
            "is_maml": Change(False),
            "reset_round": Change(2),
        },
        (Reduction({"lambda_kd": 0.0}, "fedavg", {}, {"momentum": 0.0}),),
        grows=frozenset({"old_w", "old_b", "pool"}),
        sections=PICTURES,
    ),
    "lander": Row(
        {**POOL_OPTIONS, "syn_bs": 1, "lte": "random", "lte_dim": 6, "rows": 3, "pool_size": 40},
        {
            "syn_bs": Change(3),
            "pool_size": Change(10),
            "bn": Change(10.0),
            "kd_steps": Change(2, {"adv": 100.0}),
            "lte": Change(str(Path(__file__).with_name("embeddings.npy"))),
            "lte_dim": Change(7),
            "lte_norm": Change("unit"),
            "lambda_ltc": Change(5.0),
            "radius": Change(10.0),
            "a_cur": Change(0.6),
            "a_pre": Change(0.6),
            "rows": Change(2),
        },
        grows=frozenset({"old_w", "old_b", "pool"}),
        sections=PICTURES,
    ),
    "mfcl": Row(
        {
            **FEDAVG_OPTIONS,
            "weight_decay": 0.0,
            "syn_size": 6,
            "noise_dim": 5,
            "pi": 4,
            "generator_batch_size": 8,
            "generator_lr": 0.01,
        },
        {
            **{name: FEDAVG_CHANGES[name] for name in ("batch_size", "lr", "momentum", "weight_decay", "local_epochs")},
            "weighting": Change("examples"),
            "syn_size": Change(5),
            "w_ft": Change(2.0),
            "w_kd": Change(2.0),
            "double_forward": Change(True),
            "noise_dim": Change(4),
            "pi": Change(3),
            "generator_lr": Change(0.02),
            "generator_batch_size": Change(9),
            "w_ie": Change(5.0),
            "w_bn": Change(1.0),
            "w_noise": Change(10.0),
            "from_round": Change(2),
            "to_round": Change(3, {"from_round": 2}),
            "available": Change([0, 1], {"from_round": 2}),
            "refresh": Change(1, {"from_round": 2}),
        },
        (Reduction({"from_round": 99}, "fedavg", {"from_round": 2}, {"momentum": 0.0, "weighting": "uniform"}),),
        grows=frozenset({"old_w", "old_b"}),
        sections=PICTURES,
    ),
    "glfc": Row(
        GLFC_OPTIONS,
        GLFC_CHANGES,
        grows=GLFC_GROWS,
        images=True,
        sections=FEW_TASKS,
    ),
    "lga": Row(
        {**GLFC_OPTIONS, "proxy_init": 0},
        {
            "lam": Change(0.5),
            "lga_groups": Change("per_task", sections=THREE_TASKS),
            "activation": Change("softmax"),
            "weighted_distillation": Change(False),
            "radius": Change(0.0),
            "augmentation": Change("official", {"radius": 3.0, "reset_best": False}),
            "proxy_init": Change(1),
        },
        grows=GLFC_GROWS,
        images=True,
        sections=FEW_TASKS,
    ),
    # not of flray: tests/contracts/own.py
    "own": Row(
        FEDAVG_OPTIONS,
        {"strength": Change(0.5)},
        (Reduction({"strength": 0.0}, "fedavg", {"strength": 1.0}),),
        grows=frozenset({"checks"}),
        imports=("tests.contracts.own",),
    ),
}


@dataclass(frozen=True)
class RuleRow:
    """A rule of aggregation: options and sections under which each of `changes` matters. None: its options are those of
    the algorithm of its name, whose row has them."""

    changes: Mapping[str, Change] | None = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    sections: Mapping[str, Any] = field(default_factory=dict)


RULES: dict[str, RuleRow] = {
    "mean": RuleRow(),
    **dict.fromkeys(("fedavgm", "fedadam", "fedyogi", "fedadagrad", "feddf", "fedmemo"), RuleRow(None)),
    "median": RuleRow(),
    "trimmed_mean": RuleRow({"trim": Change(0.34)}),
    "krum": RuleRow({"faulty": Change(0.2)}, {"faulty": 0.0}, {"cohort": {"size": 5}}),
    # with faulty 0 it is the plain mean
    "multi_krum": RuleRow({"faulty": Change(0.0), "models": Change(2)}, {}, {"cohort": {"size": 5}}),
    "geometric_median": RuleRow({"steps": Change(1), "nu": Change(10.0)}),
    "fedasync": RuleRow(
        {"alpha": Change(0.2)},
        sections={"devices": {"speed": "equal"}, "coordination": {"name": "buffered", "size": 1}},
    ),
}


def experiment(name: str, options: Mapping[str, Any] | None = None, **sections: Any) -> Any:
    """The tiny experiment of an algorithm: iris, 5 clients of unequal size, batch norm, 3 in a round."""
    from flray.config.loader import load_config

    row = TABLE[name]
    if row.images:
        sections = {**sections, **of_images(sections.get("data"))}
    return load_config(
        {
            "name": name,
            "seed": 3,
            "rounds": 3,
            "imports": list(row.imports),
            "data": {"source": "iris", "standardize": True},
            "proxy": {"source": "holdout", "size": 24, "labelled": True},
            "partition": {"name": "dirichlet", "clients": 5, "alpha": 1.0, "variant": "plain", "min_size": 6},
            "model": {"name": "tests.contracts.networks:NormNet"},
            "cohort": {"size": 3},
            "algorithm": sectioned({"name": name, **row.options, **(options or {})}),
            "resources": {"server": {"threads": 1}, "client": {"num_cpus": 1}},
            **sections,
        }
    )[0]


def of_images(data: Mapping[str, Any] | None) -> dict[str, Any]:
    """Data and model of an algorithm that reads images: 4 x 4 pixels, with the number of classes and samples that
    synthetic `data` have, or iris."""
    sizes = {"num_classes": 3, "num_train": 120, "num_test": 30, **(data or {}).get("options", {}), "shape": [4, 4, 1]}
    model = {"name": "tests.contracts.networks:Pictured"}
    return {"data": {"source": "synthetic", "options": sizes}, "model": model}

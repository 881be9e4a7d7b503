"""One row per algorithm: a tiny experiment, what it reduces to, and a value of every hyper-parameter that must matter.

Adding an algorithm: its file, its line in `flray/algorithms/__init__.py`, and a row here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Change:
    """A value that must change the outcome, under `base` (other hyper-parameters that make it matter)."""

    value: Any
    base: Mapping[str, Any] = field(default_factory=dict)


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


FEDAVG_OPTIONS = {"lr": 0.05, "local_epochs": 2, "batch_size": 4}
FEDAVG_CHANGES = {
    "lr": Change(0.06),
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
    **FEDAVG_CHANGES,
    "teacher": Change("avg_probs"),
    "temperature": Change(1.0),
    "squared": Change(False, {"distill_clip": 1e-3, "temperature": 0.1}),
    "kl_direction": Change("reverse"),
    "distill_lr": Change(2e-3),
    "distill_schedule": Change("cosine"),
    "distill_epochs": Change(2),
    "distill_batch_size": Change(10),
    "distill_clip": Change(1e-3),
}
FEDPROJ_CHANGES = {
    **FEDDF_CHANGES,
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

TABLE: dict[str, Row] = {
    "fedavg": Row(FEDAVG_OPTIONS, FEDAVG_CHANGES),
    "feddf": Row(FEDDF_OPTIONS, FEDDF_CHANGES),
    "fedproj": Row(
        FEDDF_OPTIONS,
        FEDPROJ_CHANGES,
        (
            Reduction({"projection_rate": 0.0}, "feddf", {"projection_rate": 1.0}),
            Reduction({"delta": 1e30}, "feddf", {"delta": 1e-12}),
            Reduction({"projection_rate": 0.0, "alpha": 0.0}, "feddf", {"projection_rate": 0.0, "alpha": 0.3}),
        ),
        grows=frozenset({"logits"}),
    ),
    # not of flray: tests/contracts/own.py
    "own": Row(
        FEDAVG_OPTIONS,
        {**FEDAVG_CHANGES, "strength": Change(0.5)},
        (Reduction({"strength": 0.0}, "fedavg", {"strength": 1.0}),),
        grows=frozenset({"checks"}),
        imports=("tests.contracts.own",),
    ),
}


def experiment(name: str, options: Mapping[str, Any] | None = None, **sections: Any) -> Any:
    """The tiny experiment of an algorithm: iris, 5 clients of unequal size, batch norm, 3 in a round."""
    from flray.config import load_config

    row = TABLE[name]
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
            "algorithm": {"name": name, **row.options, **(options or {})},
            "resources": {"server": {"threads": 1}, "client": {"num_cpus": 1}},
            **sections,
        }
    )[0]

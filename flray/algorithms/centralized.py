"""Centralized training (no federation): SGD on the clients' samples in one place, the upper bound of comparison tables.

A round is `local_epochs` epochs over the union of the clients' samples: what the partition gives them, each sample
once, so without a `proxy` holdout and without the validation split. Each batch is one step of one optimiser, which goes
on from round to round.

| paper | field | default | others |
|---|---|---|---|
| eta | `lr`, `lr_decay` per round | 0.01, none | - |
| epochs | rounds x `local_epochs` | 5 a round | - |
| B | `batch_size`; the short one at an epoch's end: `last_batch` keep or drop | 50, keep | - |
| - | `optimizer`, `momentum`, `weight_decay`: one optimiser for the whole run | sgd, 0.9, 0 | - |
| - | `shards`: parts of a batch whose gradients workers compute side by side | 4 | 1: the plain loop |

Runs as a Ray Train `TorchTrainer` of `resources.client_actors` workers (auto: what fits, at most `shards`; one in a
trial of a sweep), each with `resources.client` (a whole GPU where several ask for a share of one). A batch is cut into
`shards` parts of ceil(B / shards) samples; their mean, weighted by samples, follows one fixed binary tree, whoever
computes them. So the bits depend on `shards` and not on the number of workers; `shards: 1` is the plain loop, on one
worker. Batch norm sees one part at a time, as in any data-parallel training, and its statistics are the parts' weighted
mean. `cohort` is not read; `evaluate.finetune_epochs` tests on the clients' own test shares.
Down: 0 numbers. Up: 0. State: P + Q, and P more for momentum, 2 P for Adam. Cost per step: 1 FedAvg step, on samples of
all clients.
Known failures: small parts starve batch norm and GPUs (a worker computes its parts one after the other); a step of 1 ms
gains nothing from workers, since it waits for all of them.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from torch import Tensor

from flray.algorithms.lasting import Lasting
from flray.core.context import Context
from flray.core.hp import hp


class Centralized(Lasting, frozen=True):
    centralized: ClassVar[bool] = True
    buffers: ClassVar[Literal["average", "keep", "local"]] = "average"  # type: ignore[misc]
    # the parts of a batch are of one size, so the last one cannot take more samples
    last_batch: Literal["keep", "drop"] = hp(
        "keep", doc="an epoch's last, short batch: keep or drop it; an only one stays"
    )
    shards: int = hp(
        4, ge=1, doc="parts of a batch, computed side by side by up to so many workers; the bits depend on it"
    )

    def init_server(self, ctx: Context, w: Tensor, b: Tensor) -> Any:
        return self.untrained(ctx)

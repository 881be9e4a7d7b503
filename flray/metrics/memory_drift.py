"""Changes of a model's logits on public data by training: memory drift and label flips (FedProj C.4, Definition 5.2,
Proposition 5.3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from flray.core.protocol.context import SERVER, Context
from flray.core.protocol.probe import ClientView, FinishView, Place, Probe, Reads, Row
from flray.metrics.reading import client_models, due, logits
from flray.metrics.theory import flip_bound, flip_threshold
from flray.ops.losses import kl


class Remembered(NamedTuple):
    """The reference of a client: the public samples `numbers [n]`, the received model's logits on them `[n, c]`, and
    the `teacher`'s `[n, c]`."""

    numbers: NDArray[np.int64]
    received: Tensor
    teacher: Tensor


class MemoryDrift(Probe, frozen=True):
    """A row for each client: L_mem on the public data (the `proxy` section) `loss_before` and `loss_after` its local
    training, against the ensemble's logits if the broadcast has them (FedProj), else the received model's; `drift`,
    the mean KL divergence of the local model's predictions from the received model's, and the label flips
    (:func:`flips`).

    A row for each round (place `finish`) for the new global model: `global_drift` and `global_flips` against the model
    of the round's start, and `ensemble_drift`, L_mem against the mean logits of the round's client models. It is NaN if
    the server gets only their sum. `results.diagnoses.memory` has the correlation. For any algorithm.

    The memory loss of FedProj C.4 is one number for each round: L_mem of the new global model against the mean logits
    of that round's client models, over the complete public set at temperature 1. FedDF and FedProj write it in
    `rounds/` as `memory/drift`; `ensemble_drift` is the same for all algorithms, over `samples`. `loss_after` is of
    local models.
    """

    at: ClassVar[frozenset[Place]] = frozenset({"start", "end", "finish"})

    every: int = Field(1, ge=1, description="rounds between two observations, from the first on")
    samples: int | None = Field(None, ge=1, description="number of public samples, the first ones; none: all")

    @property
    def reads(self) -> Reads:
        return frozenset({"proxy"})

    def observe(self, ctx: Context, view: ClientView | FinishView, memory: Any) -> tuple[Sequence[Row], Any]:
        if not due(ctx, self.every):
            return [], memory
        if isinstance(view, FinishView):
            return self._server(ctx, view), memory
        if view.place == "start":
            return [], self._remembered(ctx, view)
        after = view.model_of(view.update)
        if memory is None or after is None:
            return [], memory
        local = logits(ctx, *after, ctx.require_proxy(), memory.numbers)
        losses = {"loss_before": kl(memory.teacher, memory.received), "loss_after": kl(memory.teacher, local)}
        return [{**{name: float(loss) for name, loss in losses.items()}, **flips(memory.received, local)}], memory

    def _remembered(self, ctx: Context, view: ClientView) -> Remembered | None:
        point, proxy, broadcast = view.model_of(view.broadcast), ctx.require_proxy(), view.broadcast
        if point is None:
            return None
        numbers, teacher = self._numbers(proxy.size), None
        if hasattr(broadcast, "memory") and len(broadcast.logits):  # Z_t on a buffer: that of `algorithms.fedproj`
            numbers = numbers if broadcast.memory is None else broadcast.memory.cpu().numpy()[: self.samples]
            teacher = ctx.seen(broadcast.logits[: self.samples])
        received = logits(ctx, *point, proxy, numbers)
        return Remembered(numbers, received, received if teacher is None else teacher)

    def _server(self, ctx: Context, view: FinishView) -> list[Row]:
        """The server's row; none in other phases, in later exchanges, or without models."""
        before, after = view.model_of(view.before), view.model_of(view.after)
        if ctx.clock.phase != "round" or ctx.clock.exchange or before is None or after is None:
            return []
        proxy = ctx.require_proxy()
        numbers = self._numbers(proxy.size)
        old, new = (logits(ctx, *point, proxy, numbers) for point in (before, after))
        change, models = flips(old, new), client_models(view)
        row = {
            "client": SERVER,
            "global_drift": change["drift"],
            "global_flips": change["flips"],
            "ensemble_drift": float("nan"),
        }
        if models:
            answers = [logits(ctx, *point, proxy, numbers) for point in models]
            row["ensemble_drift"] = float(kl(torch.stack(answers).mean(dim=0), new))
        return [row]

    def _numbers(self, size: int) -> NDArray[np.int64]:
        return np.arange(size if self.samples is None else min(size, self.samples))


def flips(teacher: Tensor, student: Tensor) -> dict[str, float]:
    """Differences of the logits `student [n, C]` from `teacher [n, C]`, in float64; KL_x is the divergence of sample x.

    `drift`: mean KL_x. `flips`: share of the samples whose top label changed. `gap`: mean gap between the teacher's two
    largest probabilities; `gap_least`, `drift_most`: its minimum, and the largest KL_x. `safe`: share of the samples
    with KL_x < gap_x^2 / 8; by Proposition 5.3 none of them flips, and `flips_safe` counts those that did.
    `safe_exact`: share below the exact threshold (`theory.flip_threshold`). `tight`: the smallest KL_x / (gap_x^2 / 8)
    of a flipped sample, 1 for a tight bound; NaN without flips.
    """
    log_p, log_q = teacher.double().log_softmax(dim=1), student.double().log_softmax(dim=1)
    p = log_p.exp()
    divergence = (p * (log_p - log_q)).sum(dim=1)
    changed, bound = log_p.argmax(dim=1) != log_q.argmax(dim=1), flip_bound(p)
    gap, safe = (8 * bound).sqrt(), divergence < bound
    flipped = changed & (bound > 0)
    return {
        "drift": float(divergence.mean()),
        "flips": float(changed.double().mean()),
        "gap": float(gap.mean()),
        "gap_least": float(gap.min()),
        "drift_most": float(divergence.max()),
        "safe": float(safe.double().mean()),
        "flips_safe": int((changed & safe).sum()),
        "safe_exact": float((divergence < flip_threshold(p)).double().mean()),
        "tight": float((divergence / bound)[flipped].min()) if flipped.any() else float("nan"),
    }

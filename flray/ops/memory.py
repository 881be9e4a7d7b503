"""FedProj's memory loss on public samples, which a client's step must not raise (section 4.2): its gradient, and sums
for metrics."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from flray.core.messages import Record
from flray.core.network.parts import ModuleMode
from flray.core.protocol.context import Context
from flray.ops.distill import index_batches
from flray.ops.losses import cross_entropy, kl
from flray.ops.project import Conflict

MemoryLoss = Literal["kl", "ce_labels"]


class MemoryBuffer(NamedTuple):
    """The buffer M_t: `numbers [M]` of public samples (None: all), on the host, and the ensemble's `logits [M, C]` on
    them."""

    numbers: np.ndarray | None
    logits: Tensor

    @classmethod
    def of_message(cls, memory: Tensor | None, logits: Tensor) -> MemoryBuffer:
        """The buffer of a broadcast's fields; a GPU waits for the copy of `memory [M]`."""
        return cls(None if memory is None else memory.cpu().numpy(), logits)

    def size(self, ctx: Context) -> int:
        """M."""
        return ctx.require_proxy().size if self.numbers is None else len(self.numbers)

    def samples(self, places: np.ndarray) -> np.ndarray:
        """The numbers of the public samples at these places of the buffer."""
        return places if self.numbers is None else self.numbers[places]

    def batch(
        self, ctx: Context, places: np.ndarray, kind: MemoryLoss, there: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Inputs `[m, ...]` at these places, and their targets: labels `[m]`, or the ensemble's logits `[m, C]`.

        `there`: the places `[m]` on the logits' device; a GPU waits where they are not given.
        """
        proxy, index = ctx.require_proxy(), self.samples(places)
        if kind == "ce_labels":
            return proxy.inputs(index), proxy.labels(index)
        there = torch.from_numpy(places).to(self.logits.device) if there is None else there
        return proxy.inputs(index), self.logits[there]


def with_seen_labels(ctx: Context, buffer: MemoryBuffer, order: np.ndarray) -> np.ndarray:
    """The places of `order [M]` in the buffer whose public sample has a label among the classes seen so far."""
    if ctx.classes is None:
        return order
    labels = ctx.require_proxy().labels(buffer.samples(order))
    known: np.ndarray = ctx.classes.seen.has(labels).cpu().numpy()
    return np.asarray(order[known])


def memory_batch_places(order: np.ndarray, step: int, size: int) -> np.ndarray:
    """The places `[size]` in the buffer that local step `step` reads: consecutive parts of `order [M]`, cyclically."""
    size = min(size, len(order))
    return np.take(order, np.arange(step * size, (step + 1) * size), mode="wrap")


def memory_gradient(
    ctx: Context,
    w: Tensor,
    b: Tensor,
    buffer: MemoryBuffer,
    chosen: np.ndarray,
    kind: MemoryLoss,
    mode: ModuleMode,
    block: int,
    out: Tensor,
) -> tuple[Tensor, Tensor]:
    """(mean loss, its gradient `[P]`) of the model at `(w, b)` on the buffer's places `chosen [B]`, `block` at a time;
    `out` is scratch."""
    if len(chosen) <= block:
        return batch_gradient(ctx, w, b, *buffer.batch(ctx, chosen, kind), mode, out)
    total, g_mem = torch.zeros((), device=w.device), torch.zeros_like(w)
    for piece in index_batches(chosen, block):
        loss, g = batch_gradient(ctx, w, b, *buffer.batch(ctx, piece, kind), mode, out)
        total.add_(loss, alpha=len(piece) / len(chosen))
        g_mem.add_(g, alpha=len(piece) / len(chosen))
    return total, g_mem


def batch_gradient(
    ctx: Context, w: Tensor, b: Tensor, x: Tensor, target: Tensor, mode: ModuleMode, out: Tensor
) -> tuple[Tensor, Tensor]:
    """(mean loss, its gradient `[P]`) of the model at `(w, b)` on inputs `x [m, ...]`; `out` is scratch.

    The loss is the KL divergence from logits `target [m, C]`, or the cross-entropy with labels `target [m]`.
    """
    if target.dtype == torch.int64:
        seen = None if ctx.classes is None else ctx.classes.seen
        return ctx.objective.value_and_grad(lambda f: cross_entropy(f(x), target, seen), w, b, mode, out)
    expected = ctx.seen(target)
    return ctx.objective.value_and_grad(lambda f: kl(expected, ctx.seen(f(x))), w, b, mode, out)


class MemorySums(Record):
    """Sums over the projected local steps, all 0-dim: their number, those that changed the gradient, and the cosine;
    `first` and `last` are the memory loss at the first and the last of them."""

    steps: Tensor
    projected: Tensor
    cosine: Tensor
    first: Tensor
    last: Tensor

    def add_(self, loss: Tensor, conflict: Conflict) -> None:
        """Count one step, in place."""
        self.first.copy_(torch.where(self.steps == 0, loss, self.first))
        self.last.copy_(loss)
        self.steps.add_(1)
        self.projected.add_(conflict.projected)
        self.cosine.add_(conflict.cosine)

    def report(self, steps: int) -> dict[str, Tensor]:
        """Metrics of one client's local training of `steps` steps."""
        return {
            "project/share": self.projected / max(steps, 1),
            "project/cosine": self.cosine / self.steps.clamp_min(1),
            "memory/loss_first": self.first,
            "memory/loss_last": self.last,
        }

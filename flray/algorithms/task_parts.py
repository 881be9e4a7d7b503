"""Which tensors a task moves: the frame of spec 1.1 that the methods over tasks share, not an algorithm by itself.

Heads: the model has one head for all tasks, whose rows stand in for one head a task; a task moves its own rows, and no
other row decays. The early layers of a pretrained network are frozen after the first task.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from torch import Tensor

from flray.algorithms.fedavg import Carry, FedAvg
from flray.core.classes import Classes, ClassSet
from flray.core.context import Context
from flray.core.hp import hp
from flray.core.messages import Batch
from flray.core.network_parts import ModuleModes
from flray.core.point import Model
from flray.core.samples import ClientData
from flray.ops.losses import cross_entropy
from flray.ops.optim import decay_


class PartsCarry(Carry):
    """A client in training: `moves [P]`, 1 where a gradient may change something, `decays [P]`, 1 where weight decay
    does; None: everywhere."""

    moves: Tensor | None
    decays: Tensor | None


class TaskParts(FedAvg, frozen=True):
    freeze: Literal["none", "early"] = hp(
        "none", doc="after task 1: the layers that the model declares as early (of pretrained networks), or none"
    )
    frozen_bn_stats: Literal["freeze", "update"] = hp(
        "freeze", doc="batch norm of frozen layers: stays as it is, or its statistics move on (official)"
    )

    def check(self, ctx: Context) -> None:
        """Raises `ConfigError` where early layers are to be frozen and the model declares none."""
        if self.freeze == "early":
            ctx.objective.parts.tensors("early")

    def start(self, ctx: Context, w: Tensor, b: Tensor) -> PartsCarry:
        return PartsCarry.of(super().start(ctx, w, b), moves=None, decays=None)

    def begin(self, ctx: Context, down: Any, client: Any, data: ClientData) -> Any:
        carry = super().begin(ctx, down, client, data)
        moves = None if ctx.classes is None else self.moved(ctx, ctx.classes, carry.w)
        return carry.replace(moves=moves, decays=moves)

    def moved(self, ctx: Context, classes: Classes, w: Tensor) -> Tensor:
        """Scratch `[P]`: 1 but in the head's rows of other tasks and, after task 1, in the frozen layers."""
        mask = ctx.objective.scratch("moves", w).fill_(1.0)
        for entry, in_head in zip(ctx.objective.layout.entries, ctx.objective.in_head, strict=True):
            if in_head and entry.shape[0] == classes.size:
                entry.view(mask).zero_()[self.own_rows(classes).index] = 1.0
        return mask.mul_(1 - ctx.mask("early")) if self.freezes(ctx) else mask

    def own_rows(self, classes: Classes) -> ClassSet:
        """The classes whose rows of the head a task moves."""
        return classes.new

    def freezes(self, ctx: Context) -> bool:
        """Whether the early layers stay as they are by now."""
        return self.freeze == "early" and (ctx.clock.task > 0 or ctx.clock.phase == "task_end")

    def gradient(self, ctx: Context, down: Any, client: Any, carry: Any, batch: Batch) -> tuple[Tensor, Tensor]:
        return self.differentiated(ctx, carry, lambda f: cross_entropy(f(batch.x), batch.y, ctx.classes))

    def differentiated(self, ctx: Context, carry: Any, loss: Callable[[Model], Tensor]) -> tuple[Tensor, Tensor]:
        """(`loss` of the client's model, its gradient `[P]`); none is computed for frozen layers."""
        frozen = self.freezes(ctx)
        still = frozen and self.frozen_bn_stats == "freeze"
        mode: ModuleModes = {"all": "train", "early": "eval"} if still else "train"
        return ctx.objective.value_and_grad(loss, carry.w, carry.b, mode, carry.grad, "early" if frozen else None)

    def decayed(self, ctx: Context, carry: Any, g: Tensor) -> Tensor:
        reached = ctx.objective.reached()
        if carry.moves is not None:
            g.mul_(carry.moves)
            reached = carry.decays if reached is None else reached * carry.decays
        decay_(g, carry.w, self.weight_decay, reached)
        return g

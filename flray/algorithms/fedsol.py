"""FedSOL (Lee et al., CVPR 2024, Algorithm 1): the local gradient at weights that are shifted along the proximal
gradient.

e_p = rho Lambda (*) g_p(w) / (norm(g_p(w)) + 1e-12), Lambda = abs(w - w_g) normalised (Eq. 5, 7, 8). The optimiser then
steps from the unperturbed w, which weight decay reads, with g_l(w + e_p) of all parameters (Eq. 6). g_l: gradient of
the local cross-entropy L_l; g_p: of L_p = KL(sigma(f(x; w_g) / T) to sigma(f(x; w) / T)), teacher in eval mode, no
factor T^2. Norm and shift are those of the perturbed part.

Table 10, `strategy`: S0 g_l(w). S1 as above. S2 g_l(w) + beta g_p(w + e_p). S3 (g_l + beta g_p)(w + e_p).
S4 (g_l + beta g_p)(w + e_c), e_c from (g_l + beta g_p)(w). S5 (g_l + beta g_p)(w). S6 g_l(w + e_p) + beta g_p(w).
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import torch
from pydantic import model_validator
from torch import Tensor

from flray.algorithms.fedavg import FedAvg, SGDState
from flray.algorithms.feddyn import FedDyn
from flray.algorithms.fednova import FedNova
from flray.algorithms.fedprox import FedProx
from flray.algorithms.moon import Moon
from flray.algorithms.scaffold import Scaffold
from flray.core.messages import Batch, Broadcast, Cohort, Metrics, ServerState
from flray.core.network.objective import BoundModel
from flray.core.protocol.context import ClientContext, Context
from flray.core.protocol.samples import ClientData
from flray.core.schema.errors import ConfigError
from flray.core.schema.hp import hp
from flray.ops.losses import cross_entropy, kl
from flray.ops.perturb import (
    Adaptive,
    PartName,
    ascend,
    check_head,
    distance,
    part,
    part_gradient,
    scratch_point,
    scratch_statistics,
)
from flray.ops.project import project

BASES: dict[str, type[FedAvg[Any, Any, Any, Any, Any]]] = {
    "kl": FedAvg,
    "l2": FedProx,
    "scaffold": Scaffold,
    "fednova": FedNova,
    "feddyn": FedDyn,
    "moon": Moon,
}


class FedSOL(FedAvg[ServerState, Any, Any, Any], frozen=True):
    rho: float = hp(1.5, log=(0.05, 5.0), ge=0, doc="perturbation strength (rho, Eq. 5); 0: FedAvg")
    adaptive: Adaptive = hp(
        "columnwise", doc="Lambda (Eq. 7): |w - w_g| normalised per column (code), tensor or layer, or 1"
    )
    perturb: PartName = hp("head", doc="what is perturbed; the norm of g_p is that of this part")
    temperature: float = hp(3.0, linear=(1.0, 5.0), gt=0, doc="temperature of the KL (T)")
    proximal: Literal["kl", "l2", "scaffold", "fednova", "feddyn", "moon"] = hp(
        "kl", doc="L_p, with the server of its method (Table 4)"
    )
    strategy: Literal["S0", "S1", "S2", "S3", "S4", "S5", "S6", "projection"] = hp(
        "S1", doc="update direction (Table 10; Eq. 3)"
    )
    beta: float = hp(1.0, log=(0.01, 10.0), ge=0, doc="weight of L_p (Eq. 2; strategies S2 to S6)")
    min_gp_norm: float = hp(0.0, ge=0, doc="smallest norm of g_p that perturbs")
    alpha: float | None = hp(None, gt=0, doc="FedDyn's alpha (proximal: feddyn); none: its default")
    tau: float | None = hp(None, gt=0, doc="MOON's temperature (proximal: moon); none: its default")

    @model_validator(mode="after")
    def _head_is_read(self) -> FedSOL:
        if self.proximal == "moon" and self.perturb == "head" and self.strategy not in ("S0", "S4", "S5", "projection"):
            raise ConfigError(
                "algorithm.proximal: moon does not read the head, so perturb: head changes nothing; set it to body or "
                "all"
            )
        if self.strategy == "projection" and self.proximal in ("scaffold", "fednova", "feddyn"):
            raise ConfigError(
                "algorithm.strategy: projection takes another part of L_p out of every step, for which the state of "
                f"{self.proximal} has no rule; use proximal: kl, l2 or moon"
            )
        return self

    @property
    def base(self) -> FedAvg[ServerState, Any, Any, Any]:
        """The method that L_p, the server and the state are taken from (Table 4), with the options that both have."""
        options: dict[str, Any] = {
            "fednova": {"ccvr": "fixed"},
            "feddyn": {"alpha": self.alpha},
            "moon": {"tau": self.tau},
        }
        own = {name: value for name, value in options.get(self.proximal, {}).items() if value is not None}
        return BASES[self.proximal](**{name: getattr(self, name) for name in FedAvg.model_fields}, **own)

    def step_cost(self) -> float:
        # for g_l, g_p; of them for both
        passes = {"S0": (1, 0, 0), "S2": (1, 2, 0), "S3": (1, 2, 1), "S4": (2, 2, 2), "S5": (1, 1, 1)}
        local_loss, near, joint = passes.get(self.strategy, (1, 1, 0))
        if self.proximal != "kl":  # of vectors, but MOON's
            return local_loss + (near * self.base.step_cost() if self.proximal == "moon" else 0.0)
        return local_loss + near - joint - (self.strategy == "S1" and self.perturb == "head") + (near > 0) / 3

    def gradient(
        self, ctx: ClientContext, broadcast: Broadcast, client: Any, local: SGDState, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        """(loss, update direction `[P]`) of Table 10."""
        strategy, beta, target = self.strategy, self.beta, None
        if self.proximal == "kl" and strategy != "S0":
            with torch.no_grad():
                target = ctx.seen(ctx.objective.at(broadcast.w, broadcast.b)(batch.x))
            if strategy == "S1" and self.perturb == "head":
                return self.head_only(ctx, broadcast, local, batch, target)
        mixture = partial(self.mixture, ctx, broadcast, client, batch, target)

        # each at the weights and statistics of a `point`; g_p stays while another gradient is taken
        def g_local(point: SGDState) -> tuple[Tensor, Tensor]:
            return mixture(point, True, 0.0, local.grad)

        def g_prox(point: SGDState) -> Tensor:
            return mixture(point, False, 1.0, ctx.objective.scratch("proximal gradient", local.w))[1]

        def g_both(point: SGDState) -> tuple[Tensor, Tensor]:
            return mixture(point, True, beta, local.grad)

        def shifted(g: Tensor) -> SGDState:
            """The point w + e, e along `g`."""
            return again.replace(
                w=self.perturbed(ctx, broadcast, local, g, scratch_point(ctx.objective, local.w, self.perturb))
            )

        here = again = local
        if strategy == "S0":
            return g_local(here)
        if strategy == "S5":
            return g_both(here)
        first = g_both(here)[1] if strategy == "S4" else g_prox(here)
        if self.proximal == "kl" or strategy == "S4":  # that pass has moved the statistics, which move once a step
            again = local.replace(b=scratch_statistics(ctx.objective, local.b))
        if strategy == "S1":
            return g_local(shifted(first))
        if strategy in ("S3", "S4"):
            return g_both(shifted(first))
        loss, g = g_local(shifted(first) if strategy == "S6" else again)
        if strategy == "projection":
            return loss, project(g, first, "threshold", delta=0.0, out=g)[0]
        return loss, g.add_(g_prox(shifted(first)) if strategy == "S2" else first, alpha=beta)

    def perturbed(self, ctx: Context, broadcast: Broadcast, local: SGDState, g_p: Tensor, out: Tensor) -> Tensor:
        """w + e_p `[P]` (Eq. 8) in `out`, which is written in the perturbed part alone."""
        chosen = part(ctx.objective, self.perturb)
        scale = None if self.adaptive == "none" else distance(local.w, broadcast.w, chosen, self.adaptive, out)
        return ascend(local.w, g_p, self.rho, chosen.spans, scale, min_norm=self.min_gp_norm, out=out)

    def mixture(
        self,
        ctx: ClientContext,
        broadcast: Broadcast,
        client: Any,
        batch: Batch,
        target: Any,
        local: SGDState,
        local_loss: bool,
        proximal: float,
        out: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Value and gradient `[P]`, in `out` or the base's scratch, of [local_loss] L_l + proximal L_p at the local
        model, in one pass for kl, which reads the global model's logits `target [B, c]` of the classes seen so far."""
        if self.proximal == "kl":

            def loss(f: BoundModel) -> Tensor:
                logits = f(batch.x)
                terms = [cross_entropy(logits, batch.y, ctx.classes)] if local_loss else []
                terms += [proximal * kl(target, ctx.seen(logits), self.temperature)] if proximal else []
                return torch.stack(terms).sum()

            return ctx.objective.value_and_grad(loss, local.w, local.b, out=out)
        if local_loss:
            value, g = super().gradient(ctx, broadcast, client, local.replace(grad=out), batch)
        if proximal:
            local = local.replace(b=scratch_statistics(ctx.objective, local.b))
            near, g_p = self.base.proximal(ctx, broadcast, client, local, batch)  # type: ignore[attr-defined]
            value, g = (value + proximal * near, g.add_(g_p, alpha=proximal)) if local_loss else (near, g_p)
        return value, g

    def head_only(
        self, ctx: ClientContext, broadcast: Broadcast, local: SGDState, batch: Batch, target: Tensor
    ) -> tuple[Tensor, Tensor]:
        """S1 with the KL and a perturbed head: both passes share their body, so it runs once."""
        objective = ctx.objective
        here = objective.at(local.w, local.b, "train", grad=True)
        z = here.features(batch.x)
        g_p = part_gradient(
            kl(target, ctx.seen(here.head(z.detach())), self.temperature), here, part(objective, "head"), local.grad
        )
        point = self.perturbed(ctx, broadcast, local, g_p, objective.scratch("perturbed", local.w))
        there = objective.at(point, local.b, "train_frozen", grad=True)
        loss = cross_entropy(there.head(z), batch.y, ctx.classes)
        leaves = [
            t if in_head else h for h, t, in_head in zip(here.leaves, there.leaves, objective.in_head, strict=True)
        ]
        return loss.detach(), objective.gradient(loss, leaves, local.grad)

    # server and state: those of the method that L_p is taken from --------------------------------
    def init_server(self, ctx: Context, w: Tensor, b: Tensor) -> ServerState:
        if self.perturb != "all":
            check_head(ctx.objective)
        return self.base.init_server(ctx, w, b)

    def broadcast(self, ctx: Context, state: Any) -> Any:
        return self.base.broadcast(ctx, state)

    def aggregate(self, ctx: Context, state: Any, updates: Any, cohort: Cohort) -> tuple[Any, Metrics]:
        return self.base.aggregate(ctx, state, updates, cohort)

    def init_client(self, ctx: Context) -> Any:
        return self.base.init_client(ctx)

    def begin(self, ctx: ClientContext, broadcast: Any, client: Any, data: ClientData) -> SGDState:
        return self.base.begin(ctx, broadcast, client, data)

    def end(self, ctx: ClientContext, broadcast: Any, client: Any, local: Any, data: ClientData) -> tuple[Any, Any]:
        base = self.base
        # their state is what the steps contained besides the correction
        if isinstance(base, Scaffold | FedNova | FedDyn):
            return base.end(ctx, broadcast, client, local, data, 0.0 if self.strategy in ("S0", "S1") else self.beta)
        return base.end(ctx, broadcast, client, local, data)

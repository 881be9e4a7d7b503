"""FedSOL (Lee et al., CVPR 2024, Algorithm 1): the local gradient at weights that are shifted along the proximal
gradient.

e_p = rho Lambda (*) g_p(w) / (norm(g_p(w)) + 1e-12), Lambda = |w - w_g| normalised (Eqs. 5, 7, 8). The optimiser then
steps from the unperturbed w along g_l(w + e_p) (Eq. 6); weight decay reads w.
g_l: gradient of the local cross-entropy L_l. g_p: gradient of L_p = KL(sigma(f(x; w_g) / T) || sigma(f(x; w) / T)),
teacher in eval mode, no factor T^2. Norm and shift are those of the perturbed part of the network.

`strategy` (Table 10): S0 g_l(w). S1 as above. S2 g_l(w) + beta g_p(w + e_p). S3 (g_l + beta g_p)(w + e_p).
S4 (g_l + beta g_p)(w + e_c), e_c along (g_l + beta g_p)(w). S5 (g_l + beta g_p)(w). S6 g_l(w + e_p) + beta g_p(w).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

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
from flray.core.protocol.algorithm_section import ServerRule
from flray.core.protocol.context import ClientContext, Context
from flray.core.protocol.samples import ClientData
from flray.core.schema.errors import ConfigError
from flray.core.schema.hp import hp
from flray.ops.losses import cross_entropy, kl
from flray.ops.perturb import (
    Adaptive,
    SubsetName,
    adaptive_scale,
    ascend,
    check_head,
    parameter_subset,
    scratch_copy,
    scratch_parameters,
    subset_gradient,
)
from flray.ops.project import project

ROUNDING = 1e-4  # logits that differ by a smaller share of the largest are equal in theory


# L_l and L_p (Table 4) ------------------------------------------------------------------------
@dataclass
class Losses(ABC):
    """L_l and L_p on one batch: (value, gradient `[P]`) at parameters `w [P]`.

    Gradients are scratch; those of L_l and of L_p lie in different vectors. The first pass of a step in train mode
    updates the batch-norm statistics; later passes update a copy of them.
    """

    method: ClassVar[type[FedAvg[Any, Any, Any, Any, Any]]]  # the method whose server and states L_p needs
    options: ClassVar[Mapping[str, Any]] = {}  # its options

    sol: FedSOL
    ctx: ClientContext
    # Any: records of `method`, another class for each L_p, whose fields only `method` reads
    broadcast: Any
    client: Any
    state: Any  # the local state
    batch: Batch
    updated: bool = False  # whether this step has updated the batch-norm statistics

    def local(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """L_l."""
        return self.sol.local_loss(self.ctx, self.broadcast, self.client, self.next_pass(w), self.batch)

    @abstractmethod
    def proximal(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """L_p."""

    def both(self, w: Tensor, beta: float) -> tuple[Tensor, Tensor]:
        """L_l + beta L_p."""
        (loss, g), (near, g_p) = self.local(w), self.proximal(w)
        return loss + beta * near, g.add_(g_p, alpha=beta)

    def next_pass(self, w: Tensor) -> SGDState:
        """The local state at `w` for a pass in train mode."""
        b, self.updated = self.copied_statistics() if self.updated else self.state.b, True
        return self.state.replace(w=w, b=b)  # type: ignore[no-any-return]

    def copied_statistics(self) -> Tensor:
        return scratch_copy(self.ctx.objective, self.state.b)

    def gradient_of_proximal(self) -> Tensor:
        """Scratch `[P]` for the gradient of L_p."""
        return self.ctx.objective.scratch("proximal gradient", self.state.w)

    def point(self) -> Tensor:
        """Scratch `[P]` for w + e, which holds w outside the perturbed part."""
        return scratch_parameters(self.ctx.objective, self.state.w, self.sol.perturb)

    @classmethod
    def contained(cls, client: Any, state: Any, weight: float) -> tuple[Any, Any]:
        """(stored state, local state) for `end` of `method`, if the local steps contained `weight` times L_p.

        Its arguments are Any because each `method` has its own records.
        """
        return client, state


class TermLosses(Losses):
    """L_p is a term of closed form (`ops/proximal.py`)."""

    def proximal(self, w: Tensor) -> tuple[Tensor, Tensor]:
        term = self.sol.base.proximal_term(self.ctx, self.broadcast, self.client, self.state)  # type: ignore[attr-defined]
        return term.value(w), term.gradient(w, self.gradient_of_proximal())


class ProxLosses(TermLosses):
    method = FedProx


class CorrectionLosses(TermLosses):
    """L_p is linear; its gradient is the `correction [P]` of the local state."""

    @classmethod
    def contained(cls, client: Any, state: Any, weight: float) -> tuple[Any, Any]:
        return client, state.replace(correction=state.correction * weight)


class ScaffoldLosses(CorrectionLosses):
    method = Scaffold


class NovaLosses(CorrectionLosses):
    method, options = FedNova, {"ccvr": "fixed"}


class DynLosses(TermLosses):
    method = FedDyn

    @classmethod
    def contained(cls, client: Any, state: Any, weight: float) -> tuple[Any, Any]:
        return client.replace(h=client.h * weight), state


class ContrastLosses(Losses):
    """L_p is MOON's contrastive loss."""

    method = Moon

    def proximal(self, w: Tensor) -> tuple[Tensor, Tensor]:
        state = self.state.replace(w=w, b=self.copied_statistics())
        return self.sol.base.contrastive_loss(self.ctx, self.broadcast, self.client, state, self.batch)  # type: ignore[attr-defined, no-any-return]


class KLLosses(Losses):
    """L_p is the KL divergence from the global model's prediction; `both` takes one pass for L_l and L_p."""

    method = FedAvg

    @cached_property
    def target(self) -> Tensor:
        """The global model's logits `[B, c]` of the classes seen so far."""
        with torch.no_grad():
            return self.ctx.seen(self.ctx.objective.at(self.broadcast.w, self.broadcast.b)(self.batch.x))

    def divergence(self, logits: Tensor) -> Tensor:
        self.own = self.ctx.seen(logits)
        return kl(self.target, self.own, self.sol.temperature)

    def proximal(self, w: Tensor) -> tuple[Tensor, Tensor]:
        _, at = self.target, self.next_pass(w)  # target first: computing it binds the network to the global model
        value, g_p = self.ctx.objective.value_and_grad(
            lambda f: self.divergence(f(self.batch.x)), at.w, at.b, out=self.gradient_of_proximal()
        )
        return value, self.without_rounding(g_p)

    def without_rounding(self, g_p: Tensor) -> Tensor:
        """`g_p [P]` in place, 0 at w = w_g, where a client's first step is, if L_p is 0 there in theory.

        Float32 leaves a rounding error of any direction, which a norm would scale to rho. A network with batch norm or
        dropout gives other logits in train mode than the teacher, and its g_p is no error.
        """
        if self.state.moments.steps == 0:
            own = self.own.detach()
            apart = (own - self.target).abs().amax() > ROUNDING * self.target.abs().amax()
            g_p.masked_fill_(~apart, 0.0)
        return g_p

    def both(self, w: Tensor, beta: float) -> tuple[Tensor, Tensor]:
        _, at = self.target, self.next_pass(w)

        def loss(f: BoundModel) -> Tensor:
            logits = f(self.batch.x)
            return cross_entropy(logits, self.batch.y, self.ctx.classes) + beta * self.divergence(logits)

        return self.ctx.objective.value_and_grad(loss, at.w, at.b, out=self.state.grad)


class HeadLosses(KLLosses):
    """S1 with a perturbed head. g_p needs only the head, and w + e_p differs from w only in the head, so the body runs
    once for both."""

    def proximal(self, w: Tensor) -> tuple[Tensor, Tensor]:
        _, objective = self.target, self.ctx.objective
        self.model = objective.at(w, self.state.b, "train", grad=True)
        self.z = self.model.features(self.batch.x)
        value = self.divergence(self.model.head(self.z.detach()))
        g_p = subset_gradient(value, self.model, parameter_subset(objective, "head"), self.state.grad)
        return value.detach(), self.without_rounding(g_p)

    def point(self) -> Tensor:
        return self.ctx.objective.scratch("perturbed", self.state.w)  # only its head is read

    def local(self, w: Tensor) -> tuple[Tensor, Tensor]:
        objective = self.ctx.objective
        perturbed = objective.at(w, self.state.b, "train_frozen", grad=True)
        loss = cross_entropy(perturbed.head(self.z), self.batch.y, self.ctx.classes)
        pairs = zip(self.model.leaves, perturbed.leaves, objective.in_head, strict=True)
        leaves = [head if in_head else body for body, head, in_head in pairs]
        return loss.detach(), objective.gradient(loss, leaves, self.state.grad)


LOSSES: dict[str, type[Losses]] = {
    "kl": KLLosses,
    "l2": ProxLosses,
    "scaffold": ScaffoldLosses,
    "fednova": NovaLosses,
    "feddyn": DynLosses,
    "moon": ContrastLosses,
}


def with_proximal(local: tuple[Tensor, Tensor], g_p: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """(L_l, g_l + beta g_p), in place of g_l."""
    return local[0], local[1].add_(g_p, alpha=beta)


class FedSOL(FedAvg[ServerState, Any, Any, Any], frozen=True):
    """The server half and the states are those of `base`, the method of L_p: between its `begin` and `end` the local
    steps are FedSOL's own. Any: its messages, another class for each method."""

    server_rule: ClassVar[ServerRule] = "any"  # `fitting_rules` says which the base has

    rho: float = hp(1.5, log=(0.05, 5.0), ge=0, doc="perturbation strength (rho, Eq. 5); 0: FedAvg")
    adaptive: Adaptive = hp(
        "columnwise", doc="Lambda (Eq. 7): |w - w_g| normalised per column (code), tensor or layer, or 1"
    )
    perturb: SubsetName = hp("head", doc="part that is perturbed; the norm of g_p is over this part")
    temperature: float = hp(3.0, linear=(1.0, 5.0), gt=0, doc="temperature of the KL (T)")
    proximal: Literal["kl", "l2", "scaffold", "fednova", "feddyn", "moon"] = hp(
        "kl", doc="L_p (Table 4); the server and the states are those of its method"
    )
    strategy: Literal["S0", "S1", "S2", "S3", "S4", "S5", "S6", "projection"] = hp(
        "S1", doc="update direction (Table 10; Eq. 3)"
    )
    beta: float = hp(1.0, log=(0.01, 10.0), ge=0, doc="weight of L_p (Eq. 2; strategies S2 to S6)")
    min_gp_norm: float = hp(0.0, ge=0, doc="with a smaller norm of g_p there is no perturbation")
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
                "algorithm.strategy: projection uses a different share of L_p in each step, for which the state of "
                f"{self.proximal} has no update rule; use proximal: kl, l2 or moon"
            )
        return self

    @property
    def base(self) -> FedAvg[ServerState, Any, Any, Any]:
        """The method of L_p (Table 4), with the options that it shares with FedSOL: its server and states are used."""
        losses = LOSSES[self.proximal]
        shared = {name: getattr(self, name) for name in FedAvg.model_fields}
        own = {name: getattr(self, name) for name in ("alpha", "tau") if name in losses.method.model_fields}
        given = {name: value for name, value in own.items() if value is not None}
        return losses.method(**shared, **given, **losses.options)

    def step_cost(self) -> float:
        # passes for g_l, passes for g_p, passes that give both
        passes = {"S0": (1, 0, 0), "S2": (1, 2, 0), "S3": (1, 2, 1), "S4": (2, 2, 2), "S5": (1, 1, 1)}
        local_loss, near, joint = passes.get(self.strategy, (1, 1, 0))
        if self.proximal != "kl":  # terms of closed form need no pass
            return local_loss + (near * self.base.step_cost() if self.proximal == "moon" else 0.0)
        return local_loss + near - joint - (self.strategy == "S1" and self.perturb == "head") + (near > 0) / 3

    def gradient(
        self, ctx: ClientContext, broadcast: Broadcast, client: object, local: SGDState, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        """(loss, update direction `[P]`) of Table 10."""
        losses, w, beta = self.losses(ctx, broadcast, client, local, batch), local.w, self.beta

        def shifted(g: Tensor) -> Tensor:
            """w + e, e along `g`."""
            return self.perturbed(ctx, broadcast, local, g, losses.point())

        match self.strategy:
            case "S0":
                return losses.local(w)
            case "S4":
                return losses.both(shifted(losses.both(w, beta)[1]), beta)
            case "S5":
                return losses.both(w, beta)
        g_p = losses.proximal(w)[1]
        match self.strategy:
            case "S1":
                return losses.local(shifted(g_p))
            case "S2":
                return with_proximal(losses.local(w), losses.proximal(shifted(g_p))[1], beta)
            case "S3":
                return losses.both(shifted(g_p), beta)
            case "S6":
                return with_proximal(losses.local(shifted(g_p)), g_p, beta)
        loss, g = losses.local(w)
        return loss, project(g, g_p, "threshold", delta=0.0, out=g)[0]  # Eq. 3

    def losses(self, ctx: ClientContext, broadcast: Broadcast, client: object, local: SGDState, batch: Batch) -> Losses:
        """L_l and L_p on a batch."""
        shares_body = (self.proximal, self.strategy, self.perturb) == ("kl", "S1", "head")
        return (HeadLosses if shares_body else LOSSES[self.proximal])(self, ctx, broadcast, client, local, batch)

    def local_loss(
        self, ctx: ClientContext, broadcast: Broadcast, client: object, local: SGDState, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        """(L_l, g_l `[P]`, scratch) at the parameters of `local`."""
        return super().gradient(ctx, broadcast, client, local, batch)

    def perturbed(self, ctx: Context, broadcast: Broadcast, local: SGDState, g_p: Tensor, out: Tensor) -> Tensor:
        """w + e_p `[P]` (Eq. 8) in `out`, of which only the perturbed part is written."""
        chosen = parameter_subset(ctx.objective, self.perturb)
        scale = None if self.adaptive == "none" else adaptive_scale(local.w, broadcast.w, chosen, self.adaptive, out)
        return ascend(local.w, g_p, self.rho, chosen.spans, scale, min_norm=self.min_gp_norm, out=out)

    # server and states ------------------------------------------------------------------------
    def fitting_rules(self) -> tuple[ServerRule, str]:
        rules, reason = self.base.fitting_rules()
        return rules, f"it has the server of {self.proximal} (algorithm.proximal), and there {reason}" if reason else ""

    def init_server(self, ctx: Context, w: Tensor, b: Tensor) -> ServerState:
        if self.perturb != "all":
            check_head(ctx.objective)
        return self.base.init_server(ctx, w, b)

    def broadcast(self, ctx: Context, state: ServerState) -> Any:
        return self.base.broadcast(ctx, state)

    def aggregate(self, ctx: Context, state: ServerState, updates: object, cohort: Cohort) -> tuple[Any, Metrics]:
        return self.base.aggregate(ctx, state, updates, cohort)

    def init_client(self, ctx: Context) -> Any:
        return self.base.init_client(ctx)

    def begin(self, ctx: ClientContext, broadcast: object, client: object, data: ClientData) -> SGDState:
        return self.base.begin(ctx, broadcast, client, data)

    def end(
        self, ctx: ClientContext, broadcast: object, client: object, local: SGDState, data: ClientData
    ) -> tuple[Any, Any]:
        contained = 0.0 if self.strategy in ("S0", "S1") else self.beta
        client, local = LOSSES[self.proximal].contained(client, local, contained)
        return self.base.end(ctx, broadcast, client, local, data)

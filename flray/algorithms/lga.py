"""LGA (Dong et al., TPAMI 2023): GLFC with a gradient balance of each old task, and a monitor of noisy features.

w_i = g_i / (mean of g over i's group), clamped to [0.5, 5], with g_i = |p_i - 1|^{(t - 1) / t} in task t > 1; groups
are the new classes and each old task (`per_task`), or for every old task all samples of tasks up to it, whose weights
add up (`cumulative`, what the code does). L = lam (L_GC + L_RD), in both of which samples have these weights; L_GC
alone without f_old.
Server: once the first task is over, rho = sqrt( mean over its classes of tr(cov of the features) / F ). From then on
the best model is the one that is most accurate on features of the reconstructed images plus rho N(0, diag(c^2)), c
the standard deviations of a class; in the first `proxy_init` rounds of a task its score is 0. At that moment the best
score is set to 0 once, because scores on images and on noisy features do not compare (`server_lga.py` of FedProTIP's
code).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from flray.algorithms.glfc import GLFC, GLFCClient, OldLogits
from flray.algorithms.herded_exemplars import ExemplarCount
from flray.algorithms.prototype_monitor import MonitoredState, accuracy
from flray.core.messages import Broadcast, Cohort, Metrics, fields
from flray.core.protocol.context import Context
from flray.core.protocol.samples import ClientData
from flray.core.schema.hp import hp
from flray.ops.augmented_features import Deviation, feature_radius, noisy_copies, scatter_sums
from flray.ops.compensation import Activation, Groups, distillation_target, lga_weights, weighted_bce
from flray.ops.exemplars import extract_features


class LGAState(MonitoredState):
    """GLFC's state and rho, 0 before the first task is over."""

    rho: float


class FeatureSums(ExemplarCount):
    """GLFC's number of exemplars; of the first task's features, by class, what rho is made of (None later)."""

    counts: Tensor | None = fields.sum()
    sums: Tensor | None = fields.sum()
    squares: Tensor | None = fields.sum()


class LGA(GLFC[LGAState], frozen=True):
    lam: float = hp(1.0, log=(0.1, 10.0), gt=0, doc="weight of the loss once there is an old model (lambda)")
    lga_groups: Groups = hp("cumulative", doc="tasks whose samples are balanced together: up to each old one, or each")
    activation: Activation = hp("sigmoid", doc="of the probability in g; softmax: FedProTIP's version")
    weighted_distillation: bool = hp(True, doc="L_RD has the weights as well; FedProTIP's version: false")
    radius: float | None = hp(None, ge=0, doc="rho; none: of the first task's features; 0: GLFC's monitor of images")
    augmentation: Deviation = hp("std", doc="c: standard deviations; official: variances, squared")
    proxy_init: int = hp(6, choice=(0, 6, 10), ge=0, doc="rounds of a task in which no model's score counts")

    # server -----------------------------------------------------------------------------------
    def init_server(self, ctx: Context, w: Tensor, b: Tensor) -> LGAState:
        return LGAState.of(super().init_server(ctx, w, b), rho=0.0 if self.radius is None else self.radius)

    def score(self, ctx: Context, state: LGAState) -> float:
        if ctx.clock.round < self.proxy_init:
            return 0.0
        if not state.rho:
            return super().score(ctx, state)
        model = ctx.objective.at(state.w, state.b)
        with torch.no_grad():
            z, y = noisy_copies(model.features(state.x), state.y, state.rho, ctx.rng("monitor"), self.augmentation)
            return accuracy(ctx, model.head(z), y) if len(y) else 0.0

    def count_exemplars(
        self, ctx: Context, state: LGAState, updates: ExemplarCount, cohort: Cohort
    ) -> tuple[LGAState, Metrics]:
        assert isinstance(updates, FeatureSums)
        state, metrics = super().count_exemplars(ctx, state, updates, cohort)
        if updates.counts is not None and updates.sums is not None and updates.squares is not None:
            rho = feature_radius(updates.counts, updates.sums, updates.squares)
            state = state.replace(rho=rho, best=0.0)
        return state, {**metrics, "lga/radius": state.rho}

    # client -----------------------------------------------------------------------------------
    def loss(self, ctx: Context, logits: Tensor, y: Tensor, old: OldLogits) -> Tensor:
        w, target = self.compensation(ctx, logits, y), F.one_hot(y, logits.shape[1]).to(logits)
        current = weighted_bce(logits, target, w)
        if old is None:
            return current
        past = weighted_bce(logits, distillation_target(target, *old), w if self.weighted_distillation else None)
        return self.lam * (current + past)

    def compensation(self, ctx: Context, logits: Tensor, y: Tensor) -> Tensor:
        classes, task = ctx.in_use, ctx.clock.task
        tasks = torch.zeros_like(classes.seen.index)
        for t in range(task + 1):
            tasks[classes.seen.local(classes.task(t).index)] = t
        return lga_weights(logits, y, tasks, task, self.lga_groups, self.activation)

    def choose_exemplars(
        self, ctx: Context, broadcast: Broadcast, client: GLFCClient, data: ClientData
    ) -> tuple[FeatureSums, GLFCClient, Metrics]:
        kept, client, metrics = super().choose_exemplars(ctx, broadcast, client, data)
        if ctx.clock.task > 0 or self.radius is not None:
            return FeatureSums.of(kept, counts=None, sums=None, squares=None), client, metrics
        z, y = extract_features(ctx.objective.at(broadcast.w, broadcast.b), data.plain)
        counts, sums, squares = scatter_sums(z, y, len(ctx.inputs.classes))
        return FeatureSums.of(kept, counts=counts, sums=sums, squares=squares), client, metrics

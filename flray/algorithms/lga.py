"""LGA (Dong et al., TPAMI 2023): GLFC with a gradient balance of each old task, and a monitor of noisy features.

w_i = g_i / (mean of g over i's group), clamped to [0.5, 5]; g_i = |p_i - 1|^{(t - 1) / t} in the t-th task, t > 1.
Groups are the new classes and each old task (`per_task`), or for every old task all samples of tasks up to it, whose
weights add up (`cumulative`, the code). L = lam (L_GC + L_RD), both with these weights; without f_old L = L_GC.
Server: at the end of the first task rho = sqrt( mean over its classes of tr(cov of the features) / F ). From then on a
model's score is its accuracy on features of the reconstructed images plus rho N(0, diag(c^2)), c the standard
deviations of a class; in the first `proxy_init` rounds of a task it is 0. Scores on images and on noisy features do not
compare, so the best score is set to 0 once at that moment (`server_lga.py` of FedProTIP's code).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from flray.algorithms.glfc import GLFC, ExemplarCount, GLFCClient, MonitoredState, OldLogits, accuracy
from flray.core.messages import Broadcast, Cohort, Metrics, fields
from flray.core.protocol.context import Context
from flray.core.protocol.samples import ClientData
from flray.core.schema.hp import hp
from flray.ops.augmented_features import Deviation, feature_radius, noisy_copies, scatter_sums
from flray.ops.compensation import Activation, Groups, distillation_target, lga_weights, weighted_bce
from flray.ops.exemplars import extract_features


class LGAState(MonitoredState):
    """GLFC's state and rho, 0 during the first task."""

    rho: float


class FeatureSums(ExemplarCount):
    """The number of exemplars; sums over the first task's features by class, which give rho (None later)."""

    counts: Tensor | None = fields.sum()
    sums: Tensor | None = fields.sum()
    squares: Tensor | None = fields.sum()


class LGA(GLFC[LGAState], frozen=True):
    lam: float = hp(1.0, log=(0.1, 10.0), gt=0, doc="weight of the loss with an old model (lambda)")
    lga_groups: Groups = hp("cumulative", doc="groups of samples: all tasks up to each old one, or each task")
    activation: Activation = hp("sigmoid", doc="probability in g; softmax: FedProTIP's code")
    weighted_distillation: bool = hp(True, doc="L_RD has the weights too; FedProTIP's code: false")
    radius: float | None = hp(None, ge=0, doc="rho; none: from the first task's features; 0: GLFC's score on images")
    augmentation: Deviation = hp("std", doc="c: standard deviations; official: variances, squared")
    proxy_init: int = hp(6, choice=(0, 6, 10), ge=0, doc="first rounds of a task with score 0")

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
        count, client, metrics = super().choose_exemplars(ctx, broadcast, client, data)
        if ctx.clock.task > 0 or self.radius is not None:
            return FeatureSums.of(count, counts=None, sums=None, squares=None), client, metrics
        z, y = extract_features(ctx.objective.at(broadcast.w, broadcast.b), data.plain)
        counts, sums, squares = scatter_sums(z, y, len(ctx.inputs.classes))
        return FeatureSums.of(count, counts=counts, sums=sums, squares=squares), client, metrics

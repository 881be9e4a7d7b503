"""Clients' updates under differential privacy: clipped, with Gaussian noise, and accounted for (FedMemo; its card)."""

from __future__ import annotations

from torch import Tensor

from flray.core.messages import Cohort
from flray.core.protocol.context import Context
from flray.core.schema.errors import ConfigError
from flray.core.schema.hp import hp
from flray.core.schema.section import Section
from flray.ops.privacy import aggregate_noise, amplified, gaussian_multiplier, opacus_rdp, privatised, spent_epsilon


class PrivateUpdates(Section, frozen=True):
    """The Gaussian mechanism on clients' updates. Batch-norm statistics, which depend on samples, are not sent."""

    clip: float | None = hp(
        None, log=(0.1, 10.0), gt=0, doc="largest norm of a client's update under privacy (C); none: no privacy"
    )
    epsilon: float = hp(8.0, log=(0.5, 50.0), gt=0, doc="epsilon of one client's update, which sets the noise")
    delta: float = hp(1e-5, gt=0, lt=1, doc="delta, of one update and of the whole run")
    noise: float | None = hp(
        None, log=(0.1, 10.0), gt=0, doc="noise over the clipping norm (sigma), instead of epsilon"
    )

    @property
    def multiplier(self) -> float:
        """sigma."""
        return gaussian_multiplier(self.epsilon, self.delta) if self.noise is None else self.noise

    def check(self, ctx: Context, buffers: str) -> None:
        """Raises `ConfigError` for privacy without the accountant's package, or with batch-norm statistics that are
        sent without noise."""
        if self.clip is None:
            return
        opacus_rdp()
        if ctx.objective.buffer_layout.count and buffers != "keep":
            raise ConfigError(
                f"algorithm.privacy.clip: batch-norm statistics are not made private and buffers is {buffers}; set "
                "algorithm.buffers: keep, or a model without batch norm"
            )

    def privatise(self, ctx: Context, before: Tensor, after: Tensor, purpose: str) -> Tensor:
        """The parameters `[P]` that a client sends: `before` plus the clipped, noisy update; `after` without
        privacy."""
        if self.clip is None:
            return after
        draws = ctx.rng("privacy", purpose)
        return before + privatised(after - before, self.clip, self.multiplier, draws, ctx.mask("all"))

    def noise_variance(self, cohort: Cohort) -> float:
        """Variance of the aggregate's noise in each coordinate."""
        return 0.0 if self.clip is None else aggregate_noise(self.clip, self.multiplier, cohort.weights)

    def account(self, ctx: Context) -> dict[str, float]:
        """Epsilon and delta after this round, and of this round alone, for clients sampled at the rate K / N. They hold
        for a client's update as it is sent."""
        if self.clip is None:
            return {}
        rate = ctx.cohort_size / ctx.population
        one_round = amplified(self.epsilon, self.delta, rate)
        metrics = {
            "dp/epsilon": spent_epsilon(self.multiplier, rate, ctx.clock.done + 1, self.delta),
            "dp/delta": self.delta,
        }
        if self.noise is not None:  # given instead of epsilon
            return metrics
        return {**metrics, "dp/epsilon_round": one_round[0], "dp/delta_round": one_round[1]}

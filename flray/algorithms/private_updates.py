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
    """Options of the mechanism, and what it does. Batch-norm statistics, which tell of the samples, are not sent."""

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
        """Raises `ConfigError` where privacy is asked for and cannot be had: without the accountant, or with batch-norm
        statistics, which have no noise."""
        if self.clip is None:
            return
        opacus_rdp()
        if ctx.objective.buffer_layout.count and buffers != "keep":
            raise ConfigError(
                f"algorithm.privacy.clip: batch-norm statistics are not made private and buffers is {buffers}; set "
                "algorithm.buffers: keep, or a model without batch norm"
            )

    def privatise(self, ctx: Context, before: Tensor, after: Tensor, purpose: str) -> Tensor:
        """The parameters `[P]` that a client sends instead of `after`; itself without privacy."""
        if self.clip is None:
            return after
        draws = ctx.rng("privacy", purpose)
        return before + privatised(after - before, self.clip, self.multiplier, draws, ctx.mask("all"))

    def noise_variance(self, cohort: Cohort) -> float:
        """Variance a coordinate of the noise in the aggregate."""
        return 0.0 if self.clip is None else aggregate_noise(self.clip, self.multiplier, cohort.weights)

    def account(self, ctx: Context) -> dict[str, float]:
        """Epsilon and delta after this round, and those of the round alone, as clients are drawn with the rate K / N.

        The guarantee is that of a client's own noise, whoever sees its update.
        """
        if self.clip is None:
            return {}
        rate = ctx.cohort_size / ctx.population
        one_round = amplified(self.epsilon, self.delta, rate)
        metrics = {
            "dp/epsilon": spent_epsilon(self.multiplier, rate, ctx.clock.done + 1, self.delta),
            "dp/delta": self.delta,
        }
        if self.noise is not None:  # epsilon is not the noise's
            return metrics
        return {**metrics, "dp/epsilon_round": one_round[0], "dp/delta_round": one_round[1]}

"""Gaussian noise on clipped updates: user-level differential privacy (McMahan et al., ICLR 2018, Algorithm 1).

    w <- w + (sum_k clip_C(w_k - w) + N(0, (z C)^2)) / (q N)

`where: server`, the default: every client counts the same, q N is the expected size of the cohort, and a client that
is absent, drops out or is skipped counts as zero. The server adds the noise once, after pooling, and clips again what
a compressor or an attack may have changed. The guarantee is that of the run's models for one client with all of its
samples, added or removed: epsilon at `delta` by Renyi accounting of the Poisson-subsampled Gaussian mechanism. With
`clip.adaptive` the bits are released as well; z is then that of both, and the noise on updates has (Andrew et al. 2021)

    z_delta = (z^-2 - (2 sigma_b)^-2)^(-1/2)

`where: client` is FedMemo's: each client adds noise of standard deviation sigma C to its own update, sigma =
sqrt(2 ln(1.25 / delta)) / epsilon. That guarantee holds for an update as it is sent, also towards the server.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import model_validator

from flray.core.schema.errors import ConfigError
from flray.core.schema.hp import hp
from flray.uplink import accountant
from flray.uplink.clip import clipped
from flray.uplink.transform import Plan, Received, Receiver, Sender, Sent, Transform

if TYPE_CHECKING:
    from torch import Tensor

EPSILON = {True: "dp/epsilon", False: "dp/epsilon_if_poisson"}  # by `Receiver.poisson`


class Gaussian(Transform, frozen=True):
    """Gaussian noise for differential privacy of each client with all of its samples; it needs a clip before it."""

    float32_only: ClassVar[bool] = True

    noise: float | None = hp(
        None, log=(0.3, 10.0), gt=0, doc="noise over the clipping norm (z; where: client, sigma); none: from epsilon"
    )
    epsilon: float | None = hp(
        None,
        log=(0.5, 50.0),
        gt=0,
        doc="epsilon of the whole run, from which z is solved; where: client: of one update; none: noise is given",
    )
    delta: float = hp(1e-5, log=(1e-8, 1e-3), gt=0, lt=1, doc="delta, of the whole run; below 1 / N")
    where: Literal["server", "client"] = hp(
        "server", doc="who adds the noise: the server once to the mean, or each client to its own update"
    )

    @model_validator(mode="after")
    def _one(self) -> Gaussian:
        if (self.noise is None) == (self.epsilon is None):
            raise ConfigError(
                "uplink.gaussian: give noise (z) or epsilon (of the whole run), one of them, e.g. {name: gaussian, "
                "epsilon: 8}"
            )
        return self

    @property
    def sigma(self) -> float:
        """`where: client`: the noise of one update over its clipping norm."""
        if self.noise is not None:
            return self.noise
        return accountant.gaussian_multiplier(self.epsilon or math.inf, self.delta)

    def client(self, sender: Sender, sent: Sent) -> Sent:
        if self.where == "server":
            return sent
        ctx, norm = sender.ctx, sent.norm or 0.0
        w = sent.w if sent.bounded else clipped(sent.w, norm)
        noisy = w + noise_like(w, norm * self.sigma, ctx.rng("privacy", "real"), ctx.mask("all"))
        return sent._replace(w=noisy, bounded=False)

    def server(self, sender: Sender, sent: Sent) -> Sent:
        if self.where == "client" or sent.norm is None:
            return sent
        return sent._replace(w=clipped(sent.w, sent.norm))

    def start(self, plan: Plan) -> Any:
        import torch

        accountant.opacus_rdp()
        if self.where == "client":
            return None
        if self.delta >= 1 / plan.ctx.population:
            raise ConfigError(
                f"uplink.gaussian.delta: {self.delta:g} is not below 1 / N, N = {plan.ctx.population:,} clients: the "
                "data of one of them could be published; lower it"
            )
        noise = self.noise
        if noise is None:
            noise = accountant.noise_for(self.epsilon or math.inf, self.delta, plan.rates)
        return {"noise": noise, "renyi": torch.zeros(len(accountant.ORDERS), dtype=torch.float64)}

    def pooled(self, receiver: Receiver, mean: Received) -> tuple[Received, Any]:
        import torch

        ctx, norm = receiver.ctx, mean.norm or 0.0
        if self.where == "client" or mean.w is None:
            return mean._replace(metrics={**mean.metrics, **self.account_of_updates(receiver)}), None
        noise, cohort = float(receiver.state["noise"]), ctx.cohort_size
        spent = receiver.state["renyi"].cpu() + torch.from_numpy(accountant.renyi(receiver.rates[-1][0], noise))
        epsilon = accountant.epsilon_of(spent.numpy(), self.delta)
        scale = self.noise_of_updates(noise, mean.bit_noise) * norm / cohort
        w = mean.w * (mean.clients / cohort) + noise_like(mean.w, scale, receiver.rng(), ctx.mask("all"))
        metrics = {**mean.metrics, EPSILON[receiver.poisson]: epsilon, "dp/delta": self.delta, "dp/noise": noise}
        return mean._replace(w=w, metrics=metrics), {"noise": noise, "renyi": spent}

    def check(self, noise: float, rates: tuple[tuple[float, int], ...]) -> None:
        """Raises `ConfigError` if a whole run (`Plan.rates`) with this noise z, which a resume has from its checkpoint,
        would spend more than `epsilon`."""
        if self.epsilon is None:
            return
        if (epsilon := accountant.spent_epsilon(noise, rates, self.delta)) > self.epsilon * (1 + 1e-6):
            raise ConfigError(
                f"uplink.gaussian.epsilon: {sum(rounds for _, rounds in rates)} rounds would bring the run to "
                f"{epsilon:.4g}, and its noise was solved for {self.epsilon:g} in a shorter run, or by an earlier "
                "version; start again with this number of rounds"
            )

    @staticmethod
    def noise_of_updates(noise: float, bit_noise: tuple[float, ...]) -> float:
        """z_delta: the noise on updates over their norm, such that the release of both has z = `noise`.

        Raises `ConfigError` if the bits alone spend more than that.
        """
        rest = noise**-2 - sum((2 * sigma) ** -2 for sigma in bit_noise)
        if rest <= 0:
            raise ConfigError(
                f"uplink.clip.adaptive_noise: the bits alone spend more than gaussian's noise of {noise:.3g} allows; "
                f"set it above {noise / 2:.3g}"
            )
        return float(rest**-0.5)

    def account_of_updates(self, receiver: Receiver) -> dict[str, float]:
        """`where: client`: epsilon and delta after this round, and of this round alone, for clients sampled at the
        rates of the rounds."""
        epsilon = accountant.spent_epsilon(self.sigma, receiver.rates, self.delta)
        metrics = {EPSILON[receiver.poisson]: epsilon, "dp/delta": self.delta}
        if self.epsilon is None:
            return metrics
        one_round = accountant.amplified(self.epsilon, self.delta, receiver.rates[-1][0])
        return {**metrics, "dp/epsilon_round": one_round[0], "dp/delta_round": one_round[1]}


def privatised(x: Tensor, norm: float, sigma: float, draws: np.random.Generator, mask: Tensor) -> Tensor:
    """A client's clipped difference `x [P]` + N(0, (sigma norm)^2) on the coordinates where `mask [P]` is 1 (0: gaps
    between tensors)."""
    return clipped(x, norm) + noise_like(x, sigma * norm, draws, mask)


def noise_like(x: Tensor, deviation: float, draws: np.random.Generator, mask: Tensor) -> Tensor:
    """Gaussian noise `[P]` of this standard deviation, 0 where `mask [P]` is."""
    import torch

    return deviation * torch.from_numpy(draws.standard_normal(len(x), dtype=np.float32)).to(x.device) * mask


def aggregate_noise(norm: float, sigma: float, weights: Tensor) -> float:
    """Variance in each coordinate of the noise of the weighted mean of privatised updates: (sigma norm)^2 sum_i p_i^2,
    with weights p `[K]`."""
    return float((sigma * norm) ** 2 * (weights.double() ** 2).sum())

"""Clipping of updates (McMahan et al., ICLR 2018), with a fixed norm or one that follows a quantile of the updates'
norms (Andrew et al., NeurIPS 2021, Algorithm 1).

x <- x min(1, C / ||x||), x the difference of a client's parameters to the broadcast. `adaptive`: each client sends the
bit b_k = [||x_k|| <= C] beside its update, and after every round

    C <- C exp(-eta (b~ - gamma)),   b~ = 1/2 + (sum_k (b_k - 1/2) + N(0, sigma_b^2)) / (q N)

with the noise and the denominator q N where `gaussian` adds noise at the server; else b~ is the share of ones.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from flray.core.schema.hp import hp
from flray.uplink.transform import Plan, Received, Receiver, Sender, Sent, Transform

if TYPE_CHECKING:
    from torch import Tensor


class Clip(Transform, frozen=True):
    """Updates are scaled to a norm of at most C: all parameters as one vector."""

    norm: float = hp(
        1.0, log=(0.01, 100.0), gt=0, doc="largest norm of the difference of an update to the broadcast (C)"
    )
    adaptive: float | None = hp(
        None,
        gt=0,
        lt=1,
        doc="share of updates (gamma) within the norm, which begins at C and follows; none: fixed",
    )
    adaptive_lr: float = hp(0.2, log=(0.01, 1.0), gt=0, doc="adaptive: step of the norm's logarithm a round (eta_C)")
    adaptive_noise: float | None = hp(
        None,
        gt=0,
        doc="adaptive, gaussian: noise on the number of updates within the norm (sigma_b); none: q N / 20",
    )

    def client(self, sender: Sender, sent: Sent) -> Sent:
        norm = self.bound(sender.state)
        within = float(sent.w.norm()) <= norm
        bits = {**sent.bits, sender.address: within} if self.adaptive is not None else sent.bits
        return sent._replace(w=clipped(sent.w, norm), norm=norm, bounded=True, bits=bits)

    def bound(self, state: Any) -> float:
        """The norm of this round, at clients and of the server's noise. `state`: of :meth:`broadcast`; None: there is
        none."""
        return self.norm if state is None else float(state)

    def start(self, plan: Plan) -> Any:
        return None if self.adaptive is None else self.norm

    def broadcast(self, state: Any) -> Any:
        return state

    def pooled(self, receiver: Receiver, mean: Received) -> tuple[Received, Any]:
        state = receiver.state
        norm = self.norm if state is None or self.adaptive is None else state
        if receiver.private:  # the noise is of the norm that clients have, also that of a subclass
            norm = self.bound(None if state is None else self.broadcast(state))
        if state is None or self.adaptive is None:
            return mean._replace(norm=norm), None
        ones, cohort = mean.bits.get(receiver.address, 0), receiver.ctx.cohort_size
        share, sigma = ones / max(mean.clients, 1), self.bit_noise(cohort)
        if receiver.private:
            noise = receiver.rng().standard_normal() * sigma
            share = 0.5 + (ones - 0.5 * mean.clients + noise) / cohort
            mean = mean._replace(bit_noise=(*mean.bit_noise, sigma))
        after = state * math.exp(-self.adaptive_lr * (share - self.adaptive))
        name = receiver.address if "clip/norm" in mean.metrics else "clip"  # of a second adaptive clip: its own columns
        return mean._replace(norm=norm, metrics={**mean.metrics, f"{name}/norm": norm, f"{name}/within": share}), after

    def bit_noise(self, cohort: int) -> float:
        """sigma_b for an expected number of clients q N."""
        return cohort / 20 if self.adaptive_noise is None else self.adaptive_noise


def clipped(x: Tensor, norm: float) -> Tensor:
    """`x [P]` scaled to a norm of at most `norm`, `x` itself if it is within; all NaN if its norm is NaN."""
    length = float(x.norm())
    if math.isinf(length):  # its square overflows in float32
        length = float(x.double().norm())
    return x if length <= norm else x * (norm / length)

"""What local training does to the model's answers on public data: memory drift and label flips (FedProj C.4, Definition
5.2, Proposition 5.3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import Field
from torch import Tensor

from flray.core.context import Context
from flray.core.probe import ClientView, Place, Probe, Reads, Row
from flray.metrics.reading import due, logits


class MemoryDrift(Probe, frozen=True):
    """A row for each client: `drift`, the mean KL divergence of the local model's answers from the received model's on
    the public data (the `proxy` section), and how many answers changed.

    `flips`: share of the samples whose top label changed. `gap`: mean gap between the received model's two largest
    probabilities. `safe`: share of the samples whose own KL is below gap^2 / 8; by Proposition 5.3 none of them flips,
    and `flips_safe` counts those that did. It looks at any algorithm, also at those that do not project.
    """

    at: ClassVar[frozenset[Place]] = frozenset({"start", "end"})

    every: int = Field(1, ge=1, description="look in every so many rounds, from the first on")
    samples: int | None = Field(None, ge=1, description="public samples that are read, the first ones; none: all")

    @property
    def reads(self) -> Reads:
        return frozenset({"proxy"})

    def observe(self, ctx: Context, view: ClientView, memory: Any) -> tuple[Sequence[Row], Any]:
        if not due(ctx, self.every):
            return [], memory
        if view.place == "start":
            return [], view.point(view.down)
        after = view.point(view.update)
        if memory is None or after is None:
            return [], memory
        teacher, student = (logits(ctx, w, b, ctx.require_proxy(), self.samples) for w, b in (memory, after))
        return [flips(teacher, student)], memory


def flips(teacher: Tensor, student: Tensor) -> dict[str, float]:
    """`drift`, `flips`, `gap`, `safe`, `flips_safe` of the answers `student [n, C]` (logits) against `teacher [n, C]`.

    In float64. With KL_x the divergence of sample x and gap_x = p1 - p2 of the teacher: Pinsker's inequality gives
    ||p - q||_1 <= sqrt(2 KL_x), and the top label stays where that is below gap_x / 2, i.e. KL_x < gap_x^2 / 8.
    """
    log_p, log_q = teacher.double().log_softmax(dim=1), student.double().log_softmax(dim=1)
    p = log_p.exp()
    divergence = (p * (log_p - log_q)).sum(dim=1)
    top = p.topk(min(2, p.shape[1]), dim=1).values
    gap = top[:, 0] - (top[:, 1] if p.shape[1] > 1 else 0.0)
    changed, safe = log_p.argmax(dim=1) != log_q.argmax(dim=1), divergence < gap**2 / 8
    return {
        "drift": float(divergence.mean()),
        "flips": float(changed.double().mean()),
        "gap": float(gap.mean()),
        "safe": float(safe.double().mean()),
        "flips_safe": int((changed & safe).sum()),
    }

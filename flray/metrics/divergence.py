"""Weight divergence: distances of local models from the global one and from each other (FedSOL, Figure 6)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from flray.core.protocol.context import SERVER, ClientContext, Context
from flray.core.protocol.probe import ClientView, FinishView, Place, Probe, Row
from flray.metrics.reading import average


class Divergence(Probe, frozen=True):
    """A row for each client: `distance` ||w_k - w_g||, `norm` ||w_g||, `relative`, their ratio, and its aggregation
    `weight`. A row for each round (place `finish`): `moved` ||w - w_g|| of the clients' aggregate w.

    `results.diagnoses.divergence` derives the distance between clients from both. There is no row if the broadcast or
    the update has no model (`Algorithm.model_of`).
    """

    at: ClassVar[frozenset[Place]] = frozenset({"start", "end", "finish"})

    def observe(self, ctx: Context, view: ClientView | FinishView, memory: Any) -> tuple[Sequence[Row], Any]:
        if isinstance(view, FinishView):
            before, after = view.model_of(view.before), average(view)
            first = ctx.clock.phase == "round" and ctx.clock.exchange == 0
            if not first or before is None or after is None:
                return [], memory
            return [{"client": SERVER, "moved": float((after[0] - before[0]).double().norm())}], memory
        if view.place == "start":
            return [], view.model_of(view.broadcast)
        local = view.model_of(view.update)
        if memory is None or local is None:
            return [], memory
        assert isinstance(ctx, ClientContext)
        distance, norm = (float(v.double().norm()) for v in (local[0] - memory[0], memory[0]))
        relative = distance / norm if norm else float("nan")
        return [{"distance": distance, "norm": norm, "relative": relative, "weight": ctx.weight}], memory


def between(distances: ArrayLike, weights: ArrayLike, pooled: float) -> float:
    """Root mean square of ||w_j - w_k|| over pairs of different clients, with weights p_j p_k.

    From the clients' `distances [K]` ||w_k - w_g||, their aggregation weights `[K]` (scaled to sum 1) and `pooled`
    ||sum_k p_k w_k - w_g||: sum_jk p_j p_k ||w_j - w_k||^2 = 2 (sum_k p_k ||w_k - w_g||^2 - moved^2), so a
    server that gets only sums can compute it. NaN for fewer than two clients, and for NaN inputs.
    """
    d, p = np.asarray(distances, np.float64), np.asarray(weights, np.float64)
    p = p / p.sum() if p.sum() else p
    pairs = 1 - float(p @ p)
    if len(d) < 2 or pairs <= 0:
        return float("nan")
    return float(np.sqrt(np.maximum(2 * (p @ d**2 - pooled**2), 0.0) / pairs))

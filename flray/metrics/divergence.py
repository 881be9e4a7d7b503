"""How far local models move from the global one: weight divergence ||w_k - w_g|| (FedSOL, Figure 6)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from flray.core.context import Context
from flray.core.probe import ClientView, Place, Probe, Row


class Divergence(Probe, frozen=True):
    """A row for each client: `distance` ||w_k - w_g||, `norm` ||w_g||, and `relative`, their ratio.

    Where the broadcast or the update carries no model (`Algorithm.point`) there is no row.
    """

    at: ClassVar[frozenset[Place]] = frozenset({"start", "end"})

    def observe(self, ctx: Context, view: ClientView, memory: Any) -> tuple[Sequence[Row], Any]:
        if view.place == "start":
            return [], view.point(view.down)
        after = view.point(view.update)
        if memory is None or after is None:
            return [], memory
        distance, norm = float((after[0] - memory[0]).norm()), float(memory[0].norm())
        return [{"distance": distance, "norm": norm, "relative": distance / norm if norm else float("nan")}], memory

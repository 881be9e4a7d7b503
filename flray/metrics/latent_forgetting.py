"""Latent forgetting, watched in any algorithm: the variance of the weight update, and FedMemo's detector on it.

No algorithm has to know of it: it reads the clients' aggregated model against the one that the round began with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from torch import Tensor

from flray.core.context import Context
from flray.core.messages import Published
from flray.core.probe import FinishView, Place, Probe, Row
from flray.ops.average import tree_mean
from flray.ops.detect import Detector, Signal


class LatentForgetting(Probe, Signal, Detector, frozen=True):
    """A row a round: `wv`, its moving mean `smoothed`, the `reference`'s mean, the `threshold`, and the `alarm`.

    WV is that of the clients' aggregate, before a server optimiser, distillation or a repair changes it; where the
    updates carry no model (`Algorithm.point`) it is that of the server's own. `reference` and `threshold` are NaN while
    there is none. What the numbers mean, and when they fail: spec 8.3, `configs/fedmemo/README.md`.
    """

    at: ClassVar[frozenset[Place]] = frozenset({"finish"})

    def observe(self, ctx: Context, view: FinishView, memory: Any) -> tuple[Sequence[Row], Any]:
        before, after = view.point(view.before), aggregate(view)
        if ctx.clock.phase != "round" or ctx.clock.exchange or before is None or after is None:
            return [], memory
        state = self.nothing_seen() if memory is None else memory
        reading = self.read(state, self.measure(ctx.objective, before[0], after))
        state, alarm = self.detect(state, reading.wv)
        return [{**reading.row, "alarm": alarm}], state


def aggregate(view: FinishView) -> Tensor | None:
    """The clients' aggregated parameters `[P]`, from updates pooled by mean or one by one; else the server's own after
    the exchange, None without any."""
    found: Any = view.point(view.updates) or view.point(view.after)
    if found is None:
        return None
    if isinstance(found[0], Tensor):
        return found[0]
    models = [Published(w, b) for w, b in zip(*found, strict=True)]
    return tree_mean(models, view.cohort.weights).w  # type: ignore[no-any-return]

"""A CUDA graph without a GPU: it calls the recorded step again, on the recorded tensors, with the recorded context."""

from __future__ import annotations

import contextlib

from flray.core.messages.records import tensors

# whose steps are recorded as the tests' table has them
RECORDED = {
    "fedavg", "fedprox", "scaffold", "fedsol", "fedproj", "fedsam", "moon", "fedntd", "fedprotip", "fedmemo", "fot",
    "ewc",
}  # fmt: skip


class Reruns:
    """In place of `CudaGraphs`."""

    def __call__(self):
        return Rerun()

    renewed = 0  # how often all graphs were dropped

    def renew(self):
        self.renewed += 1

    def without_waits(self):
        return contextlib.nullcontext()


class Rerun:
    """What reaches the step by another way than its tensors is what it was when it was recorded, as in a CUDA graph."""

    def record(self, step):
        self._step = step
        self._after = step()
        return self._after

    def replay(self):
        for place, value in zip(tensors(self._after).values(), tensors(self._step()).values(), strict=True):
            if place.data_ptr() != value.data_ptr():
                place.copy_(value)

"""The cost of FedMemo's detector relative to a round of the paper: WV of ResNet-18, and the moving mean."""

from __future__ import annotations

import time
from typing import Any

import torch

from flray.bench.projected import NETWORK, Half
from flray.core.network.threads import threads
from flray.ops.detect import Detector

STEPS = 5 * 3 * 14  # of a round: five clients, three epochs, batches of 64 out of 900 samples


def share(repeats: int, network: dict[str, Any] | None = None, side: int = 32) -> tuple[float, str]:
    """(CPU time of the detector over that of the round's local steps, a text); the best of `repeats` of each."""
    with threads(1):
        half = Half("fedavg", "none", network or NETWORK, side)
        before, detector = half.state.w, Detector()
        after, state = before * 1.001, detector.initial_state()
        for _ in range(40):
            state, _ = detector.detect(state, 1.0)
        watched = []
        for _ in range(1 + repeats):
            started = time.process_time()
            detector.detect(state, detector.measure(half.bench.objective, before, after, torch.ones(1)))
            watched.append(time.process_time() - started)
        step = min(half.step() for _ in range(1 + repeats))
    detail = f"{1e3 * min(watched):.1f} ms of {STEPS} steps of {1e3 * step:.0f} ms, {len(before):,} parameters"
    return min(watched) / (STEPS * step), detail

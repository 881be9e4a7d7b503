"""A trace of torch's profiler of one client's local training (`profile` in the configuration).

The file opens in https://ui.perfetto.dev and in TensorBoard's profiler plugin.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from flray.config.experiment import ProfileConfig
from flray.core.protocol.clock import Clock
from flray.core.schema.errors import warn

SUFFIX = ".pt.trace.json.gz"  # the plugin reads files of this name


class ProfileWarning(UserWarning):
    """A round of `profile.rounds` has no trace."""


def trace_name(clock: Clock, client: int) -> str:
    """The name of a trace's file: its round, exchange and client."""
    exchange = f"-exchange-{clock.exchange}" if clock.exchange else ""
    return f"round-{clock.done + 1:06d}{exchange}-client-{client}{SUFFIX}"


def is_profiled(config: ProfileConfig | None, clock: Clock, client: int, position: int) -> bool:
    """Whether this client, at `position` of the cohort, is profiled at this moment."""
    if config is None or clock.phase != "round" or clock.done + 1 not in config.rounds:
        return False
    return client in config.clients if config.clients else position == 0


def unprofiled(config: ProfileConfig | None, clock: Clock, cohort: np.ndarray) -> None:
    """Warns where this round is to be profiled and none of the named clients is in its cohort."""
    if config is None or not config.clients or clock.done + 1 not in config.rounds:
        return
    if not np.isin(config.clients, cohort).any():
        named = ", ".join(map(str, config.clients))
        shown = ", ".join(map(str, cohort[:10].tolist())) + (" ..." if len(cohort) > 10 else "")
        warn(
            f"profile: round {clock.done + 1} has no trace: its clients are {shown}, profile.clients is {named}",
            ProfileWarning,
        )


@contextmanager
def profiled(wanted: bool) -> Iterator[list[bytes]]:
    """The block's trace, gzipped JSON, in the list after the block; nothing is recorded unless it is `wanted`."""
    trace: list[bytes] = []
    if not wanted:
        yield trace
        return
    activities = [torch.profiler.ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities, record_shapes=True, acc_events=True) as profiler:
        yield trace
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"trace{SUFFIX}"
        profiler.export_chrome_trace(str(path))
        trace.append(path.read_bytes())

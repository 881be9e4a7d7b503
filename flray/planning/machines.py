"""The machines of a plan: rates that are stated, not measured, and what a cluster consists of."""

from __future__ import annotations

import re
from typing import NamedTuple

from flray.core.schema.errors import ConfigError, unknown


class Gpu(NamedTuple):
    """Of the maker's data sheet: dense matrix products in FLOP/s, by precision; bytes of memory; bytes a second between
    host and device, one way."""

    fp32: float
    bf16: float
    memory: float
    transfer: float


GPUS = {  # without sparsity; a GPU whose tensor cores know no bf16 has its float32 rate
    "a100": Gpu(19.5e12, 312e12, 80e9, 32e9),
    "h100": Gpu(67e12, 989e12, 80e9, 64e9),
    "h200": Gpu(67e12, 989e12, 141e9, 64e9),
    "l4": Gpu(30.3e12, 121e12, 24e9, 32e9),
    "l40s": Gpu(91.6e12, 362e12, 48e9, 32e9),
    "rtx4090": Gpu(82.6e12, 165e12, 24e9, 32e9),
    "t4": Gpu(8.1e12, 8.1e12, 16e9, 16e9),
    "v100": Gpu(15.7e12, 15.7e12, 32e9, 16e9),
}
UTILISATION = 0.35  # of the peak rate, in local steps
COPY_RATE = 2e9  # bytes a second of one process that writes arrays into the object store, reads them and adds them
TRANSFER_RATE = 1.5e9  # bytes a second of Ray's object transfer out of a node, on a faster network too
FETCH_S = 3e-3  # of an object from another node besides its bytes: its place is asked for, its transfer begins
CALL_S, ACTOR_S = 3e-3, 1e-3  # of an exchange through Ray, and of each actor's call in it
STEP_S = 1e-3  # of a local step on a GPU, at least: its kernels are launched one by one
CLIENT_S = 0.01  # of a client without its local steps on a GPU of which nothing was measured
START_S = 6.6  # to the end of round 1, measured on W2: see `flray/bench/README.md`
TRIAL_S = 0.6  # of a sweep's trial, from the end of the one before: processes are reused
UNITS = {"mbit": 1e6 / 8, "gbit": 1e9 / 8, "mb": 1e6, "gb": 1e9}


def network_rate(text: str) -> float:
    """Bytes a second of "100gbit", "25gbit", "500mbit", "12.5gb". Raises `ConfigError`.

    >>> network_rate("100gbit")
    12500000000.0
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([a-z]+)", text.lower())
    if found is None or found[2] not in UNITS or not float(found[1]):
        raise ConfigError(
            f"--network {text}: write a number above 0 and a unit, for example 100gbit (a second) or 12.5gb (bytes)"
        )
    return float(found[1]) * UNITS[found[2]]


def gpu_of(name: str) -> Gpu:
    """A GPU of the table. Raises `ConfigError` that names the nearest one."""
    if name.lower() not in GPUS:
        raise unknown("--gpu", name, GPUS)
    return GPUS[name.lower()]


class Cluster(NamedTuple):
    """`nodes` of one kind, each with so many GPUs and CPUs. `network`: bytes a second of a node's link, each way.

    `simulated`: all nodes are processes of one machine, which has so many CPUs in all.
    """

    nodes: int
    gpus: int
    cpus: int
    network: float
    simulated: bool = False

"""The counts of FedProTIP's Table 14: MiB (2^20 bytes, printed as MB) of float32 numbers, per client and task, one way.

The table omits statistics of batch norm, and includes an unused layer. `comm/up_bytes` has the real bytes of a run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

MIB = 2**20


def model_mib(backbone: int, features: int, classes: int, tasks: int = 1, unused: int = 0) -> float:
    """A model of `backbone` parameters and one linear head with bias for each of `tasks` tasks of `classes` classes,
    on `features` numbers. `unused`: parameters that are sent and not used."""
    return 4 * (backbone + unused + tasks * classes * (features + 1)) / MIB


def activation_mib(widths: Sequence[int], columns: int = 512) -> float:
    """FOT: `columns` columns (or sketches) of each layer, of d_l = `widths[l]` inputs."""
    return 4 * columns * sum(widths) / MIB


def bases_mib(clients: Sequence[Mapping[str, Tensor]]) -> float:
    """FedProTIP: sum_l d_l r_{k,l} of the directions `[d_l, r_{k,l}]` of each client, mean over the clients."""
    return 4 * sum(basis.numel() for own in clients for basis in own.values()) / (MIB * len(clients))


def references_mib(tasks: int, blocks: int, units: int = 20) -> float:
    """FedProTIP: `blocks` relevances of each of `units` batches of each of `tasks` tasks."""
    return 4 * tasks * blocks * units / MIB

"""Bytes of the tensors that are alive at once, counted operation by operation: exact on any machine, and slow."""

from __future__ import annotations

from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Timeline(TorchDispatchMode):
    """A context in which `history` gets the bytes that are alive on a device after each operation, by storage."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        TorchDispatchMode.__init__(self)
        self.device = torch.device(device)
        self.history: list[int] = []
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}

    def add(self, *tensors: torch.Tensor) -> None:
        """Count these tensors too, which no operation may read."""
        for tensor in tensors:
            if tensor.device.type != self.device.type:
                continue
            storage = tensor.untyped_storage()
            self._alive[storage._cdata] = StorageWeakRef(storage), storage.nbytes()

    @property
    def now(self) -> int:
        self._alive = {key: one for key, one in self._alive.items() if not one[0].expired()}
        return sum(size for _, size in self._alive.values())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.add(*(leaf for leaf in tree_leaves((args, kwargs, out)) if isinstance(leaf, torch.Tensor)))
        self.history.append(self.now)
        return out

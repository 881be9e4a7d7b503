"""Bytes of the tensors that are alive at once, counted operation by operation: exact on any machine, and slow."""

from __future__ import annotations

from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Alive(TorchDispatchMode):
    """A context in which `most` becomes the largest total of bytes alive at the same moment, of tensors of at least
    `size` bytes that operations read or write. A view counts as its base tensor."""

    def __init__(self, size: int = 1) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.size, self.most, self._sum = size, 0, 0
        self._seen: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves((args, kwargs, out)):
            if isinstance(leaf, torch.Tensor):
                self._see(leaf.untyped_storage())
        return out

    def _see(self, storage: Any) -> None:
        size, before = storage.nbytes(), self._seen.get(storage._cdata)
        if size < self.size or (before is not None and not before[0].expired()):
            return
        self._sum += size - (before[1] if before is not None else 0)
        self._seen[storage._cdata] = StorageWeakRef(storage), size
        if self._sum > self.most:  # as far as is known: some of it may be gone
            self._seen = {key: one for key, one in self._seen.items() if not one[0].expired()}
            self._sum = sum(size for _, size in self._seen.values())
            self.most = max(self.most, self._sum)


class Timeline(TorchDispatchMode):
    """A context in which `history` gets the bytes that are alive on a device after each operation, by storage."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        super().__init__()  # type: ignore[no-untyped-call]
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
        """Bytes alive."""
        self._alive = {key: one for key, one in self._alive.items() if not one[0].expired()}
        return sum(size for _, size in self._alive.values())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.add(*(leaf for leaf in tree_leaves((args, kwargs, out)) if isinstance(leaf, torch.Tensor)))
        self.history.append(self.now)
        return out

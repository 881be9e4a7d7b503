"""A small cache of what is made from tensors, which keeps none of them alive."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

from torch import Tensor

V = TypeVar("V")


class TensorCache(Generic[V]):
    """The values used last, each for as long as the tensors live that it was made from.

    A key may hold addresses of these tensors: no other tensor can have one of them while the value is here. A value
    must not refer to the tensors themselves; views of `tensor.detach()` share their storage and do not.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._entries: OrderedDict[Hashable, tuple[V, list[weakref.ref[Tensor]]]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable) -> V | None:
        """The value, or None where there is none (any more)."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: Hashable, value: V, *tensors: Tensor) -> None:
        """Keep `value` until the first of `tensors` is gone, or `size` others were used after it."""
        cached = self._entries

        def forget(_: weakref.ref[Tensor]) -> None:
            cached.pop(key, None)

        cached[key] = (value, [weakref.ref(tensor, forget) for tensor in tensors])
        cached.move_to_end(key)
        if len(cached) > self._size:
            cached.popitem(last=False)

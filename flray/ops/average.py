"""Weighted sums over a cohort along one fixed binary tree, whoever computed which part.

Position p of the cohort is leaf (0, p); node (l, i) is the sum of (l-1, 2i) and (l-1, 2i+1), and a node whose sibling lies beyond the
cohort's end moves up unchanged. A process that trained a contiguous run of positions reduces it to at most 2 log2(K) whole
subtrees while it goes (a binary counter); the server completes the tree. The bits do not depend on the split.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flray.core.messages import children, rebuilt


class Node(NamedTuple):
    """Partial sum of the whole subtree `place` at `level`; `value` is None when every client in it was skipped.

    `weight` is what the value still has to be multiplied with: a right leaf waits for its sibling, and both become one operation.
    `owned`: its tensors may be overwritten; those in Ray's object store may not.
    """

    level: int
    place: int
    value: Any
    weight: float = 1.0
    owned: bool = True


class TreeSum:
    """Sums messages by position; positions of one run must come in order."""

    def __init__(self, spare: list[Any] | None = None) -> None:
        self.nodes: list[Node] = []
        self.spare = [] if spare is None else spare  # tensors that are free again: fresh memory costs page faults

    def add(self, position: int, message: Any, weight: float) -> None:
        """Add `weight * message` at a position; `message=None` marks a client that was skipped. The message is copied."""
        if message is None:
            self.push(Node(0, position, None))
            return
        left = self.nodes[-1] if self.nodes else None
        if position % 2 and left is not None and (left.level, left.place) == (0, position - 1):
            self.push(Node(0, position, message, weight, owned=False))  # merged at once, not kept
            return
        spare = self.spare.pop() if self.spare else None
        if position % 2:  # its sibling is in another run
            self.push(Node(0, position, scale(message, 1.0, spare), weight))
        else:
            self.push(Node(0, position, scale(message, weight, spare)))

    def push(self, node: Node) -> None:
        """Append a subtree right of all before it and merge finished siblings; the left one's tensors are overwritten."""
        self.nodes.append(node)
        while len(self.nodes) > 1:
            left, right = self.nodes[-2:]
            if left.level != right.level or left.place % 2 or right.place != left.place + 1:
                return
            if left.value is None or right.value is None:
                value, owned = (right.value, right.owned) if left.value is None else (left.value, left.owned)
                if left.value is None and right.value is not None and not (right.owned and right.weight == 1.0):
                    value, owned = scale(right.value, right.weight), True
            else:
                spare = None if left.owned or not self.spare else self.spare.pop()
                value, owned = _merge(left.value, right.value, right.weight, left.value if left.owned else spare), True
                if right.owned and right.level:
                    self.spare.append(right.value)
            self.nodes[-2:] = [Node(left.level + 1, left.place // 2, value, 1.0, owned)]

    def total(self) -> Any:
        """The root's value once every position is there; None when all were skipped."""
        while len(self.nodes) > 1:
            last = self.nodes.pop()
            if last.place % 2:
                raise RuntimeError(f"tree sum: subtree {last.place} of level {last.level} has no left sibling: a run is missing")
            self.push(last._replace(level=last.level + 1, place=last.place // 2))
        return self.nodes[0].value if self.nodes else None


def combine(nodes: Iterable[Node], spare: list[Any] | None = None) -> Any:
    """The root of the tree from subtrees in order of position; owned tensors are overwritten. `spare`: free ones, used and refilled."""
    tree = TreeSum(spare)
    for node in nodes:
        tree.push(node)
    return tree.total()


def scale(message: Any, weight: float, out: Any = None) -> Any:
    """`weight * message`, a copy, in the tensors of `out` when given; `TypeError` for integer tensors: they have no weighted mean."""
    if isinstance(message, Tensor):
        if not message.is_floating_point():
            raise TypeError(f"an update pooled by its mean holds float tensors, got {message.dtype}")
        return torch.mul(message, weight, out=out if out is not None and out.shape == message.shape else None)
    parts = children(message)
    if parts is not None:
        spares = children(out) or {}
        return rebuilt(message, {key: scale(part, weight, spares.get(key)) for key, part in parts.items()})
    return None if message is None else float(message) * weight


def _merge(left: Any, right: Any, weight: float, out: Any) -> Any:
    """left + weight * right, in the tensors of `out` (which may be `left`) or new ones."""
    if isinstance(left, Tensor):
        if not right.is_floating_point():
            raise TypeError(f"an update pooled by its mean holds float tensors, got {right.dtype}")
        return torch.add(left, right, alpha=weight, out=out if out is not None and out.shape == left.shape else None)
    parts = children(left)
    if parts is not None:
        others, outs = children(right) or {}, children(out) or {}
        return rebuilt(left, {key: _merge(part, others[key], weight, outs.get(key)) for key, part in parts.items()})
    return None if left is None else left + weight * right


def stacked_mean(stack: Any, weights: Tensor | None = None) -> Any:
    """Mean over the leading client axis of a stacked update, weighted or plain, along the same tree as the engine's own."""
    tree, count = TreeSum(), len(next(iter(vars(stack).values())))
    for position, weight in enumerate([1.0 / count] * count if weights is None else weights.tolist()):
        tree.add(position, unstack(stack, position), weight)
    return tree.total()


def unstack(stack: Any, position: int) -> Any:
    """One client's update out of a stacked one."""
    if isinstance(stack, Tensor):
        return stack[position]
    parts = children(stack)
    return stack if parts is None else rebuilt(stack, {key: unstack(part, position) for key, part in parts.items()})


def stack(messages: list[Any]) -> Any:
    """Updates stacked along a new leading client axis; a number becomes a float64 tensor `[K]`."""
    first = messages[0]
    if isinstance(first, Tensor):
        return torch.stack(messages)
    parts = children(first)
    if parts is not None:
        return rebuilt(first, {key: stack([(children(message) or {})[key] for message in messages]) for key in parts})
    return None if first is None else torch.tensor(messages, dtype=torch.float64)

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

from flray.core.messages import is_message


class Node(NamedTuple):
    """Partial sum of the whole subtree `place` at `level`; `value` is None when every client in it was skipped."""

    level: int
    place: int
    value: Any


class TreeSum:
    """Sums messages by position; positions of one run must come in order."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._spare: list[Any] = []  # tensors of merged leaves, used again: fresh memory costs page faults

    def add(self, position: int, message: Any, weight: float) -> None:
        """Add `weight * message` at a position; `message=None` marks a client that was skipped. The message is copied."""
        spare = self._spare.pop() if self._spare and message is not None else None
        self.push(Node(0, position, None if message is None else scale(message, weight, spare)))

    def push(self, node: Node) -> None:
        """Append a subtree right of all before it and merge finished siblings."""
        self.nodes.append(node)
        while len(self.nodes) > 1:
            left, right = self.nodes[-2:]
            if left.level != right.level or left.place % 2 or right.place != left.place + 1:
                return
            self.nodes[-2:] = [Node(left.level + 1, left.place // 2, _merge(left.value, right.value))]
            if left.value is not None and right.value is not None:
                self._spare.append(right.value)

    def total(self) -> Any:
        """The root's value once every position is there; None when all were skipped."""
        while len(self.nodes) > 1:
            last = self.nodes.pop()
            if last.place % 2:
                raise RuntimeError(
                    f"tree sum: subtree {last.place} of level {last.level} has no left sibling; a run of the cohort is missing"
                )
            self.push(Node(last.level + 1, last.place // 2, last.value))
        return self.nodes[0].value if self.nodes else None


def combine(nodes: Iterable[Node]) -> Any:
    """The root of the tree from subtrees in order of position."""
    tree = TreeSum()
    for node in nodes:
        tree.push(node)
    return tree.total()


def scale(message: Any, weight: float, out: Any = None) -> Any:
    """`weight * message`, a copy, in the tensors of `out` when given; `TypeError` for integer tensors: they have no weighted mean."""
    if isinstance(message, Tensor):
        if not message.is_floating_point():
            raise TypeError(f"an update pooled by its mean holds float tensors, got {message.dtype}")
        return torch.mul(message, weight, out=out if out is not None and out.shape == message.shape else None)
    if is_message(message):
        spares = out if out is not None else (None,) * len(message)
        return type(message)(*(scale(field, weight, spare) for field, spare in zip(message, spares, strict=True)))
    if message is None or message == ():
        return message
    return float(message) * weight


def _merge(left: Any, right: Any) -> Any:
    """left + right; the tensors of `left` are reused."""
    if left is None or right is None:
        return right if left is None else left
    if isinstance(left, Tensor):
        return left.add_(right)
    if is_message(left):
        return type(left)(*(_merge(a, b) for a, b in zip(left, right, strict=True)))
    return left if left == () else left + right


def stacked_mean(stack: Any, weights: Tensor) -> Any:
    """Weighted mean over the leading client axis of a stacked update, along the same tree as the engine's own."""
    tree = TreeSum()
    for position, weight in enumerate(weights.tolist()):
        tree.add(position, unstack(stack, position), weight)
    return tree.total()


def unstack(stack: Any, position: int) -> Any:
    """One client's update out of a stacked one."""
    if isinstance(stack, Tensor):
        return stack[position]
    return type(stack)(*(unstack(field, position) for field in stack)) if is_message(stack) else stack


def stack(messages: list[Any]) -> Any:
    """Updates stacked along a new leading client axis; a number becomes a float64 tensor `[K]`."""
    first = messages[0]
    if isinstance(first, Tensor):
        return torch.stack(messages)
    if is_message(first):
        return type(first)(*(stack(list(fields)) for fields in zip(*messages, strict=True)))
    return first if first is None or first == () else torch.tensor(messages, dtype=torch.float64)

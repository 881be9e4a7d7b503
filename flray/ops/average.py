"""Weighted sums over a cohort along one fixed binary tree, whichever process computes which part.

Position p of the cohort is leaf (0, p); node (l, i) is the sum of (l-1, 2i) and (l-1, 2i+1), and a node whose sibling
lies beyond the cohort's end moves up unchanged. A process that trained a contiguous run of positions reduces it to at
most 2 log2(K) whole subtrees while it goes (a binary counter); the server completes the tree. The bits do not depend on
the split. Integers are added in int64, and floats in float32 or float64.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flray.core.messages import children, rebuilt
from flray.core.schema.errors import AlgorithmError

# one number, one for each field, or None for a plain sum, in which integers stay integers
Weight = float | None | dict[str, float | None]


class PartialSum(NamedTuple):
    """The sum of the complete subtree `place` at `level`; `value` is None if every client in it was skipped.

    The value must still be multiplied by `weight` (None: 1): a right leaf and its sibling become one operation.
    `owned`: its tensors may be overwritten; those in Ray's object store may not.
    """

    level: int
    place: int
    value: Any
    weight: Weight = None
    owned: bool = True


class TreeSum:
    """Sums messages by position in the cohort. Positions of one chunk must come in order."""

    def __init__(self, spare: list[Any] | None = None) -> None:
        self.nodes: list[PartialSum] = []
        self.spare = [] if spare is None else spare  # free tensors: fresh memory costs page faults

    def add(self, position: int, message: Any, weight: Weight) -> None:
        """Add `weight * message`, a copy, at a position; `message=None` marks a client that was skipped."""
        if message is None:
            self.push(PartialSum(0, position, None))
            return
        left = self.nodes[-1] if self.nodes else None
        if position % 2 and left is not None and (left.level, left.place) == (0, position - 1):
            self.push(PartialSum(0, position, message, weight, owned=False))  # merged at once
            return
        spare = self.spare.pop() if self.spare else None
        if position % 2:  # its sibling is in another chunk
            self.push(PartialSum(0, position, scale(message, None, spare), weight))
        else:
            self.push(PartialSum(0, position, scale(message, weight, spare)))

    def push(self, node: PartialSum) -> None:
        """Append the next subtree to the right and merge complete siblings, in the left one's tensors."""
        self.nodes.append(node)
        while len(self.nodes) > 1:
            left, right = self.nodes[-2:]
            if left.level != right.level or left.place % 2 or right.place != left.place + 1:
                return
            if left.value is None or right.value is None:
                value, owned = (right.value, right.owned) if left.value is None else (left.value, left.owned)
                if left.value is None and right.value is not None and not (right.owned and right.weight is None):
                    value, owned = scale(right.value, right.weight), True
            else:
                spare = None if left.owned or not self.spare else self.spare.pop()
                value, owned = _merge(left.value, right.value, right.weight, left.value if left.owned else spare), True
                if right.owned and right.level:
                    self.spare.append(right.value)
            self.nodes[-2:] = [PartialSum(left.level + 1, left.place // 2, value, None, owned)]

    def total(self) -> Any:
        """The root's value after all positions; None if all were skipped. Raises `RuntimeError` if a chunk is
        missing."""
        while len(self.nodes) > 1:
            last = self.nodes.pop()
            if last.place % 2:
                raise RuntimeError(
                    f"tree sum: subtree {last.place} of level {last.level} has no left sibling: a chunk is missing"
                )
            self.push(last._replace(level=last.level + 1, place=last.place // 2))
        return self.nodes[0].value if self.nodes else None


def combine(nodes: Iterable[PartialSum], spare: list[Any] | None = None) -> Any:
    """The root of the tree from its subtrees in order of position; owned tensors are overwritten.

    `spare`: free tensors, used and refilled.
    """
    tree = TreeSum(spare)
    for node in nodes:
        tree.push(node)
    return tree.total()


def scale(message: Any, weight: Weight, out: Any = None) -> Any:
    """`weight * message`, a copy, in the tensors of `out` if given."""
    parts = children(message)
    if parts is not None:
        spares = children(out) or {}
        return rebuilt(message, {key: scale(part, _of(weight, key), spares.get(key)) for key, part in parts.items()})
    if message is None:
        return None
    assert not isinstance(weight, dict)
    if not isinstance(message, Tensor):
        return message if weight is None else float(message) * weight
    message = _wide(message)
    out = out if isinstance(out, Tensor) and out.shape == message.shape and out.dtype == message.dtype else None
    if weight is None:
        return message.clone() if out is None else out.copy_(message)
    return torch.mul(message, weight, out=out)


def _merge(left: Any, right: Any, weight: Weight, out: Any, where: str = "") -> Any:
    """left + weight * right, in the tensors of `out` (which may be `left`) or new ones; `where` names the field."""
    if isinstance(left, Tensor) and isinstance(right, Tensor) and left.shape == right.shape:
        assert not isinstance(weight, dict)
        left, right = _wide(left), _wide(right)
        fits = isinstance(out, Tensor) and out.shape == left.shape and out.dtype == torch.result_type(left, right)
        out = out if fits else None
        # integers stay integers
        return torch.add(left, right, alpha=1 if weight is None or weight == 1 else weight, out=out)
    parts, others = children(left), children(right)
    if _form(left) != _form(right):
        raise _differ(where, left, right)
    if parts is not None and others is not None:
        outs = children(out) or {}
        merged = {key: _merge(part, others[key], _of(weight, key), outs.get(key), key) for key, part in parts.items()}
        return rebuilt(left, merged)
    if left is None:
        return None
    assert not isinstance(weight, dict)
    return left + (1 if weight is None else weight) * right


def _wide(tensor: Tensor) -> Tensor:
    """The tensor in a dtype that holds a cohort's sum: int64 for integers, at least float32 for floats."""
    wide = torch.promote_types(tensor.dtype, torch.float32) if tensor.dtype.is_floating_point else torch.int64
    return tensor if tensor.dtype.is_complex else tensor.to(wide)


def _of(weight: Weight, key: Any) -> Weight:
    return weight[key] if isinstance(weight, dict) else weight


def _form(value: Any) -> Any:
    """Class, keys and shapes: two updates must agree in them to be added."""
    if isinstance(value, Tensor):
        return value.shape
    if isinstance(value, int | float):
        return float
    return type(value), tuple(children(value) or ())


def _differ(where: str, left: Any, right: Any) -> AlgorithmError:
    what = f"the field {where} of an update" if where else "an update"
    one, other = (list(value.shape) if isinstance(value, Tensor) else type(value).__name__ for value in (left, right))
    return AlgorithmError(
        f"{what} differs in form between clients ({one}, {other}): it has no mean and no sum; declare it each()"
    )


def tree_mean(messages: Sequence[Any], weights: Tensor | None = None) -> Any:
    """Mean of one message a client, weighted or plain, along the same tree as the engine's own."""
    tree, count = TreeSum(), len(messages)
    for position, weight in enumerate([1.0 / count] * count if weights is None else weights.tolist()):
        tree.add(position, messages[position], weight)
    return tree.total()

"""Pooling of the clients' updates, by field as their class declares (`core/messages/fields.py`).

A process that trained a chunk of the cohort sends partial sums of fields with a mean or a sum, along the tree of
`ops/average.py`, and by position every client's own values of fields declared `each()`.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from flray.core.messages import (
    Record,
    Streamed,
    Update,
    as_tensors,
    leaves,
    map_tensors,
    nbytes,
    nbytes_by_field,
    to_numpy,
)
from flray.core.messages.fields import Pooling, pools, streamed_fields
from flray.core.protocol.aggregation_section import AggregationSection
from flray.core.schema.errors import AlgorithmError
from flray.ops.average import PartialSum, TreeSum, Weight, combine, scale, tree_mean


def pooling_of(update: Any, rule: AggregationSection | None = None) -> dict[str, Pooling]:
    """How each field of an update is pooled: as its class declares, the model's `w` and `b` as the `rule` decides."""
    how = pools(type(update)) if isinstance(update, Record) else {}
    decides = rule is not None and rule.pooled != "mean" and isinstance(update, Update)
    return {**how, "w": "each", "b": "each"} if decides else how


def summed_bytes(update: Any, rule: AggregationSection | None = None) -> int:
    """Bytes of a partial sum of such updates: of the fields with a mean or a sum, in the types of sums.

    >>> summed_bytes({"pixels": torch.zeros(10, dtype=torch.uint8), "w": torch.zeros(10, dtype=torch.float16)})
    80
    """
    how, size = pooling_of(update, rule), 0
    for name, part in (vars(update) if isinstance(update, Record) else {"": update}).items():
        if how.get(name) != "each":
            weight = None if how.get(name) == "sum" else 1.0
            size += nbytes(map_tensors(functools.partial(scale, weight=weight), part))
    return size


class PartialUpdates(NamedTuple):
    """The message of a chunk of the cohort to the server, of NumPy arrays.

    `nodes`: partial sums, in which the fields declared `each()` are `()`; `each`: (position, those fields) of every
    client that delivered; `nbytes`: of the clients' own updates, by field.
    """

    nodes: list[PartialSum]
    each: list[tuple[int, dict[str, Any]]]
    nbytes: dict[str, int]


class Collector:
    """Adds up a chunk's updates in order of their positions; stores only what is sent."""

    def __init__(self, rule: AggregationSection | None = None) -> None:
        """`rule`: the rule of aggregation, which decides how the model's `w` and `b` are pooled; None: as declared."""
        self._rule = rule
        self._tree, self._nbytes = TreeSum(), Counter[str]()
        self._each: list[tuple[int, dict[str, Any]]] = []
        self._how: dict[type, dict[str, Any]] = {}  # pooling by field, of each class of updates

    def add(self, position: int, update: Any, weight: float, encoded: Mapping[str, int] | None = None) -> None:
        """Add a copy of the update of the client at `position`; None: the client was skipped.

        `encoded`: bytes of the fields that travel encoded; `update` has their decoded values.
        Raises `AlgorithmError` for a field that has no mean or no sum.
        """
        if update is None:
            self._tree.add(position, None, weight)
            return
        for name, size in {**nbytes_by_field(update), **(encoded or {})}.items():
            self._nbytes[name] += size
        kind = type(update)
        if kind not in self._how:
            self._how[kind] = pooling_of(update, self._rule)
        how = self._how[kind]
        own = {name: getattr(update, name) for name, pool in how.items() if pool == "each"}
        if own:
            self._each.append((position, to_numpy(map_tensors(torch.clone, own))))
            update = update.replace(**dict.fromkeys(own, ()))
        _check(update, how)
        self._tree.add(position, update, _weights(how, weight))

    def sent(self) -> PartialUpdates:
        nodes = [node if node.value is None else node._replace(value=to_numpy(node.value)) for node in self._tree.nodes]
        return PartialUpdates(nodes, self._each, dict(self._nbytes))


def _weights(how: dict[str, Any], weight: float) -> Weight:
    """The weight of each field; one number if every field has a mean."""
    if "sum" not in how.values():
        return weight
    return {name: None if pool == "sum" else weight for name, pool in how.items()}


_NO_SUM = (torch.bool, torch.uint64)  # int64 does not hold all of uint64


def _check(update: Any, how: dict[str, Any]) -> None:
    for name, leaf in leaves(update):
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
            continue
        field = name.partition(".")[0].partition("[")[0]
        is_tensor = isinstance(leaf, torch.Tensor)
        if isinstance(leaf, str) or (is_tensor and (how.get(field) != "sum" or leaf.dtype in _NO_SUM)):
            what = leaf.dtype if isinstance(leaf, torch.Tensor) else "text"
            raise AlgorithmError(
                f"{type(update).__name__}.{name} holds {what}, which has no {how.get(field, 'mean')}; "
                f"declare the field each()" + (", or sum()" if is_tensor and leaf.dtype not in _NO_SUM else "")
            )


def pooled(
    runs: Sequence[PartialUpdates],
    share: float | None = None,
    device: torch.device | str = "cpu",
    spare: list[Any] | None = None,
    rule: AggregationSection | None = None,
) -> Any:
    """The pooled update of all chunks of an exchange, as new tensors; None if no client delivered.

    `share`: the sum of the weights of the clients that delivered, if some did not; means are divided by it. `spare`:
    free tensors of earlier sums, used and refilled. `rule`: as of :class:`Collector`.
    """
    nodes = sorted(itertools.chain.from_iterable(run.nodes for run in runs), key=lambda node: node.place << node.level)
    read = [n if n.value is None else n._replace(value=as_tensors(n.value, device), owned=False) for n in nodes]
    total = combine(read, spare)
    if total is None:
        return None
    if share is not None:
        total = scale(total, _weights(pooling_of(total, rule), 1 / share))
    elif len(read) == 1:
        total = map_tensors(torch.clone, total)  # still in the object store
    each = [own for _, own in sorted((one for run in runs for one in run.each), key=lambda one: one[0])]
    if not each:
        return total
    later = streamed_fields(type(total))
    if rule is not None and rule.pooled == "streamed":
        later |= {"w", "b"}
    by_name = {name: Streamed([values[name] for values in each], device) for name in each[0]}
    return total.replace(**{name: own if name in later else tuple(own) for name, own in by_name.items()})


def merged(runs: Sequence[PartialUpdates]) -> PartialUpdates:
    """The message of neighbouring chunks as one, with the subtrees that are complete in them; nothing is overwritten.

    The sums are those that :func:`pooled` would compute of the chunks' own, to the same bits.
    """
    nodes = sorted(itertools.chain.from_iterable(run.nodes for run in runs), key=lambda node: node.place << node.level)
    tree = TreeSum()
    for node in nodes:
        tree.push(node if node.value is None else node._replace(value=as_tensors(node.value), owned=False))
    sums = [node if node.value is None else node._replace(value=to_numpy(node.value)) for node in tree.nodes]
    each = sorted((one for run in runs for one in run.each), key=lambda one: one[0])
    return PartialUpdates(sums, each, dict(sum((Counter(run.nbytes) for run in runs), Counter())))


class Separate(Sequence[Any]):
    """One update a client from pooled `updates` whose fields are all declared `each()`; made when it is read."""

    def __init__(self, updates: Record) -> None:
        self._updates = updates

    def __len__(self) -> int:
        return len(next(iter(vars(self._updates).values())))

    def __getitem__(self, client: Any) -> Any:
        return type(self._updates)(**{name: values[client] for name, values in vars(self._updates).items()})


def mean_of_each(updates: Record, weights: torch.Tensor | None = None) -> Any:
    """The mean, weighted or plain, of updates whose fields are all declared `each()`; the bits of the engine's mean.

    One client's update is in memory at a time, and log2 of their number of partial sums.
    """
    return tree_mean(Separate(updates), weights)

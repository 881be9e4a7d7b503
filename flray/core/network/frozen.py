"""A network with a frozen part, which is constant in every loss of every algorithm.

The part consists of tensors (the layers that the network declares as early) and of rows of the head. A row of the head
belongs to a class, so a task's rows are that task's head. `torch.optim` does not change another task's head, because
its parameters have no gradient; neither do frozen rows change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flray.core.messages import ServerState
from flray.core.network.layout import Entry
from flray.core.network.module_state import Local
from flray.core.network.objective import BoundModel, Objective
from flray.core.network.parts import ModuleMode, ModuleModes


class HeadRows(NamedTuple):
    """The frozen rows of the head, bool `[C]` each: `unreached` until a gradient reaches them, `fixed` always.
    `tables`: the places of the tensors with these rows (:func:`class_tables`)."""

    unreached: Tensor
    fixed: Tensor
    tables: tuple[Entry, ...]


class Frozen(Objective):
    """An objective whose gradient does not reach the tensors of a part; neither it nor weight decay changes them.

    The same is true for the fixed rows of the head, and for rows that no gradient has reached since :meth:`begin`.
    Control variates, a server's momentum and noise can change frozen parameters. The engine therefore restores them
    after every local step (:class:`FrozenCopies`) and at the server (:func:`restore_frozen`).
    """

    __slots__ = ("_mask", "_names", "_norms", "_part", "_reached_rows", "_rows", "_statistics", "_tables")

    def __init__(
        self,
        objective: Objective,
        part: str | None = None,
        statistics: bool = True,
        rows: HeadRows | None = None,
        norms: bool = False,
    ) -> None:
        """`part`: a name of :meth:`Objective.mask`. `statistics`: the part's batch norms run in eval mode. `norms`: so
        do all modules with statistics.

        Raises `ConfigError` if the network has no such part.
        """
        names = objective.parts.tensors(part) if part is not None else set()
        owners = [entry.name.rpartition(".")[0] for entry in objective.buffer_layout.entries] if norms else []
        self.__dict__ = objective.__dict__  # the same network, bound to one point at a time, so the same caches
        self._part, self._statistics, self._names, self._rows = part, statistics, names, rows
        self._norms: dict[str, ModuleMode] = dict.fromkeys(owners, "eval")
        size = 0 if rows is None else len(rows.fixed)
        self._tables = [] if rows is None else [entry for entry in rows.tables if entry.name not in names]
        self._reached_rows = torch.zeros(size, dtype=torch.bool, device=self.device)
        self._mask: Tensor | None = None

    def at(
        self, w: Tensor, b: Tensor, mode: ModuleModes = "eval", grad: bool = False, fixed: str | None = None
    ) -> BoundModel:
        if mode != "eval" and (self._norms or (self._part is not None and self._statistics)):
            mode = {**({"all": mode} if isinstance(mode, str) else mode), **self._norms}
            if self._part is not None and self._statistics:
                mode[self._part] = "eval"
        return super().at(w, b, mode, grad, fixed or (self._part if grad else None))

    # tensors ----------------------------------------------------------------------------------
    def constants(self, w: Tensor) -> list[Tensor]:
        """The views of the frozen tensors in `w [P]`."""
        return [entry.view(w) for entry in self.layout.entries if entry.name in self._names]

    def constant_statistics(self, b: Tensor) -> list[Tensor]:
        """The views of the frozen statistics in `b [Q]`."""
        names = self.parts.statistics(self._part) if self._part is not None and self._statistics else ()
        return [entry.view(b) for entry in self.buffer_layout.entries if self._norms or entry.name in names]

    # rows of the head -------------------------------------------------------------------------
    def begin(self) -> None:
        """Forget which rows gradients have reached."""
        self._reached_rows.zero_()  # in place: a recorded step writes there (`engine/captured.py`)

    @property
    def has_rows(self) -> bool:
        """Whether rows of the head may be frozen."""
        return bool(self._tables)

    @property
    def reached_rows(self) -> Tensor:
        """A copy of whether a nonzero gradient has reached each row of the head, bool `[C]`."""
        return self._reached_rows.clone()

    def staying(self, reached: Tensor) -> Tensor:
        """Whether each row of the head is frozen, bool `[C]`, if gradients have `reached` these rows, bool `[C]`."""
        assert self._rows is not None
        return self._rows.fixed | (self._rows.unreached & ~reached)

    def tables(self, w: Tensor) -> list[Tensor]:
        """The views `[C, n]` of the head's tensors in `w [P]`, with a row for each class."""
        return [(view := entry.view(w)).view(len(view), -1) for entry in self._tables]

    def gradient(self, value: Tensor, leaves: Sequence[Tensor], out: Tensor | None = None) -> Tensor:
        flat = super().gradient(value, leaves, out)
        for table in self.tables(flat):
            assert self._rows is not None
            table.masked_fill_(self._rows.fixed[:, None], 0.0)
            self._reached_rows |= (table != 0).any(dim=1)
        return flat

    def reached(self) -> Tensor | None:
        """:meth:`Objective.reached`, also 0 on frozen rows. Valid until the next call."""
        reached = super().reached()
        if not self._tables:
            return reached
        if reached is not None:
            mask = reached.clone()
        else:
            mask = self._mask = torch.ones(self.layout.size, device=self.device) if self._mask is None else self._mask
        moving = ~self.staying(self._reached_rows)[:, None]
        for table in self.tables(mask):
            table.copy_(moving.expand_as(table))
        return mask

    @contextmanager
    def preserve_scratch(self) -> Iterator[None]:
        before, self._reached_rows = self._reached_rows, self._reached_rows.clone()
        try:
            with super().preserve_scratch():
                yield
        finally:
            self._reached_rows = before


def class_tables(objective: Objective, classes: int, samples: Callable[[], Tensor]) -> tuple[Entry, ...]:
    """The tensors of the head with a row for each of C `classes`.

    A hidden layer of the head may have C rows by chance. So where another layer than the last one has C rows, the
    `samples [B, ...]` are read, in eval mode: a row of a hidden layer reaches the difference of any two logits, and
    that of a last layer does not. After a last layer, a norm across classes or a softmax mixes its rows too. Where all
    matrices of C rows are mixed, the tables are therefore those from the head's last matrix on, if it has C rows.
    """
    entries = zip(objective.layout.entries, objective.in_head, strict=True)
    head = [(place, entry) for place, (entry, in_head) in enumerate(entries) if in_head]
    tables = [(place, entry) for place, entry in head if entry.shape[:1] == (classes,)]
    if {_layer(entry) for _, entry in tables} <= {_layer(entry) for _, entry in head[-1:]}:
        return tuple(entry for _, entry in tables)
    mixed = _mixed(objective, classes, samples(), [place for place, _ in tables])
    found = [entry for (_, entry), mixes in zip(tables, mixed, strict=True) if not mixes]
    matrices = [entry for _, entry in head if len(entry.shape) > 1]
    if any(entry in found for entry in matrices) or not matrices or matrices[-1].shape[0] != classes:
        return tuple(found)
    first = next(place for place, entry in head if _layer(entry) == _layer(matrices[-1]))
    return tuple(entry for place, entry in tables if place >= first)


def _mixed(objective: Objective, classes: int, samples: Tensor, places: list[int]) -> list[bool]:
    """Whether rows of the tensors at `places` reach logits of other classes, or their differences, on `samples`."""
    w, b = objective.initial()
    # near the first point, because a last layer of zeros hides what is before it
    w += 0.01 * torch.randn(len(w), dtype=w.dtype, generator=torch.Generator().manual_seed(0)).to(w.device)
    model = objective.at(w, b, "eval", grad=True)
    logits, leaves = model(samples.to(objective.device)), [model.leaves[place] for place in places]
    mixed = [False] * len(places)
    # a difference, because a log-softmax keeps those of its inputs; of two classes it has no third row
    for read in ([0, 1], [-2, -1]) if classes > 2 else ([0], [-1]):
        others = torch.ones(classes, dtype=torch.bool, device=objective.device)
        others[read] = False
        value = logits[:, read[0]].sum() - logits[:, read[1:]].sum()
        gradients = torch.autograd.grad(value, leaves, retain_graph=True, materialize_grads=True)
        mixed = [found or bool(g[others].any()) for found, g in zip(mixed, gradients, strict=True)]
    return mixed


def _layer(entry: Entry) -> str:
    """The name of the layer that a parameter belongs to, if only as part of a parametrization."""
    return entry.name.rpartition(".")[0].partition(".parametrizations")[0]


def begin(objective: Objective, others: Iterable[Objective] = (), local: Local | None = None) -> None:
    """Call before a client's work and before the server half; see :meth:`Frozen.begin`.

    `others`: the algorithm's own networks. `local`: the client's own buffers, by name.
    """
    objective.restore_state(local)
    for other in others:
        other.restore_state()
    if isinstance(objective, Frozen):
        objective.begin()


def reached_rows(objective: Objective) -> Tensor | None:
    """Rows of the head that gradients have reached since :func:`begin`, bool `[C]`; None: no row is frozen."""
    return objective.reached_rows if isinstance(objective, Frozen) and objective.has_rows else None


class FrozenCopies:
    """A client's copies of frozen parameters, restored after a step."""

    def __init__(self, objective: Objective, params: tuple[Tensor, Tensor] | None) -> None:
        """`params`: `(w [P], b [Q])` before the first step. No copies if it is None, or if nothing is frozen."""
        self._objective = objective if isinstance(objective, Frozen) and params is not None else None
        self._copies, self._rows = [], []
        if self._objective is not None and params is not None:
            self._copies = [view.clone() for view in self._objective.constants(params[0].detach())]
            self._rows = [table.clone() for table in self._objective.tables(params[0].detach())]

    def __bool__(self) -> bool:
        return bool(self._copies or self._rows)

    def put_back_(self, w: Tensor) -> None:
        """Writes the copies to `w [P]`."""
        objective = self._objective
        if objective is None:
            return
        if self._copies:
            torch._foreach_copy_(objective.constants(w.detach()), self._copies)
        if self._rows:
            stays = objective.staying(objective.reached_rows)
            _put_back_(objective.tables(w.detach()), self._rows, stays)


def restore_frozen(objective: Objective, before: Any, after: Any, reached: Tensor | None = None) -> Any:
    """The server's state `after` an exchange, with the frozen parameters and statistics of `before`, and with averaged
    directions as :meth:`Objective.normalized` gives them.

    `reached`: the rows of the head that gradients reached in the exchange, bool `[C]`; None: none.
    """
    if not isinstance(before, ServerState) or not isinstance(after, ServerState):
        return after
    if (after.w is before.w and after.b is before.b) or len(after.w) != objective.layout.size:
        return after
    if after.b is not before.b and len(after.b) == objective.buffer_layout.size:
        normalized = objective.normalized(after.w, after.b)
        after = after if normalized is after.b else after.replace(b=normalized)
    if not isinstance(objective, Frozen):
        return after
    w, b = after.w.clone(), after.b.clone()
    pairs = [(objective.constants(w), objective.constants(before.w))]
    pairs.append((objective.constant_statistics(b), objective.constant_statistics(before.b)))
    for now, earlier in pairs:
        if now:
            torch._foreach_copy_(now, earlier)
    tables = objective.tables(w)
    if tables:
        gradient_rows = torch.zeros_like(objective.reached_rows) if reached is None else reached.to(objective.device)
        _put_back_(tables, objective.tables(before.w), objective.staying(gradient_rows))
    return after.replace(w=w, b=b)


def _put_back_(tables: list[Tensor], before: list[Tensor], stays: Tensor) -> None:
    for table, old in zip(tables, before, strict=True):
        table.copy_(torch.where(stays[:, None], old, table))

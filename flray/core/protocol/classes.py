"""Classes in use: which places of the head a task reads, and where a label stands among them.

Logits are narrowed to a set of classes, never filled with -inf: a KL divergence of two filled vectors is NaN.
A method that needs two sets narrows the logits of one forward pass twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

import torch
from torch import Tensor

from flray.core.protocol.clock import task_name
from flray.core.schema.errors import ConfigError, DataError, shown


class ClassSet:
    """Some classes of a head with `size` places: `index [c]` (int64) are theirs, in the order of the head.

    The label of a class is its place in the head.
    """

    def __init__(self, places: Iterable[int], size: int, device: torch.device | str = "cpu") -> None:
        """Raises `ConfigError` for a place that a head of `size` does not have."""
        chosen = sorted({int(place) for place in places})
        if chosen and not 0 <= chosen[0] <= chosen[-1] < size:
            raise ConfigError(f"classes in use: places {shown(chosen)} of a head that has 0 to {size - 1}")
        self.size = size
        self.index = torch.tensor(chosen, dtype=torch.int64, device=device)
        self.places = tuple(chosen)  # of `index`, on the host
        self._start = chosen[0] if chosen and chosen[-1] - chosen[0] == len(chosen) - 1 else None
        self._padded = torch.cat([self.index, self.index.new_full((1,), -1)])  # past the last one there is no label

    def __len__(self) -> int:
        return len(self.places)

    def narrow(self, logits: Tensor) -> Tensor:
        """Logits `[B, c]` of these classes out of the whole head's `[B, size]`: a view where the places are neighbours.

        All places are `logits` itself. Raises `ConfigError` where the logits are not those of a head of this size.
        """
        if logits.shape[1] != self.size:
            has = f"the model gives {logits.shape[1]} logits"
            raise ConfigError(f"classes in use: they are places in a head of {self.size}, and {has}")
        if len(self) == self.size:
            return logits
        return logits.index_select(1, self.index) if self._start is None else logits.narrow(1, self._start, len(self))

    def largest(self, logits: Tensor) -> Tensor:
        """The class `[B]` (int64) of these with the largest of the whole head's logits `[B, size]`."""
        return self.index[self.narrow(logits).argmax(dim=1)]

    def local(self, y: Tensor) -> Tensor:
        """Where the labels `y [B]` stand among the narrowed logits, `[B]` (int64); for a whole head `y` itself, unread.

        Raises `DataError` that names a label outside of these classes. On a GPU it is c, past the last class: the loss
        refuses it, and nothing waits for the answer.
        """
        if len(self) == self.size:
            return y
        places = torch.searchsorted(self.index, y)
        outside = (self._padded[places] != y) | (y < 0)
        if y.device.type != "cpu":
            return torch.where(outside, len(self), places)
        if outside.any():
            wrong, known = int(y[outside][0]), shown(list(self.places))
            raise DataError(f"label {wrong} is none of the {len(self)} classes in use: {known}")
        return places

    def has(self, y: Tensor) -> Tensor:
        """Whether each of the labels `y [B]` is one of these classes, bool `[B]`."""
        return torch.isin(y, self.index)


class Classes(ClassSet):
    """The classes of the current task, which a loss reads when nothing else is said, and those of the tasks before it.

    `new` is this set itself, with classes that an earlier task had as well; `old` is all classes of earlier tasks,
    empty in the first one; `seen` is both; `task(t)` is one task's own set.
    """

    def __init__(
        self,
        tasks: Sequence[Iterable[int]],
        size: int,
        device: torch.device | str = "cpu",
        ahead: Sequence[Iterable[int]] = (),
    ) -> None:
        """`tasks`: the head's places of every task up to the current one; `ahead`: those of the later ones, which only
        a test may know.

        Raises `ConfigError` for no task at all, and for a place that a head of `size` does not have.
        """
        if not tasks:
            raise ConfigError("classes in use: no task is given, not even the current one")
        super().__init__(tasks[-1], size, device)
        self._tasks = tuple(ClassSet(places, size, device) for places in (*tasks, *ahead))
        self.old = ClassSet(chain.from_iterable(tasks[:-1]), size, device)
        self.seen = ClassSet(chain.from_iterable(tasks), size, device)
        self._until: dict[int, ClassSet] = {}

    @property
    def new(self) -> ClassSet:
        """The current task's own set."""
        return self

    def of(self, y: Tensor) -> ClassSet:
        """The current task's own set, or all seen where a batch of labels `y [B]` has older ones (exemplars)."""
        return self if bool(self.has(y).all()) else self.seen

    def task(self, task: int) -> ClassSet:
        """The set of task `task`, from 0. Raises `IndexError` for one that has not begun, but in tests."""
        if not 0 <= task < len(self._tasks):
            raise IndexError(f"{task_name(task)} has not begun: there are {len(self._tasks)} so far")
        return self._tasks[task]

    def until(self, task: int) -> ClassSet:
        """The classes of all tasks up to number `task`, from 0. Raises `IndexError` for one that has not begun."""
        if task not in self._until:
            places = chain.from_iterable(self.task(t).places for t in range(task + 1))
            self._until[task] = ClassSet(places, self.size, self.index.device)
        return self._until[task]

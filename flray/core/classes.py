"""Classes in use: which places of the head a task reads, and where a label stands among them.

Logits are narrowed to a set of classes, never filled with -inf: a KL divergence of two filled vectors is NaN.
A method that needs two sets narrows the logits of one forward pass twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from flray.core.errors import ConfigError, DataError, shown


class ClassSet:
    """Some classes of a head with `size` places: `index [c]` (int64) are theirs, in the order of the head.

    A class's label, by which the data name it, is its place, unless a task says otherwise: several heads side by side may
    know the same labels, and one head the labels of several domains.
    """

    def __init__(self, pairs: Iterable[tuple[int, int]], size: int, device: torch.device | str = "cpu") -> None:
        """`pairs` are (place, label). Raises `ConfigError` for a place that a head of `size` does not have."""
        pairs = sorted(set(pairs))
        places = sorted({place for place, _ in pairs})
        if places and not 0 <= places[0] <= places[-1] < size:
            raise ConfigError(f"classes in use: places {shown(places)} of a head that has 0 to {size - 1}")
        self.size = size
        self.index = torch.tensor(places, dtype=torch.int64, device=device)
        self._start = places[0] if places and places[-1] - places[0] == len(places) - 1 else None
        where = {place: i for i, place in enumerate(places)}
        known = sorted((label, where[place]) for place, label in pairs)
        self._plain = known == [(i, i) for i in range(size)]
        self._twice = next((label for (label, _), (after, _) in pairwise(known) if label == after), None)
        known.append((torch.iinfo(torch.int64).min, -1))  # no label: what is past the last one
        table = torch.tensor(known, dtype=torch.int64, device=device)
        self._labels, self._local = table[:, 0].contiguous(), table[:, 1].contiguous()

    def __len__(self) -> int:
        """How many classes these are, c."""
        return len(self.index)

    def narrow(self, logits: Tensor) -> Tensor:
        """Logits `[B, c]` of these classes out of the whole head's `[B, size]`: a view where the places are neighbours.

        All places are `logits` itself. Raises `ConfigError` where the logits are not those of a head of this size.
        """
        if logits.shape[1] != self.size:
            raise ConfigError(f"classes in use: they are places in a head of {self.size}, and the model gives {logits.shape[1]} logits")
        if len(self) == self.size:
            return logits
        return logits.index_select(1, self.index) if self._start is None else logits.narrow(1, self._start, len(self))

    def local(self, y: Tensor) -> Tensor:
        """Where the labels `y [B]` stand among the narrowed logits, `[B]` (int64); of a whole plain head `y` itself, unread.

        Raises `DataError` that names a label outside of these classes, `ConfigError` where a label has two places among them.
        """
        if self._plain:
            return y
        if self._twice is not None:
            raise ConfigError(f"classes in use: label {self._twice} has more than one place among them; use those of one task")
        found = torch.searchsorted(self._labels[:-1], y)
        outside = self._labels[found] != y
        if outside.any():
            wrong, known = int(y[outside][0]), self._labels[:-1].tolist()
            raise DataError(f"label {wrong} is none of the {len(self)} classes in use, whose labels are {shown(known)}")
        return self._local[found]


class Classes(ClassSet):
    """The classes of the current task, which a loss reads when nothing else is said, and those of the tasks before it.

    `new` is this set itself, with classes that an earlier task had as well; `old` is all classes of earlier tasks, empty in
    the first one; `seen` is both; `task(t)` is one task's own set.
    """

    def __init__(
        self,
        tasks: Sequence[Sequence[int]],
        size: int,
        labels: Sequence[Sequence[int]] | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        """`tasks`: the head's places of every task up to the current one; `labels`, likewise: the data's labels of these places.

        Raises `ConfigError` for no task at all, for a place that a head of `size` does not have, and for unequal lists.
        """
        if not tasks:
            raise ConfigError("classes in use: no task is given, not even the current one")
        labels = tasks if labels is None else labels
        if [len(places) for places in tasks] != [len(names) for names in labels]:
            raise ConfigError(f"classes in use: places {shown(tasks)} and labels {shown(labels)} are not one to one")
        pairs = [list(zip(places, names, strict=True)) for places, names in zip(tasks, labels, strict=True)]
        super().__init__(pairs[-1], size, device)
        self._tasks = tuple(ClassSet(own, size, device) for own in pairs)
        self.old = ClassSet([pair for own in pairs[:-1] for pair in own], size, device)
        self.seen = ClassSet([pair for own in pairs for pair in own], size, device)

    @property
    def new(self) -> ClassSet:
        """The current task's own set."""
        return self

    def task(self, task: int) -> ClassSet:
        """The set of task `task`, from 0. Raises `IndexError` for one that has not begun."""
        if not 0 <= task < len(self._tasks):
            raise IndexError(f"task {task} has not begun: there are {len(self._tasks)} so far")
        return self._tasks[task]

"""A network of which a part is frozen: constants to every loss, whatever the algorithm."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from flray.core.messages import ServerState
from flray.core.network_parts import ModuleModes
from flray.core.objective import Objective
from flray.core.point import Model


class Frozen(Objective):
    """An objective whose gradient does not reach the tensors of a part, so that neither it nor weight decay moves them.

    What moves parameters in other ways (control variates, a server's momentum, noise) does not know of it: the engine
    puts these tensors back after every local step (:class:`Held`) and at the server (:func:`unmoved`).
    """

    __slots__ = ("_part", "_statistics")

    def __init__(self, objective: Objective, part: str, statistics: bool = True) -> None:
        """`part` as :meth:`Objective.mask` names it; `statistics`: its batch norms use theirs and leave them alone.

        Raises `ConfigError` where the network has no such part.
        """
        objective.parts.tensors(part)
        self.__dict__ = objective.__dict__  # one network, which is bound to one point at a time: one set of caches
        self._part, self._statistics = part, statistics

    def at(
        self, w: Tensor, b: Tensor, mode: ModuleModes = "eval", grad: bool = False, fixed: str | None = None
    ) -> Model:
        if self._statistics and mode != "eval":
            mode = {**({"all": mode} if isinstance(mode, str) else mode), self._part: "eval"}
        return super().at(w, b, mode, grad, fixed or (self._part if grad else None))

    def constants(self, w: Tensor) -> list[Tensor]:
        """The views of `w [P]` that stay as they are."""
        names = self.parts.tensors(self._part)
        return [entry.view(w) for entry in self.layout.entries if entry.name in names]

    def constant_statistics(self, b: Tensor) -> list[Tensor]:
        """The views of `b [Q]` that do."""
        names = self.parts.statistics(self._part) if self._statistics else ()
        return [entry.view(b) for entry in self.buffer_layout.entries if entry.name in names]


class Held:
    """A client's copies of what is frozen, to be put back after a step."""

    def __init__(self, objective: Objective, point: tuple[Tensor, Tensor] | None) -> None:
        """`point`: `(w [P], b [Q])` before the first step; None, and an objective without a frozen part: nothing is
        held."""
        self._objective = objective if isinstance(objective, Frozen) and point is not None else None
        self._kept = [view.clone() for view in self._constants(point[0])] if point is not None else []

    def __bool__(self) -> bool:
        return bool(self._kept)

    def put_back_(self, w: Tensor) -> None:
        """Writes the copies to `w [P]`."""
        torch._foreach_copy_(self._constants(w.detach()), self._kept)

    def _constants(self, w: Tensor) -> list[Tensor]:
        return [] if self._objective is None else self._objective.constants(w)


def unmoved(objective: Objective, before: Any, after: Any) -> Any:
    """The server's state `after` an exchange, with what is frozen as it was `before`, to the bit."""
    if not isinstance(objective, Frozen) or not isinstance(before, ServerState) or not isinstance(after, ServerState):
        return after
    w, b = after.w.clone(), after.b.clone()
    pairs = [(objective.constants(w), objective.constants(before.w))]
    pairs.append((objective.constant_statistics(b), objective.constant_statistics(before.b)))
    for here, there in pairs:
        if here:
            torch._foreach_copy_(here, there)
    return after.replace(w=w, b=b)

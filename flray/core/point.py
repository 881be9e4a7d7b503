"""A network at one point `(w, b)` of its parameters: what a loss calls for logits, features, levels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from flray.core.errors import ConfigError

if TYPE_CHECKING:
    from flray.core.objective import Objective


class Model:
    """The network at a point `(w, b)`; its tensors are views, so it follows in-place changes of `w` and `b`.

    It is called like the network itself. `leaves` are the views of `w`, one for every tensor, in the layout's order.
    """

    __slots__ = ("_buffers", "_objective", "_train", "leaves")

    def __init__(
        self,
        objective: Objective,
        w: Tensor,
        buffers: Sequence[Tensor],
        train: bool | tuple[bool, ...],
        wanted: Sequence[bool],
    ) -> None:
        """`buffers` are views of the statistics; `train` says whether all modules, or which, are in train mode,
        `wanted` of every tensor whether it will be differentiated by."""
        self._objective, self._train, self._buffers = objective, train, buffers
        flat = w.detach()
        self.leaves = [entry.view(flat) for entry in objective.layout.entries]
        for leaf, flag in zip(self.leaves, wanted, strict=True):
            leaf.requires_grad_(flag)

    def _bind(self) -> nn.Module:
        objective = self._objective
        if objective._bound is not self:
            for (holders, name), leaf in zip(objective._sites, self.leaves, strict=True):
                for holder in holders:
                    holder[name] = leaf
            for (holder, name), buffer in zip(objective._buffer_sites, self._buffers, strict=True):
                holder[name] = buffer
            objective._switch(self._train)
            objective._bound = self
        return objective.module

    def _give(self, called: Callable[..., Any], inputs: Sequence[Tensor]) -> Any:
        if self._objective.precision == "fp32":
            return called(*inputs)
        with torch.autocast(self._objective.device.type, dtype=torch.bfloat16):
            return _single(called(*inputs))

    def __call__(self, *inputs: Tensor) -> Tensor:
        """Logits `[B, C]`, float32, of inputs `x [B, ...]`; of another network what it gives for what it takes."""
        return self._give(self._bind(), inputs)  # type: ignore[no-any-return]

    def together(self, *batches: Tensor) -> tuple[Tensor, ...]:
        """Logits of every batch `x [B_i, ...]`, from one forward pass over all samples.

        For a loss that reads two sets: what is normalised by batch statistics sees them as one batch.
        """
        return torch.split(self(torch.cat(batches)), [len(batch) for batch in batches])

    def run(self, part: str, *inputs: Tensor) -> Any:
        """What a part of the network gives, float32: a submodule or a method by its name, such as `"students.2"`.

        Raises `ConfigError` where the network declares no such part; an error inside it is the network's, and stays
        what it is.
        """
        module = self._bind()
        try:
            found: Callable[..., Any] = reduce(getattr, part.split("."), module)
        except AttributeError:
            raise ConfigError(
                f"model {type(module).__name__} declares no {part}(x), which this algorithm reads"
            ) from None
        return self._give(found, inputs)

    def features(self, x: Tensor) -> Tensor:
        """Representation `z [B, F]` that enters the head. Raises `ConfigError` where the network declares none."""
        return self.run("features", x)  # type: ignore[no-any-return]

    def head(self, z: Tensor) -> Tensor:
        """Logits `[B, C]` of representations `z [B, F]`. Raises `ConfigError` where the network declares no head."""
        return self.run("head", z)  # type: ignore[no-any-return]

    def levels(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """(representations `[B, F_l]` of the network's levels, shallow to deep, before their activation; logits).

        Raises `ConfigError` where the network declares no levels.
        """
        levels, logits = self.run("levels", x)
        return list(levels), logits


def _single(found: Any) -> Any:
    """What a network gave, in single precision: a tensor, or tensors in lists, tuples and dicts."""
    if isinstance(found, Tensor):
        return found.float() if found.is_floating_point() else found
    if isinstance(found, dict):
        return {name: _single(value) for name, value in found.items()}
    return type(found)(map(_single, found)) if type(found) in (list, tuple) else found

"""A network at one point `(w, b)` of its parameters: what a loss calls for logits, features, levels."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from flray.core.errors import ConfigError

if TYPE_CHECKING:
    from flray.core.objective import Objective


class Model:
    """The network at a point `(w, b)`; the tensors are views, so it follows in-place changes of `w` and `b`."""

    __slots__ = ("_buffers", "_objective", "_train", "b", "leaves", "w")

    def __init__(self, objective: Objective, w: Tensor, b: Tensor, train: bool, grad: bool) -> None:
        self._objective, self._train, self.w, self.b = objective, train, w, b
        flat = w.detach()
        self.leaves = [entry.view(flat) for entry in objective.layout.entries]
        if grad:
            for leaf in self.leaves:
                leaf.requires_grad_()
        self._buffers = list(objective.buffer_layout.views(b).values())

    def _bind(self) -> nn.Module:
        objective = self._objective
        if objective._bound is not self:
            for (holders, name), leaf in zip(objective._sites, self.leaves, strict=True):
                for holder in holders:
                    holder[name] = leaf
            for (holder, name), buffer in zip(objective._buffer_sites, self._buffers, strict=True):
                holder[name] = buffer
            if objective._training is not self._train:
                objective.module.train(self._train)
                objective._training = self._train
            objective._bound = self
        return objective.module

    def _declared(self, name: str) -> Callable[[Tensor], Any]:
        """The network's own method or part; an error inside it is the network's, and stays what it is."""
        module = self._bind()
        if not hasattr(module, name):
            raise ConfigError(f"model {type(module).__name__} declares no {name}(x), which this algorithm reads")
        return getattr(module, name)  # type: ignore[no-any-return]

    def __call__(self, x: Tensor) -> Tensor:
        """Logits `[B, C]` of inputs `x [B, ...]`, float32."""
        module = self._bind()
        if self._objective.precision == "fp32":
            return module(x)  # type: ignore[no-any-return]
        with self._objective._autocast():
            return module(x).float()  # type: ignore[no-any-return]

    def features(self, x: Tensor) -> Tensor:
        """Representation `z [B, F]` that enters the head. Raises `ConfigError` where the network declares none."""
        features = self._declared("features")
        with self._objective._autocast():
            return features(x).float()  # type: ignore[no-any-return]

    def head(self, z: Tensor) -> Tensor:
        """Logits `[B, C]` of representations `z [B, F]`. Raises `ConfigError` where the network declares no head."""
        head = self._declared("head")
        with self._objective._autocast():
            return head(z).float()  # type: ignore[no-any-return]

    def levels(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """(one representation `[B, F_l]` per level of the network, shallow to deep, before its activation; logits `[B, C]`).

        Raises `ConfigError` where the network declares no levels.
        """
        levels = self._declared("levels")
        with self._objective._autocast():
            found, logits = levels(x)
        return [level.float() for level in found], logits.float()

"""What of a network lies in its module and not in the flat vectors: constants, which training must not change, and what
a client's work and a test begin with."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor, nn

from flray.core.network.buffers import Buffer, declared_attributes, refusal
from flray.core.schema.errors import ConfigError

Local = Mapping[str, Tensor]  # a client's own buffers, by name


class Constant(NamedTuple):
    """A tensor that training must not change, and its place, `holder[key]`."""

    name: str
    holder: dict[str, Any]
    key: str
    tensor: Tensor
    persistent: bool


class ModuleState:
    """The buffers and frozen parameters of a module that are in no flat vector."""

    def __init__(self, module: nn.Module, buffers: Sequence[Buffer]) -> None:
        self._model = type(module).__name__
        own = [buffer for buffer in buffers if buffer.kind in ("keep", "local")]
        self._own = [(buffer, _current(buffer).detach().clone()) for buffer in own]
        self._attributes = [
            (owner, leaf, copy.deepcopy(vars(owner)[leaf])) for owner, leaf in declared_attributes(module)
        ]
        self._constants = [
            Constant(b.name, *b.sites[0], _current(b), b.persistent) for b in buffers if b.kind == "constant"
        ]
        for place, owner in module.named_modules():
            for leaf, p in owner._parameters.items():
                if p is not None and not p.requires_grad:
                    self._constants.append(Constant(f"{place}.{leaf}".lstrip("."), owner._parameters, leaf, p, True))
        self._versions = self._written()
        self.own_names = (*(b.name for b in own), *(leaf for _, leaf, _ in self._attributes))
        self.local = any(buffer.kind == "local" for buffer in own)  # whether clients have buffers of their own

    def fixed(self) -> dict[str, Tensor]:
        """By name: the constants, and what is kept, as at the start. They are equal in all processes of a run."""
        first = {buffer.name: initial for buffer, initial in self._own}
        return {constant.name: constant.tensor.detach() for constant in self._constants} | first

    def restore(self, local: Local | None = None) -> None:
        """Set what is kept to its initial value, and what is local to a client's own, if it has one."""
        for buffer, initial in self._own:
            value = initial if local is None else local.get(buffer.name, initial)
            _put(buffer, value.to(initial.device, copy=True))
        for owner, leaf, attribute in self._attributes:
            vars(owner)[leaf] = copy.deepcopy(attribute)

    def own(self) -> dict[str, Tensor]:
        """Copies of the local buffers, by name."""
        return {buffer.name: _current(buffer).detach().clone() for buffer, _ in self._own if buffer.kind == "local"}

    @contextmanager
    def preserved(self) -> Iterator[None]:
        """A context after which what is kept or local is as before."""
        before = [(buffer, _current(buffer).detach().clone()) for buffer, _ in self._own]
        attributes = [(owner, leaf, copy.deepcopy(vars(owner).get(leaf))) for owner, leaf, _ in self._attributes]
        try:
            yield
        finally:
            for buffer, value in before:
                _put(buffer, value)
            for owner, leaf, attribute in attributes:
                vars(owner)[leaf] = attribute

    def check(self) -> None:
        """Raises `ConfigError` that names a constant which has been written to or replaced."""
        if self._versions == self._written():
            return
        now = zip(self._constants, self._versions, self._written(), strict=True)
        changed = next(constant for constant, before, after in now if before != after)
        raise ConfigError(constant_changed(self._model, changed.name, changed.tensor, changed.persistent))

    def _written(self) -> list[int | None]:
        """Torch's write counter of every constant; None: another tensor is in its place."""
        return [c.tensor._version if c.holder.get(c.key) is c.tensor else None for c in self._constants]


def constant_changed(model: str, name: str, tensor: Tensor, persistent: bool = True) -> str:
    """The line about a buffer or a frozen parameter that training changes."""
    if not isinstance(tensor, nn.Parameter):
        return refusal(model, name, tensor, persistent)
    return (
        f"model {model}: training changes the frozen parameter {name}, which is not sent, so each process would have "
        "its own; make it a buffer (register_buffer) and name it in model.buffers"
    )


def _current(buffer: Buffer) -> Tensor:
    holder, key = buffer.sites[0]
    tensor: Tensor = holder[key]
    return tensor


def _put(buffer: Buffer, value: Tensor) -> None:
    for holder, key in buffer.sites:
        holder[key] = value

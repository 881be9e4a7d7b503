"""Parts of a network by name (`"head"`, `"body"`, `"early"`, `"all"`, a submodule): their tensors, and modes in which
they run."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from torch import nn

from flray.core.schema.errors import ConfigError, nearest, warn

ModuleMode = Literal["train", "train_frozen", "eval"]
ModuleModes = ModuleMode | Mapping[str, ModuleMode]  # one for the whole network, or one for each part
Flags = bool | tuple[bool, ...]  # one for all, or one each


class NetworkParts:
    """What belongs to a part. The body is all but the head, and undefined where the network declares no head.

    The early part is what the network declares as `early`, names of parameters and submodules; where the network is
    wrapped, or is one of several, those of every submodule that declares them.
    """

    def __init__(self, module: nn.Module, tensors: Iterable[str], statistics: Iterable[str]) -> None:
        """`tensors`, `statistics`: the names of what a flat vector of parameters, and one of statistics, holds."""
        self._module, self._tensors, self._statistics = module, tuple(tensors), tuple(statistics)
        head = getattr(module, "head", None)
        self._head = head if isinstance(head, nn.Module) else None
        inside = {id(p) for p in self._head.parameters()} if self._head is not None else set()
        named = module.named_parameters(remove_duplicate=False)
        self._in_head = {name for name, parameter in named if id(parameter) in inside}
        self._early = [f"{place}.{name}".lstrip(".") for place, part in module.named_modules() for name in _early(part)]
        self._flags: dict[tuple[tuple[str, ModuleMode], ...], tuple[Flags, Flags]] = {}

    @property
    def in_head(self) -> tuple[bool, ...]:
        """Of every tensor, in order, whether it is the head's."""
        return tuple(name in self._in_head for name in self._tensors)

    def tensors(self, part: str) -> set[str]:
        """The tensors of a part. Raises `ConfigError` where it has none."""
        if part in ("head", "body"):
            self._declared_head(part)
            chosen = {name for name in self._tensors if (name in self._in_head) == (part == "head")}
        else:
            chosen = self._inside(part, self._tensors)
        if not chosen:
            raise ConfigError(f"model {type(self._module).__name__} has no trainable part {part!r}")
        return chosen

    def early(self) -> set[str]:
        """The tensors of the early part; none where the network's `early` is None. Raises `ConfigError` where it
        declares none."""
        return set() if getattr(self._module, "early", ()) is None else self.tensors("early")

    def statistics(self, part: str) -> set[str]:
        """The statistics of a part that is neither head nor body; none where it has no norm that keeps any."""
        return self._inside(part, self._statistics)

    def _inside(self, part: str, names: Iterable[str]) -> set[str]:
        places = self._declared_early() if part == "early" else [part]
        inside = tuple(place + "." for place in places)
        return {name for name in names if part == "all" or name in places or name.startswith(inside)}

    def modules(self, part: str) -> list[nn.Module]:
        """The modules of a part. Raises `ConfigError` where the network does not have it."""
        if part in ("head", "body"):
            head = set(self._declared_head(part).modules())
            return [module for module in self._module.modules() if (module in head) == (part == "head")]
        if part == "early":
            places = self._declared_early()
            owners = [self._module.get_submodule(name) for name in places if self._is_module(name)]
            return [module for owner in owners for module in owner.modules()]
        try:
            return list((self._module if part == "all" else self._module.get_submodule(part)).modules())
        except AttributeError:
            raise ConfigError(f"model {type(self._module).__name__} has no part {part!r}") from None

    def flags(self, modes: Mapping[str, ModuleMode]) -> tuple[Flags, Flags]:
        """Of every module whether it is in train mode, and of every statistic whether it is left alone although it is.

        A later entry of `modes` wins; what none of them names is in eval. Raises `ConfigError` as :meth:`modules` does.
        """
        key = tuple(modes.items())
        if key not in self._flags:
            chosen: dict[nn.Module, ModuleMode] = dict.fromkeys(self._module.modules(), "eval")
            for part, mode in key:
                chosen |= dict.fromkeys(self.modules(part), mode)
            owners = (self._module.get_submodule(name.rpartition(".")[0]) for name in self._statistics)
            frozen = tuple(chosen[owner] == "train_frozen" for owner in owners)
            self._flags[key] = tuple(mode != "eval" for mode in chosen.values()), frozen if any(frozen) else False
        return self._flags[key]

    def _declared_early(self) -> list[str]:
        if not self._early:
            name = type(self._module).__name__
            raise ConfigError(f"model {name} declares no `early` layers to freeze; resnet18 and vit do")
        modules, tensors = self._module.named_modules(), self._module.named_parameters(remove_duplicate=False)
        known = [name for name, _ in itertools.chain(modules, tensors, self._module.named_buffers())]
        there = [name for name in self._early if name in known]
        for name in self._early:
            if name not in known:
                alike = [other for other in known if other and other.count(".") == name.count(".")]
                model = type(self._module).__name__
                text = f"model {model}: {name!r} of `early` is no parameter and no submodule{nearest(name, alike)}"
                if not there:
                    raise ConfigError(text)
                warn(f"{text}; it freezes nothing")  # an option may have left the layer out
        self._early = there
        return there

    def _is_module(self, name: str) -> bool:
        """Whether a name is a submodule's, and not a parameter's."""
        owner, _, leaf = name.rpartition(".")
        return leaf in self._module.get_submodule(owner)._modules

    def _declared_head(self, part: str) -> nn.Module:
        if self._head is None:
            name = type(self._module).__name__
            raise ConfigError(f"model {name} declares no `head`: part {part!r} is undefined for it")
        return self._head


def _early(part: nn.Module) -> Iterable[str]:
    """The names that a module declares as `early`; none where it calls something else so, such as a layer."""
    names: Any = getattr(part, "early", None)
    declared = isinstance(names, tuple | list | set | frozenset) and all(isinstance(name, str) for name in names)
    return names if declared else ()

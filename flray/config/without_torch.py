"""`python -m flray.config.without_torch FILE` writes the table of declared fields in a process that never loads torch.

The fields of algorithms, models and probes are plain Python types. Their modules need torch only to be imported, so
this process imports them against empty stand-ins for torch and the other heavy packages. It takes under a second.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

HEAVY = frozenset({"torch", "torchvision", "ray", "scipy", "sklearn", "transformers", "pandas", "pyarrow"})


class _Name(type):
    """The class of a name of a heavy package: used as a type, a decorator, a number or a namespace."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Name(name, (), {})

    def __call__(cls, *arguments: Any, **options: Any) -> Any:
        return arguments[0] if len(arguments) == 1 and callable(arguments[0]) and not options else cls

    def __or__(cls, other: Any) -> Any:
        return cls

    __ror__ = __getitem__ = __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __or__


class Module:
    """`torch.nn.Module`: a plain class, so that the signature of a model is its `__init__`'s."""


class _Package(ModuleType):
    __path__: list[str] = []  # noqa: RUF012

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = Module if name == "Module" else _Name(name, (), {})
        setattr(self, name, value)
        return value


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        heavy = name.partition(".")[0] in HEAVY
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if heavy else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _Package(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


if __name__ == "__main__":
    sys.meta_path.insert(0, _Finder())
    from flray.config.declared import write_table

    write_table(Path(sys.argv[1]))

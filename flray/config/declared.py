"""Configurations are checked without torch, which takes seconds to import: an error in one comes at once.

The fields of algorithms, models and probes are plain Python types. Their modules need torch only to be imported, so
inside :func:`declared_only` the registries import them against empty stand-ins for torch and the other heavy packages.
These imports have their own `sys.modules`: outside of them no module of flray has seen a stand-in.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from flray.aggregations import AGGREGATIONS
from flray.algorithms import ALGORITHMS
from flray.core.schema.registry import Registry, attribute, standing_in
from flray.metrics.probes import PROBES
from flray.models import MODELS

TABLES: tuple[Registry, ...] = (ALGORITHMS, AGGREGATIONS, MODELS, PROBES)
HEAVY = frozenset({"torch", "torchvision", "ray", "scipy", "sklearn", "transformers", "pandas", "pyarrow"})


@contextlib.contextmanager
def declared_only() -> Iterator[bool]:
    """Inside, the registries give flray's own classes as they are imported without torch, to read what they declare.

    Yields whether they do: not if torch is imported already, nor beside another thread, which may import it now and
    would find a stand-in.
    """
    if "torch" in sys.modules or threading.active_count() > 1:
        yield False
        return
    with standing_in(StandIns()):
        yield True


def check_declared(check: Callable[[], object]) -> None:
    """Call `check` without torch, unless it is imported: it raises the error of a wrong configuration at once."""
    with declared_only() as stand_ins:
        if stand_ins:
            check()


class StandIns(Mapping[str, Any]):
    """The classes (of models: functions too) of `TABLES` by `module:name`, imported when they are first asked for."""

    def __init__(self) -> None:
        self._paths = frozenset(path for table in TABLES for path in table.own_paths().values())
        self._found: dict[str, Any] = {}
        self._modules: dict[str, ModuleType] = {}  # what was imported against the stand-ins

    def __getitem__(self, path: str) -> Any:
        if path not in self._paths:
            raise KeyError(path)
        if path not in self._found:
            name, _, kind = path.partition(":")
            try:
                with self._imports():
                    module = importlib.import_module(name)
            except Exception as error:  # it needs more of torch than its names
                raise KeyError(path) from error
            self._found[path] = found = attribute(module, kind)
            found.__about__ = module.__doc__
        return self._found[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)

    @contextlib.contextmanager
    def _imports(self) -> Iterator[None]:
        """In this block the heavy packages are empty. Afterwards `sys.modules` and the packages are as before."""
        before, finder = set(sys.modules), _Finder()
        sys.modules.update(self._modules)
        sys.meta_path.insert(0, finder)
        try:
            yield
        finally:
            sys.meta_path.remove(finder)
            for name in [name for name in sys.modules.keys() - before if name.partition(".")[0] in {"flray", *HEAVY}]:
                self._modules[name] = sys.modules.pop(name)
                package, _, own = name.rpartition(".")
                if package in before:
                    vars(sys.modules[package]).pop(own, None)


class _Name(type):
    """The class of a name of a heavy package: used as a type, a decorator, a number or a namespace."""

    def __getattr__(cls, name: str) -> Any:
        return _empty(name)

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
        setattr(self, name, value := _empty(name))
        return value


def _empty(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return Module if name == "Module" else _Name(name, (), {})


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        heavy = name.partition(".")[0] in HEAVY
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if heavy else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _Package(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass

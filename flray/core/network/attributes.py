"""The state of a network outside of its parameters and buffers: attributes of its modules, what hooks hold, attributes
of its classes, and globals that its methods name."""

from __future__ import annotations

import array
import collections
import functools
import hashlib
import itertools
import math
import random
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel
from torch import Tensor, nn

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
# how a module is made of tensors, modules and modes; what runs from the network itself is looked at elsewhere
OWN = frozenset({*vars(nn.Module()), "buffer_kinds"})
LIBRARIES = ("torch", "torchvision", "transformers", "timm", "peft", "flray", "builtins", "numpy")
DEPTH = 6
PIECES = 20_000  # of a value: a longer one counts by its length and its first ones
# of a digest in brief, which is taken twice around each call of a user's method
BRIEF = 4000  # pieces
LARGE = 2**20  # bytes of tensors and arrays that are read in full
SAMPLED = 2**12  # bytes of each further array that are read
LONG = 500  # entries of a container that are read; of a longer one it is every second, third, ...
REACHED = "state of "


def attributes(module: nn.Module) -> dict[str, str]:
    """A digest of every attribute, hook, class attribute and named global, by its name."""
    found: dict[str, str] = {}
    classes: dict[type, None] = {}
    for place, part in module.named_modules():
        prefix = f"{place}." if place else ""
        for name, value in vars(part).items():
            if name not in OWN:
                found[f"{prefix}{name}"] = digest(value)
        for hooks in HOOKS:
            for number, hook in enumerate(vars(part).get(hooks, {}).values()):
                found[f"{prefix}{hooks}[{number}]"] = digest(hook)
        classes.update(dict.fromkeys(type(part).__mro__))
    for kind in classes:
        if kind.__module__.partition(".")[0] not in LIBRARIES:
            for name, value in _of_class(kind):
                found[f"{kind.__name__}: {name}"] = digest(value)
    return found


def digest(value: Any, brief: bool = False) -> str:
    """The type and the digest of a value: its numbers, texts, tensors, generators, containers, and attributes of plain
    objects.

    Of a value with more pieces than `PIECES` those nearest to its surface count.

    `brief`: a digest for comparisons in this process, in a few milliseconds, of `BRIEF` pieces. After `LARGE` bytes
    of tensors and arrays a tensor counts by its counter of writes, and a NumPy array, which has none, by values at
    fixed random places, so that a write into few others is not seen; a longer container than `LONG` counts by its
    length and a sample. An object that is not the user's own counts by its type and identity: it may have locks and
    caches.
    """
    hasher = hashlib.blake2b(digest_size=16)
    for piece in itertools.islice(_pieces(value, _Read(brief)), BRIEF if brief else PIECES):
        hasher.update(piece)
        hasher.update(b"\0")
    return f"{type(value).__name__} {hasher.hexdigest()}"


def content(tensor: Tensor) -> Tensor:
    """The bytes of a tensor's values, `[bytes]` uint8 on the CPU; its own memory where that holds them in order. A view
    that is conjugated or negated when it is read (`z.conj()`) has none in its memory."""
    return tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1).view(torch.uint8)


def _of_class(kind: type) -> Iterator[tuple[str, Any]]:
    """(name, value) of a class's attributes, and of globals and closures that its methods name, if they are data."""
    for name, value in vars(kind).items():
        function = getattr(value, "__func__", value)
        if isinstance(function, types.FunctionType):
            yield from _of_function(function, {kind}, further=name != "__init__")
        elif not name.startswith("__") and is_data(value):
            yield f"class attribute {name}", value


def _of_function(function: types.FunctionType, seen: set[Any], further: bool = True) -> Iterator[tuple[str, Any]]:
    """(name, value) of the data that a function of the user's own reads: globals, closures, its own attributes, and
    (`further`) what the functions, classes and modules have that it names; the names of these have `REACHED`."""
    seen.add(function)
    names = dict.fromkeys(_names(function.__code__))
    read = {f"global {name}": function.__globals__[name] for name in names if name in function.__globals__}
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    read |= {f"closure {name}": _content(cell) for name, cell in cells}
    read |= {f"{REACHED}{function.__name__}.{name}": value for name, value in vars(function).items()}
    places = list(read.values()) if further else []
    for module in [value for value in places if isinstance(value, types.ModuleType) and _own(value.__name__)]:
        read |= {f"{REACHED}{module.__name__}.{name}": vars(module)[name] for name in names if name in vars(module)}
    for name, value in read.items():
        if is_data(value):
            yield name, value
        elif not further:
            continue
        elif isinstance(value, types.FunctionType) and value not in seen and _own(value.__module__):
            yield from ((f"{REACHED}{name.removeprefix(REACHED)}", data) for name, data in _of_function(value, seen))
        elif isinstance(value, type) and value not in seen and _own(value.__module__):
            seen.add(value)
            plain = ((leaf, data) for leaf, data in vars(value).items() if not leaf.startswith("__"))
            yield from ((f"{REACHED}{value.__name__}.{leaf}", data) for leaf, data in plain if is_data(data))


def is_reached(name: str) -> bool:
    """Whether a name of :func:`attributes` is of data in a helper of the network, which may count or time what nobody
    reads."""
    return f": {REACHED}" in name


def _own(module: str | None) -> bool:
    """Whether a module of this name is neither a library's nor Python's."""
    if module == "__main__":  # the classes of the user's script, also in a worker, whose own program is Ray's
        return True
    top = (module or "builtins").partition(".")[0]
    place = getattr(sys.modules.get(module or ""), "__file__", None) or ""
    return top not in LIBRARIES and top not in sys.stdlib_module_names and "site-packages" not in place


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def is_data(value: Any) -> bool:
    """Whether a value is a number, a text, a container, a tensor, or a generator of draws."""
    containers = (list, tuple, set, dict, collections.deque, collections.UserDict, bytearray, array.array)
    plain = (int, float, complex, str, bytes, *containers, Tensor, np.ndarray)
    drawn = (np.random.Generator, np.random.RandomState, torch.Generator, random.Random, itertools.count)
    return isinstance(value, (*plain, *drawn, types.SimpleNamespace)) and value is not np.random.mtrand._rand


def is_plain(value: Any) -> bool:
    """Whether a value is an object of the user's own classes alone, or a model of pydantic: what it holds, it holds in
    its attributes. Others may have locks, files and caches."""
    kind: Any = type(value)
    return _is_plain(kind) and not is_data(value) and not isinstance(value, type)


@functools.lru_cache(maxsize=1024)
def _is_plain(kind: type) -> bool:
    bases = [base for base in kind.__mro__ if base.__module__ not in ("builtins", "abc", "typing")]
    return issubclass(kind, BaseModel) or (bool(bases) and all(_own(base.__module__) for base in bases))


def attributes_of(value: Any) -> dict[str, Any]:
    """The attributes of an object of the user's own class, by name: fields, private ones and slots."""
    if isinstance(value, BaseModel):
        return {**vars(value), **(value.__pydantic_private__ or {})}
    state = object.__getstate__(value)  # with slots it is a pair
    fields, slots = state if isinstance(state, tuple) else (state, None)
    return {**(fields or {}), **(slots or {})}


@functools.lru_cache(maxsize=1024)
def computed_once(kind: type) -> frozenset[str]:
    """The names of what a class computes at the first reading and stores under its own name in the object, as
    `functools.cached_property` does: descriptors that a stored value hides."""
    every = {name: value for base in reversed(kind.__mro__) for name, value in vars(base).items()}
    callables = (classmethod, functools.partialmethod, functools.singledispatchmethod)
    read = {n: type(v) for n, v in every.items() if not callable(v) and not isinstance(v, callables)}
    return frozenset(n for n, of in read.items() if hasattr(of, "__get__") and not hasattr(of, "__set__"))


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


def _is_read(value: Any) -> bool:
    """Whether a digest in brief reads what an object holds."""
    if isinstance(value, types.FunctionType):
        return _own(value.__module__)
    around = (frozenset, types.MappingProxyType, types.MethodType, functools.partial)
    return is_data(value) or is_plain(value) or isinstance(value, around)


class _Read:
    """What one digest has read."""

    def __init__(self, brief: bool) -> None:
        self.brief = brief
        self.objects: dict[int, Any] = {}  # by id, which is another one's when an object is gone
        self.budget = float(LARGE) if brief else math.inf  # bytes of tensors and arrays that are still read in full

    def limit(self, size: int) -> int | None:
        """None: `size` bytes are read in full; else how many of them."""
        limit = max(self.budget, SAMPLED)
        self.budget -= size
        return None if size <= limit else int(limit)


def _pieces(value: Any, read: _Read) -> Iterator[bytes]:
    """The bytes that tell a value from others, breadth first. An object that is met again, or lies deeper than `DEPTH`,
    counts by its type."""
    waiting = collections.deque([(value, DEPTH)])
    while waiting:
        value, depth = waiting.popleft()
        for piece in _here(value, depth, read):
            if isinstance(piece, bytes):
                yield piece
            else:
                waiting.extend((part, depth - 1) for part in piece)


def _here(value: Any, depth: int, read: _Read) -> Iterator[bytes | list[Any]]:
    """The bytes of a value itself, and what it holds."""
    if read.brief and type(value) in (str, bytes) and len(value) > SAMPLED:
        yield str(hash(value)).encode()  # Python keeps it with the text
        return
    if value is None or isinstance(value, int | float | complex | str | bytes | np.generic | itertools.count):
        yield repr(value).encode()
        return
    if isinstance(value, types.FunctionType):  # of a compiled one: what else it holds is torch's
        value = vars(value).get("_torchdynamo_orig_callable", value)
    yield type(value).__qualname__.encode()
    if isinstance(value, nn.Module | nn.Parameter) or depth == 0 or id(value) in read.objects:
        return
    read.objects[id(value)] = value
    if read.brief and not _is_read(value):
        yield str(id(value)).encode()
    elif isinstance(value, Tensor):
        yield from _tensor(value, read)
    elif isinstance(value, np.ndarray):
        yield from _array(value, read)
    elif isinstance(value, bytearray | array.array):
        yield from _array(np.frombuffer(value, np.uint8), read)
    elif isinstance(value, np.random.Generator):
        yield repr(value.bit_generator.state).encode()
    elif isinstance(value, np.random.RandomState):
        yield repr(value.get_state()).encode()
    elif isinstance(value, torch.Generator):
        yield value.get_state().numpy().tobytes()
    elif isinstance(value, random.Random):
        yield repr(value.getstate()).encode()
    else:
        size, parts = _parts(value, read.brief)
        yield str(size).encode()  # of a long one the first pieces count
        yield parts


def _tensor(value: Tensor, read: _Read) -> Iterator[bytes]:
    yield f"{value.dtype}{tuple(value.shape)}".encode()
    if value.layout != torch.strided or value.is_meta:
        return
    if value.is_inference():  # it has no counter of writes
        yield from _array(content(value).numpy(), read)
    elif read.limit(value.nbytes) is None:
        yield content(value).numpy().tobytes()
    else:
        yield str(value._version).encode()


def _array(value: np.ndarray, read: _Read) -> Iterator[bytes]:
    yield f"{value.dtype}{value.shape}".encode()
    limit = read.limit(value.nbytes)
    if value.dtype == object:
        yield repr(value).encode()
    elif limit is None:
        yield value.tobytes()
    else:
        places = np.random.default_rng(0).integers(value.size, size=limit // value.itemsize)
        values = value.reshape(-1) if value.flags.c_contiguous else value.flat  # the slower one makes no copy
        yield values[places].tobytes()


def sample(values: Iterable[Any], size: int, most: int | None) -> list[Any]:
    """Of `size` values about `most`, evenly spaced, and the first ones of a set, which has no order; None: all."""
    if isinstance(values, set | frozenset):
        return list(itertools.islice(values, most))
    return list(itertools.islice(values, 0, None, 1 if most is None else max(size // most, 1)))


def _parts(value: Any, brief: bool) -> tuple[int, list[Any]]:
    """(number, what is read) of what an object holds; in `brief` a :func:`sample` of a container's entries."""
    most = LONG if brief else None
    if isinstance(value, Mapping):
        keys, values = sample(value, len(value), most), sample(value.values(), len(value), most)
        entries = [part for pair in zip(keys, values, strict=True) for part in pair]
    elif isinstance(value, list | tuple | collections.deque):
        entries = sample(value, len(value), most)
    elif isinstance(value, set | frozenset):
        entries = sorted(sample(value, len(value), most), key=repr)
    else:
        parts = _members(value, brief)
        return len(parts), parts
    own = _own(type(value).__module__)  # a container with attributes
    return len(value), [*entries, *(_members(value, brief) if own else ())]


def _members(value: Any, brief: bool) -> list[Any]:
    """What a function or an object holds; in `brief` without what is computed once, which may appear."""
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, types.MethodType):
        return [value.__self__, value.__func__]
    if isinstance(value, types.FunctionType):
        return [_content(cell) for cell in value.__closure__ or ()]
    if isinstance(value, type | types.ModuleType | types.BuiltinFunctionType):
        return []
    if not isinstance(value, BaseModel) and not _own(type(value).__module__):
        return list(getattr(value, "__dict__", {}).values())
    kind: Any = type(value)
    once = computed_once(kind) if brief else ()
    return [part for name, part in attributes_of(value).items() if name not in once]

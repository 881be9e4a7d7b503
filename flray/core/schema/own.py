"""Functions and classes of a user's own: how they are called, and which methods of a class flray will call.

An error names the function, its file and line, and what to write. Importing this file imports no torch.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import inspect
import re
import sys
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType
from typing import Any

from flray.core.schema.errors import (
    ConfigError,
    FlrayError,
    OwnCodeError,
    gpu_is_full,
    kind_of,
    named,
    place,
    shown,
    traced,
    warn,
)

HOME = "flray."
# methods of other frameworks, and what they are called here where the base has a method of that name
ELSEWHERE = {
    "on_round_begin": "broadcast",
    "on_round_start": "broadcast",
    "on_round_end": "aggregate",
    "on_task_begin": "next_exchange",
    "on_task_end": "next_exchange",
    "configure_fit": "broadcast",
    "server_update": "aggregate",
    "client_update": "gradient",
    "local_train": "gradient",
    "local_update": "gradient",
    "fit": "gradient",
    "train": "gradient",
    "compute_loss": "gradient",
    "on_step_end": "observe",
    "on_train_end": "observe",
    "measure": "observe",
    "drop": "gone",
    "missing": "gone",
}
FILLERS = {
    "on",
    "do",
    "run",
    "my",
    "own",
    "new",
    "get",
    "compute",
    "local",
    "client",
    "clients",
    "server",
    "global",
    "",
}
TYPO, CLOSE = 0.9, 0.8  # ratios of `difflib.SequenceMatcher`: a typing error, and a similar name


# calls ------------------------------------------------------------------------------------------
def returned(function: Callable[..., Any], result: Any, wanted: str) -> str:
    """The error of a function that returned `result` in place of what is `wanted`, in words."""
    return f"{named(function)} returned {kind_of(result)}; {wanted}"


def call_own(what: str, function: Callable[..., Any], form: str, *arguments: Any) -> Any:
    """Call a registered function; `what` it is, and its `form` as one writes it: `"def f(labels, group)"`.

    Raises `ConfigError` if it cannot take the arguments, `OwnCodeError` with its place and traceback if it fails.
    """
    problem = _unfit(function, len(arguments))
    if problem:
        raise ConfigError(f"{what}: {named(function)} {problem}; write {form}")
    with errors_of_own(f"{what}: {named(function)}"):
        return function(*arguments)


class OwnOptions(UserDict[str, Any]):
    """The section `options` as a function of the user's own gets it: it knows which of them were read."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.read: dict[str, None] = {}
        super().__init__(options)

    def __getitem__(self, key: str) -> Any:
        self.read[str(key)] = None
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self.read[str(key)] = None
        return super().__contains__(key)

    def warn_of_unread(self, section: str, function: Callable[..., Any]) -> None:
        """Warn of those that `function` has not read: a spelling mistake, or what another option switches off."""
        if unread := [key for key in self.data if key not in self.read]:
            reads = f"; it reads {', '.join(self.read)}" if self.read else ""
            warn(f"{section}.{unread[0]}: {named(function)} has not read it{reads}", UserWarning)


_results: dict[str, str] = {}


def is_other_result(given: str, result: str) -> bool:
    """Whether the last call in this process had another `result`, a checksum, for what was `given`; it is kept."""
    before, _results[given] = _results.get(given, result), result
    return before != result


@contextlib.contextmanager
def errors_of_own(what: str, when: str = "") -> Iterator[None]:
    """A context around a call of a user's own code. Raises `OwnCodeError`: `what` failed `when` (in words), its error,
    and its traceback; errors of flray's own classes pass."""
    try:
        yield
    except FlrayError:
        raise
    except Exception as error:
        if gpu_is_full(error):  # no fault of theirs: the client may be tried again
            raise
        raise OwnCodeError(f"{what} failed{when}: {traced(error)}") from None


def _unfit(function: Callable[..., Any], count: int) -> str:
    """In words, why a function cannot be called with `count` arguments; "": it can, or has no signature."""
    if not callable(function):
        return f"is {kind_of(function)}, no function"
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):
        return ""
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return f"takes {_listed(signature)}, and is called with {count} arguments"
    return ""


def _listed(signature: inspect.Signature) -> str:
    return f"({', '.join(str(p).partition(':')[0].partition('=')[0] for p in signature.parameters.values())})"


def check_results(kind: type, problems: Mapping[str, Callable[..., str]]) -> None:
    """Wrap the methods that the user's class `kind` defines: they raise `OwnCodeError` for a wrong return value.

    `problems`: by method a function of the returned value and the arguments that says in words what must be returned;
    "": the value is right.
    """
    for name, problem in problems.items():
        method = vars(kind).get(name)
        if inspect.isfunction(method) and not kind.__module__.startswith(HOME):
            setattr(kind, name, _with_result(method, f"{kind.__name__}.{name}{place(method)}", problem))


def _with_result(method: Callable[..., Any], label: str, problem: Callable[..., str]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: Any, *arguments: Any) -> Any:
        with errors_of_own(label):
            result = method(self, *arguments)
        if wanted := problem(result, *arguments):
            raise OwnCodeError(f"{label} returned {shown(result) if result is not None else kind_of(result)}; {wanted}")
        return result

    return call


# methods of a class -----------------------------------------------------------------------------
@functools.cache  # an error is none of a cache's values: it is raised again
def check_hooks(kind: type) -> None:
    """Checks the methods that the user's class `kind`, or one of its own bases, defines against those of flray's
    classes that it inherits from.

    Raises `ConfigError` for a method with the arguments of none, for a value or a property in the place of a method
    (and the other way round), for a method or a property in the place of an inherited option, and for a misspelt one:
    its name is close to that of a method which the class does not define, and no function of the modules of these
    classes reads it.
    """
    own = [parent for parent in kind.__mro__ if parent is not object and not parent.__module__.startswith(HOME)]
    for parent in own:
        hooks, fields = _hooks(parent), getattr(parent, "model_fields", {})
        for name, hook in hooks.items():
            if name in vars(parent) or name in fields:
                _check_hook(parent, name, hook)
        _check_options(parent, fields)
        for name, value in list(vars(parent).items()):
            if name in hooks or name.startswith(("_", "model_")) or not (_is_part(value) or _is_plain(value)):
                continue
            left = [hook for hook, of in hooks.items() if hook not in vars(parent) and _is_part(value) == _is_part(of)]
            meant = _meant(name, left)
            if meant is not None and name not in _read_names(own, value):
                raise ConfigError(
                    f"{_label(parent, name, value)}: flray reads nothing of this name; did you mean {meant!r}? Rename "
                    f"it, or write _{name} if it is a helper of yours"
                )


def _check_options(kind: type, fields: Mapping[str, Any]) -> None:
    """Raises `ConfigError` for a method or a property with the name of an inherited option: pydantic makes it the
    option's default."""
    inherited = [getattr(base, "model_fields", {}) for base in kind.__mro__[1:]]
    for name, info in fields.items():
        defaults = [options[name].default for options in inherited if name in options]
        new = name not in vars(kind).get("__annotations__", ()) and all(info.default is not one for one in defaults)
        if defaults and new and (_is_part(info.default) or isinstance(info.default, functools.cached_property)):
            raise ConfigError(
                f"{_label(kind, name, info.default)}: {name} is an option that the class inherits; write {name}: TYPE "
                "= hp(VALUE, doc=...) for another default, or give this another name"
            )


def _hooks(kind: type) -> dict[str, Any]:
    """The public methods, properties and class variables of the classes of flray's that `kind` inherits from; None for
    a variable without a value."""
    found: dict[str, Any] = {}
    for parent in kind.__mro__[1:]:
        if parent.__module__.startswith(HOME):
            fields = getattr(parent, "model_fields", {})
            for name in (*vars(parent), *sorted(getattr(parent, "__class_vars__", ()))):
                if not name.startswith(("_", "model_")) and name not in fields:
                    found.setdefault(name, vars(parent).get(name))
    return found


def _check_hook(kind: type, name: str, hook: Any) -> None:
    """Raises `ConfigError` unless the class's `name` is of the same sort as flray's `hook` and takes its arguments."""
    value = vars(kind).get(name)
    label = _label(kind, name, value)
    if name in getattr(kind, "model_fields", {}):
        raise ConfigError(f"{label}: a hyper-parameter has the name of flray's {name}; give it another name")
    if isinstance(hook, property):
        if _is_method(value):
            raise ConfigError(f"{label}: {name} is a property, no method; write @property above it")
        return
    if not _is_method(hook):
        if _is_method(value):
            raise ConfigError(f"{label}: {name} is a class variable; write {name}: ClassVar[...] = VALUE")
        return
    bound = value.__get__(None, kind) if isinstance(value, staticmethod | classmethod) else value
    if not callable(bound):
        raise ConfigError(f"{label}: {name} is a method, not {kind_of(value)}; write def {_form(name, hook)}")
    if inspect.iscoroutinefunction(inspect.unwrap(bound)):
        raise ConfigError(f"{label}: {name} is called, not awaited; write def in place of async def")
    own_self = not isinstance(value, staticmethod | classmethod)
    count = len(_positional(hook)) - (not own_self)
    problem = _unfit(bound, count)
    if problem:
        raise ConfigError(f"{label} {problem.partition(', and')[0]}; write def {_form(name, hook)}")


def _is_method(value: Any) -> bool:
    return inspect.isfunction(value) or isinstance(value, staticmethod | classmethod)


def _positional(hook: Any) -> list[str]:
    """The names of the arguments that flray gives a method by their places, with `self`."""
    function = hook.__func__ if isinstance(hook, staticmethod | classmethod) else hook
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD and p.default is p.empty]


def _form(name: str, hook: Any) -> str:
    return f"{name}({', '.join(_positional(hook))})"


def _label(kind: type, name: str, value: Any) -> str:
    function = getattr(value, "__func__", getattr(value, "fget", value))
    where = place(function) if callable(function) else f" ({kind.__module__})"
    return f"{kind.__name__}.{name}{where}"


def _is_part(value: Any) -> bool:
    return _is_method(value) or isinstance(value, property)


def _is_plain(value: Any) -> bool:
    return isinstance(value, bool | str | frozenset | set | tuple | list)


def _meant(name: str, hooks: list[str]) -> str | None:
    """The method that a name seems to mean; None: no one."""
    if ELSEWHERE.get(name) in hooks:
        return ELSEWHERE[name]
    bare = _bare(name)
    same = [hook for hook in hooks if bare and _bare(hook) == bare]
    typo, close = (difflib.get_close_matches(name, hooks, n=1, cutoff=ratio) for ratio in (TYPO, CLOSE))
    return next(iter(typo or same or close), None)


def _bare(name: str) -> frozenset[str]:
    """The words of a name without those that say only who or when."""
    return frozenset(re.split(r"_+", name.lower())) - FILLERS


def _read_names(own: Sequence[type], but: Any) -> set[str]:
    """The names and texts in the code of a user's classes and of their modules, except in the method `but`."""
    homes = [vars(sys.modules[kind.__module__]) for kind in own if kind.__module__ in sys.modules]
    classes = [value for home in homes for value in home.values() if isinstance(value, type)]
    values = [value for home in homes for value in home.values() if inspect.isfunction(value)]
    for owner in {*own, *classes}:
        values += [value for value in vars(owner).values() if value is not but]
    read: set[str] = set()
    for value in values:
        function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        code = getattr(inspect.unwrap(function) if callable(function) else function, "__code__", None)
        read |= _names(code) if isinstance(code, CodeType) else set()
    return read


def _names(code: CodeType) -> set[str]:
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    texts = {constant for constant in code.co_consts if isinstance(constant, str)}
    return set(code.co_names) | texts | {name for part in inner for name in _names(part)}


def computed(code: CodeType) -> tuple[Any, ...]:
    """What a code object computes, without the lines where it is written."""
    constants = [computed(one) if isinstance(one, CodeType) else (type(one), str(one)) for one in code.co_consts]
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    names = (code.co_name, code.co_names, code.co_varnames, code.co_freevars)
    return (*counts, *names, code.co_code, getattr(code, "co_exceptiontable", b""), *constants)

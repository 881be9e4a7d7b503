"""Plain values of a YAML document or a mapping: mappings with text keys, lists, text, numbers, true, false and null.

Anything else in YAML is an error with its line: a repeated key, a tag (`!!timestamp`), aliases that multiply, nesting
without end. A date is text.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import os
import re
import sys
from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, ValuesView
from typing import TYPE_CHECKING, Any

import yaml

from flray.core.schema.errors import ConfigError, described, kind_of, shown, single_line

LONGEST = 2**20  # bytes of a document; the longest configuration of the repository has 5,000
DEPTH = 50  # of nesting; a configuration has six levels, and deep nesting overflows the stack of libyaml
REPEATED = 100_000  # values that aliases may add to those that were written
MERGE = "tag:yaml.org,2002:merge"
_NO_SPACE = re.compile(r"\s*(?:- )?([A-Za-z_][\w.]*):(?=[^\s:/\\])")  # `name:dirichlet` at the start of a line


if TYPE_CHECKING:
    from yaml import SafeDumper as BaseDumper, SafeLoader as BaseLoader
else:  # five to ten times as fast where libyaml is built in
    BaseLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    BaseDumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class _Loader(BaseLoader):
    """YAML 1.1 as PyYAML reads it, without dates, octal (`010`) and sexagesimal (`1:30`) numbers: these are text."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012  an attribute of the base


class Unquoted(str):
    """A number of YAML 1.2 that is none in YAML 1.1, as written: `1e-1`, `12e4`. A field of texts has the text, one of
    floats parses it, and :func:`numbers` makes it a number where a field has no type."""

    __slots__ = ()


_EXPONENT = re.compile(r"[-+]?(\.[0-9][0-9_]*|[0-9][0-9_]*(\.[0-9_]*)?)[eE][-+]?[0-9]+")
UNQUOTED = "tag:flray,2026:number"

for _kind, _first, _pattern in (
    ("merge", "<", r"<<"),
    ("null", "~nN\0", r"~|null|Null|NULL|"),
    ("bool", "yYnNtTfFoO", r"yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF"),
    ("int", "-+0123456789", r"[-+]?(0|[1-9][0-9_]*|0x[0-9a-fA-F][0-9a-fA-F_]*)"),
    (
        "float",
        "-+.0123456789",
        r"[-+]?([0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)([eE][-+][0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
    ),
):
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_kind}", re.compile(f"^({_pattern})$"), [c.strip("\0") for c in _first]
    )
_Loader.add_implicit_resolver(UNQUOTED, re.compile(f"^({_EXPONENT.pattern})$"), [*"-+.0123456789"])
_Loader.add_constructor(UNQUOTED, lambda _, node: Unquoted(node.value))


def numbers(value: Any) -> Any:
    """A plain value with floats in place of the :class:`Unquoted` numbers in it; one above all floats stays text."""
    if isinstance(value, Mapping):
        return {key: numbers(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(numbers, value))
    if not isinstance(value, Unquoted):
        return value
    return number if math.isfinite(number := float(value.replace("_", ""))) else str(value)


def read(text: str, where: str) -> Any:
    """The plain value of a YAML document.

    Raises `ConfigError` that names `where` and, in a text of several lines, the line.
    """
    if len(text) > LONGEST:
        raise ConfigError(f"{where}: {len(text):,} characters, more than the {LONGEST:,} that are read as YAML")
    plain(text, where)
    many = "\n" in text

    def wrong(node: Any, what: str) -> ConfigError:
        return ConfigError(f"{where}{f', line {node.start_mark.line + 1}' if many else ''}: {what}")

    try:
        depth = 0
        for event in yaml.parse(text, Loader=_Loader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > DEPTH:
                raise wrong(event, f"more than {DEPTH} levels of nesting")
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            _Check(loader, wrong)(node)
            return plain(loader.construct_document(node), where)
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
        line = f", line {mark.line + 1}" if mark is not None and many else ""
        remedy = "quote a value with special characters" if mark is None else _remedy(text.splitlines(), mark.line)
        raise ConfigError(f"{where}{line}: not valid YAML: {single_line(str(problem))}; {remedy}") from None
    except ValueError:  # Python reads no integer of thousands of digits
        raise ConfigError(f"{where}: an integer of more than 64 bits") from None


def _remedy(lines: list[str], at: int) -> str:
    """What to write in place of what YAML refuses at a line."""
    near = lines[max(at - 1, 0) : at + 1]
    if any("\t" in line[: len(line) - len(line.lstrip())] for line in near):
        return "indent with spaces, not with a tab"
    keys = [found[1] for line in near if (found := _NO_SPACE.match(line))]
    return f"write a space after the colon: {keys[0]}: VALUE" if keys else "quote a value with special characters"


def words(values: Any) -> Iterator[str]:
    """The texts in plain values, at any depth."""
    if isinstance(values, str):
        yield values
    elif isinstance(values, dict | list | tuple):
        for value in values.values() if isinstance(values, dict) else values:
            yield from words(value)


def document(value: Any) -> str:
    """A plain value as a YAML document of several lines, mappings in their order: the inverse of :func:`read`."""
    text: str = yaml.dump(value, Dumper=_Document, sort_keys=False)
    return text


def written(value: Any) -> str:
    """A plain value as YAML in one line, `[{name: topk, fraction: 0.01}, [a, b]]`: the inverse of :func:`read`."""
    text: str = yaml.dump(
        [value], default_flow_style=True, width=sys.maxsize, allow_unicode=True, sort_keys=False, Dumper=_Dumper
    )
    return text.strip()[1:-1]


class _Dumper(yaml.SafeDumper):
    """Writes no anchors, and text with ends of lines in double quotes."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_str(self, data: str) -> Any:
        return self.represent_scalar(TEXT, str(data), '"' if _BREAKS.search(data) else _style(data))


class _Document(BaseDumper):
    """Writes text that is a number of YAML 1.2 in quotes."""

    def represent_str(self, data: str) -> Any:
        return self.represent_scalar(TEXT, str(data), _style(data))


def _style(data: str) -> str | None:
    """The quotes of a text; None: those that PyYAML chooses."""
    return "'" if type(data) is str and _EXPONENT.fullmatch(data) else None


TEXT = "tag:yaml.org,2002:str"
_BREAKS = re.compile(r"[\n\r\x85\u2028\u2029]")
for _type in (str, Unquoted):
    _Dumper.add_representer(_type, _Dumper.represent_str)
    _Document.add_representer(_type, _Document.represent_str)


class _Check:
    """Walks the nodes of one document, each once, and counts the values that it would have without aliases."""

    def __init__(self, loader: Any, wrong: Any) -> None:
        self.loader, self.wrong = loader, wrong
        self.sizes: dict[int, int] = {}  # by node: values in it; 0 while it is walked

    def __call__(self, root: Any) -> None:
        size = self.walk(root)
        if size > len(self.sizes) + REPEATED:
            raise self.wrong(root, f"its aliases multiply to {size:,} values; write out what is needed")

    def walk(self, node: Any) -> int:
        known = self.sizes.get(id(node))
        if known is not None:
            if not known:
                raise self.wrong(node, "an alias inside the value that it stands for")
            return known
        self.sizes[id(node)] = 0
        kind = node.tag.removeprefix("tag:yaml.org,2002:")
        inside: list[int] = []
        if isinstance(node, yaml.MappingNode):
            usual = kind == "map"
            self.keys(node)
            inside = [self.walk(value) for _, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            usual = kind == "seq"
            inside = [self.walk(value) for value in node.value]
        else:
            usual = kind == "str" or node.tag == self.loader.resolve(yaml.ScalarNode, node.value, (True, False))
        if not usual:
            raise self.wrong(node, f"the tag {shown(kind)} is not read here; write the plain value")
        self.sizes[id(node)] = 1 + sum(inside)
        return self.sizes[id(node)]

    def keys(self, node: Any) -> None:
        """Keys are text as written (`on` is no truth value), and each stands once."""
        first: dict[str, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise self.wrong(key, "a key that is a list or a mapping; keys are words")
            if key.tag != MERGE:
                key.tag = "tag:yaml.org,2002:str"
            if key.value in first:
                again = f" (first in line {first[key.value]})" if first[key.value] != key.start_mark.line + 1 else ""
                raise self.wrong(key, f"the key {shown(key.value)} stands twice{again}; keep one")
            first[key.value] = key.start_mark.line + 1


def plain(value: Any, where: str, *path: str) -> Any:
    """A copy of a value whose mappings are dicts; paths are text, dataclasses mappings; arrays, ranges and the keys or
    values of a mapping are lists.

    Numbers of NumPy and torch are Python's. Any other object (a class) stays as it is.

    Raises `ConfigError` for keys that are no text, text with a NUL or undecodable bytes, integers of more than 64 bits,
    sets and iterators, tables of pandas, objects that cannot be copied, and nesting without end; it names `where` the
    value comes from and the `path` of keys to it.
    """
    value = _as_plain(value)

    def wrong(what: str) -> ConfigError:
        key = ".".join(path) if len(path) < DEPTH else f"{path[0]}. ... .{path[-1]}"
        return ConfigError(": ".join(part for part in (where, key, what) if part))

    if len(path) > DEPTH:
        raise wrong(f"more than {DEPTH} levels of nesting")
    if isinstance(value, Mapping):
        checked = {}
        for key, inner in value.items():
            if not isinstance(key, str):
                raise wrong(f"the key {shown(key)} is no text")
            checked[plain(key, where, *path)] = plain(inner, where, *path, key)
        return checked
    if isinstance(value, list | tuple):
        items = [plain(inner, where, *path, str(i)) for i, inner in enumerate(value)]
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, set | frozenset | Iterator):
        raise wrong(f"{kind_of(value)}, whose order is not that of a list; write a list")
    if isinstance(value, str) and _UNUSABLE.search(value):
        raise wrong(f"{shown(value)} holds a character that no name, path or text can have")
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise wrong("an integer of more than 64 bits")
    if not isinstance(value, str | int | float | type | None):
        _check_object(value, wrong)
    return value


def _check_object(value: Any, wrong: Callable[[str], ConfigError]) -> None:
    """Raises the `wrong` error for a table, whose comparisons are no truth values, and for an object that no cell of a
    grid can have a copy of."""
    if hasattr(value, "__array__") and getattr(value, "shape", None) != ():  # np.longdouble stays a number
        raise wrong(f"{kind_of(value)} is no plain value; write a mapping or a list")
    try:
        copy.deepcopy(value)
    except Exception as error:  # of the user's own objects
        raise wrong(f"{kind_of(value)} cannot be copied ({described(error)}); write a plain value") from None


def ordered(value: Any) -> Any:
    """`value` itself if it has no sets; else with a sorted list for each, since sets have another order in each
    process."""
    if isinstance(value, set | frozenset):
        items = [ordered(item) for item in value]
        try:
            return sorted(items)
        except TypeError:
            return sorted(items, key=repr)
    if isinstance(value, dict):
        inner = {key: ordered(item) for key, item in value.items()}
        return inner if any(inner[key] is not item for key, item in value.items()) else value
    if isinstance(value, list | tuple):
        parts = [ordered(item) for item in value]
        return parts if any(a is not b for a, b in zip(parts, value, strict=True)) else value
    return value


def jsonable(value: Any) -> Any:
    """A value as every parser of JSON reads it: NaN and infinity are null, a table of pandas is a list of its rows,
    other types are text. Numbers are not rounded."""
    if hasattr(value, "tolist") and not isinstance(value, type):  # numbers and arrays of NumPy, torch, pandas
        value = value.tolist()
    elif type(value).__name__ == "DataFrame":
        value = value.to_dict("records")
    if isinstance(value, Mapping):
        return {str(key): jsonable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _as_plain(value: Any) -> Any:
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if hasattr(value, "tolist") and hasattr(value, "dtype") and not isinstance(value, type):
        return value.tolist()  # of NumPy, torch, pandas
    return list(value) if isinstance(value, range | KeysView | ValuesView | ItemsView) else value


_UNUSABLE = re.compile("[\0\ud800-\udfff]")  # NUL; half characters, which stand for bytes that could not be decoded

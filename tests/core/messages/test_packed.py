"""What a file gives back: every value with its type, every array with its bits, every record with its class."""

import enum
import functools
import json
import math
import textwrap
import threading
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from flray.core.messages import ClientState, Record, ServerState, equal
from flray.core.messages.packed import Packed
from flray.core.schema.errors import AlgorithmError, CheckpointError


class Block(Record):
    basis: Any
    name: Any


class State(ServerState):
    blocks: Any
    rate: Any = 0.5


DTYPES = st.sampled_from([np.float32, np.float64, np.int64, np.uint8, np.bool_])
ARRAYS = DTYPES.flatmap(lambda d: arrays(d, array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)))
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
KEYS = st.sampled_from(["w", "b", "layer.0", "][", "[w]", "array", "record", "__metadata__"]) | st.text(max_size=3)
MESSAGES = st.recursive(
    ARRAYS | PLAIN,
    lambda inner: (
        st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=3)
        | st.builds(Block, inner, inner)
        | st.builds(State, inner, inner, inner, inner)
    ),
    max_leaves=12,
)


def same(left: Any, right: Any) -> bool:
    """:func:`equal`, for which NaN is equal to itself outside arrays as well."""
    return equal(_nan(left), _nan(right))


def _nan(message: Any) -> Any:
    from flray.core.messages import children, rebuilt

    parts = children(message)
    if parts is not None:
        return rebuilt(message, {key: _nan(part) for key, part in parts.items()})
    return "NaN" if isinstance(message, float) and math.isnan(message) else message


@given(MESSAGES)
def test_any_message_comes_back_as_it_was(tmp_path_factory, message):
    path = tmp_path_factory.mktemp("p") / "x.safetensors"
    Packed.of(message).write(path)
    for packed in (Packed.of(message), Packed.read(path)):
        back = packed.message()
        assert same(back, message)


def test_tensors_are_packed_as_arrays_and_views_by_value(tmp_path):
    w = torch.arange(6.0).view(2, 3)
    Packed.of({"t": w.T, "half": w[:, ::2]}).write(tmp_path / "x")
    back = Packed.read(tmp_path / "x").message()
    assert np.array_equal(back["t"], w.T.numpy()) and np.array_equal(back["half"], [[0, 2], [3, 5]])


def test_the_structure_is_json_that_names_classes_and_arrays():
    packed = Packed.of(State(np.ones(2), None, (Block(np.ones(1), "a"), 3)))
    block = {"record": f"{__name__}:Block", "fields": {"basis": {"array": "blocks[0].basis"}, "name": "a"}}
    fields = {"w": {"array": "w"}, "b": None, "blocks": {"tuple": [block, 3]}, "rate": 0.5, "rule": None}
    assert json.loads(json.dumps(packed.structure)) == {"record": f"{__name__}:State", "fields": fields}
    assert set(packed.arrays) == {"w", "blocks[0].basis"}


def test_names_that_look_alike_are_kept_apart():
    message = {"a": {"b": np.array(1)}, "a][b": np.array(2), "a][b'": np.array(3)}
    packed = Packed.of(message)
    assert len(packed.arrays) == 3 and equal(packed.message(), message)


@pytest.mark.parametrize("value", [[1], {1: 2.0}, {1, 2}, 1j, object()])
def test_what_no_message_holds_is_one_line(value):
    with pytest.raises(AlgorithmError, match="a message holds"):
        Packed.of(Block(value, None))


def packed(**fields: Any) -> Packed:
    return Packed({"record": f"{__name__}:Block", "fields": fields}, {})


@pytest.mark.parametrize(
    ("saved", "what"),
    [
        (packed(basis={"array": "basis"}, name=None), "array basis is missing"),
        (
            packed(basis=1, name=None, size=3),
            "tests.core.messages.test_packed:Block has no field size any more (its fields: basis, name)",
        ),
        (
            packed(basis=1),
            "tests.core.messages.test_packed:Block has a field name now, of which nothing was saved; give it a default",
        ),
        (
            Packed({"record": "my_module:Gone", "fields": {}}, {}),
            "the class Gone of the module my_module is not loaded; import what defines it (--import my_module)",
        ),
        (
            Packed({"record": "flray.core.messages:Gone", "fields": {}}, {}),
            "the class Gone of the module flray.core.messages is not loaded",
        ),
    ],
)
def test_what_does_not_fit_the_classes_of_today_is_one_line(saved, what):
    with pytest.raises(CheckpointError) as caught:
        saved.message()
    assert what in str(caught.value) and "\n" not in str(caught.value)


def test_a_new_field_with_a_default_is_taken_from_the_class():
    fields = {"w": 1, "b": 2, "blocks": None}
    assert Packed({"record": f"{__name__}:State", "fields": fields}, {}).message().rate == 0.5


def test_of_two_classes_with_one_name_the_later_one_is_taken():
    """A notebook's cell that was run again."""

    def cell() -> type[Record]:
        class Mine(ClientState):
            x: Any

        return Mine

    first, second = cell(), cell()
    assert type(Packed.of(first(1)).message()) is second


def made(factor: float, rate: Any = 1) -> type[Record]:
    """A message class of a factory, which has one name for all of them."""

    class Made(ClientState):
        x: Any

        def scaled(self, by: Any = rate) -> float:
            return factor * self.x

        def again(self) -> Any:
            return self.scaled() if self.x else Made(1)

    return Made


@pytest.mark.parametrize("later", [{"factor": 0.9}, {"factor": 0.1, "rate": [np.ones(2)]}])
def test_a_class_that_would_come_back_with_other_code_is_refused(later):
    first, same, second = made(0.1), made(0.1), made(**later)
    with pytest.raises(AlgorithmError, match=r"made.<locals>.Made of .*give each a name of its own") as caught:
        Packed.of({"a": (first(1),)})
    assert "\n" not in str(caught.value)
    assert Packed.of(second(2)).message().scaled() == later["factor"] * 2
    second.__qualname__ = "MadeTwice"
    assert type(Packed.of(first(1)).message()) is same and type(Packed.of(second(1)).message()) is second


def of_text(body: str) -> type[Record]:
    """A message class of a cell that is run again: one name for all of them."""
    names = {"ClientState": ClientState, "functools": functools, "enum": enum, "__name__": __name__}
    exec(f"class OfText(ClientState):\n    x: float = 0.0\n{textwrap.indent(body, '    ')}", names)
    return names["OfText"]


PARTIAL = "def f(self, k): return k\ng = functools.partialmethod(f, {})"
CACHED = "@functools.cached_property\ndef twice(self): return {} * self.x"
KEPT = "@functools.cache\ndef kept(self): return {} * self.x"
ENUM = "class Mode(enum.Enum): A = {}\nmode = Mode.A"
TYPE = "kind = int if {} == 1 else bool"
BOUND = "f = functools.partial(max, {})"
NUMBERED = "table = {{{}: len}}"
KEYED = "table = {{1: lambda: {}}}"
METHODS = "".join(f"def m{k}(self): return self.x + {k}.5\n" for k in range(8)) + "def last(self): return {}"


@pytest.mark.parametrize("body", [PARTIAL, CACHED, KEPT, ENUM, TYPE, BOUND, NUMBERED, KEYED, METHODS])
def test_parts_of_a_class_are_compared_by_what_they_do(body):
    first, same = of_text(body.format(1)), of_text(body.format(1))
    assert type(Packed.of(first(1.0)).message()) is same
    later = of_text(body.format(2))
    with pytest.raises(AlgorithmError, match=r"OfText of .*has other code"):
        Packed.of(first(1.0))
    assert type(Packed.of(later(1.0)).message()) is later


class Unequal:
    """Its `==` gives an array, as that of a data frame."""

    def __eq__(self, other: object) -> Any:
        return np.ones(2) == 1


@pytest.mark.parametrize("make", [object, threading.Lock, Unequal])
def test_what_python_cannot_compare_is_taken_as_the_same(make):
    def cell() -> type[Record]:
        class Uncompared(ClientState):
            x: Any
            unit: ClassVar[Any] = make()

        return Uncompared

    first, later = cell(), cell()
    assert type(Packed.of(first(1)).message()) is later


def test_a_file_of_something_else_is_refused(tmp_path):
    from safetensors.numpy import save_file

    save_file({"w": np.ones(1)}, tmp_path / "x")
    with pytest.raises(ValueError, match="does not say what its arrays are"):
        Packed.read(tmp_path / "x")

"""YAML as plain values: what is read otherwise than a reader of the file would, or without end, is refused with its
line."""

import threading

import numpy as np
import pandas as pd
import pytest
import yaml
from hypothesis import given, strategies as st

from flray.core.schema.errors import ConfigError
from flray.core.schema.plain import document, numbers, plain, read, written
from tests.support.messages import facts

BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 30))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: 1\nb: [x, 1.5, true, ~]", {"a": 1, "b": ["x", 1.5, True, None]}),
        ("on: server\n1: a", {"on": "server", "1": "a"}),  # `on` is the key of a section, not true
        ("base: &b {x: 1, y: 2}\nmore:\n  <<: *b\n  y: 3", {"base": {"x": 1, "y": 2}, "more": {"x": 1, "y": 3}}),
        ("2001-01-01", "2001-01-01"),
        ("010", "010"),
        ("1:30", "1:30"),
        ("1e-3", "1e-3"),
        ("0x10", 16),
        ("", None),
    ],
)
def test_values(text, value):
    assert read(text, "file") == value


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: 1\nb:\n  lr: 1\n  c: 2\n  lr: 3", "file, line 5: the key 'lr' stands twice (first in line 3); keep one"),
        ("{lr: 1, lr: 2}", "file: the key 'lr' stands twice; keep one"),
        ("a: &a {x: 1}\nb: {<<: *a, <<: *a}", "file, line 2: the key '<<' stands twice; keep one"),
        ("a: 1\nb: !!timestamp x", "file, line 2: the tag 'timestamp' is not read here; write the plain value"),
        ("!!int abc", "file: the tag 'int' is not read here"),
        ("!!python/object/apply:os.system [x]", "is not read here"),
        ("? [a]\n: b", "file, line 1: a key that is a list or a mapping"),
        ("a: &a\n  b: *a", "an alias inside the value that it stands for"),
        (BOMB, "its aliases multiply to"),
        # without a limit libyaml overflows the stack: no traceback, a crash
        ("[" * 100_000, "file: more than 50 levels of nesting"),
        ("- " * 100_000, "file: more than 50 levels of nesting"),
        ("a: b: c", "file: not valid YAML: mapping values are not allowed"),
        ("x: 1\ny: @", "file, line 2: not valid YAML"),
        ('"\\0"', "holds a character that no name, path or text can have"),
        ("\udcff", "holds a character that no name, path or text can have"),
        ("9" * 30, "file: an integer of more than 64 bits"),
        ("9" * 5000, "file: an integer of more than 64 bits"),
        ("a: 0x" + "f" * 5000, "file: a: an integer of more than 64 bits"),
    ],
)
def test_what_is_refused_is_said_in_one_line(text, says):
    with pytest.raises(ConfigError, match=facts(says)):
        read(text, "file")


def test_a_mapping_is_copied_and_its_path_is_named():
    inner = [1, (2, 3)]
    values = {"a": {"b": inner}}
    copied = plain(values, "")
    assert copied == values
    assert copied["a"]["b"] is not inner
    wrong = [
        ({"a": {1: 2}}, "a: the key 1 is no text"),
        ({"a": {"b": "x\0"}}, r"a.b: 'x\x00' holds"),
        ({"a": 2**70}, "a: an integer"),
    ]
    for value, says in wrong:
        with pytest.raises(ConfigError) as caught:
            plain(value, "")
        assert str(caught.value).startswith(says)
    values["a"]["b"] = values
    with pytest.raises(ConfigError, match="more than 50 levels of nesting"):
        plain(values, "")


def test_objects_of_python_are_read_or_refused_in_one_line():
    values = {"keys": {"b": 1, "a": 2}.keys(), "values": {"b": 1}.values(), "kind": np.float64, "of": np.int64(3)}
    assert plain(values, "") == {"keys": ["b", "a"], "values": [1], "kind": np.float64, "of": 3}
    assert plain(np.longdouble("0.5"), "") == 0.5
    wrong = [
        (pd.DataFrame({"client": [0, 1]}), "it: a.0: a DataFrame [2, 1] is no plain value; write a mapping or a list"),
        (threading.Lock(), "it: a.0: a lock cannot be copied (TypeError: cannot pickle '_thread.lock' object); write"),
    ]
    for value, says in wrong:
        with pytest.raises(ConfigError) as caught:
            plain({"a": [value]}, "it")
        assert str(caught.value).startswith(says)


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("a:\n\tname: x\n", "file, line 2: .*; indent with spaces, not with a tab$"),
        ("a:\n  name:x\n  b: 4\n", "file, line 3: .*; write a space after the colon: name: VALUE$"),
        ("a: {b: c\nd: e", "; quote a value with special characters$"),
        ("a: b: c\nd: e", "; quote a value with special characters$"),
    ],
)
def test_what_is_no_yaml_says_what_to_write(text, remedy):
    with pytest.raises(ConfigError, match=remedy):
        read(text, "file")


@pytest.mark.parametrize(
    ("text", "number"),
    [("1e-1", 0.1), ("1.5e3", 1500.0), ("1.0e1", 10.0), ("12e4", 120000.0), ("-5E+2", -500.0), ("1_0e2", 1000.0)],
)
def test_a_number_of_yaml_1_2_is_one_where_a_field_has_no_type(text, number):
    """It is text for a field of texts, and quoted it is text for all; both are written so that they are read so."""
    value = read(f"a: [{text}, '{text}']", "file")
    assert value == {"a": [text, text]} and numbers(value) == {"a": [number, text]}
    assert numbers(read(document(value), "it")) == numbers(value) == numbers(read(written(value), "it"))
    assert document({"a": text}) == f"a: '{text}'\n"


@pytest.mark.parametrize("text", ["12e4567", "1e", "e4", "1.e", "0x1e5x", "1e5a", "1:3e4", "1e1.5"])
def test_what_is_no_finite_number_stays_text(text):
    assert numbers(read(text, "file")) == text


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=40),
    lambda part: st.lists(part, max_size=3) | st.dictionaries(st.text(max_size=10), part, max_size=3),
    max_leaves=8,
)


@given(PLAIN)
def test_a_document_is_read_as_what_was_written(value):
    """As YAML's own reader without libyaml reads it, too; flray's refuses texts that no configuration has."""
    assert yaml.safe_load(document(value)) == value


@pytest.mark.parametrize("value", [{"a": [1e-05, float("inf"), -0.0]}, {"b": {"010": "1:30", "on": "2026-11-29"}}, {}])
def test_a_document_is_read_by_flray_as_what_was_written(value):
    assert read(document(value), "it") == value

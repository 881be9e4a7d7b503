"""Sections: truth values are no numbers, numbers are finite, one word means one field."""

from typing import Annotated, Any, ClassVar, Literal

import pytest
from pydantic import Field

from flray.core.schema.errors import ConfigError
from flray.core.schema.section import Section, expand_shorthand, one_line, section_of


class Inner(Section):
    shorthand: ClassVar = {int: "size", float: "share"}
    size: int | None = None
    share: float | None = None
    how: str = "x"


class Outer(Section):
    number: float = 1.0
    several: tuple[Annotated[int, Field(ge=0)], ...] = ()
    many: int | Literal["auto"] = "auto"
    switch: bool = False
    either: int | bool = 0
    anything: Any = None
    inner: Inner | None = None


def checked(values):
    with one_line("", Outer):
        return Outer.model_validate(values)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"number": True}, "number: input should be a valid number, unable to parse string as a number, got 'true'"),
        ({"several": [1, False]}, "several.1: input should be a valid integer, .*got 'false'"),
        ({"many": True}, "many.int: input should be a valid integer.*got 'true'"),
        ({"inner": {"size": True}}, "inner.size: .*got 'true'"),
        ({"number": float("inf")}, "number: input should be a finite number, got inf"),
        ({"number": "1e400"}, "number: input should be a finite number, got '1e400'"),
        ({"number": "nan"}, "number: input should be a finite number, got 'nan'"),
        ({"inner": "word"}, "inner: 'word' is no section; write inner: {size or share: VALUE}"),
        ({"number": "x" * 10_000}, r"number: .{,250}$"),
        ({"number": "a\nb\x1b[31m"}, r"number: [^\n\x1b]*$"),
    ],
)
def test_errors(values, says):
    with pytest.raises(ConfigError, match=says):
        checked(values)


def test_truth_values_stay_where_they_fit():
    found = checked({"switch": True, "either": True, "anything": [True]})
    assert (found.switch, found.either, found.anything) == (True, True, [True])


def test_one_word_means_one_field_and_unsets_the_others_of_the_shorthand():
    assert expand_shorthand({"inner": 3, "number": 3}, Outer) == {"inner": {"size": 3, "share": None}, "number": 3}
    assert expand_shorthand({"inner": 0.5}, Outer) == {"inner": {"size": None, "share": 0.5}}
    for same in ({"inner": {"how": "y"}}, {"inner": None}, {"inner": True}, {"inner": "word"}, {"nothing": 3}, 3):
        assert expand_shorthand(same, Outer) == same
    assert section_of(Outer, ["inner"]) is Inner
    assert section_of(Outer, ["inner", "size"]) is None

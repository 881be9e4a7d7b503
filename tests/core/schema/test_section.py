"""Sections: truth values are no numbers, numbers are finite, one word means one field."""

import dataclasses
import math
from typing import Annotated, Any, ClassVar, Literal

import pydantic
import pytest
from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    Discriminator,
    Field,
    PrivateAttr,
    RootModel,
    Tag,
    computed_field,
    field_validator,
    model_validator,
)
from pydantic_core import core_schema

from flray.core.schema.errors import ConfigError
from flray.core.schema.hp import hp
from flray.core.schema.section import Section, dumped, expand_shorthand, one_line, section_of


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


# options of a user's own ------------------------------------------------------------------------
class Plain(Section):
    layers: frozenset[str] = frozenset({"dd", "aa", "cc", "bb"})
    lambda_: float = Field(0.5, alias="lambda")
    inner: Inner = Inner(size=3)

    @computed_field
    @property
    def twice(self) -> float:
        return 2 * self.lambda_


def test_options_are_written_as_they_are_read():
    written = {
        "layers": ["aa", "bb", "cc", "dd"],
        "lambda": 0.5,
        "inner": {"size": 3, "share": None, "how": "x"},
    }
    assert dumped("mine", Plain()) == written and Plain(**written) == Plain()


class Degrees(Section):
    percent: float = 50

    @field_validator("percent")
    @classmethod
    def _fraction(cls, value: float) -> float:
        return value / 100


class Doubled(Section):
    t: float = 0.5

    def model_post_init(self, context: Any) -> None:
        object.__setattr__(self, "t", self.t * 2)


class NoNone(Section):
    mu: float = hp(None, doc="a weight")


class AboveItsBound(Section):
    mu: float = hp(2.0, le=1, doc="a weight")


class Whole(Section):
    n: int = hp(0.5, doc="a number")


class Bytes(Section):
    key: bytes = b"\xff"


class OfItsOwn(Section):
    t: float = 0.5

    def __init__(self, rate: float = 0.7) -> None:
        super().__init__(t=rate)


class NotANumber(Section):
    x: Any = math.nan


class Hidden(Section):
    layers: frozenset[int] = Field(frozenset({1}), exclude=True)


class TakesAll(Section):
    t: float = 0.5

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (Degrees, "mine.percent: Degrees makes 0.5 of 50 as config.yaml has it: keep the option as"),
        (Doubled, "mine.t: Doubled makes 2.0 of 1.0 as config.yaml has it"),
        (NoNone, "mine.mu: input should be a valid number, got None; config.yaml has every option with its value"),
        (AboveItsBound, "mine.mu: input should be less than or equal to 1, got 2.0; config.yaml"),
        (Whole, "mine.n: input should be a valid integer, .*got 0.5; config.yaml"),
        (NotANumber, "mine.x: NotANumber makes None of nan as config.yaml has it"),
        (Bytes, "mine: the options of Bytes cannot be written to config.yaml: UnicodeDecodeError"),
        (
            OfItsOwn,
            r"mine: OfItsOwn.__init__ \(test_section.py, line \d+\): .*; options are fields: write NAME: float =",
        ),
    ],
)
def test_options_that_would_not_read_back_are_refused(kind, says):
    with pytest.raises(ConfigError, match=f"^{says}") as caught:
        dumped("mine", kind())
    assert "\n" not in str(caught.value)


def test_an_own_init_that_takes_the_options_is_right():
    assert dumped("mine", TakesAll(t=2)) == {"t": 2.0}


def test_an_excluded_option_is_refused_where_it_is_not_its_default():
    assert dumped("mine", Hidden()) == {}
    with pytest.raises(ConfigError, match=r"^mine\.layers: Hidden makes .*1.* of .*2.* as config\.yaml has it"):
        dumped("mine", Hidden(layers={2}))


class Groups(Section):
    groups: dict[str, frozenset[str]]
    layers: frozenset[int] = frozenset()


def test_sets_are_written_in_order_also_in_other_options():
    names = [f"conv{i}" for i in range(9)]
    options = dumped("mine", Groups(groups={"a": frozenset(names)}, layers=frozenset({10, 4, 2})))
    assert options == {"groups": {"a": names}, "layers": [2, 4, 10]}


class Written(BaseModel):
    tau: float = Field(1.0, serialization_alias="t")


class OfWritten(Section):
    part: Written = Written()
    mu: float = Field(0.5, serialization_alias="m")


def test_options_are_written_by_name_where_their_aliases_only_write():
    assert dumped("mine", OfWritten()) == {"part": {"tau": 1.0}, "mu": 0.5}
    assert dumped("mine", OfWritten(part={"tau": 2}, mu=3)) == {"part": {"tau": 2.0}, "mu": 3.0}


class Remembers(Section):
    """A section with a private attribute, which is no option."""

    k: float = 0.5
    _seen: list[Any] = PrivateAttr(default_factory=list)


class OfRemembers(Section):
    one: Remembers = Remembers()
    more: tuple[Remembers, ...] = (Remembers(),)
    named: dict[str, Remembers] = hp({"a": Remembers()}, doc="by name")


def test_private_attributes_are_no_options():
    """An object equals itself alone, as a lock does."""
    section = OfRemembers()
    for part in (section.one, *section.more, *section.named.values()):
        part._seen.append(object())
    options = {"one": {"k": 0.5}, "more": [{"k": 0.5}], "named": {"a": {"k": 0.5}}}
    assert dumped("mine", section) == options


class Part(BaseModel):
    tau: float = 1.0


class Other(BaseModel):
    period: float = 0.0


class ByAlias(BaseModel):
    tau: float = Field(1.0, validation_alias=AliasChoices("Tau", "T"))


class TakesMore(Part, extra="allow"):
    pass


class Ignoring(Part, extra="ignore"):
    pass


class OfTwoForms(Part):
    @model_validator(mode="before")
    @classmethod
    def _one_form(cls, values: dict[str, float]) -> dict[str, float]:
        return {"tau": 1 / values["rate"]} if "rate" in values else values


@pydantic.dataclasses.dataclass
class Record:
    tau: float = 1.0


@dataclasses.dataclass
class Holder:
    part: Part


class Parts(Section):
    part: Part = Part()
    alias: ByAlias = ByAlias()
    more: TakesMore | None = None
    ignoring: Ignoring | None = None
    forms: OfTwoForms | None = None
    record: Record | None = None
    holder: Holder | None = None
    several: tuple[Part, ...] = ()
    groups: dict[int, list[Part]] = Field({}, alias="Groups")
    table: RootModel[dict[str, Part]] | None = None
    either: Part | Other = Part()
    validated: Annotated[Part | None, AfterValidator(lambda part: part)] = None


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"part": {"tua": 2}}, "mine.part.tua: unknown key (did you mean 'tau'?), got 2"),
        ({"alias": {"tau": 2}}, "mine.alias.tau: unknown key (did you mean 'Tau'?), got 2"),
        ({"record": {"tua": 2}}, "mine.record.tua: unknown key (did you mean 'tau'?), got 2"),
        ({"holder": {"part": {"tua": 2}}}, "mine.holder.part.tua: unknown key (did you mean 'tau'?), got 2"),
        ({"several": [{"tau": 1}, {"tua": 2}]}, "mine.several.1.tua: unknown key (did you mean 'tau'?), got 2"),
        ({"Groups": {"3": [{"tua": 2}]}}, "mine.Groups.3.0.tua: unknown key (did you mean 'tau'?), got 2"),
        ({"table": {"a": {"tua": 2}}}, "mine.table.a.tua: unknown key (did you mean 'tau'?), got 2"),
        ({"either": {"tau": 1, "tua": 2}}, "mine.either.tua: unknown key (did you mean 'tau'?), got 2"),
        ({"validated": {"tua": 2}}, "mine.validated.tua: unknown key (did you mean 'tau'?), got 2"),
    ],
)
def test_a_key_that_a_model_of_pydantic_ignores_is_refused(given, says):
    with pytest.raises(ConfigError) as caught, one_line("mine", Parts):
        Parts(**given)
    assert str(caught.value) == says


def test_keys_that_a_model_of_pydantic_reads_are_accepted():
    read = Parts(
        part=Part(tau=2),
        alias={"T": 3},
        more={"tau": 4, "tua": 5},
        ignoring={"tau": 6, "comment": "mine"},
        forms={"rate": 0.5},
        holder={"part": {"tau": 7}},
    )
    assert (read.part.tau, read.alias.tau, read.more.model_extra) == (2, 3, {"tua": 5})
    assert (read.ignoring.tau, read.forms.tau, read.holder.part.tau) == (6, 2, 7)


def _by_rate(values: Any) -> Any:
    """The former form of a `Part`."""
    return {"tau": 1 / values["rate"]} if isinstance(values, dict) and "rate" in values else values


class OwnInit(Part):
    def __init__(self, **values: Any) -> None:
        super().__init__(**_by_rate(values))


class OwnReader(Part):
    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        return core_schema.no_info_before_validator_function(_by_rate, handler(source))


class OfParts(BaseModel):
    """Reads the former form inside of itself."""

    part: Part = Part()

    @model_validator(mode="before")
    @classmethod
    def _former(cls, values: dict[str, Any]) -> dict[str, Any]:
        return {key: _by_rate(value) for key, value in values.items()}


@dataclasses.dataclass
class OfFormerPart:
    part: Annotated[Part, BeforeValidator(_by_rate)]


class ReadItself(Section):
    root: RootModel[dict[str, float]] | None = None
    before: Annotated[Part, BeforeValidator(_by_rate)] | None = None
    each: tuple[Annotated[Part, BeforeValidator(_by_rate)], ...] = ()
    validated: Part | None = None
    after: Annotated[Part | Other, AfterValidator(lambda part: Other(period=part.tau))] | None = None
    init: OwnInit | None = None
    reader: OwnReader | None = None
    parts: OfParts | None = None
    record: OfFormerPart | None = None
    tagged: Annotated[
        Annotated[Part, Tag("a")] | Annotated[Other, Tag("b")], Discriminator(lambda values: values["kind"])
    ] = Part()

    @field_validator("validated", mode="before")
    @classmethod
    def _former(cls, values: Any) -> Any:
        return _by_rate(values)


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ({"root": {"a": 2}}, RootModel[dict[str, float]]({"a": 2})),
        ({"before": {"rate": 0.5}}, Part(tau=2)),
        ({"each": [{"rate": 0.5}]}, (Part(tau=2),)),
        ({"validated": {"rate": 0.5}}, Part(tau=2)),
        ({"after": {"tau": 2}}, Other(period=2)),
        ({"init": {"rate": 0.5}}, OwnInit(tau=2)),
        ({"reader": {"rate": 0.5}}, OwnReader(tau=2)),
        ({"parts": {"part": {"rate": 0.5}}}, OfParts(part=Part(tau=2))),
        ({"record": {"part": {"rate": 0.5}}}, OfFormerPart(Part(tau=2))),
        ({"tagged": {"kind": "b", "period": 2}}, Other(period=2)),
    ],
)
def test_keys_that_a_reader_of_the_users_own_reads_are_accepted(given, read):
    (key,) = given
    assert getattr(ReadItself(**given), key) == read


class FormerKeys(Section):
    part: Part = Part()

    @model_validator(mode="before")
    @classmethod
    def _former(cls, values: dict[str, Any]) -> dict[str, Any]:
        return {key: _by_rate(value) for key, value in values.items()}


def test_a_section_that_reads_former_keys_itself_accepts_them():
    assert FormerKeys(part={"rate": 0.5}).part.tau == 2


class Raises(TakesAll):
    @field_validator("t")
    @classmethod
    def _check(cls, value: float) -> float:
        return value + None


def test_a_type_error_of_a_validator_is_not_blamed_on_init():
    with pytest.raises(TypeError, match="unsupported operand"), one_line("mine", Raises):
        Raises(t=1)

"""One line declares a hyper-parameter; everything else reads it."""

from enum import Enum
from typing import Literal

import pytest
from pydantic import BaseModel, ValidationError

from flray.core.schema.hp import SearchDomain, declared_keys, hp, hyperparameters
from tests.support.options import sectioned


class Record(BaseModel, frozen=True, extra="forbid"):
    rho: float = hp(1.5, log=(0.05, 5.0), ge=0, doc="perturbation strength")
    kind: Literal["a", "b"] = hp("a", doc="which")
    size: int | None = hp(None, gt=0, le=9, doc="largest")


def test_declaration_is_described_once_with_type_default_bounds_and_space():
    rho, kind, size = hyperparameters(Record)
    assert (rho.name, rho.type, rho.default, rho.doc) == ("rho", "float", 1.5, "perturbation strength")
    assert rho.bounds == ">= 0"
    assert rho.space == SearchDomain("log", (0.05, 5.0))
    assert (kind.type, kind.bounds, kind.space) == ("choice", "a | b", None)
    assert size.default is None and set(size.bounds.split()) == {">", "0", "<=", "9"}


def test_hyper_parameters_of_a_part_have_dotted_names_and_keys_are_those_of_the_section_itself():
    class Method(BaseModel):
        lr: float = hp(0.1, gt=0, doc="rate")
        part: Record = Record()

    assert [p.name for p in hyperparameters(Method)] == ["lr", "part.rho", "part.kind", "part.size"]
    assert hyperparameters(Method)[1].space == SearchDomain("log", (0.05, 5.0))
    assert [(key.name, key.type) for key in declared_keys(Method)] == [("lr", "float"), ("part", "section")]


def test_bounds_are_enforced():
    with pytest.raises(ValidationError):
        Record(rho=-0.1)
    assert Record(rho=0).rho == 0
    with pytest.raises(ValidationError):
        Record(size=0)


def test_two_spaces_or_an_empty_range_are_mistakes_of_the_author():
    with pytest.raises(TypeError, match="one of log, linear, choice"):
        hp(1.0, log=(0.1, 1.0), linear=(0.0, 1.0), doc="")
    with pytest.raises(TypeError, match="empty range"):
        hp(1.0, log=(1.0, 1.0), doc="")


def test_every_algorithm_documents_every_hyper_parameter_and_its_default_is_within_its_bounds():
    from flray.algorithms import ALGORITHMS

    for name in ALGORITHMS.names():
        kind = ALGORITHMS.get(name)
        for parameter in hyperparameters(kind):
            assert parameter.doc, f"{name}.{parameter.name} has no doc"
            kind(**sectioned({parameter.name: parameter.default}))
            if parameter.space is not None:
                for value in parameter.space.values:
                    kind(**sectioned({parameter.name: value}))


class Mode(Enum):
    SOFT = "soft"
    HARD = "hard"


class Chosen(BaseModel):
    mode: Mode = hp(Mode.SOFT, doc="how")


def test_an_enum_is_a_choice_of_its_values():
    (mode,) = hyperparameters(Chosen)
    assert (mode.type, mode.bounds) == ("choice", "soft | hard")

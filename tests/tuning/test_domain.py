"""The values of one parameter: how they are written, what a study stores of them, and what is not a range."""

import pytest
from optuna.trial import FixedTrial

from flray.core.schema.errors import ConfigError
from flray.core.schema.hp import SearchDomain
from flray.core.schema.plain import read
from flray.tuning.domain import Choice, Fixed, Range, check_within, written
from tests.support.messages import mistakes


@pytest.mark.parametrize(
    ("form", "words"),
    mistakes("""
[] | space.x: no values to choose from; write a list of at least one
{choice: 3} | space.x: no values to choose from; write a list of at least one
{log: [1]} | space.x: log: [1]; write the two ends, log: [lo, hi]
{linear: 3} | space.x: linear: 3; write the two ends, linear: [lo, hi]
{logg: [1, 2]} | unknown kind of space 'logg' in space.x (did you mean 'log'?)
{log: [1, 2], linear: [1, 2]} | space.x: {"log": [1, 2], "linear": [1, 2]}: write one of choice, log, linear
{log: [1, 1]} | space.x: the range from 1 to 1 is empty; write the lower end first
{log: [2.0, 0.5]} | space.x: the range from 2 to 0.5 is empty; write the lower end first
{log: [0.0, 1.0]} | space.x: a log range begins above 0, not at 0; raise it, or write {linear: ...}
{log: [a, b]} | space.x: a to b is no range of numbers; write a list of values
{log: [false, true]} | space.x: false to true is no range of numbers; write a list of values
{log: [0.1, .inf]} | space.x: 0.1 to inf is no range of numbers; write a list of values
{log: [.nan, 1.0]} | space.x: nan to 1 is no range of numbers; write a list of values
    """),
)
def test_what_is_no_space_or_an_empty_range(form, words):
    with pytest.raises(ConfigError) as caught:
        domain = written("x", read(form, ""))
        domain.checked("x", domain.probes())
    assert [str(caught.value)] == words


def test_a_study_stores_plain_values_as_they_are_and_lists_as_json():
    choice = Choice((None, True, 0.5, "head", [64, 32], {"name": "iid"}))
    assert choice.labels == [None, True, 0.5, "head", "[64, 32]", '{"name": "iid"}']
    assert [choice.value("x", label) for label in choice.labels] == list(choice.values)
    assert Choice(([64, 32], [32])).suggest(FixedTrial({"x": "[32]"}), "x") == "[32]"
    with pytest.raises(ConfigError, match=r"trial: x=\[8\] is not in \[64, 32\], \[32\]"):
        Choice(([64, 32], [32])).value("x", "[8]")
    assert Range(1, 4, False).value("x", 2.0) == 2
    with pytest.raises(ConfigError, match=r"trial: x=2.5 is not in 1 to 4"):
        Range(1, 4, False).value("x", 2.5)


def test_a_value_listed_twice_is_an_error_as_optuna_could_not_tell_them_apart():
    for values in ((0.1, 0.1), (1, True), ([1], "[1]")):
        with pytest.raises(ConfigError, match="listed twice"):
            Choice(values).checked("x", values)


def test_whole_ends_make_a_range_of_integers():
    assert Range(1, 9, False).suggest(FixedTrial({"x": 4}), "x") == 4
    trial = FixedTrial({"x": 4.5})
    assert Range(1.0, 9.0, True).suggest(trial, "x") == 4.5
    assert (trial.distributions["x"].low, trial.distributions["x"].high, trial.distributions["x"].log) == (
        1.0,
        9.0,
        True,
    )
    with pytest.raises(ConfigError, match=r"trial: x=9\.5 is not in log 1 to 9"):
        Range(1.0, 9.0, True).value("x", 9.5)


@pytest.mark.parametrize("inside", [Range(0.1, 0.5, True), Choice((0.0, 0.25)), Fixed(0.5)])
def test_between_the_numbers_that_a_choice_declares_every_number_may_be_searched(inside):
    assert check_within("x", inside, SearchDomain("choice", (0.0, 0.1, 0.5)), "a") is None, "nothing is raised"


@pytest.mark.parametrize(
    ("domain", "declared", "message"),
    [
        (Range(0.1, 6.0, True), SearchDomain("log", (0.05, 5.0)), "6 is outside of what a declares (log 0.05 to 5); "),
        (Choice((0.1, None)), SearchDomain("log", (0.05, 5.0)), "null is outside of what a declares (log 0.05 to 5); "),
        (Choice((0.6,)), SearchDomain("choice", (0.0, 0.1, 0.5)), "0.6 is outside of what a declares (0, 0.1, 0.5); "),
        (
            Choice(("sgd", "lion")),
            SearchDomain("choice", ("sgd", "adam")),
            "lion is outside of what a declares (sgd, adam); ",
        ),
        (Fixed(9), SearchDomain("linear", (1, 5)), "9 is outside of what a declares (linear 1 to 5); "),
    ],
)
def test_what_is_declared_may_be_narrowed_and_not_widened(domain, declared, message):
    with pytest.raises(ConfigError) as caught:
        check_within("x", domain, declared, "a")
    assert str(caught.value).startswith(f"space.x: {message}a sweep may narrow it, not widen it")
    assert ("belongs in the experiment" in str(caught.value)) == isinstance(domain, Fixed)

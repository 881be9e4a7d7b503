"""What every fuzz test of this folder holds a case against."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy

from flray.config.experiment import Experiment
from flray.core.schema.errors import FlrayError
from flray.doctor import examine


def attempt(make: Callable[[], list[Experiment]]) -> None:
    """Make experiments and look at the first as `flray doctor` does; nothing but a `FlrayError` of one line may come
    out."""
    try:
        with warnings.catch_warnings(action="ignore"):
            experiment = make()[0]
            if experiment.storage is None and not experiment.data.download:  # no test asks a network
                examine(experiment)
    except FlrayError as error:
        message = str(error)
        assert message and message.isprintable() and len(message) < 5000, message


def assert_all_are_told_in_one_line(
    cases: int, strategy: SearchStrategy[Any], make: Callable[[Any], list[Experiment]]
) -> None:
    """:func:`attempt` on so many cases of a strategy, always the same ones."""

    @settings(
        max_examples=cases, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    @given(strategy)
    def run(case: Any) -> None:
        attempt(lambda: make(case))

    run()


def counts(short: int, long: int) -> list[Any]:
    """Cases of the default suite, and of the campaign that is marked slow."""
    return [short, pytest.param(long, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])]

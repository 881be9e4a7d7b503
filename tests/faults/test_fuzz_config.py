"""Whatever stands in a configuration or on the command line: an experiment that can be examined, or one line of `FlrayError`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy

from flray.config import load_config
from flray.core.errors import FlrayError
from flray.doctor import examine
from flray.experiment import Experiment
from tests.faults import junk

SHORT, LONG = 300, 4000  # cases; the long campaign is marked slow


@pytest.fixture(autouse=True, scope="module")
def no_data_root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("FLRAY_DATA", raising=False)
        patch.setenv("FLRAY_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def attempt(make: Callable[[], list[Experiment]]) -> None:
    """Load, and look at the first experiment as `flray doctor` does; nothing but a `FlrayError` of one line may come out."""
    try:
        with warnings.catch_warnings(action="ignore"):
            experiment = make()[0]
            if experiment.storage is None and not experiment.data.download:  # no test asks a network
                examine(experiment)
    except FlrayError as error:
        message = str(error)
        assert message and message.isprintable() and len(message) < 5000, message


def campaign(cases: int, strategy: SearchStrategy[Any], make: Callable[[Any], list[Experiment]]) -> None:
    @settings(max_examples=cases, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(strategy)
    def run(case: Any) -> None:
        attempt(lambda: make(case))

    run()


COUNTS = [SHORT, pytest.param(LONG, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])]


@pytest.mark.parametrize("cases", COUNTS)
def test_overrides(cases: int) -> None:
    campaign(cases, junk.overrides(), lambda case: load_config(junk.BASE, case))


@pytest.mark.parametrize("cases", COUNTS)
def test_mappings(cases: int) -> None:
    campaign(cases, junk.mappings(), load_config)


@pytest.mark.parametrize("cases", COUNTS)
def test_documents(cases: int, tmp_path: Path) -> None:
    def make(text: str) -> list[Experiment]:
        file = tmp_path / "config.yaml"
        file.write_bytes(text.encode("utf-8", "surrogatepass"))
        return load_config(file)

    campaign(cases, junk.documents(), make)

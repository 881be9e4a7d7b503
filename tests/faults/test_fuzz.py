"""Whatever stands in a configuration, on the command line or in a data set: an experiment that can be examined, or one
line."""

import itertools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flray.config.experiment import Experiment
from flray.config.loader import load_config
from tests.faults import junk, tables
from tests.faults.campaign import assert_all_are_told_in_one_line, counts


@pytest.fixture(autouse=True, scope="module")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("FLRAY_DATA", raising=False)
        patch.setenv("FLRAY_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.mark.parametrize("cases", counts(60, 4000))
def test_overrides(cases: int) -> None:
    assert_all_are_told_in_one_line(cases, junk.overrides(), lambda case: load_config(junk.BASE, case))


@pytest.mark.parametrize("cases", counts(60, 4000))
def test_mappings(cases: int) -> None:
    assert_all_are_told_in_one_line(cases, junk.mappings(), load_config)


@pytest.mark.parametrize("cases", counts(60, 4000))
def test_documents(cases: int, tmp_path: Path) -> None:
    def make(text: str) -> list[Experiment]:
        file = tmp_path / "config.yaml"
        file.write_bytes(text.encode("utf-8", "surrogatepass"))
        return load_config(file)

    assert_all_are_told_in_one_line(cases, junk.documents(), make)


@pytest.mark.parametrize("cases", counts(25, 2000))
def test_data_sets(cases: int, tmp_path: Path) -> None:
    small = {"partition": {"name": "iid", "clients": 2}, "algorithm": "fedavg", "rounds": 1}
    bert = {"name": "bert", "layers": 1, "hidden": 4, "heads": 1, "intermediate": 4}
    numbers = itertools.count()

    def make(write: Callable[[Path], dict[str, Any]]) -> list[Experiment]:
        folder = tmp_path / f"set{next(numbers)}"
        folder.mkdir()
        data = {"source": folder.name, "root": str(tmp_path), **write(folder)}
        return load_config({**small, "data": data, "model": bert if "tokenizer" in data else "mlp"})

    assert_all_are_told_in_one_line(cases, tables.damage(), make)
    shutil.rmtree(tmp_path)

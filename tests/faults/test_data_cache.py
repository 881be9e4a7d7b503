"""A campaign against the data cache: every file of it damaged between two runs, and between a stop and a resume.

What comes of it is a warning and the same bits, never a run on other data.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

import flray
from flray.config.experiment import Experiment
from flray.core.protocol.seeding import rng
from flray.data.cache import CacheWarning
from tests.faults import tables
from tests.support import tasks
from tests.support.faults import interrupted
from tests.support.outcome import contents

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[int(rng(0, path.name).integers(len(content)))] ^= 1
    path.write_bytes(content)


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Experiment]:
    """Images in Parquet, which are decoded into a cache of the test's own."""
    monkeypatch.setenv("FLRAY_CACHE", str(tmp_path / "cache"))
    source = tmp_path / "pictures"
    source.mkdir()
    for split in ("train", "test"):
        tables.write(source, split, tables.sample("images", split))

    def make(executor: str) -> Experiment:
        resources = {"executor": executor, "client_actors": 2, "server": {"threads": 1}}
        data = {"source": "pictures", "root": str(tmp_path)}
        return tasks.experiment(rounds=4, data=data, partition={"name": "iid", "clients": 3}, resources=resources)

    return make


def files(cache: Path) -> list[Path]:
    """The files of all entries, in an order that is the same every time."""
    return sorted(path for path in (cache / "data").rglob("*") if path.is_file())


def test_a_damaged_file_of_the_cache_is_made_again_aloud(settings: Callable[[str], Experiment], tmp_path: Path) -> None:
    """Each one in turn; other damage than a bit: tests/data/test_cache.py."""
    whole = flray.run(settings("local"), out=tmp_path / "whole", progress=False)
    names = [path.relative_to(tmp_path / "cache") for path in files(tmp_path / "cache")]
    assert len(names) >= 5, "two arrays for each of two splits, and meta.json"
    good = {name: (tmp_path / "cache" / name).read_bytes() for name in names}
    for number, name in enumerate(names):
        flipped(tmp_path / "cache" / name)
        with pytest.warns(CacheWarning, match=f"{name.name} is (damaged|missing).* it is built again from the source"):
            run = flray.run(settings("local"), out=tmp_path / str(number), progress=False)
        assert contents(run) == contents(whole)
        assert {name: (tmp_path / "cache" / name).read_bytes() for name in names} == good
        assert {path.relative_to(tmp_path / "cache") for path in files(tmp_path / "cache")} == set(names)


@pytest.mark.parametrize("executor", ["local", "calls"])
def test_a_cache_that_rots_between_a_stop_and_a_resume_changes_nothing(
    ray_cluster: ModuleType, settings: Callable[[str], Experiment], tmp_path: Path, executor: str
) -> None:
    whole = flray.run(settings(executor), out=tmp_path / "whole", progress=False)
    with interrupted("before", 2), pytest.raises(KeyboardInterrupt):
        flray.run(settings(executor), out=tmp_path / "run", progress=False)
    for path in files(tmp_path / "cache"):
        flipped(path)
    with pytest.warns(CacheWarning, match="it is built again from the source"):
        run = flray.resume(tmp_path / "run", progress=False)
    assert contents(run) == contents(whole)


def test_without_its_source_a_damaged_cache_is_one_line(settings: Callable[[str], Experiment], tmp_path: Path) -> None:
    flray.run(settings("local"), out=tmp_path / "whole", progress=False)
    for path in files(tmp_path / "cache"):
        flipped(path)
    shutil.rmtree(tmp_path / "pictures")
    with warnings.catch_warnings(action="ignore"), pytest.raises(flray.core.schema.errors.DataError) as error:
        flray.run(settings("local"), out=tmp_path / "run", progress=False)
    assert "\n" not in str(error.value) and "pictures" in str(error.value)

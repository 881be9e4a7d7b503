"""A cache of its own for the whole run, so that tests never read or fill the user's; no data root by accident."""

import os
import tempfile
from pathlib import Path

import pytest

SESSION_CACHE = os.environ["FLRAY_CACHE"]  # before a test changes it
REAL_ROOT = os.environ.get("FLRAY_DATA")  # before any test changes it


@pytest.fixture(scope="session")
def session_cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def shared_cache(session_cache, monkeypatch):
    monkeypatch.setenv("FLRAY_CACHE", str(session_cache))
    monkeypatch.delenv("FLRAY_DATA", raising=False)


@pytest.fixture
def root(tmp_path, monkeypatch):
    """An empty folder where data sets are looked for."""
    monkeypatch.setenv("FLRAY_DATA", str(tmp_path))
    return tmp_path


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    folder = tmp_path / "own-cache"
    monkeypatch.setenv("FLRAY_CACHE", str(folder))
    return folder


@pytest.fixture
def workers_cache(monkeypatch):
    """The data cache of this session, which Ray's workers have, too."""
    monkeypatch.setenv("FLRAY_CACHE", SESSION_CACHE)


@pytest.fixture
def real_root(monkeypatch):
    if REAL_ROOT is None or not (Path(REAL_ROOT) / "cifar10").is_dir():
        pytest.skip("FLRAY_DATA names no folder with cifar10/*.parquet: real data not tested")
    monkeypatch.setenv("FLRAY_DATA", REAL_ROOT)
    # decoding 60,000 images takes 10 s: kept between runs, keyed by contents
    monkeypatch.setenv("FLRAY_CACHE", str(Path(tempfile.gettempdir()) / f"flray-test-cache-{os.getuid()}"))
    return Path(REAL_ROOT)

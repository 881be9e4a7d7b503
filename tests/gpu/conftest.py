"""What only a GPU can show: `python -m pytest -m gpu`, with the contracts of every algorithm on it."""

from pathlib import Path

import pytest

from tests.support.devices import using

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(autouse=True)
def gpu():
    """The GPU."""
    with using("cuda") as device:
        yield device


@pytest.fixture
def _ray_only_by_its_fixture():
    """These tests start a Ray with the GPU, which the session's one does not have."""
    yield
    import ray

    ray.shutdown()

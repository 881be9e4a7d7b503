"""One local Ray for the session, an own cache and an own Ray folder, one torch thread."""

import gc
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import pytest
import torch
from hypothesis import settings

from flray.log import LOGGER

# before anything imports ray; the folder is short because Ray's sockets lie below it
_SESSION = Path(tempfile.mkdtemp(prefix="fl.", dir="/tmp"))
# Runs fsync some 20 files each, which takes a disk longer than they train. Docker's 64 MB are too few.
_MEMORY = Path("/dev/shm")
if "PYTEST_DEBUG_TEMPROOT" not in os.environ and _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > 6 * 2**30:
    os.environ["PYTEST_DEBUG_TEMPROOT"] = str(_MEMORY)
_RAY = tuple(map(int, version("ray").split(".")[:2]))
# as a run has it, where this Ray knows tokens; ~/.ray stays as it is
os.environ.update(RAY_AUTH_MODE="token" if _RAY >= (2, 52) else "disabled", RAY_AUTH_TOKEN=secrets.token_hex(32))
os.environ.setdefault("RAY_TMPDIR", str(_SESSION))
os.environ.setdefault("FLRAY_CACHE", str(_SESSION / "cache"))
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112
os.environ.pop("RAY_ADDRESS", None)
# else each process of a test compiles all of flray, and each of pytest's two all tests
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# for S3 on this machine: no real account, and no question to a network
os.environ.update(
    AWS_ACCESS_KEY_ID="test", AWS_SECRET_ACCESS_KEY="test", AWS_REGION="us-east-1", AWS_EC2_METADATA_DISABLED="true"
)

LONG = ("tests/tuning/", "tests/engine/", "tests/contracts/test_ray.py")
_CLUSTER = pytest.StashKey[bool]()  # whether the session's Ray is open

settings.register_profile("flray", deadline=None, derandomize=True)
settings.load_profile("flray")
torch.set_num_threads(1)
pytest.register_assert_rewrite("tests.support")


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist's own
def pytest_cmdline_main(config: pytest.Config) -> None:
    """All tests by two processes, file by file, where pytest-xdist is there and nothing else is asked for (`-n 0`)."""
    whole = config.args_source is not pytest.Config.ArgsSource.ARGS and not config.option.collectonly
    here = "PYTEST_XDIST_WORKER" in os.environ or config.option.usepdb or (os.cpu_count() or 1) < 2
    if whole and not here and config.pluginmanager.hasplugin("xdist") and config.option.numprocesses is None:
        config.option.numprocesses, config.option.dist, config.option.loadscopereorder = 2, "loadfile", False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files without Ray first: while one is open, small runs go to its actors, too, and take longer. Then long files:
    one that begins last keeps one of two processes waiting."""
    with_ray = {item.path for item in items if "ray_cluster" in getattr(item, "fixturenames", ())}
    items.sort(key=lambda item: (item.path in with_ray, not item.nodeid.startswith(LONG)))


def pytest_collection_finish() -> None:
    """What is there before the first test stays: no collection of garbage looks at the modules and tests again."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    shutil.rmtree(_SESSION, ignore_errors=True)


@pytest.fixture(autouse=True)
def _level_of_the_logger() -> Iterator[None]:
    """A command that ran in this process with `-v` or `-q` leaves the logger's level to no later test."""
    level = LOGGER.level
    yield
    LOGGER.setLevel(level)


@pytest.fixture(autouse=True)
def _ray_only_by_its_fixture(request: pytest.FixtureRequest) -> Iterator[None]:
    """A Ray that a test opened without `ray_cluster` would be open when the session's one starts: it fails, by name."""
    yield
    ray = sys.modules.get("ray")
    if ray and not request.config.stash.get(_CLUSTER, False) and getattr(ray, "is_initialized", bool)():
        ray.shutdown()
        pytest.fail("the test opened Ray: let it take the fixture ray_cluster")


@pytest.fixture(scope="session")
def ray_cluster(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """A local Ray of 4 CPUs, shared by the whole session, whose runs share their actors; gives the `ray` module."""
    from flray.engine.ray.cluster import forks, leave_forks, ray
    from flray.engine.ray.leases import actors_stay
    from flray.engine.ray.private.start import few_processes, loopback

    with loopback(), few_processes(0, forks()):
        ray.init(
            address="local",
            num_cpus=4,
            include_dashboard=False,
            object_store_memory=300 * 2**20,
            log_to_driver=False,
            logging_level="ERROR",
        )
    request.config.stash[_CLUSTER] = True
    with actors_stay():
        yield ray
    ray.shutdown()
    leave_forks()
    request.config.stash[_CLUSTER] = False


@pytest.fixture(scope="session")
def flray_data() -> Path:
    """The folder of real data sets; the test is skipped where none is configured."""
    folder = os.environ.get("FLRAY_DATA")
    if not folder:
        pytest.skip("needs real data sets: set FLRAY_DATA to the folder that holds them")
    if not Path(folder).is_dir():
        pytest.fail(f"FLRAY_DATA={folder} is not a folder")
    return Path(folder)

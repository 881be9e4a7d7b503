"""When flray's command may be forked: `tests/engine/ray/private/test_worker.py` has what its forks are."""

import os
import sys
import tempfile
from pathlib import Path

import pytest

from flray.engine import forked
from flray.engine.early_fork import Interpreter
from flray.shipped import shipped
from tests.support.processes import python

SLOW = pytest.mark.slow
INSTALLED = """
import sys, sysconfig
get_path = sysconfig.get_path
sysconfig.get_path = lambda name: "site" if name == "platlib" else get_path(name)
sys.path.insert(0, "site")
"""
ASK = "from flray.cli import main\nfrom flray.engine.early_fork import may_fork\n{}\nprint(may_fork())"

COMMAND = """
import multiprocessing, os, sys
from flray.engine import forked
def say(imports, origin=None):
    print(origin is not None, flush=True)
    os._exit(0)
forked.Programs = say
from flray.cli import main
main()
"""
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere workers are no forks")


@pytest.mark.parametrize("script, may", [(["flray"], True), (["mine.py"], False), (["-c", COMMAND], True)])
def test_a_command_that_starts_a_ray_is_forked(script: list[str], may: bool, tmp_path: Path) -> None:
    """With all that the command has done until then; but a script of the user's may have done more."""
    (tmp_path / script[0]).write_text(COMMAND)
    words = [str(shipped("configs") / "quickstart.yaml"), "resources.executor=calls", "--out", str(tmp_path / "run")]
    assert python(*script, "run", *words, status=None, cwd=tmp_path).stdout == f"{may}\n"


@pytest.mark.slow
def test_with_a_ray_of_others_nothing_is_forked(tmp_path: Path) -> None:
    """The command joins the one that RAY_ADDRESS names, where no such process is asked."""
    words = [str(shipped("configs") / "quickstart.yaml"), "resources.executor=calls", "--out", str(tmp_path / "run")]
    environ = {**os.environ, "RAY_ADDRESS": "127.0.0.1:1"}
    done = python("-c", COMMAND, "run", *words, status=2, env=environ)
    assert done.stdout == "" and "RAY_ADDRESS=127.0.0.1:1" in done.stderr


def test_a_command_that_is_stopped_while_it_imports_torch_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stopped(Interpreter):
        def import_torch(self) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        forked.Programs(["uuid"], Stopped())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "state, may",
    [
        ("", True),
        ("import pandas", True),
        ("import mine", False),
        (INSTALLED + "import plain", True),
        (INSTALLED + "import plugin", False),
        (INSTALLED + "import model", False),
        pytest.param(
            "import threading, time\nthreading.Thread(target=time.sleep, args=(1,)).start()", False, marks=SLOW
        ),
        pytest.param("import torch", False, marks=SLOW),
        pytest.param("import ray", False, marks=SLOW),
    ],
)
def test_a_command_with_the_users_work_in_it_is_not_forked(state: str, may: bool, tmp_path: Path) -> None:
    """A module of the user's, loaded again in an actor, would not be the one on disk; a thread's locks would stay."""
    (tmp_path / "mine.py").write_text("")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "plain.py").write_text("def own(): pass")
    (tmp_path / "site" / "plugin.py").write_text("from flray.core.schema.registry import Registry\nown = Registry")
    (tmp_path / "site" / "model.py").write_text("import flray.core.schema.registry as own")
    assert python("-c", ASK.format(state), cwd=tmp_path).stdout == f"{may}\n"

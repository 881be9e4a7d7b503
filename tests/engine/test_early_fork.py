"""When flray's command may be forked: `tests/engine/ray/private/test_worker.py` has what its forks are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

INSTALLED = """
import sys, sysconfig
get_path = sysconfig.get_path
sysconfig.get_path = lambda name: "site" if name == "platlib" else get_path(name)
sys.path.insert(0, "site")
"""
ASK = "from flray.cli import main\nfrom flray.engine.early_fork import may_fork\n{}\nprint(may_fork())"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere workers are no forks")
@pytest.mark.parametrize(
    "state, may",
    [
        ("", True),
        ("import pandas", True),
        ("import mine", False),
        (INSTALLED + "import plain", True),
        (INSTALLED + "import plugin", False),
        (INSTALLED + "import model", False),
        ("import threading, time\nthreading.Thread(target=time.sleep, args=(1,)).start()", False),
        ("import torch", False),
        ("import ray", False),
    ],
)
def test_a_command_with_the_users_work_in_it_is_not_forked(state: str, may: bool, tmp_path: Path) -> None:
    """A module of the user's, loaded again in an actor, would not be the one on disk; a thread's locks would stay."""
    (tmp_path / "mine.py").write_text("")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "plain.py").write_text("def own(): pass")
    (tmp_path / "site" / "plugin.py").write_text("from flray.core.schema.registry import Registry\nown = Registry")
    (tmp_path / "site" / "model.py").write_text("import flray.core.schema.registry as own")
    done = subprocess.run([sys.executable, "-c", ASK.format(state)], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == f"{may}\n", done.stderr

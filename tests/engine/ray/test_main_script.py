"""What stands in the user's script or notebook reaches the actors by value, and a checkpoint finds its classes
again."""

import os
from pathlib import Path

import pytest

from tests.support.processes import python


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "store"),
    [(["main_script.py"], "memory"), (["main_script.py"], "files"), (["-m", "tests.engine.ray.main_script"], "memory")],
    ids=["memory", "files", "by its module's name"],
)
def test_an_algorithm_of_the_script_itself_is_run_and_resumed(words, store, tmp_path):
    here = Path(__file__).parent
    run = python(*words, tmp_path, store, cwd=here, env={**os.environ, "PYTHONPATH": str(here.parents[2])})
    assert run.stdout.endswith("same bits\n"), run.stderr

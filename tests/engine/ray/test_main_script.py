"""What stands in the user's script or notebook reaches the actors by value, and a checkpoint finds its classes
again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.parametrize("store", ["memory", "files"])
def test_an_algorithm_of_the_script_itself_is_run_and_resumed(store, tmp_path):
    script = Path(__file__).with_name("main_script.py")
    run = subprocess.run(
        [sys.executable, str(script), str(tmp_path), store], capture_output=True, text=True, timeout=300
    )
    assert run.stdout.endswith("same bits\n"), run.stderr

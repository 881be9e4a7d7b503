"""Nothing may change silently: the bits of every algorithm are those that are written down."""

import subprocess
import sys

import pytest

from tests.contracts.bit_table import ROOT, differences


def test_every_algorithm_has_the_bits_that_are_written_down():
    """In a process of its own: the kernels are chosen when torch is imported."""
    done = subprocess.run([sys.executable, "-m", "tests.contracts.bit_table"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode == 77:
        pytest.skip(done.stdout.strip())
    hint = "meant? python -m tests.contracts.bit_table --write, and say why in the commit"
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{hint}"


def test_what_changed_is_named():
    known = {"bits": {"a": {"state": "1", "model": "2"}, "gone": {"state": "3"}}}
    found = {"bits": {"a": {"state": "1", "model": "9"}, "new": {"state": "4"}}}
    assert differences(known, found) == ["a: model", "gone: state", "new: state"]

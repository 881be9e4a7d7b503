"""Nothing may change silently: the bits of every algorithm are those that are written down."""

import subprocess
import sys

import pytest

from tests.contracts.bit_table import ROOT, differences, written


@pytest.mark.timeout(1800)  # 12 s of computing, which a loaded machine makes minutes
def test_every_algorithm_has_the_bits_that_are_written_down():
    """In a process of its own: the kernels are chosen when torch is imported."""
    done = subprocess.run([sys.executable, "-m", "tests.contracts.bit_table"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode == 77:
        pytest.skip(done.stdout.strip())
    hint = "meant? python -m tests.contracts.bit_table --write, and say why in the commit"
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{hint}"


def test_what_changed_is_named():
    known = {"a": {"state": "1", "model": "2"}, "gone": {"state": "3"}}
    found = {"a": {"state": "1", "model": "9"}, "new": {"state": "4"}, "unknown": {"state": "5"}}
    assert differences(known, found, elsewhere={"a", "new"}) == {"a": "model", "gone": "state", "unknown": "state"}


def test_what_changes_on_one_machine_is_no_longer_known_of_another():
    rows = {"a": {"state": "1"}, "b": {"state": "2"}}
    tables = {"here": rows, "there": {"a": {"state": "7"}, "b": {"state": "8"}}}
    found = {"a": {"state": "1"}, "b": {"state": "3"}, "new": {"state": "4"}}
    assert written(tables, "here", found) == {"here": found, "there": {"a": {"state": "7"}}}
    assert written({"there": rows}, "here", found) == {"there": rows, "here": found}

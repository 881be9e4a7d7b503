"""A broadcast crosses to a node once, however many actors the node has; so does a shared part, not again next round."""

import shutil

import pytest

from tests.engine.ray.with_table import TABLE
from tests.support.heads import facts_of

MODULE = "tests.engine.ray.broadcasts"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("ss") is None, reason="ss (iproute2) counts the bytes of a process's sockets"),
]


def test_a_broadcast_goes_to_a_node_once(tmp_path):
    found = facts_of(MODULE, tmp_path / "run", "fedavg")
    assert found["nodes"] == 3 and found["calls"] == [6] * 4
    assert found["objects"] == [1] * 4, "the same object for all six actors"
    once = 2 * found["broadcast"]  # two nodes without the server, two actors on each
    # of rounds 2 to 4, one of which may cross before the row of the round before it; the test at the end reads the
    # model as well; beside them Ray's own messages
    assert 4 * once <= sum(found["received"]) < 1.05 * 4 * once


def test_a_shared_part_goes_to_a_node_once_and_not_again(tmp_path):
    """The table changes in the third round. Two nodes have actors besides the server's, two each."""
    found = facts_of(MODULE, tmp_path / "run", "with_table")
    once, table = 2 * found["broadcast"], 2 * TABLE * 4
    second, third = found["received"][:2]
    assert once <= second < 1.05 * once
    assert once + table <= third < 1.05 * (once + table)

"""How long OpenMP's threads wait, in the processes of a Ray."""

import os

import pytest

from tests.support.processes import python

SAY = "import flray.engine.ray, os; print(os.environ.get('GOMP_SPINCOUNT'))"


@pytest.mark.parametrize(
    ("own", "count"), [({}, "10000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "None")]
)
def test_the_threads_of_a_server_leave_the_cores_to_the_clients_unless_the_user_says_how(own, count):
    others = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    assert python("-c", SAY, env=others | own).stdout == f"{count}\n"

"""A field that a message does not have is a type error in the file of an algorithm, flray's own or a user's."""

from pathlib import Path

import pytest

from tests.support.processes import python

ROOT = Path(__file__).parents[2]
OWN = """
from typing import Any

from torch import Tensor

from flray.algorithms.fedavg import SGDState, FedAvg
from flray.algorithms.scaffold import Scaffold, ScaffoldState, ScaffoldUpdate
from flray.core.protocol.context import ClientContext, Context
from flray.core.messages import Batch, Broadcast, Cohort, Metrics

Gradient = tuple[Tensor, Tensor]


class Near(FedAvg, frozen=True):
    def gradient(
        self, ctx: ClientContext, broadcast: Broadcast, client: Any, local: SGDState, batch: Batch
    ) -> Gradient:
        loss, g = super().gradient(ctx, broadcast, client, local, batch)
        return loss, g + local.w - broadcast.w


class Half(Scaffold, frozen=True):
    def aggregate(
        self, ctx: Context, state: ScaffoldState, updates: ScaffoldUpdate, cohort: Cohort
    ) -> tuple[ScaffoldState, Metrics]:
        return ScaffoldState(updates.w, state.b, state.c + updates.c), {}
"""
WRONG = {
    "local.w - broadcast.w": ("local.w - broadcast.control", '"Broadcast" has no attribute "control"'),
    "g + local.w": ("g + local.weights", '"SGDState" has no attribute "weights"'),
    "state.c + updates.c": ("state.control + updates.c", '"ScaffoldState" has no attribute "control"'),
    "updates.w, state.b,": ("updates.w,", 'Missing positional argument "c" in call to "ScaffoldState"'),
}


@pytest.mark.slow  # mypy reads torch's stubs
def test_a_wrong_field_is_a_type_error(tmp_path):
    """One run over the right file and over one file for each mistake."""
    (tmp_path / "right.py").write_text(OWN)
    for number, (right, (wrong, _)) in enumerate(WRONG.items()):
        assert OWN.count(right) == 1
        (tmp_path / f"wrong_{number}.py").write_text(OWN.replace(right, wrong))
    files = sorted(map(str, tmp_path.glob("*.py")))
    said = python("-m", "mypy", "--config-file", ROOT / "pyproject.toml", *files, status=1, cwd=ROOT).stdout
    errors = sorted(line for line in said.splitlines() if ": error:" in line)
    assert [Path(line.split(":")[0]).stem for line in errors] == [f"wrong_{number}" for number in range(len(WRONG))]
    for line, (_, expected) in zip(errors, WRONG.values(), strict=True):
        assert expected in line

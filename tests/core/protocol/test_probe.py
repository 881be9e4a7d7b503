"""What a probe is shown are copies, of arrays as well as of tensors."""

from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from flray.core.messages import Record
from flray.core.protocol.probe import ClientView, Observer, Place, Probe
from flray.core.schema.errors import AlgorithmError
from tests.support.small_cases import context


class Spoils(Probe, frozen=True):
    at: ClassVar[frozenset[Place]] = frozenset({"start"})

    def observe(self, ctx, view, memory):
        view.local.w.zero_()
        view.local.order[:] = -1
        return [{"sum": float(view.broadcast.w.sum())}], None


class Held(Record):
    w: torch.Tensor
    order: np.ndarray


def test_a_probe_that_writes_into_what_it_sees_changes_nothing() -> None:
    held = Held(torch.ones(3), np.arange(3))
    observer = Observer({"spoils": Spoils()}, lambda ctx, reads: ctx)
    observer.observe(context(nn.Linear(2, 2)), ClientView("start", lambda message: None, held, (), held, (), 0))
    assert torch.equal(held.w, torch.ones(3)) and held.order.tolist() == [0, 1, 2]
    assert [row["sum"] for _, row in observer.rows] == [3.0]


class Reports(Probe, frozen=True):
    at: ClassVar[frozenset[Place]] = frozenset({"start"})
    value: Any

    def observe(self, ctx, view, memory):
        return [{"n": self.value}], None


def reported(value: Any) -> Any:
    observer = Observer({"reports": Reports(value=value)}, lambda ctx, reads: ctx)
    observer.observe(context(nn.Linear(2, 2)), ClientView("start", lambda message: None, (), (), (), (), 0))
    return observer.rows[0][1]["n"]


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, [1, 2**70], np.array([2**63], dtype=np.uint64)])
def test_an_integer_that_no_column_holds_names_the_probe(value):
    with pytest.raises(AlgorithmError, match=r"diagnostic reports: Reports.observe .*'n' as .*an integer of more than"):
        reported(value)


@pytest.mark.parametrize("value", [2**63 - 1, -(2**63), [True, 0.5, 3], "x", None])
def test_other_values_of_a_row_are_kept(value):
    assert reported(value) == value

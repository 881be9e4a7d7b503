"""The schedule: an algorithm's versions have its options."""

from pydantic import BaseModel, Field

from flray.algorithms.fedavg import FedAvg
from flray.config.schedule import Change, versions


class Written(BaseModel):
    """Its field is written by a key that does not read it."""

    tau: float = Field(1.0, serialization_alias="t")


class OfWritten(FedAvg):
    part: Written = Written()


def test_a_version_keeps_an_option_whose_alias_only_writes():
    _, last = versions(OfWritten(part={"tau": 2}, lr=0.25), "mine", [Change(from_round=2, algorithm={"lr": 0.5})])
    assert (last.from_round, last.algorithm.part, last.algorithm.lr) == (2, Written(tau=2), 0.5)

"""A user's own script: an algorithm with messages of its own that no other process can import, run, stopped and
resumed."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor

import flray
from flray.algorithms import ALGORITHMS
from flray.algorithms.fedavg import FedAvg
from flray.core.messages import ClientState, ServerState, Update, equal
from flray.core.messages.fields import each, sum
from flray.rundir import checkpoint


class GrowingState(ServerState):
    """`blocks`: one more a round, of another length each time."""

    blocks: dict[str, Tensor]
    rate: float
    first: Tensor | None = None


class Visits(ClientState):
    visits: int
    trace: Tensor | None = None


class Ragged(Update):
    mark: Tensor = each()
    samples: int = sum()


class Growing(FedAvg):
    def init_server(self, ctx: Any, w: Tensor, b: Tensor) -> GrowingState:
        return GrowingState(w, b, {}, 0.65)

    def init_client(self, ctx: Any) -> Visits:
        return Visits(0)

    def end(self, ctx: Any, broadcast: Any, client: Visits, local: Any, *data: Any) -> tuple[Ragged, Visits]:
        mark = torch.full((client.visits + 1,), float(ctx.client))
        return Ragged(local.w, local.b, mark, ctx.num_examples), Visits(client.visits + 1, mark)

    def aggregate(
        self, ctx: Any, state: GrowingState, updates: Any, cohort: Any
    ) -> tuple[GrowingState, dict[str, float]]:
        blocks = {**state.blocks, f"round.{len(state.blocks)}": torch.cat(updates.mark)}
        state = state.replace(w=updates.w, b=updates.b, blocks=blocks, first=updates.mark[0])
        return state, {"counted": float(updates.samples == int(cohort.num_examples.sum())), "rate": state.rate}


ALGORITHMS.add("growing", Growing)

if __name__ == "__main__":
    out, store = sys.argv[1:]
    config = {
        "data": "iris",
        "model": "mlp",
        "partition": {"name": "dirichlet", "alpha": 1.0, "clients": 5},
        "cohort": {"size": 3},
        "algorithm": {"name": "growing", "lr": 0.05, "local_epochs": 1},
        "resources": {"store": store, "client_actors": 2},
    }
    whole = flray.run({**config, "rounds": 4}, out=f"{out}/whole")
    flray.run({**config, "rounds": 2}, out=f"{out}/parts")
    parts = flray.resume(f"{out}/parts", rounds=4)
    one, other = (checkpoint.latest(run.folder).server.message() for run in (whole, parts))
    assert type(one) is GrowingState and equal(one, other)
    assert one.rate == 0.65 and one.first is not None and len(one.blocks) == 4
    assert parts.rounds["counted"].tolist() == [1.0] * 4 and parts.rounds["rate"].tolist() == [0.65] * 4
    assert parts.rounds["comm/up_bytes"].tolist() == whole.rounds["comm/up_bytes"].tolist()
    sizes = [len(block) * 4 + 3 * (8 + one.w.nbytes + one.b.nbytes) for block in one.blocks.values()]
    assert whole.rounds["comm/up_bytes"].tolist() == sizes
    print("same bits")

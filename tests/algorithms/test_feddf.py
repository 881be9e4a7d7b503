"""FedDF's statistics; the rest of its server half is that of FedProj without projection, to the bit
(`tests/contracts/table.py`), which `test_fedproj.py` transcribes."""

import torch

from flray.algorithms.feddf import FedDF
from flray.core.network.objective import Objective
from tests.support.networks import Norm, build, inputs
from tests.support.rounds import play
from tests.support.small_cases import ListProxy
from tests.support.unequal import pair

LOCAL = {"lr": 0.2, "local_epochs": 2, "batch_size": 4}


def test_statistics_of_the_server_follow_the_policy():
    objective, data, proxy = Objective(build(Norm)), pair(Norm), ListProxy(inputs(Norm, 11)[0])
    b = {}
    for policy in ("average", "keep"):
        states, _, _ = play(FedDF(**LOCAL, buffers=policy, distill_lr=1e-3), objective, data, 1, proxy)
        b[policy] = states[1].b
    assert torch.equal(b["keep"], objective.initial()[1])
    assert not torch.equal(b["average"], b["keep"])

"""What a run says of a user's own code is the same by ordinary calls of actors as in one process."""

import warnings

import pytest
import torch

import flray
from flray.algorithms.fedavg import FedAvg
from tests.support import iris


class Tempered(FedAvg, frozen=True):
    """A loss with a temperature beside the network."""

    learned: bool = True

    def gradient(self, ctx, broadcast, client, local, batch):
        temperature = torch.nn.Parameter(torch.tensor(2.0), requires_grad=self.learned)

        def loss(model):
            return torch.nn.functional.cross_entropy(model(batch.x) / temperature, batch.y)

        return ctx.objective.value_and_grad(loss, local.w, local.b, out=local.grad)


def said(folder, executor, learned):
    algorithm = {**iris.TOY["algorithm"], "name": Tempered, "learned": learned}
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        flray.run({**iris.TOY, "algorithm": algorithm}, f"resources.executor={executor}", out=folder, progress=False)
    return {str(each.message) for each in found if "loss" in str(each.message)}


@pytest.mark.usefixtures("ray_cluster")
def test_a_warning_of_a_users_loss_comes_from_an_actor_too(tmp_path):
    (here,) = said(tmp_path / "here", "local", learned=True)
    assert "the loss reads an nn.Parameter that is not the network's" in here
    assert said(tmp_path / "there", "calls", learned=True) == {here}
    assert not said(tmp_path / "constant", "calls", learned=False)

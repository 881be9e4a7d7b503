"""ER and DER: what a client stores, and the losses of what it replays."""

import copy

import numpy as np
import pandas
import pytest
import torch
from torch.nn import functional as F

import flray
from flray.algorithms.der import DER, DERLocalState
from flray.algorithms.er import ER
from flray.contracts.played import Local
from flray.core.messages import Batch
from flray.core.network.objective import Objective
from flray.core.protocol.classes import Classes
from flray.models.mlp import MLP
from tests.contracts.table import experiment
from tests.support.small_cases import context, normal

TASKS = {"num_tasks": 3, "class_order": [1, 0, 2]}
# classes 1 and 3 were task 0's, 0 and 2 are task 1's, 4 has not begun
CLASSES = Classes([[1, 3], [0, 2]], 5)


class Tokens(torch.nn.Module):
    def __init__(self, input_shape, num_classes, num_tokens):
        super().__init__()
        self.tokens, self.head = torch.nn.Embedding(num_tokens, 4), torch.nn.Linear(4, num_classes)

    def forward(self, x):
        return self.head(self.tokens(x.long()).mean(dim=1))


def network():
    torch.manual_seed(2)
    return Objective(MLP((4,), 5, hidden=(6,)))


def gradient_of(objective, loss):
    """(a loss of a network with these initial values, its flat gradient), by autograd."""
    torch.manual_seed(2)
    net = MLP((4,), 5, hidden=(6,))
    names, parameters = zip(*net.named_parameters(), strict=True)
    value = loss(net)
    gradients = torch.autograd.grad(value, parameters)
    return float(value.detach()), objective.layout.flatten(dict(zip(names, gradients, strict=True)), "cpu")


def cross_entropy_among(logits, y, places):
    """-log softmax over these places of the head."""
    chosen = logits[:, places]
    return F.cross_entropy(chosen, torch.tensor([places.index(int(label)) for label in y]))


def test_er_trains_both_batches_among_all_classes_seen():
    objective = network()
    ctx, x, y = context(objective, classes=CLASSES, client=0), normal(4, 4), torch.tensor([0, 3, 1, 2])
    algorithm = ER()
    loss, g = algorithm.gradient(ctx, None, (), algorithm.local_state(ctx, *objective.initial()), Batch(x, y))
    expected, flat = gradient_of(objective, lambda net: cross_entropy_among(net(x), y, [0, 1, 2, 3]))
    assert float(loss) == pytest.approx(expected, rel=1e-6)
    torch.testing.assert_close(g, flat)
    assert not objective.views(g)["head.bias"][4] and objective.views(g)["head.bias"][1]


@pytest.mark.parametrize("beta", [0.0, 0.7])
def test_der_is_a_cross_entropy_and_a_distance_to_logits(beta):
    """Four stored samples, three with logits, all three in the batch of the memory: CE + alpha / (3 x 4) sum of squares
    over the four classes seen (+ beta CE)."""
    objective = network()
    ctx, x, y = context(objective, classes=CLASSES, client=0), normal(2, 4), torch.tensor([0, 2])
    stored, labels, logits = normal(4, 4, seed=1), torch.tensor([1, 3, 0, 1]), normal(4, 5, seed=2)
    algorithm, known = DER(alpha=0.3, beta=beta, memory_batch=10), torch.tensor([0, 1, 3])
    base = algorithm.local_state(ctx, *objective.initial())
    local = DERLocalState.of(base, client=None, x=stored, y=labels, logits=logits, known=known, held=torch.tensor([2]))

    def loss(net):
        distance = ((net(stored[known]) - logits[known])[:, :4] ** 2).sum() / 12
        value = cross_entropy_among(net(x), y, [0, 1, 2, 3]) + 0.3 * distance
        return value + beta * cross_entropy_among(net(stored[known]), labels[known], [0, 1, 2, 3])

    found, g = algorithm.gradient(ctx, None, (), local, Batch(x, y))
    expected, flat = gradient_of(objective, loss)
    assert float(found) == pytest.approx(expected, rel=1e-5)
    torch.testing.assert_close(g, flat, rtol=1e-4, atol=1e-6)


def stored_by_client(local):
    return {k: (state.numbers.tolist(), state.logits.clone()) for k, state in local.client_states().items()}


def test_der_stores_the_logits_of_the_client_that_held_the_samples(tmp_path):
    """Of the samples of this task: the client's own model after its training, whose batch norm has the statistics of
    these samples as in a step (a single one: the running statistics). Of older tasks: the values from before, beside
    the sample that they belong to, although the reservoir has thrown others out."""
    updates = {}

    def watch(half, function, *arguments):
        done = function(*arguments)
        if half == "client":
            updates[arguments[0].client] = (done.update.w.clone(), done.update.b.clone())
        return done

    own = experiment("der", {"memory_size": 12}, tasks=TASKS, rounds=2, cohort={"size": 5})
    local = Local(own, tmp_path, watch)
    runtime = local.server.runtime
    train = runtime.dataset.train
    before, kept = {}, 0
    for task in range(3):
        local.play(2)
        after = stored_by_client(local)
        for k, (numbers, logits) in after.items():
            held = set(local.scenario.partitions[task].client(k).tolist())
            inside = [number for number in numbers if number in held]
            net = copy.deepcopy(runtime.objective.module)
            net.load_state_dict(runtime.objective.state_dict(*updates[k]))
            net.train(len(inside) > 1)
            outputs = dict(zip(inside, net(runtime.normalizer(np.array(train.x[inside]))).detach(), strict=True))
            known = dict(zip(*before[k], strict=True)) if k in before else {}
            for number, stored in zip(numbers, logits, strict=True):
                if number in held:
                    torch.testing.assert_close(stored, outputs[number], rtol=1e-4, atol=1e-5)
                else:
                    kept += 1
                    assert torch.equal(stored, known[number])
            assert len(set(numbers)) == len(numbers) <= 12
        before = after
    assert kept > 20 and any(len(numbers) == 12 for numbers, _ in before.values())


def test_der_on_text_stores_logits_as_numbers(tmp_path):
    """The inputs are whole numbers, tokens: logits of their type ended the first round in a RuntimeError."""
    rows = {"text": ["good film", "bad film", "good", "bad"] * 6, "label": [1, 0, 1, 0] * 6}
    for split in ("train", "test"):
        pandas.DataFrame(rows).to_parquet(tmp_path / f"{split}.parquet")
    data = {"source": f"hf:{tmp_path}", "tokenizer": "train", "max_length": 4, "leak_check": False}
    options = {"name": "der", "lr": 0.1, "memory_size": 4, "memory_batch": 4}
    sections = {"partition": {"name": "iid", "clients": 2}, "model": {"name": "tests.algorithms.test_replay:Tokens"}}
    sections["resources"] = {"executor": "local"}
    run = flray.run({"rounds": 2, "data": data, "algorithm": options, **sections}, out=tmp_path / "run", progress=False)
    assert run.status == "finished" and run.rounds["train/loss"].notna().all()

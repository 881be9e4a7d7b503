"""`algorithm.last_batch`: what is cut, what is reported, and what batch norm says of a batch of one sample."""

import numpy as np
import pytest
import torch

import flray
from flray.algorithms import ALGORITHMS, built_in
from flray.algorithms.fedavg import FedAvg
from flray.contracts.played import Local
from flray.core.messages import Batch
from flray.core.protocol.clock import Clock
from flray.core.schema.errors import AlgorithmError, ClientError, ConfigError
from flray.engine import cohort as cohorts
from tests.support.messages import facts
from tests.support.runs import cohort, config

EPOCHS = 2
NETWORK = {"model": {"name": "tests.contracts.networks:SampleNorm"}}
COUNTING = [name for name in built_in() if ALGORITHMS.get(name).local_steps is not FedAvg.local_steps]
NINE = {"proxy": {"source": "holdout", "size": 9}}
MEMO = {"name": "fedmemo", "trigger": "scheduled", "proxy": {"data": "real", "bn": "update", "batch_size": 1}}
LABELLED = {"proxy": {**NINE["proxy"], "labelled": True}}


def steps_by_hand(n, size, policy):
    whole, rest = divmod(n, size)
    return (whole + (rest > 0)) if policy == "keep" or whole == 0 else whole


def settings(policy, size, algorithm="fedavg", **sections):
    options = {"name": algorithm, "batch_size": size, "local_epochs": EPOCHS, "last_batch": policy}
    return config(options, rounds=1, **sections)


@pytest.fixture(scope="module")
def largest(tmp_path_factory):
    """(a client of the first cohort, its number of samples)."""
    local = Local(config(), tmp_path_factory.mktemp("sizes"))
    return max(((k, len(local.scenario.partitions[0].client(k))) for k in cohort(0)), key=lambda pair: pair[1])


@pytest.mark.parametrize("policy", ["keep", "drop", "merge"])
@pytest.mark.parametrize("name", ["fedavg", *COUNTING])  # the others count as FedAvg
def test_an_algorithm_is_told_as_many_steps_as_there_are_batches(name, policy, tmp_path):
    """What FedNova's tau_k, SCAFFOLD's m_k and the tables' client_steps count."""
    local = Local(settings(policy, 7, name), tmp_path)
    clients, algorithm = np.arange(5), local.experiment.algorithm
    (turn,), _ = cohorts.turns(local.scenario, algorithm, clients, Clock(), algorithm.training)
    for k in clients:
        indices = local.scenario.partitions[0].client(int(k))
        ctx = local.executor.client.context(turn.clock, int(k), 0.2, indices)
        batches = algorithm.batches(ctx, None, (), None, local.server.runtime.client_data(ctx, indices))
        made = [len(batch.y) for batch in batches]
        assert len(made) == len(batches) == ctx.num_steps == turn.cohort.num_steps[k]
        if policy != "keep":
            assert min(made) >= min(7, len(indices)), "none is short, but an only one"
        if name != "perfedavg":  # pairs of batches, which may begin another epoch
            assert len(made) == EPOCHS * steps_by_hand(len(indices), 7, policy)


def test_batch_norm_on_one_sample_names_the_setting_that_helps(tmp_path, largest):
    client, n = largest
    local = Local(settings("keep", n - 1, **NETWORK), tmp_path / "keep")
    with pytest.raises(ConfigError) as error:
        local.play(1)
    assert str(error.value) == (
        f"client {client}: batch norm cannot train on a batch of one sample: the last of {n} in batches of {n - 1}; "
        "set algorithm.last_batch=merge or drop, or another batch_size"
    )
    for policy in ("merge", "drop"):
        taken = []

        played = []

        def watch(half, function, *arguments, taken=taken, played=played):
            if half == "client" and arguments[0].client == client:
                data = arguments[4]
                taken.extend(
                    len(batch.y) for batch in played[0].experiment.algorithm.batches(arguments[0], None, (), None, data)
                )
            return function(*arguments)

        played.append(Local(settings(policy, n - 1, **NETWORK), tmp_path / policy, watch))
        played[0].play(1)
        assert taken == [n if policy == "merge" else n - 1] * EPOCHS
    with pytest.raises(ConfigError, match=facts("algorithm.batch_size", 1, "raise")):
        Local(settings("merge", 1, **NETWORK), tmp_path / "one").play(1)


def test_centralized_training_cannot_merge():
    """Its parts of a batch have one size."""
    with pytest.raises(ConfigError, match=facts("algorithm.last_batch", "'keep'", "'drop'")):
        settings("merge", 4, "centralized")
    assert ALGORITHMS.get("centralized")(last_batch="drop").last_batch == "drop"


@pytest.mark.parametrize(
    ("algorithm", "sections", "words"),
    [
        (
            {"name": "feddf", "distill_batch_size": 8},
            NINE,
            r"their number \(proxy\.size\) or a batch's size \(algorithm\.distill_batch_size",
        ),
        (
            {"name": "fedavg"},
            {**NINE, "aggregation": {"name": "feddf", "distill_batch_size": 8}},
            "aggregation.distill_batch_size",
        ),
        (MEMO, LABELLED, r"algorithm\.proxy\.gan_batch_size, algorithm\.proxy\.batch_size\)"),
        ({"name": "fedavg"}, {**LABELLED, "aggregation": MEMO}, r"\(.*aggregation\.proxy\.batch_size\)"),
        (
            {"name": "der", "memory_batch": 1},
            {},
            r"their number \(algorithm\.memory_size\) or a batch's size \(algorithm\.memory_batch",
        ),
        ({"name": "centralized", "batch_size": 3, "shards": 2}, {}, "a batch of 3 is cut .* algorithm.shards=1"),
        ({"name": "centralized", "batch_size": 1}, {}, "algorithm.batch_size is 1"),
        ({"name": "fedavg", "batch_size": 1}, {}, "algorithm.batch_size is 1"),
    ],
    ids=[
        "public samples",
        "of a rule",
        "of a section",
        "of a rule's section",
        "a memory",
        "a part",
        "batches of one",
        "a client's batches of one",
    ],
)
def test_one_sample_beside_the_clients_last_batch_names_what_cuts_it(tmp_path, algorithm, sections, words):
    """9 public samples in batches of 8, or of one; one of the memory a step; 3 in two parts are 2 and 1."""
    options = {"last_batch": "drop", "batch_size": 4, **algorithm}
    with pytest.raises(ConfigError, match=f"batch norm cannot train on a batch of one sample: .*{words}") as error:
        flray.run(config(options, rounds=3, **NETWORK, **sections), out=tmp_path / "run", progress=False)
    assert "\n" not in str(error.value)


class Halves(FedAvg, frozen=True):
    """Two steps on the halves of each batch: the operations of one, counted on less samples, would have one."""

    def gradient(self, ctx, broadcast, client, local, batch):
        half = len(batch.y) // 2
        super().gradient(ctx, broadcast, client, local, Batch(batch.x[:half], batch.y[:half]))
        return super().gradient(ctx, broadcast, client, local, Batch(batch.x[half:], batch.y[half:]))


@pytest.mark.filterwarnings("ignore:client_flops")
def test_a_step_whose_operations_cannot_be_counted_trains(tmp_path):
    options = {"name": "tests.engine.test_last_batch:Halves", "last_batch": "drop", "batch_size": 4}
    run = flray.run(config(options, rounds=1, **NETWORK), out=tmp_path / "run", progress=False)
    assert run.status == "finished"


class Mine(FedAvg, frozen=True):
    def aggregate(self, ctx, state, updates, cohort):
        torch.nn.BatchNorm1d(3)(torch.zeros(1, 3))


def test_a_batch_of_one_that_an_own_step_makes_has_its_traceback(tmp_path):
    """No setting of the run makes it: halves of batches of two."""
    options = {"name": "tests.engine.test_last_batch:Halves", "last_batch": "drop", "batch_size": 2}
    with pytest.raises(ClientError, match=r"(?s)Expected more than 1 value .*in gradient"):
        Local(config(options, rounds=1, **NETWORK), tmp_path).play(1)


def test_a_mistake_of_an_own_server_half_has_its_traceback(tmp_path):
    local = Local(config("tests.engine.test_last_batch:Mine", rounds=1), tmp_path)
    with pytest.raises(AlgorithmError, match=r"(?s)Expected more than 1 value .*in aggregate"):
        local.play(1)


def test_a_task_has_a_share_of_the_least_number_of_samples(tmp_path):
    """`partition.min_size` counts over all tasks: two samples in each of three are 6."""
    one_each = {"name": "table", "table": [[1, 1, 1], [20, 20, 20]]}
    tasks = {"num_tasks": 3, "partition": "once"}
    sections = {"partition": one_each, "tasks": tasks, "cohort": {"size": 2}, "proxy": None, **NETWORK}
    with pytest.raises(ConfigError, match=r"the client has only one; set partition\.min_size=6,"):
        flray.run(config("fedavg", rounds=1, **sections), out=tmp_path / "run", progress=False)

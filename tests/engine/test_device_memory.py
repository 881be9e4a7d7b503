"""The memory of a client on a GPU, predicted on the CPU: against the bytes that live on the second device."""

import numpy as np
import pytest

from flray.contracts.played import Local, bits
from flray.core.messages import to_numpy
from flray.core.protocol.clock import Clock
from flray.engine import cohort as cohorts
from flray.engine.client import Client
from flray.engine.device_memory import CUDA, HELD, WORKSPACE, ClientMemory, Timeline, client_memory
from tests.contracts.table import TABLE, experiment
from tests.support.devices import using
from tests.support.memory import CLIENTS, broadcast_of, chunk_of, predicted, small


def lived(config, folder):
    """The largest number of bytes on the second device while a chunk's clients train there."""
    with using("strict") as device:
        local = Local(config, folder / "strict", device=device)
        runtime, training, sent = local.server.runtime, config.algorithm.training, to_numpy(broadcast_of(local))
        chunk, timeline = chunk_of(local), Timeline(device)
        timeline.add(*runtime.objective.resident())
        client = Client(runtime)
        client._compared.add(training.name)  # the comparison with the broadcast copies all of it
        states = None  # with a compressor those of a first update, its residual
        if config.uplink:
            states = [to_numpy(state) for state in client.work_neighbours([chunk], training, [sent], [None])[0].states]
        with timeline:
            client.work_neighbours([chunk], training, [sent], [states])
        return max(timeline.history)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("fedavg", {}),
        pytest.param("fedavg", {"optimizer": "adam"}, marks=pytest.mark.slow),
        pytest.param("scaffold", {}, marks=pytest.mark.slow),
        pytest.param("fedproj", {}, marks=pytest.mark.slow),
        pytest.param("fedavg", {"uplink": {"name": "topk", "fraction": 0.5}, "batch": 2}, marks=pytest.mark.slow),
        pytest.param("fedsol", {}, marks=pytest.mark.slow),
        pytest.param("moon", {}, marks=pytest.mark.slow),
        pytest.param("ditto", {}, marks=pytest.mark.slow),
        pytest.param("fedavg", {"model": "resnet8", "batch": 16}, marks=pytest.mark.slow),
        pytest.param("scaffold", {"model": "resnet8", "batch": 16}, marks=pytest.mark.slow),
    ],
)
def test_the_prediction_is_the_bytes_that_live_on_a_device(name, options, tmp_path):
    """At most 3 % below, at most 15 % above: the peak of the sums need not be that of a step."""
    config = small(name, **options)
    found, actual = predicted(config, tmp_path).tensors, lived(config, tmp_path)
    assert 0.97 * actual <= found <= 1.15 * actual


def test_parts_of_a_plain_client(tmp_path):
    """Vectors of P numbers: the initial one, the received one, w and momentum and gradient, 2 + 1 sums of 4 clients. A
    recorded step has its own received one, and its activations."""
    local = Local(small("fedavg"), tmp_path)
    found = client_memory(local.server.runtime, chunk_of(local), broadcast_of(local), CLIENTS)
    p = 4 * local.server.runtime.objective.layout.size
    for part, vectors in (("model", 1), ("messages", 1), ("training", 3), ("sums", 3)):
        assert getattr(found, part) == pytest.approx(vectors * p, rel=0.01, abs=5000), part
    assert found.batches == 44 * (3 * 32 * 32 * 4 + 8)
    assert found.total == pytest.approx((found.tensors + found.graphs) * HELD + found.samples + WORKSPACE + CUDA, abs=1)
    assert found.samples == 200 * (3 * 32 * 32 + 8)  # bytes of the training set
    assert found.tensors == sum(found) - found.graphs - found.samples and isinstance(found, ClientMemory)
    assert found.graphs == pytest.approx(found.messages + found.activations, rel=0.01)


def test_activations_grow_with_the_batch_and_the_rest_does_not(tmp_path):
    found = [predicted(small("fedavg", batch=batch), tmp_path / str(batch)) for batch in (10, 20, 30)]
    a, b, c = (memory.activations for memory in found)
    assert c - b == pytest.approx(b - a, rel=0.01) and b - a > 10 * 32 * 32 * 32 * 4  # a layer of 32 channels
    assert len({memory._replace(activations=0, graphs=0) for memory in found}) == 1


@pytest.mark.parametrize("name", TABLE)
def test_every_algorithm_is_counted_and_nothing_is_changed(name, tmp_path):
    local = Local(experiment(name), tmp_path)
    algorithm, members = local.experiment.algorithm, np.array(local.scenario.members(0))
    chunk = cohorts.turns(local.scenario, algorithm, members, Clock(), algorithm.training)[0][0].chunks[0]
    before = bits(local.server.state)
    found = client_memory(local.server.runtime, chunk, broadcast_of(local), 3)
    assert min(found) >= 0 and found.activations > 0 and found.training > 0
    assert bits(local.server.state) == before

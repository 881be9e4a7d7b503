"""All of the interface at once, over two tasks: the same bits from every executor, with any actors, after a stop."""

from __future__ import annotations

import numpy as np
import pytest

import flray
from flray.config.loader import load_config
from flray.core.protocol.probe import Probe
from flray.core.schema.errors import ConfigError
from flray.engine.replay import Replay
from flray.metrics.divergence import Divergence
from flray.rundir import checkpoint
from tests.support.faults import interrupted
from tests.support.outcome import contents, records

CONFIG = {
    "rounds": 3,
    "imports": ["tests.contracts.toy"],
    "data": {"source": "digits"},
    "tasks": {"num_tasks": 2, "class_order": "natural"},
    "partition": {"name": "dirichlet", "clients": 6, "alpha": 0.3},
    "model": {"name": "mlp", "hidden": [8]},
    "algorithm": {"name": "toy", "lr": 0.1, "batch_size": 16},
    "cohort": {"size": 3},
    "checkpoint": {"every": 1, "keep": 0},
    "diagnostics": ["toy_movement", "divergence", "local_forgetting"],
    "evaluate": {"clients": True},
}


class Size(Probe, frozen=True):
    at = frozenset({"round"})

    def observe(self, ctx, view, memory):
        assert view.before is None and memory is None
        return [{"norm": float(np.linalg.norm(view.model_of(view.after)[0].numpy()))}], None


def config(executor, actors=1, **sections):
    resources = {"executor": executor, "client_actors": actors, "server": {"threads": 1}}
    return load_config({**CONFIG, "resources": resources, **sections})[0]


def everything(run):
    tables = {name: records(frame) for name, frame in run.diagnostics.items()}
    return {**contents(run), "tests": records(run.tests), "tasks": records(run.tasks), **tables}


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    return flray.run(config("local"), out=tmp_path_factory.mktemp("local") / "run", progress=False)


def test_it_uses_what_it_is_there_to_use(local):
    state = checkpoint.latest(local.folder).server.message()
    assert set(state.bases) == {"task 0", "task 1"} and state.samples > 0
    rounds, tasks = local.rounds, local.tasks
    assert rounds["exchanges"].max() == 2, "a second exchange where the first asks for it"
    assert (rounds["client_steps"] == 5 * rounds["cohort_size"] - 5 * rounds.get("clients_empty", 0)).all()
    ends = tasks[tasks["phase"] == "task_end"]
    assert ends["toy/exemplars"].tolist()[0] == 0 and ends["toy/exemplars"].tolist()[1] > 0
    assert set(local.tests["mode"]) == {"global", "seen"}
    # the images are new at each task's beginning, and each client gets them once a task: they are 8 x 64 float32
    assert len(local.diagnostics["toy_movement"]) > 0 and len(local.diagnostics["divergence"]) > 0


def test_a_shared_part_is_counted_once_a_client_and_task(local):
    """Every message holds w, b and the alarm; the images, 8 x 64 float32, are 2048 bytes more the first time."""
    state = checkpoint.latest(local.folder).server.message()
    each = state.w.nbytes + state.b.nbytes + 1
    rounds, clients = local.rounds, local.clients[local.clients["phase"] == "round"]
    for task in (0, 1):
        seen = set()
        for round in (1, 2, 3):
            rows = clients[(clients["task"] == task) & (clients["round"] == round)]
            new = set(rows["client"]) - seen
            seen |= new
            found = rounds[(rounds["task"] == task) & (rounds["round"] == round)]["comm/down_bytes"].item()
            # the repair goes to two clients of the task, who may see the images for the first time
            assert found == len(rows) * each + 2048 * len(new)


def test_every_client_of_every_round_can_be_repeated(local):
    """Also of a task's first round, before which the end of one task and the beginning of the next have changed the
    state, and with shared parts: the replay's rows are those that the run wrote down."""
    replay = Replay(local.folder)
    for done in range(6):
        rows = local.clients.query("done == @done + 1 and phase == 'round' and exchange == 0")
        found = {client: row["train/loss"] for client, _, row in replay.goto(done).clients()}
        assert found == dict(zip(rows["client"].tolist(), rows["train/loss"].tolist(), strict=True))
    with pytest.raises(ConfigError, match="round 7: the run has rounds 1 to 6"):
        next(replay.goto(6).clients())


def test_a_probe_of_rounds_can_look_at_a_stored_checkpoint(local):
    """The norm of the saved state, read from the checkpoint's own file; one that looks at clients cannot."""
    replay = Replay(local.folder).goto(4)
    saved = checkpoint.read(local.folder / "checkpoints" / "round-000004").server.message()
    assert replay.observe(Size()) == [{"exchange": 0, "place": "round", "norm": float(np.linalg.norm(saved.w))}]
    with pytest.raises(ConfigError, match="Divergence observes end, finish, start only"):
        replay.observe(Divergence())


def test_probes_change_no_bit(local, tmp_path):
    without = flray.run(config("local", diagnostics=[]), out=tmp_path / "run", progress=False)
    assert contents(without) == contents(local)


@pytest.mark.parametrize("stop", [2, 4])
def test_resumed_in_the_middle_it_is_the_same(local, tmp_path, stop):
    """In either task: exemplars, holders of shared parts and the probe's memory come from the checkpoint."""
    with interrupted("before", stop % 3, task=stop // 3), pytest.raises(KeyboardInterrupt):
        flray.run(config("local"), out=tmp_path / "run", progress=False)
    assert everything(flray.resume(tmp_path / "run", progress=False)) == everything(local)


@pytest.mark.parametrize(
    ("executor", "actors"), [("calls", 1), pytest.param("calls", 3, marks=pytest.mark.slow), ("graph", 2)]
)
def test_actors_give_the_same_bits(ray_cluster, local, tmp_path, executor, actors):
    """By a graph as well: what has shared parts goes by calls there."""
    assert everything(flray.run(config(executor, actors), out=tmp_path / "run", progress=False)) == everything(local)

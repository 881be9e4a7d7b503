"""An algorithm that keeps exemplars sees what each client held in the stage before, at the beginning of a new one and
in its first round, in whichever process."""

import pytest

from flray.contracts.played import Local
from flray.core.protocol.seeding import rng
from flray.data import load_dataset
from flray.scenario import PartitionWarning
from tests.engine.rehearsal import Rehearsal
from tests.support.messages import facts
from tests.support.tasks import BASE, TASKS, experiment

ALGORITHM = {"name": "rehearsal", "lr": 0.1, "local_epochs": 2, "batch_size": 8}


def rehearsing(**sections):
    sections = {"algorithm": ALGORITHM, "tasks": TASKS, "rounds": 2, "imports": ["tests.engine.rehearsal"], **sections}
    return experiment(**sections)


def watched(own, folder):
    """A run in this process; (its scenario, by moment and client: its data and the batches that it trained on)."""
    seen = {}

    def watch(half, function, *arguments):
        if half == "client":
            ctx, exchange, _, state, data = arguments[:5]
            made = [] if exchange.client else own.algorithm.batches(ctx, None, state, None, data)
            labels = [label for batch in made for label in batch.y.tolist()]
            seen[(ctx.clock.task, ctx.clock.phase, ctx.clock.round, ctx.client)] = data, labels
        return function(*arguments)

    local = Local(own, folder, watch)
    for clock in local.schedule():
        local.exchanges(clock)
    return local.scenario, seen, local


def test_it_is_what_the_client_held_and_only_while_the_stage_is_new(tmp_path):
    scenario, seen, local = watched(rehearsing(), tmp_path)
    assert len(seen) == 2 * (1 + 2) * 4, "in both tasks a beginning and two rounds of four clients"
    for (task, phase, round, k), (data, _) in seen.items():
        assert data.numbers.tolist() == scenario.partitions[task].client(k).tolist()
        if task == 0 or round == 1:
            assert data.previous is None
        else:
            assert data.previous.numbers.tolist() == scenario.partitions[0].client(k).tolist()
            address = (BASE["seed"], task, round, *([] if phase == "round" else [phase]), 0, k)
            order = data.previous.numbers[rng(*address, "previous", "batches", 0).permutation(20)]
            labels = load_dataset(local.experiment.data).train.y[order]
            (batch,) = data.previous.batches(100, 1)
            assert batch.y.tolist() == labels.tolist(), "draws of its own"
            assert data.previous.previous is None


def test_clients_train_on_their_own_samples_and_on_what_they_kept(tmp_path):
    """Two epochs of the 10 samples of class 1 and of 5 exemplars of classes 0 and 2; in task 0 nothing is kept."""
    _, seen, local = watched(rehearsing(), tmp_path)
    for k, state in local.client_states().items():
        kept = state.numbers.tolist()
        assert len(set(kept)) == 5 and set(kept) <= set(local.scenario.partitions[0].client(k).tolist())
        labels = load_dataset(local.experiment.data).train.y[kept].tolist()
        for round in (0, 1):
            assert sorted(seen[1, "round", round, k][1]) == sorted(2 * ([1] * 10 + labels))
            assert set(seen[0, "round", round, k][1]) <= {0, 2} and len(seen[0, "round", round, k][1]) == 2 * 20
    begun = [row["kept"] for row in local.rows if "kept" in row]
    assert begun == [0.0, 20.0]


def test_who_held_nothing_in_the_stage_before_has_nothing_to_choose_from(tmp_path):
    """Shared out once: client 0 is in task 0 alone, client 1 in task 1 alone."""
    table = {"name": "table", "table": [[20, 0, 0], [0, 20, 0], [10, 10, 10]]}
    own = rehearsing(tasks={**TASKS, "partition": "once"}, partition=table)
    with pytest.warns(PartitionWarning, match=facts("1 of 3 clients")):
        _, seen, _ = watched(own, tmp_path)
    assert {k for task, _, _, k in seen if task == 1} == {1, 2}
    for phase in ("task_begin", "round"):
        assert seen[1, phase, 0, 1][0].previous.num_examples == 0 and list(seen[1, phase, 0, 1][0].previous.plain) == []
        assert seen[1, phase, 0, 2][0].previous.num_examples == 20


def test_an_algorithm_that_keeps_none_sees_none(tmp_path):
    _, seen, _ = watched(rehearsing(algorithm=BASE["algorithm"], imports=[]), tmp_path)
    assert seen and all(data.previous is None for data, _ in seen.values())
    assert Rehearsal.keeps_exemplars and not type(experiment().algorithm).keeps_exemplars

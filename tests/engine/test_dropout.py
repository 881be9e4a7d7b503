"""`cohort.dropout`: who drops out is derived from the address of each draw, what remains from the papers' weighted
means."""

import numpy as np
import pytest

import flray
from flray.config.experiment import CohortConfig
from flray.contracts.played import Local, bits, flatten
from flray.core.protocol.clock import Clock
from flray.core.protocol.seeding import rng
from flray.core.schema.errors import ConfigError
from flray.engine.cohort import sample_cohort, without_dropouts
from flray.engine.replay import Replay
from flray.rundir import checkpoint
from tests.support.runs import config

CHANCE = 0.3
COHORT = {"size": 3, "dropout": CHANCE}  # of 5 clients, seed 3


def sampled(round):
    return rng(3, "cohort", 0, round).choice(5, 3, replace=False).tolist()


def present(round, chance=CHANCE):
    return [k for k in sampled(round) if rng(3, "dropout", 0, round, k).random() >= chance]


# who ------------------------------------------------------------------------------------------
def test_each_draw_is_addressed_by_task_round_and_client():
    half, everyone = CohortConfig(dropout=0.5), np.arange(4000)
    found = without_dropouts(half, 0, Clock(0, 7), everyone)
    assert without_dropouts(half, 0, Clock(0, 7), everyone[::-1]).tolist() == found[::-1].tolist(), (
        "whoever else is there"
    )
    assert abs(len(found) - 2000) < 5 * np.sqrt(4000 * 0.25), "5 standard deviations of a binomial"
    for seed, clock in ((1, Clock(0, 7)), (0, Clock(1, 7)), (0, Clock(0, 8))):
        assert without_dropouts(half, seed, clock, everyone).tolist() != found.tolist()
    assert without_dropouts(CohortConfig(), 0, Clock(0, 7), everyone) is everyone


@pytest.mark.parametrize("chance", [-0.1, 1, 1.5, float("nan"), "often"])
def test_a_probability_that_is_none_is_refused(chance):
    with pytest.raises(ConfigError, match=r"cohort\.dropout"):
        config(cohort={"size": 3, "dropout": chance})


# what remains ---------------------------------------------------------------------------------
def test_the_mean_is_over_those_that_deliver_and_the_rows_count_the_others(tmp_path):
    """w' = sum n_k w_k / sum n_k of those present, with the w_k of a run in which nobody drops out."""
    updates = {}

    def watch(half, function, *arguments):
        result = function(*arguments)
        if half == "client":
            updates[arguments[0].client] = (arguments[0].num_examples, result.update.w.double().clone())
        return result

    Local(config(), tmp_path / "local", watch).play(1)
    there = present(0)
    assert len(there) == 2, "one of three drops out"
    expected = sum(updates[k][0] * updates[k][1] for k in there) / sum(updates[k][0] for k in there)
    one = flray.run(config(rounds=1, cohort=COHORT), out=tmp_path / "one")
    np.testing.assert_allclose(checkpoint.latest(one.folder).server.message().w, expected.numpy(), atol=1e-6)

    run = flray.run(config(rounds=6, cohort=COHORT), out=tmp_path / "run")
    for round, row in enumerate(run.rounds.itertuples()):
        assert (row.cohort_size, row.clients_dropped) == (3, 3 - len(present(round)))
        assert run.clients.query(f"round == {round + 1}")["client"].tolist() == present(round)
    whole = flray.run(config(rounds=1), out=tmp_path / "whole").rounds.iloc[0]
    ratio = run.rounds["comm/up_bytes"] / whole["comm/up_bytes"]
    np.testing.assert_allclose(ratio, [len(present(round)) / 3 for round in range(6)], rtol=1e-12)
    assert (run.rounds["comm/down_bytes"] == whole["comm/down_bytes"]).all(), "who drops out got the message"


def test_what_a_client_that_dropped_out_would_have_kept_is_not_there(tmp_path):
    """SCAFFOLD (option II): c is the mean over the population of the c_k that were delivered, zero elsewhere."""
    run = flray.run(config("scaffold", rounds=1, cohort=COHORT), out=tmp_path / "run")
    saved = checkpoint.latest(run.folder)
    clients = saved.clients.message()
    assert clients.keys() == {str(k) for k in present(0)}
    expected = sum(client.c.astype(np.float64) for client in clients.values()) / 5
    np.testing.assert_allclose(saved.server.message().c, expected, atol=1e-6)


def test_a_round_in_which_nobody_delivers_keeps_the_state(tmp_path):
    cohort = {"size": 1, "dropout": 0.6}
    settings = config("scaffold", rounds=8, cohort=cohort, checkpoint={"every": 1, "keep": 0})
    run = flray.run(settings, out=tmp_path / "run")
    clients = [int(sample_cohort(settings.cohort, 3, Clock(0, round, done=round), range(5))[0]) for round in range(8)]
    gone = [rng(3, "dropout", 0, round, client).random() < 0.6 for round, client in enumerate(clients)]
    assert any(gone[1:]) and not all(gone)
    saved = [checkpoint.read(path).server.message() for path in checkpoint.checkpoints(run.folder)]
    states = [{n: a.tobytes() for n, a in flatten(state).items()} for state in saved]
    assert run.status == "finished" and run.rounds["clients_dropped"].tolist() == [int(g) for g in gone]
    for round in range(1, 8):
        assert (states[round] == states[round - 1]) == gone[round]
    assert run.rounds["client_steps"].eq(0).tolist() == gone and not run.rounds["diverged"].any()
    assert {n: v[2] for n, v in bits(Replay(run.folder).goto(8).state).items()} == states[-1]

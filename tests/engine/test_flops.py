"""FLOPs of local steps: a count by hand, and torch's counter on every real step beside the two that a run counts."""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import flray
from flray.algorithms.fedavg import FedAvg
from flray.contracts.played import Local
from flray.core.messages import to_torch
from flray.core.protocol.clock import Clock
from flray.engine import cohort as cohorts, server
from flray.engine.exchanges import Chunk
from flray.engine.flops import StepFlops, count_step_flops, largest_client, step_kind
from tests.contracts.table import experiment
from tests.support.processes import python

ROOT = Path(__file__).parents[2]


def exchange_after(name: str, rounds: int, folder: Path) -> tuple[Local, Any, cohorts.Turn]:
    """A run after so many rounds, and the exchange of its next one."""
    simulated = Local(experiment(name), folder)
    simulated.play(rounds)
    clock = Clock(0, rounds, done=rounds)
    _, plan = simulated.server.plan(clock)
    members = np.arange(simulated.scenario.population)
    ((turn,), _) = cohorts.turns(simulated.scenario, simulated.experiment.algorithm, members, clock, plan.exchange)
    return simulated, plan.exchange, turn


def largest(turn: cohorts.Turn) -> Chunk:
    return largest_client(turn.chunks, turn.cohort.client_ids.tolist())


def test_of_an_mlp_by_hand(tmp_path: Path) -> None:
    """d -> h -> C with n samples: two products of 2 n (d h + h C) FLOPs for outputs and weights, and one of 2 n h C for
    the hidden layer's gradient; the inputs need none."""
    simulated, exchange, turn = exchange_after("fedavg", 0, tmp_path)
    found = simulated.server.step_flops("any", exchange, largest(turn))
    layers = [p.shape for p in simulated.server.runtime.objective.module.parameters() if p.dim() == 2]
    inner = sum(out * into for out, into in layers[1:])
    assert found.step == 0
    assert found.example == 2 * 2 * (layers[0].numel() + inner) + 2 * inner


@pytest.mark.parametrize(("name", "rounds"), [("fedavg", 1), ("fedproj", 1), ("fedsol", 1), ("fedntd", 1), ("moon", 2)])
def test_two_steps_tell_what_all_steps_of_all_clients_compute(name: str, rounds: int, tmp_path: Path) -> None:
    simulated, exchange, turn = exchange_after(name, rounds, tmp_path)
    before = torch.random.get_rng_state()
    found, rows, counted = simulated.server.step_flops("any", exchange, largest(turn)), [], 0
    assert torch.equal(torch.random.get_rng_state(), before)
    client, algorithm = simulated.executor.client, simulated.experiment.algorithm
    broadcast = exchange.broadcast(simulated.server.runtime.context(turn.clock), simulated.state)
    for chunk in turn.chunks:
        for i, (number, stored) in enumerate(zip(chunk.clients, simulated.server.states(chunk.clients), strict=True)):
            ctx = client.context(chunk.clock, number, chunk.weights[i], chunk.samples(i))
            state, data = client.state(ctx, to_torch(stored)), client.runtime.client_data(ctx, chunk.samples(i))
            local, row = algorithm.begin(ctx, broadcast, state, data), {"num_steps": 0, "examples_read": 0}
            for batch in algorithm.batches(ctx, broadcast, state, local, data):
                with FlopCounterMode(display=False) as counter:
                    local = algorithm.step(ctx, broadcast, state, local, batch)
                counted += counter.get_total_flops()
                row = {"num_steps": row["num_steps"] + 1, "examples_read": row["examples_read"] + len(batch.y)}
            rows.append(row)
    assert sum(map(found.of, rows)) == pytest.approx(counted, rel=1e-12)


def test_a_teacher_that_comes_in_a_later_round_is_counted_and_after_a_resume_as_well(tmp_path: Path) -> None:
    """MFCL knows that classes vanish in round 3: from then on a step reads made samples by the old model too. The count
    does not depend on the round in which a run was taken up again."""
    window = {"from_round": 3, "available": [0, 1]}
    asked = experiment("mfcl", window, rounds=4, resources={"executor": "local"})
    whole = flray.run(asked, out=tmp_path / "whole").rounds
    flray.run(asked.model_copy(update={"rounds": 3}), out=tmp_path / "run")
    resumed = flray.resume(tmp_path / "run", "rounds=4").rounds
    assert resumed["client_flops"].tolist() == whole["client_flops"].tolist()
    each = (whole["client_flops"] / whole["client_steps"]).tolist()
    assert each[2] > 1.5 * each[1] and each[2] == pytest.approx(each[3], rel=0.3)


def der(clients: dict[str, Any], memory_batch: int) -> Any:
    """A run of DER with one client a round, whose reservoir has logits from its second round on."""
    sections = {"partition": {"clients": 4, **clients}, "cohort": {"size": 1}, "resources": {"executor": "local"}}
    return experiment("der", {"memory_batch": memory_batch, "beta": 0.0}, seed=1, rounds=6, **sections)


def test_a_client_with_a_memory_adds_the_replay_of_its_steps_and_one_without_does_not(tmp_path: Path) -> None:
    """A step of DER reads 4 samples of the reservoir too, once they have logits."""
    run = flray.run(der({"name": "iid"}, 4), out=tmp_path)
    clients, each = run.clients.sort_values("done"), run.rounds["client_flops"].to_numpy()
    again = clients["client"].duplicated().to_numpy()
    assert again.any() and not again[1]
    samples = clients["examples_read"].to_numpy() + 4 * clients["num_steps"].to_numpy() * again
    assert each.tolist() == (each[0] / samples[0] * samples).tolist()


def test_a_stopped_run_counts_the_clients_that_it_would_have_counted(tmp_path: Path) -> None:
    """A step of DER costs a client with fewer samples than `memory_batch` less."""
    asked = der({"name": "dirichlet", "alpha": 0.3, "variant": "plain", "min_size": 6}, 50)
    whole = flray.run(asked, out=tmp_path / "whole").rounds
    flray.run(asked.model_copy(update={"rounds": 1}), out=tmp_path / "run")
    for rounds in range(2, 7):
        flray.resume(tmp_path / "run", f"rounds={rounds}")
    assert flray.load(tmp_path / "run").rounds["client_flops"].tolist() == whole["client_flops"].tolist()


class Cached(FedAvg, frozen=True):
    @functools.cached_property
    def table(self) -> list[int]:
        return [1]


def test_a_rate_is_no_kind_of_step_nor_is_a_cached_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rates after the first round, which is a kind of its own, are one."""
    counted: list[Chunk] = []

    def count(client: Any, chunk: Chunk, *rest: Any) -> StepFlops:
        counted.append(chunk)
        return count_step_flops(client, chunk, *rest)

    monkeypatch.setattr(server, "count_step_flops", count)
    schedule = [{"from_round": k, "algorithm": {"lr": 0.1 / k, "lr_decay": 1 / k}} for k in (2, 3)]
    asked = experiment("fedavg", schedule=schedule, rounds=3, resources={"executor": "local"})
    flray.run(asked, out=tmp_path / "whole")
    assert len(counted) == 2
    plan, algorithm = Local(asked, tmp_path / "local").executor.plan(Clock()), Cached(lr=0.1)
    before = step_kind(plan, algorithm, False)
    assert algorithm.table == [1] and step_kind(plan, algorithm, False) == before


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_count_that_fails_stays_without_one_and_one_that_is_stopped_does_not(
    error: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run goes on without, and a resume does not begin to count in the middle of the column."""

    def count(*_: Any) -> StepFlops:
        raise error("made up by the test")

    monkeypatch.setattr(server, "count_step_flops", count)
    asked, fails = experiment("fedavg", rounds=2, resources={"executor": "local"}), error is ValueError
    said = pytest.warns(UserWarning, match="client_flops of .* are not counted") if fails else pytest.raises(error)
    with said:
        flray.run(asked, out=tmp_path / "run")
    monkeypatch.undo()
    flops = flray.resume(tmp_path / "run", "rounds=3").rounds["client_flops"]
    assert flops.isna().all() if fails else flops.notna().all()


@pytest.mark.slow
def test_a_run_does_not_import_the_compiler_of_torch(tmp_path: Path) -> None:
    """It would in the server's process, for the first operation that is counted."""
    code = f"""
import sys, flray
done = flray.run("configs/quickstart.yaml", "rounds=1", "resources.executor=local", out={str(tmp_path / "run")!r})
assert done.rounds["client_flops"].iloc[0] > 0
print([name for name in ("torch._dynamo", "torch._inductor", "sympy") if name in sys.modules])
"""
    assert python("-c", code, cwd=ROOT).stdout.splitlines()[-1] == "[]"

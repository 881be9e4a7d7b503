"""Every algorithm in three rounds, over two tasks, and while classes are missing: the contracts of the design
(section 7), in this process where Ray is not the point.

One run of each is watched (what its methods get, what travels, what its state looks like after every transaction) and
left in the middle of each task; a second one goes through `flray.run` with every probe on.
"""

from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import flray
from flray.algorithms import ALGORITHMS
from flray.config.loader import load_config
from flray.contracts.played import Local, Unchanging, bits, flatten
from flray.core.messages import tensors, to_torch
from flray.core.messages.packed import Packed
from flray.core.protocol.clock import Clock
from flray.core.schema.errors import ConfigError
from flray.engine.replay import Replay
from flray.metrics.divergence import Divergence
from flray.metrics.probes import PROBES
from flray.rundir import checkpoint
from tests.contracts.table import TABLE, experiment
from tests.support.continual import DATA, LOCAL, SCENARIOS, config, same_clients
from tests.support.kinds import KINDS, by_default
from tests.support.outcome import contents, records

# where a run is left and gone on with
MIDDLE = {
    "rounds": ("task 0, round 2",),
    "tasks": ("task 0, round 1", "task 0, task_end", "task 1, round 1"),
    "drift": ("task 0, round 2", "task 0, round 4"),
}
ROUNDS = by_default(("scaffold", "fedmemo", "own"), TABLE)
CASES = [
    *by_default(("scaffold", "fedmemo", "own"), [(name, "rounds") for name in TABLE]),
    *by_default(KINDS, [(name, "tasks") for name in TABLE]),
    *by_default(("fedproj", "fedprotip", "own"), [(name, "drift") for name in TABLE]),
]


@dataclass
class Seen:
    """What was seen of one run."""

    local: Local
    watch: Unchanging
    forms: list[tuple[str, Any]]  # (the transaction, the state after it)
    clients: list[dict[int, Any]] = field(default_factory=list)  # their states after each transaction
    # where it was left -> what was there, what was loaded, what was at the end, bytes of the rows
    resumed: dict[str, tuple[Any, ...]] = field(default_factory=dict)


pytestmark = [
    pytest.mark.filterwarnings(f"ignore::flray.scenario.{kind}") for kind in ("PartitionWarning", "DriftWarning")
]


def scenario_of(name, scenario):
    return experiment(name) if scenario == "rounds" else config(name, **SCENARIOS[scenario])


def finish(local, after=lambda at: None):
    """All transactions that are left."""
    while (clock := next(local.schedule(), None)) is not None:
        local.exchanges(clock)
        after(clock.complete)
    return local.state, local.client_states()


def travelled(rows):
    return [(row["down"], row["up"]) for row in rows]


@pytest.fixture(scope="module")
def walks(tmp_path_factory):
    """The watched run of an algorithm in a scenario on a device, made once."""

    @cache
    def walk(name, scenario, device):
        folder, watch = tmp_path_factory.mktemp("walk"), Unchanging()
        local = Local(scenario_of(name, scenario), folder, watch, device)
        seen = Seen(local, watch, [("start", local.state)])

        def after(at):
            where = f"task {at.task}, {f'round {at.round}' if at.phase == 'round' else at.phase}"
            seen.forms.append((where, local.state))
            seen.clients.append(local.client_states())
            if where in MIDDLE[scenario]:
                local.executor.store.save(1)
                again = Local(local.experiment, folder, device=device)
                again.position = again.executor.store.load()
                assert again.position == at == checkpoint.latest(folder).position
                loaded = again.state, again.client_states()
                seen.resumed[where] = (seen.clients[-1], local.state), loaded, finish(again), travelled(again.rows)

        finish(local, after)
        return seen

    return walk


@pytest.fixture(scope="module")
def walked(walks, device):
    return lambda name, scenario: walks(name, scenario, device)


@pytest.fixture(scope="module")
def walked_on_the_cpu(walks):
    return lambda name, scenario: walks(name, scenario, torch.device("cpu"))


@pytest.mark.parametrize(("name", "scenario"), CASES)
def test_resumed_in_the_middle_it_ends_the_same(name, scenario, walked):
    """What is loaded is what was saved, on the device, and who holds a shared part is known."""
    seen = walked(name, scenario)
    assert set(seen.resumed) == set(MIDDLE[scenario])
    assert load_config(yaml.safe_load(seen.local.experiment.yaml()))[0] == seen.local.experiment
    for (saved_clients, saved), (loaded, loaded_clients), (state, clients), rows in seen.resumed.values():
        assert bits(loaded) == bits(saved) and type(loaded) is type(saved)
        assert all(t.device == seen.local.server.runtime.objective.device for t in tensors(loaded).values())
        same_clients(loaded_clients, saved_clients)
        assert bits(state) == bits(seen.local.state)
        same_clients(clients, seen.clients[-1])
        assert rows == travelled(seen.local.rows)[-len(rows) or len(seen.local.rows) :]


@pytest.mark.parametrize("name", ROUNDS)
def test_three_chunks_have_the_bits_of_one(name, walked, device, tmp_path):
    """The cohort has three clients: each chunk sends the sums of one; with actors in test_ray.py."""
    seen, local = walked(name, "rounds"), Local(experiment(name), tmp_path, device=device, chunks=3)
    ends = []
    finish(local, lambda at: ends.append((local.state, local.client_states())))
    for (state, clients), (_, expected), states in zip(ends, seen.forms[1:], seen.clients, strict=True):
        assert bits(state) == bits(expected)
        same_clients(clients, states)


@pytest.mark.parametrize(("name", "scenario"), CASES)
def test_no_half_changes_what_it_was_given(name, scenario, walked):
    assert not walked(name, scenario).watch.changed


@pytest.mark.parametrize("name", ROUNDS)
def test_no_answer_changes_what_it_was_given(name, walked):
    """Of the clients' own predictors, of what is published and tested, and of what is broadcast."""
    seen = walked(name, "rounds")
    local = seen.local
    algorithm, settings = local.experiment.algorithm, local.experiment.algorithm.model_dump()
    for epochs in (0, 1):
        local.personal(epochs)
    assert {"client", "server", "personalize"} <= seen.watch.halves and not seen.watch.changed
    before, runtime = bits(local.state), local.server.runtime
    ctx, x = runtime.context(Clock(0, 2, done=2)), runtime.normalizer(np.array(runtime.dataset.test.x[:7]))
    samples = x.clone()
    if algorithm.global_model:
        published = algorithm.published(ctx, local.state)
        for mode in algorithm.modes(ctx).values():
            mode.answer(ctx, published, x if mode.forward is None else mode.forward(ctx, published, x))
    algorithm.next_exchange(ctx, local.state).broadcast(ctx, local.state)
    assert bits(local.state) == before and torch.equal(x, samples)
    assert algorithm.model_dump() == settings


def gaps_are_zero(objective, message):
    """Of every vector `[P]` (statistics `b` may be as long by chance)."""
    layout, gaps = objective.layout, objective.mask("all") == 0
    vectors = {n: t for n, t in tensors(message).items() if t.shape == (layout.size,) and not f".{n}".endswith(".b")}
    return not any(t[gaps].any() for t in vectors.values())


@pytest.mark.parametrize(("name", "scenario"), CASES)
def test_state_keeps_its_form_and_comes_back_equal(name, scenario, walked):
    """In the rounds of a task it has the same fields and, but for those of the row, shapes; where a task begins or ends
    fields may come (a block of each task) and shapes may grow. Types stay for ever, and all is finite but what says
    that there is nothing yet. Clients' states have one form for as long as there is one task."""
    seen = walked(name, scenario)
    objective = seen.local.server.runtime.objective
    form = {n: (t.dtype, t.device) for n, t in tensors(seen.forms[0][1]).items()}
    for (_, before), (where, state) in pairwise(seen.forms):
        old, new = tensors(before), tensors(state)
        assert type(state) is type(before), where
        assert not any(t.requires_grad for t in new.values()) and gaps_are_zero(objective, state)
        if "round" in where:
            assert flatten(state).keys() == flatten(before).keys(), where
            grown = {n for n in new if new[n].shape != old[n].shape}
            assert grown <= TABLE[name].grows, where
        for n, t in new.items():
            assert form.setdefault(n, (t.dtype, t.device)) == (t.dtype, t.device), f"{n}, {where}"
        assert torch.isfinite(getattr(state, "w", torch.zeros(1))).all(), where
        assert bits(to_torch(Packed.of(state).message())) == bits(state), where
    for k in seen.clients[-1]:
        states = [clients[k] for clients in seen.clients if k in clients]
        assert len({type(state) for state in states}) == 1 and all(gaps_are_zero(objective, s) for s in states)
        forms = [{n: (t.dtype, t.device) for n, t in tensors(state).items()} for state in states]
        assert all(d[n] == e[n] for d, e in pairwise(forms) for n in d.keys() & e.keys())
        if scenario == "rounds":  # the last transaction is the task's end
            in_rounds = [clients[k] for clients in seen.clients[:-1] if k in clients]
            shapes = [{n: array.shape for n, array in flatten(state).items()} for state in in_rounds]
            assert all(shape == shapes[0] for shape in shapes)


@pytest.mark.parametrize(("name", "scenario"), CASES)
def test_bytes_counted_are_the_bytes_sent(name, scenario, walked):
    local = walked(name, scenario).local
    assert travelled(local.rows) == travelled(local.sent)
    if scenario == "rounds":
        assert len(local.rows) >= 3
        assert all(bool(down) == bool(up) != TABLE[name].silent for down, up in travelled(local.rows[:3]))


COSTLY = {"landscape", "propositions"}  # probes that cost twice as much as the others together
DRIFTING = by_default(("own",), [(name, "drift") for name in TABLE])


@pytest.mark.parametrize(
    ("name", "scenario"), [*by_default(("fedproj", "fedprotip"), [(name, "tasks") for name in TABLE]), *DRIFTING]
)
def test_a_whole_run_with_every_probe_on_has_the_same_bits(name, scenario, walked_on_the_cpu, tmp_path):
    """And complete tables: each round, and a test after it in every inference mode; a replay repeats each client, also
    in a task's first round. The costly probes over tasks are on for a row of every kind."""
    seen = walked_on_the_cpu(name, scenario)
    probes = [probe for probe in PROBES.names() if scenario == "drift" or name in KINDS or probe not in COSTLY]
    probed = config(name, **SCENARIOS[scenario], resources=LOCAL, diagnostics=probes)
    run = flray.run(probed, out=tmp_path / "run", progress=False)
    saved = checkpoint.latest(run.folder)
    assert run.status == "finished"
    assert bits(to_torch(saved.server.message())) == bits(seen.local.state)
    local = Local(probed, run.folder)
    local.executor.store.load()
    same_clients(local.client_states(), seen.clients[-1])
    rounds = run.rounds[run.rounds["round"] > 0]
    assert len(rounds) == probed.total_rounds and not rounds["diverged"].any()
    if probed.algorithm.global_model:
        tested = run.tests[(run.tests["set"] == "test") & (run.tests["phase"] == "round") & (run.tests["done"] > 0)]
        modes = set(tested["mode"])
        assert len(modes) >= 1 and len(tested) == probed.total_rounds * len(modes)
    replay = Replay(run.folder)
    for done in range(probed.total_rounds):
        rows = run.clients.query("done == @done + 1 and phase == 'round' and exchange == 0")
        found = {client: row["train/loss"] for client, _, row in replay.goto(done).clients()}
        assert found == dict(zip(rows["client"].tolist(), rows["train/loss"].tolist(), strict=True))
    with pytest.raises(ConfigError, match=f"the run has rounds 1 to {probed.total_rounds}"):
        next(replay.goto(probed.total_rounds).clients())
    with pytest.raises(ConfigError, match="Divergence observes end, finish, start only"):
        replay.observe(Divergence())


HARDSHIPS: dict[str, dict[str, Any]] = {
    # four tasks of one class: three or more clients hold something of a task, and none of the first four holds all
    "gaps": {
        "rounds": 2,
        "tasks": {"num_tasks": 4, "class_order": [2, 0, 3, 1], "partition": "once"},
        "proxy": {"source": "holdout", "size": 12, "labelled": True},
        "partition": {
            "name": "table",
            "table": [[7, 0, 6, 0], [0, 8, 6, 0], [9, 8, 0, 10], [6, 7, 8, 0], [0, 0, 0, 7], [0, 0, 0, 8]],
        },
    },
    # nobody holds a sample from the second round of the first task on, and at its end
    "drought": {
        "rounds": 2,
        "tasks": {"num_tasks": 2, "class_order": [2, 0, 3, 1]},
        "drift": {"name": "remove_classes", "classes": [0, 1, 2, 3], "from_round": 2},
    },
    # the same classes from another domain: new classes are old ones
    "domains": {
        "rounds": 2,
        "data": {
            "source": "union",
            "options": {"sets": [{**DATA, "name": "a"}, {**DATA, "name": "b", "split_seed": 1}]},
            "leak_check": False,
        },
        "tasks": {"name": "domain_incremental", "domains": ["b", "a"]},
    },
}


@pytest.mark.parametrize(
    ("name", "hardship"),
    [
        *by_default(("fedproj",), [(name, "gaps") for name in TABLE]),
        *by_default(("fedprotip", "mfcl"), [(name, "drought") for name in TABLE]),
        *by_default(("fedscr",), [(name, "domains") for name in TABLE]),
    ],
)
def test_tasks_of_one_class_or_of_known_ones_and_clients_without_a_sample_end_no_run(name, hardship, tmp_path):
    """A loss over one class is 0 and has no gradient, there is no distance to another class, and what was to be
    gathered of a task that nobody holds is not there: all of that is passed over, and the model stays finite. What
    cannot read domains says so before anything is read."""
    if hardship == "domains" and ALGORITHMS.get(name).needs_new_classes:
        with pytest.raises(ConfigError, match=f"tasks.name: {name} needs new classes in every task"):
            config(name, **HARDSHIPS[hardship])
        return
    asked = config(name, **HARDSHIPS[hardship], resources=LOCAL)
    run = flray.run(asked, out=tmp_path / "run", progress=False)
    assert run.status == "finished"
    rounds = run.rounds[run.rounds["round"] > 0]
    assert len(rounds) == asked.total_rounds and not rounds["diverged"].any()


@pytest.mark.parametrize(
    ("name", "scenario"),
    [*by_default(("mfcl",), [(name, "tasks") for name in TABLE]), *by_default((), [(name, "drift") for name in TABLE])],
)
def test_actors_give_the_same_bits(name, scenario, walked_on_the_cpu, ray_cluster, tmp_path):
    """Each with its own share of the cohort; also the tables of probes, one of which has a memory."""
    seen, ends = walked_on_the_cpu(name, scenario), []
    probes = ["divergence", "local_forgetting", "latent_forgetting"] if ALGORITHMS.get(name).global_model else []
    for executor, actors in (("local", 1), ("calls", 2), ("calls", 3)):
        resources = {"executor": executor, "client_actors": actors, "server": {"threads": 1}, "client": {"num_cpus": 1}}
        asked = config(name, **SCENARIOS[scenario], resources=resources, diagnostics=probes)
        run = flray.run(asked, out=tmp_path / f"{executor}-{actors}", progress=False)
        assert bits(to_torch(checkpoint.latest(run.folder).server.message())) == bits(seen.local.state)
        ends.append((contents(run), {probe: records(table) for probe, table in run.diagnostics.items()}))
    assert ends[0] == ends[1] == ends[2]

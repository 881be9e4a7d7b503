"""Every algorithm over two tasks, and while classes are missing: the contracts of the design once more, in this
process.

One run of each is watched (what its methods get, what travels, what its state looks like after every transaction) and
left in the middle of each task; a second one goes through `flray.run` with every probe on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch

import flray
from flray.algorithms import ALGORITHMS
from flray.contracts.flat import flatten
from flray.contracts.played import Local, Unchanging, bits
from flray.core.messages import tensors, to_torch
from flray.core.messages.packed import Packed
from flray.core.schema.errors import ConfigError
from flray.metrics.probes import PROBES
from flray.rundir import checkpoint
from tests.contracts.table import TABLE
from tests.support.continual import DATA, LOCAL, SCENARIOS, config, same_clients
from tests.support.kinds import KINDS, by_default

# where a run is left and gone on with
MIDDLE = {"tasks": ("task 0, round 1", "task 1, round 1"), "drift": ("task 0, round 2", "task 0, round 4")}
CASES = by_default(KINDS, ((name, scenario) for scenario in SCENARIOS for name in TABLE))


@dataclass
class Seen:
    """What was seen of one run."""

    state: Any = None  # the last
    clients: dict[int, Any] = field(default_factory=dict)
    watch: Unchanging = field(default_factory=Unchanging)
    forms: list[tuple[str, Any]] = field(default_factory=list)  # (the transaction, the state after it)
    client_forms: dict[int, list[Any]] = field(default_factory=dict)
    travelled: list[tuple[dict[str, Any], dict[str, int]]] = field(default_factory=list)  # counted and measured
    resumed: dict[str, tuple[Any, Any]] = field(default_factory=dict)  # where it was left -> the last (state, clients)


pytestmark = [
    pytest.mark.filterwarnings(f"ignore::flray.scenario.{kind}") for kind in ("PartitionWarning", "DriftWarning")
]


def finish(local, after=lambda at: None):
    """All transactions that are left."""
    while (clock := next(local.schedule(), None)) is not None:
        local.exchanges(clock)
        after(clock.complete)
    return local.state, local.client_states()


@pytest.fixture(scope="module")
def walks(tmp_path_factory):
    """The watched run of an algorithm in a scenario on a device, made once."""

    @cache
    def walk(name, scenario, device):
        seen, folder = Seen(), tmp_path_factory.mktemp("walk")
        local = Local(config(name, **SCENARIOS[scenario]), folder, seen.watch, device)

        def after(at):
            where = f"task {at.task}, {f'round {at.round}' if at.phase == 'round' else at.phase}"
            seen.forms.append((where, local.state))
            for k, client in local.client_states().items():
                seen.client_forms.setdefault(k, []).append(client)
            if where in MIDDLE[scenario]:
                local.executor.stored.save(1)
                again = Local(local.experiment, folder, device=device)
                again.position = again.executor.stored.load()
                assert again.position == at
                seen.resumed[where] = finish(again)

        seen.forms.append(("start", local.state))
        seen.state, seen.clients = finish(local, after)
        seen.travelled = list(zip(local.rows, local.sent, strict=True))
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
    seen = walked(name, scenario)
    assert set(seen.resumed) == set(MIDDLE[scenario])
    for state, clients in seen.resumed.values():
        assert bits(state) == bits(seen.state)
        same_clients(clients, seen.clients)


@pytest.mark.parametrize(("name", "scenario"), CASES)
def test_no_half_changes_what_it_was_given(name, scenario, walked):
    assert not walked(name, scenario).watch.changed


@pytest.mark.parametrize(("name", "scenario"), CASES)
def test_state_keeps_its_form_and_comes_back_equal(name, scenario, walked):
    """In the rounds of a task it has the same fields and, but for those of the row, shapes; where a task begins or ends
    fields may come (a block of each task) and shapes may grow. Types stay for ever, and all is finite but what says
    that there is nothing yet."""
    seen = walked(name, scenario)
    form = {n: (t.dtype, t.device) for n, t in tensors(seen.forms[0][1]).items()}
    for (_, before), (where, state) in pairwise(seen.forms):
        old, new = tensors(before), tensors(state)
        assert type(state) is type(before), where
        assert not any(t.requires_grad for t in new.values())
        if "round" in where:
            assert flatten(state).keys() == flatten(before).keys(), where
            grown = {n for n in new if new[n].shape != old[n].shape}
            assert grown <= TABLE[name].grows, where
        for n, t in new.items():
            assert form.setdefault(n, (t.dtype, t.device)) == (t.dtype, t.device), f"{n}, {where}"
        assert torch.isfinite(getattr(state, "w", torch.zeros(1))).all(), where
        assert bits(to_torch(Packed.of(state).message())) == bits(state), where
    for states in seen.client_forms.values():
        assert len({type(state) for state in states}) == 1
        dtypes = [{n: t.dtype for n, t in tensors(state).items()} for state in states]
        assert all(d[n] == e[n] for d, e in pairwise(dtypes) for n in d.keys() & e.keys())


@pytest.mark.parametrize(("name", "scenario"), CASES)
def test_bytes_counted_are_the_bytes_sent(name, scenario, walked):
    for row, sent in walked(name, scenario).travelled:
        assert (row["down"], row["up"]) == (sent["down"], sent["up"])


COSTLY = {"landscape", "propositions"}  # probes that cost twice as much as the others together
DRIFTING = by_default(("own",), [(name, "drift") for name in TABLE])


@pytest.mark.parametrize(
    ("name", "scenario"), [*by_default(("fedproj", "fedprotip"), [(name, "tasks") for name in TABLE]), *DRIFTING]
)
def test_a_whole_run_with_every_probe_on_has_the_same_bits(name, scenario, walked_on_the_cpu, tmp_path):
    """And complete tables: each round, and a test after it in every inference mode. The costly ones over tasks are on
    for a row of every kind."""
    seen = walked_on_the_cpu(name, scenario)
    probes = [probe for probe in PROBES.names() if scenario == "drift" or name in KINDS or probe not in COSTLY]
    probed = config(name, **SCENARIOS[scenario], resources=LOCAL, diagnostics=probes)
    run = flray.run(probed, out=tmp_path / "run", progress=False)
    saved = checkpoint.latest(run.folder)
    assert run.status == "finished"
    assert bits(to_torch(saved.server.message())) == bits(seen.state)
    local = Local(probed, run.folder)
    local.executor.stored.load()
    same_clients(local.client_states(), seen.clients)
    rounds = run.rounds[run.rounds["round"] > 0]
    assert len(rounds) == probed.total_rounds and not rounds["diverged"].any()
    if probed.algorithm.global_model:
        tested = run.tests[(run.tests["set"] == "test") & (run.tests["phase"] == "round") & (run.tests["done"] > 0)]
        modes = set(tested["mode"])
        assert len(modes) >= 1 and len(tested) == probed.total_rounds * len(modes)


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


@pytest.mark.slow
@pytest.mark.parametrize(("name", "scenario"), CASES)
def test_actors_give_the_same_bits(name, scenario, walked_on_the_cpu, ray_cluster, tmp_path):
    """Each with its own share of the cohort, and by a compiled graph where the algorithm goes into one."""
    seen = walked_on_the_cpu(name, scenario)
    for executor, actors in (("calls", 2), ("graph", 3)):
        resources = {"executor": executor, "client_actors": actors, "server": {"threads": 1}, "client": {"num_cpus": 1}}
        out = tmp_path / executor
        run = flray.run(config(name, **SCENARIOS[scenario], resources=resources), out=out, progress=False)
        assert bits(to_torch(checkpoint.latest(run.folder).server.message())) == bits(seen.state)

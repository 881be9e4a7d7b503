"""Every algorithm x every contract of the design (section 7), in this process where Ray is not the point."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from operator import attrgetter
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from flray.algorithms import ALGORITHMS, built_in
from flray.config.loader import load_config
from flray.contracts.flat import flatten
from flray.contracts.played import Local, Unchanging, bits
from flray.core.messages import tensors, to_torch
from flray.core.messages.packed import Packed
from flray.core.protocol.clock import Clock, Position
from flray.core.schema.hp import hyperparameters
from flray.rundir import checkpoint
from tests.contracts import own
from tests.contracts.table import TABLE, experiment
from tests.support.kinds import CORE, KINDS, by_default

NAMES = list(TABLE)


class Trajectory:
    """What a run shows after each round and at its task's end, as bits, played no further than it is asked for."""

    def __init__(self, local: Local, what: str, rounds: int) -> None:
        self.local, self.what, self.rounds = local, what, rounds
        self.tasks = local.experiment.tasks is not None
        self.known: list[Any] = []

    def __len__(self) -> int:
        return self.rounds + self.tasks

    def __getitem__(self, moment: int) -> Any:
        while len(self.known) <= moment:
            if len(self.known) < self.rounds:
                self.local.play(1)
            else:
                self.local.task_end()
            self.known.append(self._look())
        return self.known[moment]

    def _look(self) -> Any:
        """The state; the scores of the personal predictors; or, at a task's end, the counts of the test."""
        local = self.local
        if self.what == "personal":
            return bits(local.personal())
        if self.what == "tested":
            at = Clock(*local.position[:2], "task_end", done=local.position.done)
            return {"/".join(key): counts.right.tolist() for key, counts in local.server.evaluate(at).items()}
        return bits(local.state)


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    """The trajectory of an algorithm with some options in some sections."""
    known = {}

    def get(name, options=None, what="state", sections=None, rounds=3):
        key = name, json.dumps([options or {}, dict(sections or {}), rounds], sort_keys=True), what
        if key not in known:
            local = Local(experiment(name, options, **(sections or {})), tmp_path_factory.mktemp("local"))
            known[key] = Trajectory(local, what, rounds)
        return known[key]

    return get


def differ(one: Trajectory, other: Trajectory) -> bool:
    return any(one[moment] != other[moment] for moment in range(len(one)))


@dataclass
class Played:
    """Three rounds of an algorithm, watched; a second process goes on from the checkpoint after the second."""

    local: Local
    watch: Unchanging
    states: list[Any] = field(default_factory=list)  # at the start and after each round
    clients: list[dict[int, Any]] = field(default_factory=list)  # after each round
    loaded: tuple[Any, dict[int, Any]] | None = None  # from the checkpoint
    resumed: Any = None  # the state after the third round


@pytest.fixture(scope="module")
def played(tmp_path_factory, device):
    """The run of an algorithm on a device, made once."""

    @cache
    def play(name):
        config, folder, watch = experiment(name), tmp_path_factory.mktemp("played"), Unchanging()
        seen = Played(Local(config, folder, watch, device), watch)
        seen.states.append(seen.local.state)
        for round in range(3):
            seen.states.append(seen.local.play(1))
            seen.clients.append(seen.local.client_states())
            if round == 1:
                seen.local.executor.stored.save(1)
                again = Local(config, folder, device=device)
                again.position = again.executor.stored.load()
                assert again.position == Position(0, 2, 2, "round") == checkpoint.latest(folder).position
                seen.loaded = again.state, again.client_states()
                seen.resumed = again.play(1)
        if name == "own":
            seen.local.task_end()
        return seen

    return play


def test_every_algorithm_has_a_row():
    of_flray = built_in(federated=True)
    assert of_flray and set(of_flray) <= set(TABLE), "add a row to tests/contracts/table.py"


# 1: one chunk and several ---------------------------------------------------------------------
@pytest.mark.parametrize("name", by_default(KINDS, NAMES))
def test_three_chunks_have_the_bits_of_one(name, played, device, tmp_path):
    """The cohort has three clients: each chunk sends the sums of one; with actors in test_ray.py."""
    seen, local = played(name), Local(experiment(name), tmp_path, device=device, chunks=3)
    for state, clients in zip(seen.states[1:], seen.clients, strict=True):
        assert bits(local.play(1)) == bits(state)
        assert {k: bits(s) for k, s in local.client_states().items()} == {k: bits(s) for k, s in clients.items()}


# 3: reductions --------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "number"), by_default(KINDS, ((n, i) for n, row in TABLE.items() for i in range(len(row.reductions))))
)
def test_reductions_hold_and_fail_when_switched_on(name, number, outcome):
    reduction, sections = TABLE[name].reductions[number], TABLE[name].sections
    other = outcome(reduction.other, dict(reduction.other_options), sections=sections)
    shared = ("w", "b")
    reduced = outcome(name, dict(reduction.options), sections=sections)
    switched = outcome(name, dict(reduction.switched_on), sections=sections)
    for moment in range(len(other)):
        assert {k: reduced[moment][k] for k in shared} == {k: other[moment][k] for k in shared}
    assert any(switched[moment]["w"] != other[moment]["w"] for moment in range(len(other)))


# 4: inputs are not mutated --------------------------------------------------------------------
@pytest.mark.parametrize("name", by_default(KINDS, NAMES))
def test_no_method_changes_what_it_was_given(name, played):
    seen = played(name)
    local = seen.local
    algorithm, settings = local.experiment.algorithm, local.experiment.algorithm.model_dump()
    for epochs in (0, 1):
        local.personal(epochs)
    assert {"client", "server", "personalize"} <= seen.watch.halves and not seen.watch.changed
    state = local.state
    before = bits(state)
    ctx = local.server.runtime.context(Clock(0, 2, done=2))
    x = local.server.runtime.normalizer(np.array(local.server.runtime.dataset.test.x[:7]))
    samples = x.clone()
    if algorithm.global_model:
        published = algorithm.published(ctx, state)
        for mode in algorithm.modes(ctx).values():
            mode.answer(ctx, published, x if mode.forward is None else mode.forward(ctx, published, x))
    exchange = algorithm.next_exchange(ctx, state)
    exchange.broadcast(ctx, state)
    assert bits(state) == before and torch.equal(x, samples)
    assert algorithm.model_dump() == settings


# 5: every hyper-parameter matters -------------------------------------------------------------
def parameters():
    """Every hyper-parameter, with the algorithm that declares or overrides it; one of a part, with the first that has
    the part."""
    tested = set()
    for name in sorted(NAMES, key="fedavg".__ne__):  # whose fields most inherit
        kind = ALGORITHMS.get(name)
        for p in hyperparameters(kind):
            field = p.name.partition(".")[0]
            declared = next(base for base in kind.__mro__ if field in vars(base).get("__annotations__", {}))
            if (declared, p.name) not in tested:
                yield name, p.name
            tested.add((declared, p.name))


@pytest.mark.parametrize(("name", "parameter"), by_default(CORE, parameters()))
def test_every_hyper_parameter_changes_the_outcome(name, parameter, outcome):
    change = TABLE[name].changes.get(parameter)
    assert change is not None, f"add a value of {parameter} to the row of {name} in tests/contracts/table.py"
    base, sections = dict(change.base), TABLE[name].sections if change.sections is None else change.sections
    present = attrgetter(parameter)(experiment(name, base).algorithm)
    assert present != change.value, "the table's value is the one of the experiment"
    changed = outcome(name, {**base, parameter: change.value}, change.outcome, sections, change.rounds)
    assert differ(changed, outcome(name, base, change.outcome, sections, change.rounds))


# 6: the state keeps its form ------------------------------------------------------------------
@pytest.mark.parametrize("name", by_default(KINDS, NAMES))
def test_state_keeps_structure_dtype_and_device(name, played):
    seen = played(name)
    objective = seen.local.server.runtime.objective

    def form(message):
        return type(message), {n: (t.dtype, t.device) for n, t in tensors(message).items()}, set(flatten(message))

    def shapes(message):
        return {n: t.shape for n, t in tensors(message).items()}

    def gaps_are_zero(message):
        """Of every vector `[P]` (statistics `b` may be as long by chance)."""
        layout, gaps = objective.layout, objective.mask("all") == 0
        vectors = {
            n: t for n, t in tensors(message).items() if t.shape == (layout.size,) and not f".{n}".endswith(".b")
        }
        return not any(t[gaps].any() for t in vectors.values())

    first, *states = seen.states
    clients = {}
    for round, (state, stored) in enumerate(zip(states, seen.clients, strict=True), 1):
        assert form(state) == form(first)
        grown = {n for n, shape in shapes(state).items() if shape != shapes(first)[n]}
        assert grown <= TABLE[name].grows, f"shape of {grown} changed in round {round}"
        assert all(not t.requires_grad for t in tensors(state).values()) and gaps_are_zero(state)
        assert all(gaps_are_zero(client) for client in stored.values())
        for k, client in stored.items():
            assert (form(client), shapes(client)) == clients.setdefault(k, (form(client), shapes(client)))


# 8: bytes -------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", by_default(KINDS, NAMES))
def test_bytes_counted_are_the_bytes_sent(name, played):
    local = played(name).local
    assert len(local.rows) >= 3
    for row, sent in zip(local.rows, local.sent, strict=True):
        assert row["down"] == sent["down"] and row["up"] == sent["up"]
        assert (row["down"] == 0 and row["up"] == 0) if TABLE[name].silent else (row["down"] > 0 and row["up"] > 0)


def test_bytes_of_fedproj_are_those_of_the_paper(tmp_path):
    """Down: P + Q + |M| C float32; up: P + Q. 3 clients; P and Q as padded in the flat vectors, C = 3 classes, M =
    24."""
    local = Local(experiment("fedproj"), tmp_path)
    local.play(2)
    model = local.state.w.numel() + local.state.b.numel()
    assert local.rows[1]["up"] == 3 * 4 * model
    assert local.rows[0]["down"] == 3 * 4 * model
    assert local.rows[1]["down"] == 3 * 4 * (model + 24 * 3)


# 9: serialise, load, equal --------------------------------------------------------------------
@pytest.mark.parametrize("name", by_default(KINDS, NAMES))
def test_configuration_state_and_checkpoint_come_back_equal(name, played):
    config = experiment(name)
    assert load_config(yaml.safe_load(config.yaml()))[0] == config
    seen = played(name)
    state, clients = seen.loaded
    assert bits(to_torch(Packed.of(seen.states[2]).message())) == bits(seen.states[2])
    assert all(t.device == seen.local.server.runtime.objective.device for t in tensors(state).values())
    assert bits(state) == bits(seen.states[2]) and type(state) is type(seen.states[2])
    assert clients.keys() == seen.clients[1].keys()
    assert all(bits(clients[k]) == bits(seen.clients[1][k]) for k in clients)
    assert bits(seen.resumed) == bits(seen.states[3])  # and it goes on the same


# 10: classes of a task's own ------------------------------------------------------------------
def two_tasks(name, folder, options=None, device="cpu"):
    """Two rounds each of classes 0 and 2, then 1 and 3, of four; public samples of all of them."""
    data = {"source": "synthetic", "options": {"shape": 4, "num_classes": 4, "num_train": 160, "num_test": 40}}
    tasks = {"num_tasks": 2, "class_order": [2, 0, 3, 1]}
    return Local(experiment(name, options, data=data, tasks=tasks, rounds=2), folder, device=device)


def head_rows(local):
    """`[4, 9]`: weights and bias of the global model's head, by class."""
    objective = local.server.runtime.objective
    named = objective.views(getattr(local.state, "w", objective.initial()[0]))
    return torch.cat([named["head.weight"], named["head.bias"][:, None]], dim=1).clone()


OTHERS = [
    ("fedproj", {"memory_loss": "ce_labels"}),
    ("fedproj", {"round0": "kl_init", "memory_batch": "full", "memory_size": 12}),
    ("feddf", {"teacher": "avg_probs"}),
    ("feddf", {"teacher": "avg_losses"}),
    ("fedet", {"fedet": "paper"}),
    ("fedsol", {"strategy": "S2"}),
    ("fedsol", {"strategy": "S3", "perturb": "all"}),
    ("fedsol", {"proximal": "moon", "perturb": "all"}),
    ("fedrcl", {"rcl": "paper"}),
]


# their teachers, and what they make or keep, are of all classes seen
DISTILLING = (  # or replaying
    "feddf", "fedproj", "fedet", "fedntd", "fedsol", "fedmemo", "mfcl", "glfc", "lga", "target", "lander", "er", "der",
)  # fmt: skip
CARRIED = ("scaffold", "feddyn", "fedavgm", "fedadam", "fedyogi", "own")  # corrections and momentum of the task before


@pytest.mark.parametrize(("name", "options"), [*by_default(KINDS, ((name, {}) for name in NAMES)), *OTHERS])
def test_over_two_tasks_only_the_classes_in_use_are_trained(name, options, device, tmp_path):
    """What reads logits reads those of the task: the head's rows of the other classes get no gradient at all; a
    teacher's are those of the classes seen so far."""
    local = two_tasks(name, tmp_path, options, device)
    for task, (trained, others) in enumerate([([0, 2], [1, 3]), ([1, 3], [0, 2])]):
        before = head_rows(local) if TABLE[name].head else None
        local.play(2)
        assert all(torch.isfinite(t).all() for t in tensors(local.state).values())
        assert torch.isfinite(local.personal()).all()
        if before is None:
            continue
        after = head_rows(local)
        if task == 0 or name not in CARRIED + DISTILLING:
            # an adaptive server optimiser makes a move out of the rounding of a mean
            torch.testing.assert_close(after[others], before[others], rtol=0, atol=1e-5)
        if name not in ("fedbabu", "local"):  # no head is trained, or no global model
            assert (after[trained] - before[trained]).abs().amax(dim=1).min() > 1e-4


@pytest.mark.parametrize("name", ["scaffold", "fedproj", "own"])
def test_resumed_between_two_tasks_it_goes_on_the_same(name, tmp_path):
    local, again = (two_tasks(name, tmp_path) for _ in range(2))
    local.play(2)
    local.task_end()
    position = local.executor.stored.save(1)
    assert (position.task, position.phase) == (0, "task_end") and again.executor.stored.load() == position
    again.position = position
    assert bits(again.play(2)) == bits(local.play(2))


# the test algorithm does what it says ---------------------------------------------------------
@pytest.mark.parametrize("store", ["memory", "files"])
def test_sequential_exchange_shows_every_client_what_the_one_before_added(store, tmp_path):
    """chain' = chain / 2 + (client, its rounds, its draw), over all five clients in order."""
    from flray.core.protocol.seeding import rng

    local = Local(experiment("own", resources={"store": store, "server": {"threads": 1}}), tmp_path)
    local.play(3)
    rounds = {k: s.rounds for k, s in local.client_states().items()}
    assert set(rounds.values()) <= {101, 202, 303} and sum(rounds.values()) == 3 * 3 * 101
    chain = np.zeros(3)
    for k in range(5):
        address = (0, 3, "task_end", 0) if k == 0 else (0, 3, "task_end", 0, "hop", k)  # of its turn in the chain
        chain = 0.5 * chain + np.array([k, rounds.get(k, 0), rng(3, *address, k, "chain").random()])
    state = local.task_end()
    np.testing.assert_allclose(state.chain.numpy(), chain, rtol=1e-6)
    assert state.visits == 5
    assert {k: s.rounds for k, s in local.client_states().items()} == {k: rounds.get(k, 0) + 10_000 for k in range(5)}


def test_importing_the_package_of_the_test_algorithm_registers_it():
    assert isinstance(own, ModuleType) and ALGORITHMS.get("own") is own.Own

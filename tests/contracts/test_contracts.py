"""Every algorithm: what it reduces to, that each hyper-parameter matters, what it trains over tasks. Other contracts of
the design (section 7) are in test_continual.py."""

import json
from operator import attrgetter
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from flray.algorithms import ALGORITHMS, built_in
from flray.contracts.played import Local, bits
from flray.core.messages import tensors
from flray.core.protocol.clock import Clock
from flray.core.schema.hp import hyperparameters
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


def test_every_algorithm_has_a_row():
    of_flray = built_in(federated=True)
    assert of_flray and set(of_flray) <= set(TABLE), "add a row to tests/contracts/table.py"


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


# 8: bytes -------------------------------------------------------------------------------------
def test_bytes_of_fedproj_are_those_of_the_paper(tmp_path):
    """Down: P + Q + |M| C float32; up: P + Q. 3 clients; P and Q as padded in the flat vectors, C = 3 classes, M =
    24."""
    local = Local(experiment("fedproj"), tmp_path)
    local.play(2)
    model = local.state.w.numel() + local.state.b.numel()
    assert local.rows[1]["up"] == 3 * 4 * model
    assert local.rows[0]["down"] == 3 * 4 * model
    assert local.rows[1]["down"] == 3 * 4 * (model + 24 * 3)


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


@pytest.mark.parametrize(("name", "options"), [*by_default(CORE, ((name, {}) for name in NAMES)), *OTHERS])
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

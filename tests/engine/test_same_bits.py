"""What leaves clients out, ends their work early or changes in the middle of a run: the same bits and rows after a
stop, on actors and in a replay."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch

import flray
from flray.config.loader import load_config
from flray.engine.replay import Replay
from tests.support import outcome
from tests.support.even import EVEN
from tests.support.kinds import by_default
from tests.support.stopped import continued

BASE = {**EVEN, "algorithm": {**EVEN["algorithm"], "name": "scaffold"}, "checkpoint": {"every": 2, "keep": 0}}
TIMED = {"devices": {"speed": {"name": "lognormal", "sigma": 1.0, "flops_per_second": 1e7}}}
MARKOV = {"devices": {"speed": "equal", "availability": {"name": "markov", "on": 3e-6, "off": 6e-6, "leaving": "lose"}}}
BUFFERED = {"rounds": 10, "coordination": {"name": "buffered", "size": 2, "concurrency": 4}}
TASKS = {"rounds": 3, "tasks": {"num_tasks": 2, "class_order": [2, 0, 1, 3]}}
FADING = {"name": "gradual", "classes": [1, 2], "from_round": 2, "rate": 0.3, "rate_step": 0.2, "of_cohort": 2}
REHEARSAL = {"name": "rehearsal", "lr": 0.1, "local_epochs": 2, "batch_size": 8}


class Kind(NamedTuple):
    """`seen`: what shows in the rows that it happened; `stops`: rounds, of which every second has a checkpoint."""

    sections: dict[str, Any]
    seen: Callable[[Any], Any] = lambda rounds: True
    stops: tuple[int, ...] = (1, 3)


KINDS = {
    "dropout": Kind({"cohort": {"size": 4, "dropout": 0.3}}, lambda rounds: rounds["clients_dropped"].sum()),
    "two exchanges": Kind(
        {"cohort": {"size": 4, "dropout": 0.3}, "algorithm": {"name": "own"}, "imports": ["tests.contracts.own"]},
        lambda rounds: rounds["clients_dropped"].sum(),
    ),
    "deadline": Kind(
        {**TIMED, "coordination": {"name": "deadline", "seconds": 1e-3}}, lambda rounds: rounds["clients_late"].sum()
    ),
    "partial": Kind(
        {**TIMED, "coordination": {"name": "deadline", "seconds": 1e-3, "late": "partial"}},
        lambda rounds: rounds["clients_partial"].sum(),
    ),
    "buffered": Kind({**TIMED, **BUFFERED}, lambda rounds: rounds["staleness_max"].max() > 1),
    "availability": Kind(MARKOV, lambda rounds: rounds["clients_lost"].sum()),
    "availability, buffered": Kind({**MARKOV, **BUFFERED}, lambda rounds: rounds["clients_lost"].sum()),
    "schedule": Kind(
        {"algorithm": EVEN["algorithm"], "schedule": {"from_round": 3, "algorithm.optimizer": "adam"}}, stops=(2, 3)
    ),
    # before, at and behind the boundary of the tasks
    "drift over tasks": Kind({**TASKS, "drift": FADING}, stops=(2, 3, 4)),
    "exemplars": Kind({**TASKS, "algorithm": REHEARSAL, "imports": ["tests.engine.rehearsal"]}, stops=(2, 3, 4)),
}


# the rest with `-m slow`: other stops, and those kinds that are two of the others at once
AFTER_STOPS = [
    pytest.param(name, stop, marks=() if stop == kind.stops[-1] and "," not in name else pytest.mark.slow)
    for name, kind in KINDS.items()
    for stop in kind.stops
]


def facts(run: flray.Run) -> dict[str, Any]:
    """Everything that must not depend on who computed it, with the virtual seconds."""
    assert run.status == "finished"
    return {**outcome.contents(run), "virtual_s": run.rounds.get("time/virtual_s", run.rounds["done"]).tolist()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], flray.Run]:
    """The run that nobody disturbs, by kind."""
    known: dict[str, flray.Run] = {}

    def get(kind: str) -> flray.Run:
        if kind not in known:
            folder = tmp_path_factory.mktemp("whole") / "run"
            known[kind] = flray.run({**BASE, **KINDS[kind].sections}, out=folder, progress=False)
        return known[kind]

    return get


@pytest.mark.filterwarnings("ignore::flray.scenario.DriftWarning")
@pytest.mark.parametrize(("kind", "stop"), AFTER_STOPS)
def test_after_a_stop(kind: str, stop: int, whole: Callable[[str], flray.Run], tmp_path: Path) -> None:
    assert KINDS[kind].seen(whole(kind).rounds)
    found = continued(load_config({**BASE, **KINDS[kind].sections})[0], tmp_path / "run", stop)
    assert facts(found) == facts(whole(kind))


@pytest.mark.parametrize("kind", by_default(("dropout", "partial", "buffered", "exemplars"), KINDS))
def test_on_actors(ray_cluster: ModuleType, kind: str, whole: Callable[[str], flray.Run], tmp_path: Path) -> None:
    resources = {"client_actors": 2, "executor": "calls", "server": {"threads": 1}}
    found = flray.run({**BASE, **KINDS[kind].sections, "resources": resources}, out=tmp_path / "run", progress=False)
    assert facts(found) == facts(whole(kind))


@pytest.mark.parametrize("kind", by_default([kind for kind in KINDS if "," not in kind], KINDS))
def test_in_a_replay(kind: str, whole: Callable[[str], flray.Run]) -> None:
    """The clients of a round, in their order, with the numbers of their rows."""
    run = whole(kind)
    replay, columns = Replay(run.folder), ["train/loss", "num_steps", "num_examples"]
    trained = 0
    for done in range(len(run.rounds)):
        replay.goto(done)
        rows = run.clients.query("done == @done + 1 and exchange == 0 and phase == 'round'").sort_values("position")
        found = {client: [row[name] for name in columns] for client, _, row in replay.clients()}
        assert found == dict(zip(rows["client"], rows[columns].to_numpy().tolist(), strict=True))
        trained += len(found)
        assert replay.cohort().tolist() == list(found) == rows["client"].tolist()
    assert trained


@pytest.fixture
def modes_put_back() -> Iterator[None]:
    yield
    sys.modules.pop("tests.engine.sets_modes", None)
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)
    torch.set_flush_denormal(False)
    torch._C._set_mkldnn_enabled(True)


@pytest.mark.usefixtures("modes_put_back")
def test_what_a_users_module_sets_when_it_is_imported_changes_no_actor(
    ray_cluster: ModuleType, whole: Callable[[str], flray.Run], tmp_path: Path
) -> None:
    expected = facts(whole("dropout"))
    imports = [*KINDS["dropout"].sections.get("imports", []), "tests.engine.sets_modes"]
    sections = {**BASE, **KINDS["dropout"].sections, "imports": imports, "resources": {"executor": "calls"}}
    assert facts(flray.run(sections, out=tmp_path / "run", progress=False)) == expected

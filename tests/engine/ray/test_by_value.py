"""What a script or a notebook defines runs in other processes, too: forks of a grid, actors, trials of a sweep."""

from __future__ import annotations

import functools
import importlib
import re
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import flray
from flray.algorithms import ALGORITHMS
from flray.algorithms.fedavg import FedAvg
from flray.config import objects
from flray.config.loader import load_config
from flray.core.protocol.probe import Probe
from flray.core.schema.errors import CheckpointError, ConfigError
from flray.core.schema.registry import MAIN, address_of
from flray.data import SOURCES
from flray.engine.ray import by_value
from flray.scenario import PARTITIONS
from flray.uplink.transform import Transform
from tests.support import iris
from tests.support.processes import python

TOY = {**iris.TOY, "rounds": 2, "resources": {"executor": "local"}}  # an own network is no small run by itself
# as if typed into a notebook; `scale` is read by value, too
CELL = """
import numpy as np, torch
from flray.algorithms import ALGORITHMS
from flray.algorithms.fedavg import FedAvg

scale = 0.5

class Net(torch.nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.inside = torch.nn.Linear(4, num_classes)

    def forward(self, x):
        return scale * self.inside(x)

def thirds(labels, num_classes, config, draws, group):
    return np.array_split(draws.permutation(len(labels)), config.clients)

class Slow(FedAvg, frozen=True):
    pass

ALGORITHMS.add("of_main", Slow)
"""


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The objects of `CELL`, in this process's `__main__`."""
    main = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    exec(CELL, vars(main))
    yield main
    ALGORITHMS._table.pop("of_main")


def losses(run: flray.Run) -> list[float]:
    return [*map(float, run.rounds["train/loss"])]


def run_own(cell: Any, folder: Path, *words: str, **more: Any) -> Any:
    own = {"model": cell.Net, "partition": cell.thirds, "partition.clients": 3, "algorithm": "of_main", **more}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*defined in a script or a notebook")
        return flray.run(TOY, *words, out=folder, overwrite=True, progress=False, **own)


def test_a_spawned_process_names_what_the_script_defines_as_the_script_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """There multiprocessing has read the script again, as the module `__mp_main__`, which no other process imports."""
    spawned, script = ModuleType("__mp_main__"), ModuleType("__main__")
    for name in ("__main__", "__mp_main__"):
        monkeypatch.setitem(sys.modules, name, spawned)
    exec(CELL, vars(spawned))
    try:
        run = run_own(spawned, tmp_path / "run")
        before, written, sent = losses(run), run.experiment.dump(), by_value.dumped(run.experiment)
        ALGORITHMS._table.pop("of_main")
        monkeypatch.delitem(sys.modules, "__mp_main__")
        monkeypatch.setitem(sys.modules, "__main__", script)
        by_value.adopt(sent)
        assert script.Net.__name__ == "Net" and ALGORITHMS.get("of_main").__name__ == "Slow"
        ALGORITHMS._table.pop("of_main")
        exec(CELL, vars(script))
        again = flray.resume(run.folder, rounds=3, progress=False)
    finally:
        ALGORITHMS._table.pop("of_main", None)
    assert (written["model"]["name"], written["partition"]["name"]) == ("__main__:Net", "__main__:thirds")
    assert again.status == "finished" and losses(again)[:2] == before


@pytest.mark.slow
def test_the_same_numbers_here_and_in_forks(cell: Any, tmp_path: Path) -> None:
    alone = run_own(cell, tmp_path / "alone")
    before = losses(alone)
    grid = run_own(cell, tmp_path / "grid", algorithm=["fedavg", cell.Slow])
    assert [losses(run) for run in grid] == [before] * 2, "Slow is FedAvg by another name"
    written = alone.experiment.dump()
    assert (written["model"]["name"], written["partition"]["name"]) == ("__main__:Net", "__main__:thirds")
    assert written["algorithm"]["name"] == "of_main" and not written["imports"]
    resumed = flray.resume(alone.folder, rounds=3, progress=False)
    assert losses(resumed)[:2] == before and resumed.status == "finished"
    exec(CELL.replace("scale = 0.5", "scale = 0.1"), vars(cell))  # the cell again, changed
    assert losses(run_own(cell, tmp_path / "changed")) != before


@pytest.mark.slow
def test_the_same_numbers_on_actors(cell: Any, ray_cluster: ModuleType, tmp_path: Path) -> None:
    """Also in actors that an experiment of the same keys had before, and another definition of the network."""
    before = losses(run_own(cell, tmp_path / "alone"))
    assert losses(run_own(cell, tmp_path / "actors", "resources.executor=calls")) == before
    exec(CELL.replace("scale = 0.5", "scale = 0.1"), vars(cell))
    changed = losses(run_own(cell, tmp_path / "changed", "resources.executor=calls"))
    assert changed == losses(run_own(cell, tmp_path / "here")) != before


def local(factor: float) -> dict[str, Any]:
    """What a function makes: callables that no import finds."""

    class Base(torch.nn.Module):
        def __init__(self, num_classes: int) -> None:
            super().__init__()
            self.inside = torch.nn.Linear(4, num_classes)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return factor * self.inside(x)

    class Net(Base):
        pass

    def parts(labels: Any, num_classes: int, config: Any, draws: Any, group: Any) -> list[Any]:
        return np.array_split(draws.permutation(len(labels)), config.clients)

    class Parts:
        def parts(self, *given: Any) -> list[Any]:
            return parts(*given)

    class Norm(Probe, frozen=True):
        at: ClassVar[frozenset[str]] = frozenset({"end"})

        def observe(self, ctx: Any, view: Any, memory: Any) -> tuple[list[dict[str, float]], Any]:
            return [{"factor": factor}], memory

    class Noise(Transform, frozen=True):
        """Draws at the address of its own name."""

        def client(self, sender: Any, sent: Any) -> Any:
            return sent._replace(w=sent.w + 0.1 * float(sender.rng().standard_normal()))

    class Own(FedAvg, frozen=True):
        pass

    ways = {"own": Own, "function": parts, "partial": functools.partial(parts), "bound": Parts().parts}
    return {"model": Net, "diagnostics": [{"name": Norm}], "uplink": [{"name": Noise}], **ways}


def given(made: dict[str, Any], way: str) -> dict[str, Any]:
    own = {name: made[name] for name in ("model", "diagnostics")}
    return {**own, "partition": made[way], "partition.clients": 3}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*has no import path")
def test_what_has_no_import_path_goes_by_value(tmp_path: Path) -> None:
    """Each way to give a partition of one name has the same draws; also in forks, which run nothing again."""

    def run(out: str, made: dict[str, Any], way: str = "function", **more: Any) -> Any:
        return flray.run(TOY, out=tmp_path / out, progress=False, **given(made, way), **more)

    half = local(0.5)
    first = run("function", half)
    assert [losses(run(way, half, way)) for way in ("partial", "bound")] == [losses(first)] * 2
    assert (first.diagnostics["Norm"]["factor"] == 0.5).all() and len(first.diagnostics["Norm"]) == 2 * 2
    grid = run("grid", half, seed=[0, 1])
    again = run("grid", half, seed=[0, 1])
    assert losses(grid[0]) == losses(first)
    two = flray.run(TOY, out=tmp_path / "two", progress=False, model=half["model"], algorithm=["fedavg", half["own"]])
    name = two[1].folder.name
    assert two[0].folder.name == "fedavg" and re.fullmatch(r"Own\.[0-9a-f]{4}", name), "as tables name it"
    assert f"| {name} " in str(flray.compare(two))
    assert [one.folder.stat().st_mtime_ns for one in again] == [one.folder.stat().st_mtime_ns for one in grid]
    with pytest.raises(CheckpointError, match="holds another experiment"):
        run("grid", local(0.1), seed=[0, 1])  # the base of the class reads another factor
    said = python("-m", "flray", "resume", first.folder, "rounds=3", status=2).stderr
    assert "Traceback" not in said and "only the process that ran it" in said
    before = losses(first)  # a held run is read again after its resume
    assert losses(flray.resume(first.folder, rounds=3, progress=False))[:2] == before and losses(first)[:2] == before


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*has no import path")
def test_a_transform_of_ones_own_draws_the_same_on_actors(ray_cluster: ModuleType, tmp_path: Path) -> None:
    own = {**given(local(0.5), "function"), "uplink": local(0.5)["uplink"]}
    here = flray.run(TOY, out=tmp_path / "here", progress=False, **own)
    there = flray.run(TOY, "resources.executor=calls", out=tmp_path / "there", progress=False, **own)
    bare = flray.run(TOY, out=tmp_path / "bare", progress=False, **{**own, "uplink": []})
    assert losses(here) == losses(there) != losses(bare)


def test_two_of_one_name_are_two_and_one_given_twice_is_one() -> None:
    def name(made: dict[str, Any], way: str = "function") -> str:
        with pytest.warns(UserWarning, match=r"partition: .*parts has no import path, so no other process can resume"):
            return str(load_config(TOY, {"partition": made[way], "partition.clients": 3})[0].partition.name)

    half = local(0.5)
    names = [name(half), name(half), name(half, "partial"), name(half, "bound")]
    assert names[0] == names[1] and len({*names}) == 3
    assert {address_of(one) for one in names} == {f"{MAIN}parts"}, "where draws are made"
    experiment = load_config(TOY, {"partition": half["function"], "partition.clients": 3})[0]
    code = "import sys\nfrom flray.engine.ray import by_value\nby_value.adopt(sys.argv[1])\n"
    code += "from flray.scenario import PARTITIONS\nprint(PARTITIONS.get(sys.argv[2]).__name__)"
    assert python("-c", code, by_value.dumped(experiment), experiment.partition.name).stdout == "parts\n"


def test_what_holds_a_lock_is_one_line() -> None:
    lock = threading.Lock()
    with pytest.raises(ConfigError, match=r"partition: .*lambda.* cannot go to another process .*own.NAME"):
        load_config(TOY, {"partition": lambda *given: lock and [], "partition.clients": 3})


def test_another_process_says_what_it_lacks(cell: Any, tmp_path: Path) -> None:
    objects._warn_once.cache_clear()
    with pytest.warns(UserWarning, match="a resume needs it defined there again; put it into a module, such as own.py"):
        run = flray.run(TOY, model=cell.Net, out=tmp_path / "run", progress=False)
    with warnings.catch_warnings(record=True) as again:
        load_config(TOY, {"model": cell.Net})
    assert not again, "a loop of runs says it once"
    assert isinstance(run, flray.Run)
    said = python("-m", "flray", "resume", run.folder, "rounds=3", status=2).stderr
    assert "Traceback" not in said
    assert "Net was defined in a script or a notebook; define it again, or move it into a module" in said


def test_a_sweep_and_its_trials_have_them(cell: Any) -> None:
    """As text, which a trial reads in a process whose tables have not seen them."""
    (experiment,) = load_config(TOY, {"algorithm": "of_main"})
    text = by_value.dumped(experiment)
    code = (
        "import sys\nfrom flray.engine.ray import by_value\nfrom flray.algorithms import ALGORITHMS\n"
        "by_value.adopt(sys.argv[1])\nprint(ALGORITHMS.get('of_main').__mro__[1].__name__)"
    )
    assert python("-c", code, text).stdout == "FedAvg\n"


def test_what_no_other_process_can_have_is_one_line(cell: Any) -> None:
    cell.lock = threading.Lock()
    exec("def locked(labels, num_classes, config, draws, group):\n    with lock:\n        return []", vars(cell))
    experiment = load_config(TOY, {"partition": f"{MAIN}thirds", "partition.clients": 3})[0]
    assert by_value.dumped(experiment)
    experiment = load_config(TOY, {"partition": f"{MAIN}locked", "partition.clients": 3})[0]
    PARTITIONS.add("guarded", cell.locked)  # that no experiment asks for
    assert by_value.dumped(load_config(TOY, {"algorithm": "of_main"})[0])
    PARTITIONS._table.pop("guarded")
    with pytest.raises(ConfigError, match=r"locked: given itself, and cannot go .*lock.*module"):
        by_value.dumped(experiment)


def test_without_them_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """`own` is a word of every configuration, and the name of an algorithm of other tests."""
    monkeypatch.delitem(ALGORITHMS._table, "own", raising=False)
    assert by_value.dumped(load_config(TOY)[0]) == ""


@pytest.mark.filterwarnings("ignore:.*has no import path")
def test_a_resume_sees_that_what_a_closure_reads_has_changed(tmp_path: Path) -> None:
    settings = {"scale": 1.0}

    def net(input_shape: Any, num_classes: int) -> torch.nn.Module:
        return torch.nn.Linear(4, int(settings["scale"]) * num_classes)

    run = flray.run(TOY, model=net, out=tmp_path / "run", progress=False)
    settings["scale"] = 2.0
    with pytest.raises(ConfigError, match=r"^net: what it reads has changed since it was given"):
        flray.resume(run.folder, rounds=3, progress=False)
    settings["scale"] = 1.0
    assert flray.resume(run.folder, rounds=3, progress=False).status == "finished"


def test_names_that_a_module_registers_go_by_its_import_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the configuration; not of modules that it imports, and not what no import finds."""
    (tmp_path / "registers_names.py").write_text(
        "from flray.data import SOURCES\nfrom flray.scenario import PARTITIONS\n"
        "def flowers(config): ...\ndef halves(labels, settings, rng): ...\n"
        "SOURCES.add('own_flowers', flowers)\nPARTITIONS.add('own_halves', 'registers_names:halves')\n"
        "SOURCES.add('nameless', lambda config: None)\nSOURCES.add('other_flowers', flowers)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for table in (SOURCES, PARTITIONS):
        monkeypatch.setattr(table, "_table", dict(table._table))
    own = importlib.import_module("registers_names")
    words = ["own_flowers", "own_halves", "nameless", "iris", "iid"]
    assert SOURCES.own_entries(words, []) == [("own_flowers", "registers_names:flowers")]
    assert PARTITIONS.own_entries(words, ["json"]) == [("own_halves", "registers_names:halves")]
    assert SOURCES.own_entries(words, ["registers_names"]) == []
    settings = load_config({**TOY, "data": {"source": "own_flowers"}, "partition": {"name": "own_halves"}})[0]
    sent = by_value.dumped(settings)
    del SOURCES._table["own_flowers"], PARTITIONS._table["own_halves"]
    by_value.adopt(sent)
    assert SOURCES.get("own_flowers") is own.flowers and PARTITIONS.get("own_halves") is own.halves

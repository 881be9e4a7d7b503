"""The source of one's own modules decides a run's bits: which modules count, and what a resume says of them.

Without Ray.
"""

import contextlib
import importlib.util
import itertools
import re
import sys
from types import ModuleType

import pytest

from flray.core.schema.errors import CheckpointError, ConfigError
from flray.data import SOURCES
from flray.files import with_checksum
from flray.rundir.main_code import MainCode
from flray.rundir.provenance import Origin, check_sources, imported_sources, module_fingerprints
from tests.contracts.table import experiment
from tests.support.messages import facts

METHOD = """
import json, numpy
import {helper}
from flray.algorithms import ALGORITHMS
from flray.algorithms.fedavg import FedAvg
class Own(FedAvg, frozen=True):
    pass
ALGORITHMS.add("{method}", Own)
"""
number = itertools.count()


@pytest.fixture
def own(tmp_path, monkeypatch):
    """(an experiment with an algorithm of its own, the folder of its modules, the names of the method's and of the
    helper's)."""
    method, helper, stranger = (f"own_{kind}_{next(number)}" for kind in ("method", "helper", "stranger"))
    (tmp_path / f"{helper}.py").write_text("LIMIT = 1\n")
    (tmp_path / f"{stranger}.py").write_text("")  # in the same folder, imported by nobody
    (tmp_path / f"{method}.py").write_text(METHOD.format(method=method, helper=helper))
    monkeypatch.syspath_prepend(tmp_path)
    for name in (method, stranger):
        importlib.import_module(name)
    yield experiment("fedavg", imports=[method], algorithm={"name": method}), tmp_path, method, helper
    for name in (method, helper, stranger):
        sys.modules.pop(name, None)


def test_the_modules_that_are_named_and_what_they_import_count(own):
    settings, _, method, helper = own
    found = module_fingerprints(settings)
    assert set(found) - {"modules.tests.contracts.networks"} == {f"modules.{method}", f"modules.{helper}"}


@pytest.mark.parametrize("dropout", [0.0, 0.25])
def test_a_key_that_the_flray_of_its_beginning_did_not_write_had_its_default(tmp_path, dropout):
    """Which is 0."""
    record = Origin.of(begun := experiment("fedavg"), None).record(begun)
    del record["experiment"]["cohort"]["dropout"], record["experiment"]["precision"]
    (tmp_path / "environment.json").write_text(with_checksum(record))
    resumed = experiment("fedavg", cohort={**begun.dump()["cohort"], "dropout": dropout})
    says = r"cohort.dropout is 0.25 in config.yaml and was 0.0 when the run began; "
    with pytest.raises(ConfigError, match=says) if dropout else contextlib.nullcontext():
        Origin.of(resumed, tmp_path)


def test_a_section_that_goes_is_an_accepted_change_as_any_other(tmp_path):
    record = Origin.of(begun := experiment("fedavg", aggregation={"name": "median"}), None).record(begun)
    (tmp_path / "environment.json").write_text(with_checksum(record))
    without = experiment("fedavg")
    accepted = Origin.of(without, tmp_path, ["aggregation.name"]).record(without)["accepted"]
    assert [(entry["what"], entry["was"], entry["is"]) for entry in accepted] == [("aggregation.name", "median", None)]


def test_flrays_own_code_does_not():
    assert not any(name.startswith("modules.flray") for name in module_fingerprints(experiment("fedavg")))


@pytest.mark.parametrize("which", ["method", "helper"])
def test_a_module_that_changed_is_named_and_can_be_accepted(own, tmp_path, which):
    settings, home, method, helper = own
    run = tmp_path / "run"
    run.mkdir()
    (run / "environment.json").write_text(with_checksum(Origin.of(settings, None).record(settings)))
    Origin.of(settings, run)  # nothing changed
    changed = {"method": method, "helper": helper}[which]
    with (home / f"{changed}.py").open("a") as file:
        file.write("# changed\n")
    with pytest.raises(ConfigError, match=facts(f"module {changed} changed", f"--accept modules.{changed}")):
        Origin.of(settings, run)
    accepted = Origin.of(settings, run, [f"modules.{changed}"]).record(settings)["accepted"]
    assert [entry["what"] for entry in accepted] == [f"modules.{changed}"]


def test_a_module_that_a_run_imports_when_it_has_begun_is_no_change(own, tmp_path, monkeypatch):
    """As by an import statement in a function. From the first resume on its changes are seen."""
    settings, home, _, helper = own
    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, helper)
        began = Origin.of(settings, None).record(settings)
    assert f"modules.{helper}" not in began["fingerprints"]
    (tmp_path / "environment.json").write_text(with_checksum(began))
    (tmp_path / "environment.json").write_text(with_checksum(Origin.of(settings, tmp_path).record(settings)))
    with (home / f"{helper}.py").open("a") as file:
        file.write("# changed\n")
    with pytest.raises(ConfigError, match=facts(f"module {helper} changed", f"--accept modules.{helper}")):
        Origin.of(settings, tmp_path)


@pytest.mark.parametrize("which", ["method", "helper"])
def test_a_module_that_is_edited_and_not_loaded_again_is_refused(own, which):
    """Its old code would run here under the new file's hash, and the new code in actors; a comment changes no code."""
    settings, home, method, helper = own
    changed = {"method": method, "helper": helper}[which]
    first = module_fingerprints(settings)
    with (home / f"{changed}.py").open("a") as file:
        file.write("\n# a comment\n")
    assert module_fingerprints(settings).keys() == first.keys()
    with (home / f"{changed}.py").open("a") as file:
        file.write("LIMIT = 2\n")
    with pytest.raises(ConfigError, match=facts(f"{changed}.py has changed since it was imported here", "reload")):
        module_fingerprints(settings)
    importlib.reload(sys.modules[changed])
    settings = experiment("fedavg", imports=[method], algorithm={"name": method})
    assert module_fingerprints(settings)[f"modules.{changed}"] != first[f"modules.{changed}"]


@pytest.mark.parametrize("section", ["data", "proxy"])
def test_the_module_of_a_source_counts_and_a_record_without_it_is_resumed(tmp_path, monkeypatch, section):
    """One that an import path names is read after a new run's record was begun; a proxy source counted in no run of an
    older flray."""
    module = f"own_source_of_{section}"
    (tmp_path / f"{module}.py").write_text("def mine(config): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    options = {"size": 20} if section == "proxy" else {}
    settings = experiment("feddf", **{section: {"source": f"{module}:mine", **options}})
    began = Origin.of(settings, None).record(settings)
    assert f"modules.{module}" not in began["fingerprints"]
    SOURCES.get(f"{module}:mine")
    assert f"modules.{module}" in module_fingerprints(settings)
    (tmp_path / "environment.json").write_text(with_checksum(began))
    record = Origin.of(settings, tmp_path).record(settings)
    (tmp_path / "environment.json").write_text(with_checksum(record))
    (tmp_path / f"{module}.py").write_text("def mine(config): return 2\n")
    importlib.reload(sys.modules[module])
    with pytest.raises(ConfigError, match=facts(f"module {module} changed", f"--accept modules.{module}")):
        Origin.of(settings, tmp_path)


def test_what_actors_import_is_known_in_whatever_folder_it_is(tmp_path, monkeypatch):
    """The packages that a module is in as well. Without a reload this process has the old source, as the actors do."""
    near, far = tmp_path / "near", tmp_path / "far"
    for place in (near, far / "parts_of_far"):
        place.mkdir(parents=True)
    (far / "parts_of_far" / "__init__.py").write_text("")
    (far / "parts_of_far" / "one.py").write_text("FACTOR = 1\n")
    head = "from parts_of_far.one import FACTOR\nimport yaml, json\n"
    (near / "method_near.py").write_text(head + METHOD.format(method="method_near", helper="json"))
    for place in (near, far):
        monkeypatch.syspath_prepend(place)
    importlib.import_module("method_near")
    settings = experiment("fedavg", imports=["method_near"], algorithm={"name": "method_near"})
    first = imported_sources(settings)
    own = {"modules.method_near", "modules.parts_of_far", "modules.parts_of_far.one"}
    assert {name for name in first if not name.startswith("modules.tests")} == own
    assert own & set(module_fingerprints(settings)) == {"modules.method_near"}
    (far / "parts_of_far" / "one.py").write_text("FACTOR = 2.0\n")
    assert imported_sources(settings) == first
    importlib.reload(sys.modules["parts_of_far.one"])
    now = imported_sources(settings)
    assert {name for name in first if now[name] != first[name]} == {"modules.parts_of_far.one"}
    for path in (far / "parts_of_far" / "one.py", near / "method_near.py"):  # the user is writing it
        path.write_text("FACTOR =")
        assert imported_sources(settings) == now
    with pytest.raises(ConfigError, match=facts("near.py has changed since it was imported here, and is no Python")):
        module_fingerprints(settings)


@pytest.mark.parametrize("network", ["torchvision:resnet18", "timm:test_resnet", "hf:vit"])
def test_a_librarys_network_is_no_module_of_the_users(network):
    """The library is imported when the model is built, which is between the start and a resume in the same process."""
    package = {"hf": "transformers"}.get(network.partition(":")[0], network.partition(":")[0])
    pytest.importorskip(package)
    for name in {package, network.partition(":")[0]}:
        importlib.util.find_spec(name) and importlib.import_module(name)
    settings = experiment("fedavg", model={"name": network})
    assert set(module_fingerprints(settings)) <= {"modules.tests.contracts.networks"}


@pytest.mark.parametrize("section", ["diagnostics", "uplink"])
def test_the_modules_of_diagnostics_and_transforms_count(section, tmp_path, monkeypatch):
    """And one whose file has been removed since is left out."""
    base = {
        "diagnostics": "flray.core.protocol.probe import Probe",
        "uplink": "flray.uplink.transform import Transform",
    }
    file = tmp_path / f"own_{section}.py"
    body = "    at: ClassVar = frozenset({'end'})\n    def observe(self, *seen):\n        return [], None\n"
    head = f"from typing import ClassVar\nfrom {base[section]} as Base\nclass Mine(Base, frozen=True):\n"
    file.write_text(head + body)
    monkeypatch.syspath_prepend(tmp_path)
    settings = experiment("fedavg", **{section: [{"name": f"own_{section}:Mine"}]})
    assert f"modules.own_{section}" in module_fingerprints(settings)
    file.unlink()
    assert f"modules.own_{section}" not in module_fingerprints(settings)


def test_a_script_that_changed_goes_on_in_the_script(own, tmp_path, monkeypatch):
    """The command `flray resume` has another `__main__`."""
    script = tmp_path / "script.py"
    script.write_text("from flray.algorithms.fedavg import FedAvg\nclass Mine(FedAvg, frozen=True):\n    pass\n")
    main = ModuleType("__main__")
    main.__file__ = str(script)
    monkeypatch.setitem(sys.modules, "__main__", main)
    exec(compile(script.read_text(), str(script), "exec"), vars(main))
    settings = experiment("fedavg", algorithm={"name": "__main__:Mine"})
    (tmp_path / "environment.json").write_text(with_checksum(Origin.of(settings, None).record(settings)))
    script.write_text(f"# changed\n{script.read_text()}")
    again = re.escape(f"in it, flray.resume({str(tmp_path)!r}, accept=['modules.__main__'])")
    with pytest.raises(ConfigError, match=again):
        Origin.of(settings, tmp_path)


NET = """
import types
import numpy as np
FACTOR, calls, count = 2, [], 0
CONFIG = {"width": 8, "deep": (1, [2])}
SCALES, SPACE = np.array([1.0, 2.0]), types.SimpleNamespace(rate=0.5)
def around(k):
    return lambda y: k * y
outer = around(3)
def twice(y):
    global count
    count += 1
    calls.append(y)
    return FACTOR * outer(y)
def scaled(y):
    return CONFIG["width"] * SCALES * SPACE.rate * y
class Base:
    depth = 2
class Net(Base):
    def __init__(self, width=8):
        self.width = width
    @property
    def kinds(self):
        return {"a", "b"}
    def forward(self, x, *, bias=0):
        return [self.width * twice(y) + scaled(y) + bias for y in x]
"""


@pytest.mark.parametrize(
    ("old", "new", "changes"),
    [
        ("twice(y) +", "y +", True), ("FACTOR * outer", "3 * outer", True), ("width=8", "width=9", True),
        ("bias=0", "bias=1", True), ("calls, count = 2,", "calls, count = 3,", True),
        ('"width": 8', '"width": 9', True), ("[2])}", "[3])}", True), ("2.0]", "3.0]", True),
        ("rate=0.5", "rate=0.6", True), ("around(3)", "around(4)", True),
        ("[], 0", "[1], 0", False), ("[], 0", "[], 1", False),
        ("depth = 2", "depth = 3", True),
        ('"b"', '"c"', True), ("class Net", "# a comment\nother = 1\nclass Net", False),
    ],
)  # fmt: skip
def test_the_code_of_a_class_of_a_script_counts_and_other_lines_do_not(old, new, changes):
    def hashed(text, file, module="__main__"):
        space = {"__name__": module}
        exec(compile(text, file, "exec"), space)
        return MainCode(space["Net"]).hash

    assert hashed(NET, "a.py") == hashed(NET, "another.py") == hashed(NET, "a.py", "__mp_main__")
    assert (hashed(NET, "a.py") != hashed(NET.replace(old, new), "a.py")) is changes


FILLED = """
import dataclasses
import numpy as np, torch
from types import SimpleNamespace
@dataclasses.dataclass(slots=True)
class Rates:
    first: float = 0.1
rates = Rates()
losses, sums, state, nested, aliased = [], np.zeros(3), SimpleNamespace(n=0), {"a": {"b": 1}}, []
config, scale, weight = {"lr": 0.1}, np.float32(2), torch.ones(2, dtype=torch.bfloat16)
class Net:
    def begin(self, g, k):
        losses.append(k)
        sums[k] = config["lr"]
        state.n += 1
        nested["a"]["b"] += 1
        mine = aliased
        mine.append(k)
        g[k] = 0
        return torch.add(g, config["lr"])
    def end(self):
        return sum(losses), sums.sum(), state.n, nested, aliased, scale, weight, rates.first
"""


@pytest.mark.parametrize(
    ("change", "counts"),
    [
        ("losses.append(1)", False), ("sums[1] = 5", False), ("state.n = 5", False), ("nested['a']['b'] = 5", False),
        ("aliased.append(1)", False),
        ("config['lr'] = 0.2", True), ("scale = np.float32(3)", True), ("weight[0] = 3", True),
        ("rates.first = 0.2", True),
    ],
)  # fmt: skip
def test_what_any_of_the_code_fills_does_not_count_and_what_it_reads_does(change, counts):
    """A list filled by one method and read by another is other in a resume of the same script."""
    space = {"__name__": "__main__"}
    exec(FILLED, space)
    before = MainCode(space["Net"]).hash
    exec(change, space)
    assert (MainCode(space["Net"]).hash != before) is counts


def test_a_module_that_a_notebook_reads_counts(tmp_path, monkeypatch):
    """A notebook has no file in which an import could be read. An installed module does not count."""
    (tmp_path / "steps_of_mine.py").write_text("def act(x):\n    return x\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    main = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    text = "def own(self, x):\n        return yaml.safe_load(act(x))\n"
    head = "import yaml\nfrom flray.algorithms.fedavg import FedAvg\nfrom steps_of_mine import act\n"
    exec(f"{head}class Mine(FedAvg, frozen=True):\n    {text}", vars(main))
    settings = experiment("fedavg", algorithm={"name": "__main__:Mine"})
    found = module_fingerprints(settings)
    assert {"modules.__main__:Mine", "modules.steps_of_mine"} <= found.keys()
    assert not [name for name in found if "yaml" in name or "flray" in name]
    (tmp_path / "steps_of_mine.py").write_text("def act(x):\n    return -x\n")
    importlib.reload(sys.modules["steps_of_mine"])
    now = module_fingerprints(settings)
    assert {name for name in found if found[name] != now[name]} == {"modules.steps_of_mine"}


def test_a_finished_run_of_a_changed_class_of_a_notebook_is_refused(tmp_path, monkeypatch):
    """As that of a changed module; with another cell changed it is kept. A record of an older flray has no class."""
    head = "from flray.algorithms.fedavg import FedAvg\n"
    text = f"{head}class Mine(FedAvg, frozen=True):\n    def own(self):\n        return 1\n"
    main = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    exec(text, vars(main))
    settings = experiment("fedavg", algorithm={"name": "__main__:Mine"})
    record = Origin.of(settings, None).record(settings)
    (tmp_path / "environment.json").write_text(with_checksum(record))
    exec(f"other = 1\n{text}", vars(main))
    check_sources(settings, tmp_path)
    Origin.of(settings, tmp_path)
    main.Mine.own = eval("lambda self: 2", vars(main))
    with pytest.raises(CheckpointError, match=facts("source of Mine of __main__ changed", "modules.__main__:Mine")):
        check_sources(settings, tmp_path)
    with pytest.raises(ConfigError, match=facts("source of Mine of __main__ changed", "modules.__main__:Mine")):
        Origin.of(settings, tmp_path)
    del record["fingerprints"]["modules.__main__:Mine"]
    (tmp_path / "environment.json").write_text(with_checksum(record))
    check_sources(settings, tmp_path)
    Origin.of(settings, tmp_path)

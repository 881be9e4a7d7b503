"""The table of what classes declare says what the classes say, and a command with a mistake ends without torch."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from flray.algorithms import ALGORITHMS
from flray.cli.catalog import catalog, detail
from flray.config import declared
from flray.config.declared import HEAVY, TABLES, StandIns
from flray.config.loader import load_config
from flray.core.schema.errors import FlrayError
from flray.core.schema.registry import standing_in
from flray.tuning.sweep_file import load_sweep
from tests.support.processes import python

ROOT = Path(__file__).parents[2]
QUICK = ROOT / "configs/quickstart.yaml"
SWEEP = str(ROOT / "configs/sweeps/fedsol_rho.yaml")


LIGHT = "import sys, flray.cli.catalog, flray.tuning.sweep_file; print(*sys.modules)"


@pytest.fixture(scope="module")
def stand_ins() -> StandIns:
    """The classes as a process imports them that has no torch: what such a process lacks is away for the moment."""
    light = python("-c", LIGHT).stdout.split()
    heavy = {name for name in sys.modules if name.partition(".")[0] in {"flray", *HEAVY}} - {*light}
    away = {name: sys.modules.pop(name) for name in heavy}
    names = {name: dict(vars(module)) for name, module in [*sys.modules.items()] if name.partition(".")[0] == "flray"}
    try:
        found = StandIns()
        assert [path for path in found if path not in found] == []
    finally:
        sys.modules.update(away)
        for name, before in names.items():  # a package can have a function of the name of its module
            vars(sys.modules[name]).update(before)
    return found


def test_every_class_of_flray_is_imported_without_torch(stand_ins):
    """A name of torch that a class body newly uses and that its empty stand-in cannot be fails here."""
    assert not [(t.kind, name) for t in TABLES for name, path in t.own_paths().items() if path not in stand_ins]


def test_beside_another_thread_there_are_no_stand_ins():
    """It may import torch meanwhile: two first runs in a pool of threads ended in a ModuleNotFoundError of torch."""
    code = """
import threading
from flray.config.declared import declared_only
with declared_only() as alone:
    pass
done = threading.Event()
other = threading.Thread(target=done.wait)
other.start()
with declared_only() as beside:
    done.set()
other.join()
print(alone, beside)
"""
    assert python("-c", code).stdout == "True False\n"


def test_no_module_that_stays_has_seen_a_stand_in(stand_ins):
    """What was imported against the stand-ins is in no package and not in `sys.modules`."""
    from flray.algorithms import fedavg
    from flray.ops import optim

    assert stand_ins["flray.algorithms.fedavg:FedAvg"] is not fedavg.FedAvg
    assert fedavg.FedAvg is ALGORITHMS.get("fedavg") and optim.torch is sys.modules["torch"]
    assert not [name for name, module in sys.modules.items() if type(module) is declared._Package]


@pytest.mark.parametrize("kind", ["algorithms", "models", "diagnostics"])
def test_flray_list_prints_the_same_from_the_table(kind, stand_ins):
    """Names, docs, options, types, defaults, bounds and search spaces of each."""
    rows = catalog(kind)
    details = [detail(kind, row["name"]) for row in rows]
    with standing_in(stand_ins):
        assert catalog(kind) == rows
        assert [detail(kind, row["name"]) for row in rows] == details


def test_a_stand_in_has_the_bases_and_class_variables_of_its_class(stand_ins):
    """`algorithm=NAME` keeps the keys that both classes have from a common base."""
    for name, path in ALGORITHMS.own_paths().items():
        kind, stand_in = ALGORITHMS.get(name), stand_ins[path]
        names = [base.__qualname__ for base in kind.__mro__ if hasattr(base, "model_fields")]
        assert [base.__qualname__ for base in stand_in.__mro__ if hasattr(base, "model_fields")] == names
        for variable in ("keeps", "changes_midrun", "centralized", "global_model", "needs_new_classes"):
            assert getattr(stand_in, variable) == getattr(kind, variable), (name, variable)


CONFIGS = [
    path.relative_to(ROOT)
    for path in sorted((ROOT / "configs").glob("*/*.yaml"))
    if path.parent.name not in ("sweeps", "cluster") and path.name[0] != "_" and path.name != "synthesize.yaml"
]


@pytest.mark.parametrize("file", CONFIGS, ids=str)
def test_a_paper_s_configuration_is_the_same_with_stand_ins(file, stand_ins):
    (cell,) = load_config(ROOT / file)
    with standing_in(stand_ins):
        (checked,) = load_config(ROOT / file)
        assert checked.yaml() == cell.yaml()


@pytest.mark.parametrize("name", ALGORITHMS.own_paths())
def test_each_algorithm_is_chosen_with_the_same_keys(name, stand_ins):
    overrides = {"algorithm": name, "proxy": {"source": "holdout", "size": 100}}
    (cell,) = load_config(QUICK, overrides)
    with standing_in(stand_ins):
        (checked,) = load_config(QUICK, overrides)
        assert checked.dump() == cell.dump()


MISTAKES = [
    ["algorithm.lrr=0.1"],
    ["algorithm=fedporj"],
    ["algorithm.lr=-1"],
    ["algorithm.lr=quick"],
    ["algorithm.lr=true"],
    ["algorithm.local_epochs=1.5"],
    ["algorithm.optimizer=sdg"],
    ["algorithm.lr=-1", "algorithm.batch_size=0", "algorithm.momentum=1"],
    ["algorithm.freeze=early"],
    ["algorithm=fedmemo", "algorithm.rho=0.5"],
    ["algorithm=fedmemo", "algorithm.detector.rho=2"],
    ["algorithm=feddf", "proxy=null"],
    ["model=resnet81"],
    ["model.hiden=[64]"],
    ["model=resnet8", "model.norm=layer"],
    ["hidden=64"],
    ["diagnostics=diverg"],
    ["diagnostics=[{name: divergence, no: 1}]"],
    ["schedule=[{from_round: 5, algorithm.weighting: uniform}]"],
    ["schedule=[{from_round: 5, algorithm.lr: -1}]"],
    ["cohort=10", "cohort.size=5"],
    ["rounds=-1"],
    ["seed=0..99999"],
]
SWEEPS = [["space.algorithm.rh=auto"], ["space.algorithm.lr={log: [1, 0.1]}"], ["trils=2"]]


@pytest.mark.parametrize(
    ("load", "file", "overrides"),
    [
        *((load_config, QUICK, overrides) for overrides in MISTAKES),
        *((load_sweep, ROOT / "configs/sweeps/fedsol_rho.yaml", overrides) for overrides in SWEEPS),
    ],
    ids=map(" ".join, MISTAKES + SWEEPS),
)
def test_a_mistake_has_the_same_line_with_stand_ins(load, file, overrides, stand_ins):
    with pytest.raises(FlrayError) as usual:
        load(file, overrides)
    with standing_in(stand_ins), pytest.raises(FlrayError) as early:
        load(file, overrides)
    assert str(early.value) == str(usual.value)


def test_a_user_s_module_gets_the_classes_themselves(tmp_path, monkeypatch, stand_ins):
    (tmp_path / "own_kind.py").write_text(
        "from flray.algorithms import ALGORITHMS\n"
        "class OwnKind(ALGORITHMS.get('fedprox')):\n    reach: float = 2.0\n"
        "ALGORITHMS.add('own_kind', OwnKind)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    try:
        with standing_in(stand_ins):
            (cell,) = load_config(QUICK, ["algorithm=own_kind", "algorithm.mu=0.5"], ["own_kind"])
        assert isinstance(cell.algorithm, ALGORITHMS.get("fedprox"))
    finally:
        ALGORITHMS._table.pop("own_kind", None)


LOADED = """
import contextlib, json, os, sys, tempfile
from flray.cli import main
done = []
for arguments in json.load(sys.stdin):  # each in a fork, so that all share the imports of the command line
    out, err = tempfile.TemporaryFile(), tempfile.TemporaryFile()
    if not (child := os.fork()):
        os.dup2(out.fileno(), 1), os.dup2(err.fileno(), 2)
        sys.argv, code = ["flray", *arguments], 1
        try:
            main()
        except SystemExit as ended:
            code = ended.code or 0
        finally:
            print(*{name.partition(".")[0] for name in sys.modules}, flush=True)
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    done.append([code, *(open(f"/proc/self/fd/{file.fileno()}").read() for file in (out, err))])
json.dump(done, sys.stdout)
"""
COMMANDS: list[tuple[list[str], int]] = [
    (["--help"], 0),
    (["list", "algorithms"], 0),
    (["list", "models", "resnet8"], 0),
    (["list", "config", "algorithm"], 0),
    (["run", str(QUICK), "algorithm.lrr=1"], 2),
    (["run", str(QUICK), "seed=0,0"], 2),
    (["run", str(QUICK), "algorithm=fedavg", "--import", "no_such_module"], 2),
    (["run", "no_such_file.yaml"], 2),
    (["run", str(QUICK), "--out", str(QUICK), "-q"], 2),
    (["sweep", str(QUICK)], 2),
    (["ablate", str(QUICK)], 2),
    (["doctor", str(QUICK), "model=resnet81"], 2),
    (["run", str(QUICK), "data=cifar10", "data.root=/nowhere"], 2),
    (["run", str(QUICK), "model.weights=no_such_file.safetensors"], 2),
    (["run", str(QUICK), "model=resnet18", "model.pretrained=no_such_file.pth"], 2),
    (["run", str(QUICK), "model.weights=null,no_such_file.safetensors", "-q"], 2),
    (["resume", "no_such_folder"], 2),
    (["resume", "file:///no_such_folder/run"], 2),
    (["resume", "file:///no_such_folder/run", "algorithm.lr=1"], 2),
    (["resume", str(ROOT / "configs"), "rounds=3"], 2),
    (["sweep", "no_such_folder", "--resume"], 2),
    (["sweep", SWEEP, "--out", str(QUICK), "-q"], 2),
    (["sweep", SWEEP, "experiment.data.source=cifar10", "experiment.data.root=/nowhere"], 2),
    (["ablate", str(QUICK), "algorithm.lr=1,2", "data=no_such_data", "-q"], 2),
    (["ablate", str(QUICK), "algorithm.lr=1,2", "--out", str(QUICK), "-q"], 2),
    (["ablate", str(QUICK), "algorithm.lr=1,2", "--against", "algorithm.lr=7", "-q"], 2),
    (["synthesize", "no_such_file.yaml", "--out", "no_such_folder"], 2),
    (["synthesize", str(ROOT / "configs/fedmemo/synthesize.yaml"), "quotta=1", "--out", "no_such_folder"], 2),
    (["replay", "no_such_folder", "--client", "1"], 2),
    (["papers", "reproduce", "fedsol/table2", "data.rot=1"], 2),
    (["papers", "reproduce", "fedsol/table2", "--cells", "MNIST, LDA", "--dry-run"], 0),
]


def ended(commands: list[list[str]]) -> list[list[Any]]:
    """(code, stdout, stderr) of each command, in a process that has imported the command line alone."""
    return json.loads(python("-c", LOADED, status=None, input=json.dumps(commands), cwd=ROOT).stdout)


@pytest.fixture(scope="module")
def ends() -> dict[str, list[Any]]:
    commands = [arguments for arguments, _ in COMMANDS]
    return dict(zip(map(" ".join, commands), ended(commands), strict=True))


@pytest.mark.parametrize(
    ("arguments", "code"), COMMANDS, ids=lambda value: " ".join(value) if isinstance(value, list) else None
)
def test_a_mistake_is_named_without_torch_and_ray(arguments, code, ends):
    named(ends[" ".join(arguments)], code)


def test_so_is_a_replay_of_training_without_clients(tmp_path):
    (tmp_path / "STATUS").write_text("finished\n")
    (tmp_path / "config.yaml").write_text(load_config(QUICK, ["algorithm=centralized"])[0].yaml())
    assert "centralized training has no clients" in named(ended([["replay", str(tmp_path), "--client", "1"]])[0], 2)


def named(done, code):
    """stderr of a command, which ends with this code and has not imported torch, Ray or Optuna."""
    ended, out, err = done
    assert ended == code, err
    assert not {"torch", "ray", "optuna"} & set(out.splitlines()[-1].split())
    assert code == 0 or (err.startswith("error: ") and err.count("\n") == 1)
    return err

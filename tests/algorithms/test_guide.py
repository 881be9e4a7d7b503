"""Every example of `flray/algorithms/README.md` is a file that runs as it stands there, on data that flray brings."""

import re
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import flray
from flray.core.protocol.algorithm import Algorithm
from flray.core.schema.registry import load

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "flray" / "algorithms" / "README.md").read_text()
FILES = {name: f"# {name}.py\n{code}" for name, code in re.findall(r"```python\n# (\w+)\.py\n(.*?)```", GUIDE, re.S)}
NAMES = [name for code in FILES.values() for name in re.findall(r'ALGORITHMS\.add\("([\w-]+)"', code)]
FAST = ["resources.executor=local", "rounds=3", "partition.clients=4", "cohort.size=3", "algorithm.local_epochs=1"]
FAST += ["evaluate.clients=false", "proxy=null"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The examples as files of a user's folder, where Python finds them."""
    where = tmp_path_factory.mktemp("guide")
    for name, code in FILES.items():
        (where / f"{name}.py").write_text(code)
    sys.path.insert(0, str(where))
    yield where
    sys.path.remove(str(where))


@pytest.fixture(scope="module")
def run(folder):
    """A run of the quickstart with an algorithm, computed once."""
    known = {}

    def result(name, *overrides):
        if (name, *overrides) not in known:
            module = [n for n, code in FILES.items() if f'ALGORITHMS.add("{name}"' in code]
            here = folder / f"{len(known)}-{name}"
            known[name, *overrides] = flray.run(
                ROOT / "configs" / "quickstart.yaml",
                *[word for word in FAST if word.split("=")[0] not in " ".join(overrides)],
                f"algorithm={name}",
                *overrides,
                out=here,
                imports=module,
                progress=False,
            )
        return known[name, *overrides]

    return result


def model(result):
    return np.concatenate([part.ravel() for part in load_file(result.folder / "model.safetensors").values()])


def same(left, right):
    return bool((model(left) == model(right)).all())


def test_every_python_block_of_the_guide_is_a_file_that_is_tested():
    assert GUIDE.count("```python") == len(FILES)
    tested = Path(__file__).read_text()
    assert [name for name in NAMES if f'"{name}"' not in tested] == []


def test_one_gradient(run):
    assert same(run("confident", "algorithm.beta=0"), run("fedavg"))
    assert not same(run("confident"), run("fedavg"))


def test_a_server_half_with_its_state(run):
    """flray's own FedAvgM does the same in another order of operations."""
    np.testing.assert_allclose(model(run("server-momentum")), model(run("fedavgm")), rtol=1e-4, atol=1e-6)
    assert not same(run("server-momentum"), run("fedavg"))
    assert (run("server-momentum").rounds["momentum/norm"] > 0).all()


def test_a_client_state(run):
    """Who comes for the first time has nothing to remember, so round 1 is FedAvg's."""
    own, fedavg = (run(name).rounds["train/loss"].tolist() for name in ("nostalgia", "fedavg"))
    assert own[0] == fedavg[0] and own[-1] != fedavg[-1]
    assert same(run("nostalgia", "algorithm.mu=0"), run("fedavg"))


def test_metrics(run):
    result = run("gradient-norm")
    assert same(result, run("fedavg"))
    assert (result.rounds["gradient/norm"] > 0).all() and (result.clients["gradient/norm"] > 0).all()


def test_what_the_server_gets_of_the_updates(run):
    assert (run("median").rounds["median/moved"] > 0).all()
    assert not same(run("median"), run("fedavg"))
    assert same(run("median", "cohort.size=1"), run("fedavg", "cohort.size=1"))  # of one model median and mean are it


def test_an_exchange_that_depends_on_the_one_before(run):
    """A rate at which rounds make the model worse sets off the alarm; without one a round has two exchanges."""
    calm, wild = run("careful").rounds, run("careful", "algorithm.lr=0.9").rounds
    for rounds in (calm, wild):
        asked = rounds["exchanges"] - 1
        assert asked.between(1, 3).all()
        assert (asked[rounds["careful/alarm"] == 0] <= 3).all() and (asked[rounds["careful/alarm"] == 1] == 3).all()
    assert wild["careful/alarm"].sum() > 0 and (calm["exchanges"] == 2).any()


def test_a_model_a_source_and_a_partition(folder):
    result = flray.run(
        ROOT / "configs" / "quickstart.yaml",
        *FAST,
        "model=own_parts:Net",
        "model.width=32",
        "data=moons",
        "partition=equal-parts",
        "algorithm=fedavg",
        out=folder / "parts",
        imports=["own_parts"],
        progress=False,
    )
    weights = load_file(result.folder / "model.safetensors")
    assert weights["body.1.weight"].shape == (32, 2) and weights["head.weight"].shape == (2, 32)
    assert result.clients["num_examples"].eq(75).all()


def test_the_entry_points_name_what_is_there(folder):
    (text,) = re.findall(r"```toml\n(.*?)```", GUIDE, re.S)
    groups = tomllib.loads(text)["project"]["entry-points"]
    assert set(groups) == {"flray.algorithms", "flray.models", "flray.sources", "flray.partitions"}
    found = [load(path, name) for group in groups.values() for name, path in group.items()]
    assert all(map(callable, found)) and issubclass(found[0], Algorithm)


def test_the_table_of_methods_is_complete():
    told = set(re.findall(r"`(\w+)\(", GUIDE))
    methods = {name for name, value in vars(Algorithm).items() if callable(value) and not name.startswith("_")}
    rare = {"weights", "step_cost", "epoch_batches", "local_steps"}
    assert methods - rare - told == set()

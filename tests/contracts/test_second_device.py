"""Every algorithm on a second device with the rules of a GPU; its numbers are those of the CPU.

By default a round of each, and two tasks of those whose row is over tasks; every contract on it is a slow test of
`test_contracts.py` and `test_continual.py`.
"""

import numpy as np
import pandas as pd
import pytest
import torch

import flray
from flray.config.loader import load_config
from flray.contracts.played import Local, flatten
from flray.core.protocol.clock import Clock
from flray.engine.learner import Learner
from flray.engine.prepare import build_data, build_scenario
from flray.engine.replay import Replay
from flray.engine.runtime import Runtime, TaskSummary
from flray.engine.simulation import evaluate_personal
from flray.metrics.probes import PROBES
from tests.contracts import traffic
from tests.contracts.table import TABLE, experiment
from tests.support import centralized, tasks
from tests.support.continual import SCENARIOS, config
from tests.support.devices import assert_close, finish, numbers, played, using
from tests.support.kinds import STATES, by_default

TOLERANCE = 1e-5
# smaller than the rows' own data: enough for the spaces of two tasks
FEW = {"source": "synthetic", "options": {"shape": 4, "num_classes": 4, "num_train": 200, "num_test": 40}}

pytestmark = [
    pytest.mark.filterwarnings(f"ignore::flray.scenario.{kind}") for kind in ("PartitionWarning", "DriftWarning")
]


def over_tasks(name, **sections):
    return config(name, **{**SCENARIOS["tasks"], **TABLE[name].sections, **sections})


def same_as_on_the_cpu(config, folder, rounds=1):
    assert_close(played(config, folder, "strict", rounds), played(config, folder, "cpu", rounds), TOLERANCE)


# the device itself ----------------------------------------------------------------------------
@pytest.fixture
def strict():
    with using("strict") as device:
        yield device


def test_it_refuses_what_a_gpu_refuses(strict):
    x, y = torch.ones(3, 2).to(strict), torch.ones(3, 2)
    for operation in (
        lambda: x + y,
        lambda: torch.cat([x, y]),
        lambda: x @ y.T,
        lambda: y[torch.zeros(1, dtype=torch.int64, device=strict)],
        lambda: torch._foreach_add([x], [y]),
        lambda: torch.stack([x[0, 0], y[0, 0]]),
        lambda: torch.nn.functional.cross_entropy(x, torch.zeros(3, dtype=torch.int64)),
    ):
        with pytest.raises(RuntimeError, match=r"device|cpu"):
            operation()
    with pytest.raises(RuntimeError, match="generator"):
        torch.randn(2, device=strict, generator=torch.Generator())
    with pytest.raises(TypeError, match="to numpy"):
        x.numpy()


def test_it_allows_what_a_gpu_allows(strict):
    x = torch.arange(6.0).view(3, 2).to(strict)
    assert (x * torch.tensor(2.0))[torch.tensor([2, 0])].tolist() == [[8, 10], [0, 2]]
    w = torch.ones(2, device=strict, requires_grad=True)
    (gradient,) = torch.autograd.grad((x @ w).square().sum(), [w])
    assert gradient.device == strict and gradient.tolist() == [92.0, 122.0]  # 2 x^T (x w), x w = (1, 5, 9)
    view = w.detach()
    view[1:].mul_(3)
    assert w.tolist() == [1.0, 3.0] and w._version == view._version == 1 and w.data_ptr() == view.data_ptr()


# to the end on it -----------------------------------------------------------------------------
@pytest.mark.parametrize("name", by_default((*STATES, "fedsol", "fedmemo"), TABLE))
def test_a_short_run_has_the_numbers_of_the_cpu(name, tmp_path):
    few = {"data": FEW} if "Layered" in str(TABLE[name].sections) else {}
    same_as_on_the_cpu(traffic.short(name, **few), tmp_path)


# the rest of what runs ------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize("name", TABLE)
def test_two_tasks_of_two_rounds_have_the_numbers_of_the_cpu(name, tmp_path):
    same_as_on_the_cpu(over_tasks(name), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "parameter"), [(n, p) for n, row in TABLE.items() for p in row.changes])
def test_every_option_has_the_numbers_of_the_cpu(name, parameter, tmp_path):
    change, own = TABLE[name].changes[parameter], TABLE[name].sections
    options = {**change.base, parameter: change.value}
    sections = own if change.sections is None else change.sections
    same_as_on_the_cpu(experiment(name, options, **sections), tmp_path, rounds=min(change.rounds, 2))


# what travels ---------------------------------------------------------------------------------
# copies (a step, a client's training) of those that need more than none and two; flray/engine/DEVICES.md says why
MORE = {"fedpec": (1, 1), "glfc": (0, 5), "lga": (0, 5)}
UPLOADS = {"target": 6, "lander": 6}  # a step, of those that augment a batch of the pool: nothing waits for them
BY_DEFAULT = ("fedavg", "fedproj", "mfcl")


@pytest.mark.parametrize("name", by_default(BY_DEFAULT, TABLE))
def test_a_step_is_not_read_and_a_client_at_most_twice(name, tmp_path):
    found = traffic.measured(traffic.short(name), tmp_path)
    step, training = MORE.get(name, (0, 2))
    assert found.step <= step and 1 <= found.training <= training  # 1: its loss
    assert found.uploads <= UPLOADS.get(name, 2.5)


# probes, tests and networks -------------------------------------------------------------------
def probed(config, folder, device):
    with using(device) as where:
        local = finish(Local(config, folder / device, device=where), 2)
        rows = [(name, {key: np.asarray(value) for key, value in row.items()}) for name, row in local.probed]
        return numbers(local), rows


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLE)
def test_every_probe_reports_the_numbers_of_the_cpu(name, tmp_path):
    """And changes none of training."""
    every = over_tasks(name, rounds=1, diagnostics=PROBES.names())
    (found, rows), (expected, other_rows) = (probed(every, tmp_path, device) for device in ("strict", "cpu"))
    assert_close(found, expected, TOLERANCE)
    assert len(rows) == len(other_rows) and bool(rows) == every.algorithm.global_model  # which probes observe
    assert {probe for probe, _ in rows} <= set(PROBES.names())
    for (probe, row), (other, other_row) in zip(rows, other_rows, strict=True):
        assert probe == other
        assert_close(row, other_row, 1e-4)  # of differences of losses
    plain = played(over_tasks(name, rounds=1), tmp_path / "plain", "strict")
    assert_close(found, plain, 0.0)


def test_the_clients_own_tests_have_the_numbers_of_the_cpu(tmp_path):
    def rows(device):
        with using(device) as where:
            local = finish(Local(experiment("knnper"), tmp_path / device, device=where), 1)
            at = Clock(0, 0, done=1)
            tested = evaluate_personal(local.executor, local.experiment, local.scenario, at)
            return [{name: value for name, value in row.items() if "time/" not in name} for row in tested]

    assert rows("strict") == rows("cpu")


def test_centralized_training_has_the_numbers_of_the_cpu():
    config = centralized.config(model={"name": "tests.contracts.networks:NormNet"})

    def trained(device):
        with using(device) as where:
            scenario = build_scenario(config, build_data(config))
            runtime = Runtime(config, TaskSummary.of(scenario), where)
            learner = Learner(runtime, [np.arange(50)])
            state = learner.algorithm.init_server(learner.context(Clock()), *runtime.objective.initial())
            state, metrics, _ = learner.round(state, Clock())
            (counts,) = learner.test(state, Clock()).values()
            measured = {"loss": np.asarray(counts.loss), "right": counts.right}
            return {**flatten(state), **measured, **{n: np.asarray(float(v)) for n, v in metrics.items()}}

    assert_close(trained("strict"), trained("cpu"), TOLERANCE)


def test_a_replay_has_the_numbers_of_the_run(tmp_path):
    scaffold = tasks.experiment(algorithm={"name": "scaffold", "local_epochs": 1})
    run = flray.run(scaffold, out=tmp_path / "run", progress=False)
    rows = run.clients.query("done == 3").set_index("client")["train/loss"]
    with using("strict") as device:
        replay = Replay(tmp_path / "run", device).goto(2)
        assert replay.state.w.device == device
        found = {client: row["train/loss"] for client, _, row in replay.clients()}
    assert len(found) == 4 and found == pytest.approx(rows.to_dict(), rel=TOLERANCE)


TEXTS = {"hidden": 16, "heads": 2, "intermediate": 32, "dropout": 0.0}  # whose draws differ between devices
SMALL_IMAGES = {
    "source": "synthetic",
    "options": {"shape": [32, 32, 3], "num_classes": 3, "num_train": 24, "num_test": 12},
}
NETWORKS = [
    ("fedavg_cnn", {}),
    ("resnet8", {}),
    pytest.param("small_cnn", {}, marks=pytest.mark.slow),
    pytest.param("resnet18", {}, marks=pytest.mark.slow),
    pytest.param("vgg11", {}, marks=pytest.mark.slow),
    pytest.param("sl_vit", {}, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("name", "options"), NETWORKS)
def test_networks_for_images_have_the_numbers_of_the_cpu(name, options, tmp_path):
    sections = {
        "data": SMALL_IMAGES,
        "model": {"name": name, **options},
        "partition": {"name": "iid", "clients": 2},
        "cohort": {"size": 1},
        "proxy": None,
    }
    same_as_on_the_cpu(experiment("fedavg", {"local_epochs": 1}, **sections), tmp_path)


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("t5", {}),
        pytest.param("t5", {"prefix_layers": "all"}, marks=pytest.mark.slow),
        pytest.param("t5", {"tune": "lora"}, marks=pytest.mark.slow),
        pytest.param("t5", {"tune": "full"}, marks=pytest.mark.slow),
    ],
)
def test_prefix_tuning_of_a_text_model_has_the_numbers_of_the_cpu(model, options, tmp_path):
    (tmp_path / "data" / "talk").mkdir(parents=True)
    texts = [f"the {'awful' if i % 2 else 'great'} film number {i % 7}" for i in range(60)]
    frame = pd.DataFrame({"text": texts, "label": ["positive", "negative"] * 30})
    frame.to_parquet(tmp_path / "data" / "talk" / "train.parquet")
    data = {"source": "talk", "root": str(tmp_path / "data"), "tokenizer": "train", "test_fraction": 0}
    words = {"negative": "awful", "positive": "great"}
    config = load_config(
        {
            "data": {**data, "words": words, "prompt": "review: {text}", "leak_check": False},
            "model": {"name": model, **TEXTS, **options},
            "rounds": 1,
            "algorithm": {"name": "fedavg", "batch_size": 16, "lr": 0.3, "local_epochs": 1},
            "partition": {"name": "iid", "clients": 2},
            "cohort": {"size": 1},
        }
    )[0]
    same_as_on_the_cpu(config, tmp_path)

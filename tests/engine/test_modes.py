"""A run over two tasks with an algorithm of three inference modes and three test sets, against NumPy on the saved
model."""

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import flray
from flray.algorithms import ALGORITHMS
from flray.algorithms.fedavg import FedAvg
from flray.contracts.played import Local
from flray.core.messages import Record, nbytes
from flray.core.protocol.modes import SAMPLE, Mode, Prediction, batch
from flray.data import load_dataset
from flray.engine.prepare import build_data, build_scenario
from flray.running import simulate
from flray.scenario import Scenario, Stage, TestSet
from tests.support import tasks
from tests.support.stopped import continued

HEADS = [[0, 2], [1]]  # classes of the two tasks


class OnlyModel(Record):
    """Less than the state: what testing reads."""

    w: torch.Tensor
    b: torch.Tensor
    threshold: float


class TwoHeads(FedAvg, frozen=True):
    """Answers with every class, with the head that is known, or with the head that six samples in a row ask for."""

    def published(self, ctx, state):
        return OnlyModel(state.w, state.b, 0.0)

    def modes(self, ctx):
        return {
            "agnostic": Mode(self.agnostic, SAMPLE, self.predict),
            "aware": Mode(self.aware, SAMPLE, self.predict),
            "routed": Mode(self.routed, batch(6), self.predict),
        }

    def agnostic(self, ctx, published, z):
        return z

    def aware(self, ctx, published, z):
        head = torch.tensor(HEADS[ctx.tested] if ctx.tested >= 0 else [0, 1, 2])
        return Prediction(z[:, head], head)

    def routed(self, ctx, published, z):
        task = int(z[:, 1].mean() - z[:, [0, 2]].mean() > published.threshold)
        head = torch.tensor(HEADS[task])
        return Prediction(z[:, head], head, task=torch.full((len(z),), task))


ALGORITHMS.add("two heads", TwoHeads)


def experiment(**sections):
    method = {"name": "two heads", "lr": 0.1, "local_epochs": 1, "batch_size": 8}
    own = {"rounds": 2, "algorithm": method, "tasks": {"num_tasks": 2, "class_order": [0, 2, 1]}}
    return tasks.experiment(**own | sections)


def scenario(of):
    """The two stages of the configuration, each tested on both tasks together and on each by itself."""
    data = build_data(of)
    dataset, plain = data.dataset, build_scenario(of, data)
    tests = {"test": TestSet("test")}
    for task, classes in enumerate(HEADS):
        tests[f"task {task}"] = TestSet("test", np.flatnonzero(np.isin(dataset.test.y, classes)), task)
    stages = [Stage(s.index, s.name, s.classes, s.outputs, tests) for s in plain.stages]
    return Scenario(stages, plain.partitions)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("modes") / "run"
    simulate(experiment(), folder, scenario=scenario(experiment()))
    return flray.load(folder)


def test_every_test_has_a_row_for_each_set_and_mode(run):
    """All 3 sets x 3 modes before the first round and at the end of both tasks; in the rounds of task 0 not task 1."""
    tests = run.tests
    done = {(0, "round"): 9, (1, "round"): 6, (2, "round"): 6, (2, "task_end"): 9, (3, "round"): 9, (4, "round"): 9}
    assert tests.groupby(["done", "phase"]).size().to_dict() == done | {(4, "task_end"): 9}
    assert tests["round"].unique().tolist() == [0, 1, 2]
    sets, modes = ["test", "task 0", "task 1"], ["agnostic", "aware", "routed"]
    assert list(zip(tests["set"], tests["mode"], strict=True))[-9:] == [(s, m) for s in sets for m in modes]
    tests = tests[tests["phase"] == "round"]
    first = tests[(tests["set"] == "test") & (tests["mode"] == "agnostic")].set_index("done")
    rounds = run.rounds.set_index("done")
    assert rounds["test/acc"].tolist() == first.loc[1:, "acc"].tolist()
    assert rounds["test/loss"].tolist() == first.loc[1:, "loss"].tolist()
    assert run.initial("test/acc") == first.loc[0, "acc"]


def test_the_last_test_is_that_of_numpy_on_the_saved_model(run):
    """Logits of the MLP by hand; each mode then chooses among them."""
    net, dataset = load_file(run.folder / "model.safetensors"), load_dataset(run.experiment.data)
    hidden = np.maximum(dataset.test.x @ net["layers.0.weight"].T + net["layers.0.bias"], 0)
    every = (hidden @ net["head.weight"].T + net["head.bias"]).astype(np.float64)
    last = run.tests.query("done == 4 and phase == 'round'").set_index(["set", "mode"])
    for name, task in (("test", -1), ("task 0", 0), ("task 1", 1)):
        rows = np.isin(dataset.test.y, HEADS[task] if task >= 0 else [0, 1, 2])
        z, y = every[rows], dataset.test.y[rows]
        asked = [b[:, 1].mean() > b[:, [0, 2]].mean() for b in np.split(z, range(6, len(z), 6)) for _ in b]
        heads = {"agnostic": [[0, 1, 2]] * len(y), "aware": [HEADS[task] if task >= 0 else [0, 1, 2]] * len(y)}
        heads["routed"] = [HEADS[int(second)] for second in asked]
        for mode, of_each in heads.items():
            answer = np.array([head[int(np.argmax(row[head]))] for row, head in zip(z, of_each, strict=True)])
            inside = [label in head for label, head in zip(y, of_each, strict=True)]
            terms = zip(z, y, of_each, inside, strict=True)
            loss = sum(np.log(np.exp(row[head]).sum()) - row[label] for row, label, head, there in terms if there)
            found = last.loc[name, mode]
            assert found["class_right"].tolist() == np.bincount(y[answer == y], minlength=3).tolist(), (name, mode)
            assert found["class_total"].tolist() == np.bincount(y, minlength=3).tolist()
            assert found["covered"] == sum(inside) and found["loss_sum"] == pytest.approx(loss, rel=1e-5)
        assert last.loc[(name, "routed"), "predicted_tasks"].tolist() == np.bincount(np.array(asked, int)).tolist()


def test_a_run_that_was_stopped_has_the_same_tests(run, tmp_path):
    """The initial model is tested once, and the resume finds the test sets in the folder."""
    again = continued(experiment(), tmp_path / "run", 2, scenario=scenario(experiment())).tests
    assert again.map(str).equals(run.tests.map(str))


@pytest.mark.parametrize("sections", [{"evaluate": {"every": 0}}, {"evaluate": {"every": 2}}])
def test_the_initial_model_is_tested_where_tests_are_regular(sections, tmp_path):
    simulate(experiment(**sections), tmp_path / "run")
    every = sections["evaluate"]["every"]
    done = [0, 2, 4] if every else [2, 4]  # always after the last round of a task
    assert sorted(set(flray.load(tmp_path / "run").tests["done"])) == done


def test_only_what_is_published_travels(tmp_path):
    """The server sends w, b and one number; the state itself may hold anything."""
    local = Local(experiment(), tmp_path)
    state = local.play(1)
    clock = next(iter(local.schedule()))
    sent = local.server.published(clock)
    assert type(sent) is OnlyModel and isinstance(sent.w, np.ndarray)
    assert nbytes(sent) == nbytes(state.w) + nbytes(state.b) + 8

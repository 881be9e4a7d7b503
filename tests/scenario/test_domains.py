"""Domain-incremental tasks: which samples when, one head or one for each domain, and how a prediction is scored."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import flray
from flray.config.loader import load_config
from flray.core.protocol.modes import Prediction
from flray.core.schema.errors import ConfigError, DataError
from flray.data import DataConfig, load_dataset
from flray.engine.counts import count_predictions
from flray.engine.prepare import build_data, build_scenario
from flray.engine.replay import Replay
from flray.engine.runtime import Runtime, TaskSummary
from flray.running import simulate
from flray.scenario import PartitionConfig, TasksConfig, ValidationConfig, build, meanings, relabelled

NAMES = ("photo", "sketch", "art")
CLASSES, COUNTS = 3, {"train": (30, 24, 18), "test": (12, 9, 6)}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Three domains of three classes in the plane, shifted against each other; their rows are mixed."""
    folder = tmp_path_factory.mktemp("domains") / "shapes"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for split, counts in COUNTS.items():
        domain = np.repeat(NAMES, counts)
        label = np.concatenate([np.arange(count) % CLASSES for count in counts])
        at = rng.normal(size=(len(label), 2)) * 0.3
        at[:, 0] += label
        at[:, 1] += np.repeat([0.0, 2.0, 4.0], counts)
        order = rng.permutation(len(label))
        table = {"x": at[order, 0], "y": at[order, 1], "domain": domain[order], "label": label[order]}
        pq.write_table(pa.table(table), folder / f"{split}.parquet")
    return folder.parent


def config(root, **fields):
    return DataConfig(source="shapes", root=str(root), **{"domain": "domain", **fields})


def sequence(root, data=None, **fields):
    partition = PartitionConfig(name="dirichlet", clients=3, alpha=0.5, min_size=1)
    options = {name: fields.pop(name) for name in ("validation",) if name in fields}
    tasks = TasksConfig(**{"name": "domain_incremental", "domains": NAMES, **fields})
    dataset = load_dataset(data or config(root))
    return dataset, build(dataset, partition, seed=0, tasks=tasks, **options)


def test_samples_know_their_domain(root):
    data = load_dataset(config(root))
    assert data.sources == ("art", "photo", "sketch") and data.num_classes == CLASSES
    assert np.bincount(data.train.source).tolist() == [18, 30, 24]
    assert data.input_shape == (2,), "the column of domains is no feature"


@pytest.mark.parametrize("heads", ["shared", "separate"])
@pytest.mark.parametrize("partition", ["anew", "once"])
def test_each_task_is_a_domain_in_the_order_that_is_written(root, heads, partition):
    data, found = sequence(root, heads=heads, partition=partition)
    for task, name in enumerate(NAMES):
        stage, number = found.stages[task], data.sources.index(name)
        assert stage.name == name and stage.source == number and stage.classes.tolist() == [0, 1, 2]
        first = 3 * task if heads == "separate" else 0
        assert stage.outputs.tolist() == [first, first + 1, first + 2]
        rows = found.partitions[task].indices
        assert sorted(rows.tolist()) == np.flatnonzero(data.train.source == number).tolist()
        assert set(data.test.source[stage.tests[f"task-{task}"].samples]) == {number}
        seen = {data.sources.index(other) for other in NAMES[: task + 1]}
        assert set(data.test.source[stage.tests["test"].samples].tolist()) == seen


def test_a_scenario_of_domains_comes_back_from_disk(root, tmp_path):
    data, found = sequence(root, heads="separate")
    found.save(tmp_path)
    again = type(found).load(tmp_path, data.num_classes)
    assert again.fingerprint == found.fingerprint and [stage.source for stage in again.stages] == [1, 2, 0]
    assert again.stages[2].tests["test"].parts == ("task-0", "task-1", "task-2")


@pytest.mark.parametrize("of", ["clients", "server"])
def test_held_out_samples_are_of_the_domain(root, of):
    data, found = sequence(root, validation=ValidationConfig(fraction=0.3, of=of))
    for task, name in enumerate(NAMES):
        held = found.stages[task].tests[f"val-{task}"].samples
        assert len(held) and set(data.train.source[held].tolist()) == {data.sources.index(name)}
        assert not set(held.tolist()) & set(found.partitions[task].indices.tolist())


def test_a_head_for_each_domain_has_outputs_of_its_own(root):
    """Labels become outputs by domain: photo 0 to 2, sketch 3 to 5, art 6 to 8."""
    data, found = sequence(root, heads="separate")
    wide = relabelled(data, found.stages)
    first = np.array([6, 0, 3])[data.train.source]  # art, photo, sketch
    assert wide.train.y.tolist() == (data.train.y + first).tolist() and wide.num_classes == 9
    assert wide.classes[:4] == ("photo: 0", "photo: 1", "photo: 2", "sketch: 0")
    assert meanings(found.stages).tolist() == [0, 1, 2] * 3
    data, found = sequence(root)
    assert relabelled(data, found.stages) is data, "a shared head is the data set's own"


def test_the_right_class_of_another_domain_counts_where_only_classes_are_scored():
    """Outputs 0 to 2 and 3 to 5 for the same classes: 4 for the label 1 is right, -1 is none."""
    prediction, y = Prediction(label=torch.tensor([4, 1, 0, -1, 5])), np.array([1, 1, 1, 2, 5])
    assert count_predictions(prediction, y, 6).right.tolist() == [0, 1, 0, 0, 0, 1]
    assert count_predictions(prediction, y, 6, np.array([0, 1, 2, 0, 1, 2])).right.tolist() == [0, 2, 0, 0, 0, 1]


BASE = {
    "seed": 2, "rounds": 2, "partition": {"name": "iid", "clients": 3}, "model": {"name": "mlp", "hidden": [8]},
    "algorithm": {"name": "fedavg", "lr": 0.1, "local_epochs": 2, "batch_size": 8},
    "checkpoint": {"every": 1, "keep": 0},
    "resources": {"executor": "local", "server": {"threads": 1}},
}  # fmt: skip


def experiment(root, **tasks):
    data = {"source": "shapes", "root": str(root), "domain": "domain"}
    return load_config({**BASE, "data": data, "tasks": {"name": "domain_incremental", "domains": NAMES, **tasks}})[0]


@pytest.mark.parametrize("scoring", ["class_only", "class_and_domain"])
def test_a_run_over_domains_with_separate_heads_is_scored_as_asked(root, scoring, tmp_path):
    """Every row of tests/ at the end of each task, against the saved state's logits."""
    asked = experiment(root, heads="separate", domain_scoring=scoring)
    simulate(asked, tmp_path / "run")
    run, data = flray.load(tmp_path / "run"), load_dataset(asked.data)
    replay = Replay(tmp_path / "run")
    for done in (2, 4, 6):
        state = replay.goto(done).state
        model = replay.runtime.objective.at(state.w, state.b)
        rows = run.tests.query("done == @done and phase == 'task_end'").set_index(["set", "mode"])
        for task, name in enumerate(NAMES):
            mine = data.test.source == data.sources.index(name)
            z, y = model(torch.from_numpy(np.array(data.test.x[mine]))).numpy(), data.test.y[mine]
            seen = z[:, : 3 * (done // 2)].argmax(1)
            right = (seen % 3 == y) if scoring == "class_only" else seen == y + 3 * task
            assert rows.loc[f"task-{task}", "global"]["right"] == right.sum()
            own = z[:, 3 * task : 3 * task + 3].argmax(1)
            assert rows.loc[f"task-{task}", "task_aware"]["right"] == (own == y).sum()
    assert replay.runtime.dataset.num_classes == 9


def test_with_a_shared_head_the_modes_are_one(root, tmp_path):
    simulate(experiment(root), tmp_path / "run")
    tests = flray.load(tmp_path / "run").tests
    table = tests.pivot_table(index=["done", "phase", "set"], columns="mode", values="right")
    assert (table["global"] == table["task_aware"]).all()
    assert Runtime(experiment(root), TaskSummary.of(Replay(tmp_path / "run").scenario)).dataset.num_classes == 3


@pytest.mark.parametrize("rule", ["classes", "proportional"])
@pytest.mark.parametrize("heads", ["shared", "separate"])
def test_a_client_is_tested_on_the_domain_of_its_task(root, heads, rule, tmp_path):
    """All clients hold all classes, and a share of 1000 is all there is: 12 test samples of photo, 9 of sketch.

    The 6 of art are of no task.
    """
    asked = experiment(root, heads=heads, domains=NAMES[:2]).dump()
    asked["evaluate"] |= {"finetune_epochs": [0], "local_test": rule}
    run = flray.run({**asked, "rounds": 1}, out=tmp_path / "run", progress=False)
    assert run.personal[["task", "num_test"]].values.tolist() == [[0, 12]] * 3 + [[1, 9]] * 3


@pytest.mark.parametrize("scoring", ["class_only", "class_and_domain"])
def test_clients_own_tests_and_probes_are_scored_as_the_tests(root, scoring, tmp_path):
    """Every client's share is the whole domain, so its own test of FedAvg's model is that domain's test at the task's
    end. What clients had right before training is counted again from the model of the round before."""
    asked = experiment(root, heads="separate", domain_scoring=scoring).dump()
    asked["evaluate"] |= {"finetune_epochs": [0]}
    asked["diagnostics"] = [{"name": "local_forgetting", "samples": None}]
    run, data = flray.run(asked, out=tmp_path / "run", progress=False), load_dataset(config(root))
    ends = run.tests.query("phase == 'task_end' and mode == 'global'").set_index(["task", "set"])["right"]
    for task in range(3):
        own = run.personal[run.personal["task"] == task]
        assert (own["test/acc"] * own["num_test"]).round(6).tolist() == [ends[task, f"task-{task}"]] * 3
    rounds = run.tests.query("phase == 'round' and mode == 'global' and set == 'test' and done > 0")["acc"].tolist()
    probe = run.diagnostics["local_forgetting"].query("place == 'finish'")
    assert probe["acc_global"].tolist() == pytest.approx(rounds)
    replay = Replay(tmp_path / "run")
    state = replay.goto(2).state
    mine = data.train.source == data.sources.index("sketch")
    z = replay.runtime.objective.at(state.w, state.b)(torch.from_numpy(np.array(data.train.x[mine]))).numpy()
    seen, y = z[:, :6].argmax(1), data.train.y[mine]
    right = (seen % 3 == y) if scoring == "class_only" else seen == y + 3
    third = run.clients[run.clients["done"] == 3]
    assert (third["client/acc_before"] * third["num_examples"]).sum() == pytest.approx(right.sum())


def public(root, proxy, **tasks):
    """(the data as the driver has them, the public data of a process of the run, the clients' rows of both)."""
    asked = load_config({**experiment(root, **tasks).dump(), "proxy": {**proxy, "root": str(root)}})[0]
    data = build_data(asked)
    runtime = Runtime(asked, TaskSummary.of(build_scenario(asked, data)))
    return data.dataset, *runtime.load_proxy(), data.private


@pytest.mark.parametrize("cache", ["the driver's", "its own"])
@pytest.mark.parametrize("heads", ["shared", "separate"])
def test_held_out_labels_are_outputs_of_the_samples_own_domain(root, heads, cache, tmp_path, monkeypatch):
    """A process with a cache of its own draws the driver's rows: none of them is a client's."""
    if cache == "its own":
        loaded = Runtime.__init__

        def elsewhere(*arguments):
            monkeypatch.setenv("FLRAY_CACHE", str(tmp_path))
            loaded(*arguments)

        monkeypatch.setattr(Runtime, "__init__", elsewhere)
    data, proxy, private, clients = public(root, {"source": "holdout", "size": 30}, heads=heads)
    held = np.setdiff1d(np.arange(72), clients)
    first = np.array([6, 0, 3] if heads == "separate" else [0, 0, 0])[data.train.source[held]]  # art, photo, sketch
    assert private.tolist() == clients.tolist() and np.array_equal(proxy.x, data.train.x[held])
    assert proxy.same_labels and proxy.y.tolist() == (data.train.y[held] + first).tolist()


SAME = {"source": "shapes", "domain": "domain"}
HELD = {"source": "holdout", "size": 30}


@pytest.mark.parametrize(
    "proxy, domains, says",
    [
        (SAME, NAMES, r"a public sample of 'shapes' has no domain; set .* or use proxy.source: holdout"),
        (
            HELD,
            NAMES[:2],
            r"\d+ of 30 held-out samples are of domains without a task; .* every domain in tasks",
        ),
    ],
)
def test_public_samples_without_an_output_have_labels_only_where_nobody_reads_them(root, proxy, domains, says):
    _, found, *_ = public(root, proxy, heads="separate", domains=domains)
    assert found.y is None and not found.same_labels
    for asked in ({"same_labels": True}, {"labelled": True}):
        with pytest.raises(ConfigError, match=says):
            public(root, {**proxy, **asked}, heads="separate", domains=domains)
    data, found, *_ = public(root, proxy, domains=domains)
    assert found.same_labels and (proxy is HELD or np.array_equal(found.y, data.train.y)), "one head has all labels"


# what cannot be --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "fields, says",
    [
        ({"name": "domain_incremental"}, "tasks.domains: missing; write the domains in their order"),
        ({"name": "domain_incremental", "domains": []}, "tasks.domains: a domain is missing or repeated"),
        ({"name": "domain_incremental", "domains": ["a", "a"]}, "tasks.domains: a domain is missing or repeated"),
        ({"name": "domain_incremental", "domains": ["a"], "num_tasks": 2}, "tasks.num_tasks: 2, but 1 domains"),
        ({"name": "domain_incremental", "domains": ["a"], "class_order": "pycil"}, "tasks.class_order: domain_incr"),
        ({"num_tasks": 2, "heads": "separate"}, "tasks.heads: class_incremental does not read it"),
    ],
)
def test_options_that_do_not_fit_the_kind_of_sequence_are_one_line(fields, says):
    with pytest.raises(ConfigError, match=says):
        TasksConfig(**fields)


def test_a_missing_domain_column_or_name_is_one_line(root):
    with pytest.raises(DataError, match=r"needs the domain of every sample, and 'shapes' has none; set data\.domain"):
        sequence(root, config(root, domain=None, input="x"))
    with pytest.raises(DataError, match=r"no column 'domian' for data\.domain .did you mean 'domain'"):
        load_dataset(config(root, domain="domian"))
    with pytest.raises(ConfigError, match=r"tasks\.domains: the data have no domain 'skech' .did you mean 'sketch'"):
        sequence(root, domains=("photo", "skech"))

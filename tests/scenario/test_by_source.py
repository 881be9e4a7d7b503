"""GLUE as a federation: clients of one source each, a test set of each source, a label of each task that fades."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from flray.api import run
from flray.config.loader import load_config
from flray.contracts.played import Local
from flray.core.protocol.clock import Clock
from flray.core.schema.errors import ConfigError, DataError
from flray.data import DataConfig, load_dataset
from flray.engine.prepare import build_data, build_scenario
from flray.scenario import DRIFTS, PartitionConfig, Scenario, ValidationConfig, build, make_partition
from flray.scenario.partitioners import shared_out
from tests.support.data_files import names, write

GLUE = np.array([8551, 67349, 3668, 363846, 392702, 104743, 2490])  # CoLA, SST-2, MRPC, QQP, MNLI, QNLI, RTE: train


# how many clients, and which samples -----------------------------------------------------------------
@pytest.mark.parametrize(
    "sizes, clients, counts",
    [
        ([100, 400, 900], 12, [2, 4, 6]),  # roots 10, 20, 30: a sixth, a third, a half
        ([100, 400, 900], 13, [2, 4, 7]),  # 2.17, 4.33, 6.5: the largest remainder gets the last one
        ([1, 10_000, 10_000], 4, [1, 2, 1]),  # 0.02, 1.99, 1.99: at least one, and of equals the first has the rest
        (GLUE, 467, [21, 60, 14, 140, 145, 75, 12]),  # 467 sqrt(n) / 2016.4 is 21.4, 60.1, 14.0, 139.7, 145.1, ...
    ],
)
def test_clients_by_the_square_root_of_the_size(sizes, clients, counts):
    assert shared_out(np.array(sizes), clients).tolist() == counts and sum(counts) == clients


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(40, 500), min_size=1, max_size=6), st.integers(0, 30), st.floats(0.01, 20), st.integers(0, 99)
)
def test_every_sample_once_and_one_source_a_client(sizes, more, alpha, seed):
    draws = np.random.default_rng(seed)
    source = draws.permutation(np.repeat(np.arange(len(sizes)), sizes))
    labels = 3 * source + draws.integers(0, 3, len(source))
    config = PartitionConfig(name="by_source", clients=len(sizes) + more, alpha=alpha)
    part = make_partition(config, labels, seed=seed, group=source)
    assert sorted(part.indices.tolist()) == list(range(len(source)))
    holders = [np.unique(source[part.client(k)]) for k in range(config.clients)]
    assert all(len(of) == 1 for of in holders) and [int(of[0]) for of in holders] == sorted(
        int(of[0]) for of in holders
    )
    counts = shared_out(np.array(sizes), config.clients)
    for number, count in enumerate(counts.tolist()):
        mine = part.sizes[np.array([int(of[0]) for of in holders]) == number]
        assert len(mine) == count and mine.max() - mine.min() <= 1
    assert make_partition(config, labels, seed=seed, group=source).hash == part.hash


def test_a_small_alpha_gives_a_client_of_a_task_nearly_one_label():
    source, labels = np.repeat([0, 1], 2000), np.arange(4000) % 2 + np.repeat([0, 2], 2000)

    def largest(alpha):
        part = make_partition(PartitionConfig(name="by_source", clients=20, alpha=alpha), labels, group=source)
        return np.mean([np.bincount(labels[part.client(k)]).max() / len(part.client(k)) for k in range(20)])

    assert largest(0.1) > 0.8 > 0.65 > largest(100.0)


@pytest.mark.parametrize(
    "clients, group, text",
    [
        (1, [0] * 4 + [1] * 5, "1 for 2 sources; set it to 2 or more"),
        (8, [0] + [1] * 8, "2 of 8 clients for the 1 samples of source 0; set it lower"),
        (2, None, "the data set has no sources; use data.source: union, or set data.domain"),
    ],
)
def test_errors(clients, group, text):
    config = PartitionConfig(name="by_source", clients=clients, alpha=0.1)
    with pytest.raises((ConfigError, DataError), match=text):
        make_partition(config, np.arange(9) % 2, group=None if group is None else np.array(group))


# a union of text -----------------------------------------------------------------------------------
SETS = {"cola": ("unacceptable", "acceptable"), "mnli": ("entailment", "neutral", "contradiction")}


@pytest.fixture
def root(tmp_path, monkeypatch):
    for name, classes in SETS.items():
        for split, n in (("train", 60), ("validation", 6 * len(classes))):
            y = np.arange(n) % len(classes)
            texts = [f"{'abc'[label]} film number {row % 7}" for row, label in enumerate(y)]
            text = {"sentence": texts} if name == "cola" else {"premise": texts, "hypothesis": texts}
            write(tmp_path / name, split, {**text, "label": pa.array(y)}, names(*classes))
    monkeypatch.setenv("FLRAY_DATA", str(tmp_path))
    return tmp_path


DATA = {"source": "union", "tokenizer": "train", "max_length": 16, "leak_check": False, "options": {"sets": list(SETS)}}


def experiment(**more):
    return load_config(
        {
            "rounds": 3,
            "data": DATA,
            "partition": {"name": "by_source", "clients": 6, "alpha": 1.0},
            "model": {"name": "bert", "hidden": 8, "intermediate": 8, "layers": 1},
            "algorithm": {"name": "fedavg", "batch_size": 20},
            **more,
        }
    )[0]


def test_every_set_of_a_union_is_tested_by_its_name(root, tmp_path):
    """Counts of the whole are the sums, the mean over tasks weighs a task of 12 samples as one of 18."""
    local = Local(experiment(), tmp_path / "run")
    state, runtime = local.play(1), local.server.runtime
    (stage,) = runtime.summary.stages
    assert list(stage.tests) == ["test", "cola", "mnli"] and stage.tests["test"].parts == ("cola", "mnli")
    assert stage.by_source and not stage.tells_tasks_apart
    ctx = runtime.context(Clock(0, 1, done=1))
    found = runtime.evaluate(runtime.algorithm.published(ctx, state), ctx)
    assert {name: counts.examples for (name, _), counts in found.items()} == {"cola": 12, "mnli": 18}
    assert [counts.total.tolist() for counts in found.values()] == [[6, 6, 0, 0, 0], [0, 0, 6, 6, 6]]
    local.scenario.save(tmp_path / "saved")
    again = Scenario.load(tmp_path / "saved", 5)
    assert again.fingerprint == local.scenario.fingerprint and list(again.stages[0].tests) == ["test", "cola", "mnli"]


def test_a_validation_split_is_by_name_as_well(root):
    d = load_dataset(DataConfig(**DATA))
    config = PartitionConfig(name="by_source", clients=4, alpha=1.0)
    made = build(d, config, seed=0, validation=ValidationConfig(fraction=0.2))
    tests = made.stages[0].tests
    assert list(tests) == ["val", "val-cola", "val-mnli"] and {test.split for test in tests.values()} == {"train"}
    assert all((d.train.source[tests[f"val-{name}"].samples] == number).all() for number, name in enumerate(SETS))
    assert sorted(tests["val"].samples.tolist()) == sorted(made.partitions[0].held_out.tolist())


def test_glue_takes_label_1_of_each_task_of_a_union(root):
    """Classes 1 (cola:acceptable) and 3 (mnli:neutral), from 40 % of the clients, in rounds 2 and 3 alone."""
    config = experiment(drift={"name": "glue", "from_round": 2, "to_round": 4})
    data = build_data(config)
    dataset, found = data.dataset, build_scenario(config, data)
    assert found.drift.drift.classes == (1, 3) and "classes 1 3 in rounds 2 to 3" in found.drift.drift.about()
    everyone = np.arange(6)
    counts = {}
    for done in range(4):
        shares = found.shares(Clock(0, done, done=done), everyone)
        counts[done + 1] = np.stack([np.bincount(dataset.train.y[shares.of(k)], minlength=5) for k in everyone])
    assert (counts[1] == counts[4]).all() and (counts[2] == counts[3]).all()
    lost = counts[1] - counts[2]
    assert lost[:, [1, 3]].sum() > 0 and lost[:, [0, 2, 4]].sum() == 0 and (lost.sum(axis=1) > 0).sum() <= 2
    with pytest.raises(ConfigError, match=r"drift.classes: no task has a label 3; choose from 0 to 2"):
        DRIFTS.get("glue")(classes=[3]).of(dataset.class_groups)
    third = DRIFTS.get("glue")(classes=[2]).of(dataset.class_groups)
    assert third.classes == (4,), "only one task has a third label"
    assert DRIFTS.get("glue")().of(()).classes == (1,)


def test_a_set_cannot_be_called_as_a_test_set_is(root):
    sets = ["cola", {"source": "mnli", "name": "test"}]
    with pytest.raises(ConfigError, match="'test' is the name of a test set; give the set another name"):
        load_dataset(DataConfig(**{**DATA, "options": {"sets": sets}}))


def test_a_run_writes_the_mean_over_the_sets_beside_the_accuracy_of_all(root, tmp_path):
    """Not weighted by their sizes; NaN in rounds that are not tested."""
    config = experiment(rounds=2, evaluate={"every": 2}, resources={"executor": "local"})
    result = run(config, out=tmp_path / "run")
    tests = result.tests[result.tests["done"] == 2].set_index("set")["acc"]
    assert list(tests.index) == ["test", "cola", "mnli"]
    rounds = result.rounds.set_index("done")
    assert rounds["test/acc_sources"][2] == pytest.approx((tests["cola"] + tests["mnli"]) / 2)
    assert rounds["test/acc"][2] == pytest.approx((12 * tests["cola"] + 18 * tests["mnli"]) / 30)
    assert np.isnan(rounds["test/acc_sources"][1])

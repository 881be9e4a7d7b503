"""Partitions: properties, draw-for-draw comparison with the authors' pseudo code, errors, files."""

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from flray.config.loader import load_config
from flray.core.schema.errors import ConfigError, DataError
from flray.data import DataConfig, load_dataset
from flray.scenario import (
    Partition,
    PartitionConfig,
    PartitionWarning,
    build,
    load_partition,
    make_partition,
    partition_csv,
    partition_table,
)
from flray.scenario.build import client_ids
from flray.scenario.partition import partition_counts
from flray.scenario.partition_config import PARTITIONS
from flray.scenario.partitioners import _at_least

LABELS = np.random.RandomState(0).randint(0, 10, 3000)


def config(name, **kw):
    return PartitionConfig(name=name, **kw)


CONFIGS = st.one_of(
    st.builds(
        lambda n, v: config("iid", clients=n, variant=v), st.integers(1, 60), st.sampled_from(["fedzoo", "fedsol"])
    ),
    st.builds(
        lambda n, a, v: config("dirichlet", clients=n, alpha=a, variant=v, min_size=1),
        st.integers(1, 12),
        st.floats(0.3, 50),
        st.sampled_from(["fedzoo", "fedml", "niidbench", "takfl", "fedprotip", "plain"]),
    ),
    st.builds(lambda n, a: config("dirichlet_client", clients=n, alpha=a), st.integers(1, 30), st.floats(0.01, 50)),
    st.builds(lambda n, s: config("shards", clients=10 * n, shards_per_client=s), st.integers(1, 4), st.integers(2, 5)),
    st.builds(
        lambda n, s: config("label_skew", clients=n, classes_per_client=s), st.integers(10, 40), st.integers(1, 5)
    ),
)


@settings(max_examples=80, deadline=None)
@given(CONFIGS, st.integers(0, 2**31))
def test_properties(cfg, seed):
    part = make_partition(cfg, LABELS, seed=seed)
    assert part.num_clients == cfg.clients and part.offsets[0] == 0 and part.offsets[-1] == len(part.indices)
    assert len(np.unique(part.indices)) == len(part.indices), "a sample has two owners"
    assert part.indices.min() >= 0 and part.indices.max() < len(LABELS)
    assert part.sizes.sum() == len(part.indices) and part.sizes.min() >= 1
    assert np.concatenate([part.client(k) for k in range(part.num_clients)]).tolist() == part.indices.tolist()
    again = make_partition(cfg, LABELS, seed=seed)
    assert again.hash == part.hash and again.indices.dtype == np.int32
    n, clients = len(LABELS), cfg.clients
    if cfg.name == "iid" and cfg.variant == "fedzoo":
        assert sorted(part.sizes) == sorted([n // clients + (k < n % clients) for k in range(clients)])
    if cfg.name == "dirichlet_client" or (cfg.name == "iid" and cfg.variant == "fedsol"):
        assert set(part.sizes) == {n // clients}
    if cfg.name in ("dirichlet", "label_skew"):
        assert len(part.indices) == n
    if cfg.name in ("shards", "label_skew"):
        most = cfg.shards_per_client or cfg.classes_per_client
        assert all(len(np.unique(LABELS[part.client(k)])) <= most for k in range(clients))


@pytest.mark.parametrize(
    "name, kw",
    [
        ("iid", {}),
        ("dirichlet", {"alpha": 1.0, "min_size": 1}),
        ("shards", {}),
        ("dirichlet_client", {"alpha": 1.0}),
        ("label_skew", {}),
    ],
)
def test_seeds(name, kw):
    parts = [make_partition(config(name, clients=20, **kw), LABELS, seed=s).hash for s in (1, 2)]
    fixed = [make_partition(config(name, clients=20, seed=2, **kw), LABELS, seed=s).hash for s in (1, 2)]
    assert parts[0] != parts[1] and fixed[0] == fixed[1] == parts[1]


# --- golden: literal transcriptions of the pseudo code, with the authors' global generator as RandomState ---


def lda(labels, clients, alpha, variant, rs):
    n = len(labels)
    cap = {"fedml": n // clients, "plain": float("inf")}.get(variant, n / clients)
    smallest = {"fedzoo": 15, "fedml": 10, "niidbench": 10, "takfl": 3, "fedprotip": 1, "plain": 0}[variant]
    kept = [list(np.where(labels == c)[0]) for c in range(10)]
    tries, low = 0, -1
    while low < smallest:
        tries += 1
        bins = [[] for _ in range(clients)]
        for c in range(10):
            idx = kept[c] if variant == "fedml" else np.where(labels == c)[0]
            rs.shuffle(idx)
            pi = rs.dirichlet(np.repeat(alpha, clients))
            pi = np.array([p * (len(b) < cap) for p, b in zip(pi, bins, strict=True)])
            pi = pi / pi.sum()
            cuts = (np.cumsum(pi) * len(idx)).astype(int)[:-1]
            bins = [b + list(part) for b, part in zip(bins, np.split(np.array(idx), cuts), strict=True)]
        low = min(len(b) for b in bins)
    for b in bins:
        rs.shuffle(b)
    return bins, tries


@pytest.mark.parametrize(
    "variant, alpha, clients",
    [
        ("fedzoo", 0.1, 30),
        ("fedml", 0.1, 30),
        ("niidbench", 0.5, 20),
        ("takfl", 0.3, 20),
        ("fedprotip", 0.5, 5),
        ("plain", 5.0, 20),
    ],
)
def test_dirichlet_is_the_authors(variant, alpha, clients):
    want, tries = lda(LABELS, clients, alpha, variant, np.random.RandomState(19940817))
    cfg = config("dirichlet", clients=clients, alpha=alpha, variant=variant, seed=19940817, seed_mode="numpy_legacy")
    got = make_partition(cfg, LABELS)
    assert [got.client(k).tolist() for k in range(clients)] == [list(map(int, b)) for b in want]
    if variant in ("fedzoo", "fedml"):
        assert tries > 1, "the case must cover drawing again"


@pytest.mark.parametrize("mode", ["addressed", "numpy_legacy"])
def test_tasks_may_have_the_first_ones_draws(mode):
    """FedProTIP's code seeds NumPy anew in every task, so tasks of equal labels have one partition, the authors' draws
    from `RandomState(seed)` in every one of them."""
    same, own = (
        config("dirichlet", clients=4, alpha=0.5, variant="fedprotip", seed=7, seed_mode=mode, task_draws=draws)
        for draws in ("same", "own")
    )
    parts = [make_partition(same, LABELS, task=task) for task in range(3)]
    assert parts[0].hash == parts[1].hash == parts[2].hash == make_partition(own, LABELS).hash
    assert len({make_partition(own, LABELS, task=task).hash for task in range(3)}) == 3
    if mode == "numpy_legacy":
        want, _ = lda(LABELS, 4, 0.5, "fedprotip", np.random.RandomState(7))
        assert [parts[2].client(k).tolist() for k in range(4)] == [list(map(int, b)) for b in want]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 12), st.floats(0.05, 5), st.integers(1, 6))
def test_every_client_may_have_some_of_every_class(seed, clients, alpha, some):
    """As FedProTIP's paper says of its partition, whose code does not: the client with most gives the missing ones."""
    cfg = config("dirichlet", clients=clients, alpha=alpha, variant="fedprotip", min_per_class=some)
    part = make_partition(cfg, LABELS, seed=seed)
    counts = partition_table(part, LABELS, 10).to_numpy()
    assert counts.min() >= some and counts.sum(axis=0).tolist() == np.bincount(LABELS).tolist()
    assert len(np.unique(part.indices)) == len(LABELS)


def test_what_is_missing_of_a_class_comes_from_the_largest_shares():
    assert _at_least(np.array([0, 7, 1, 2]), 2).tolist() == [2, 4, 2, 2]
    assert _at_least(np.array([0, 5, 5, 0]), 1).tolist() == [1, 4, 4, 1]
    assert _at_least(np.array([3, 4]), 1).tolist() == [3, 4]


def test_more_of_a_class_than_there_is_cannot_be_asked_for():
    asked = config("dirichlet", clients=30, alpha=1.0, min_size=0, min_per_class=12)
    with pytest.raises(DataError, match=r"30 clients with 12 samples of class \d each need 360 and there are \d+"):
        make_partition(asked, LABELS)


def sharding(labels, clients, s, classes, rs):
    q = int(s * clients / classes)
    heap = {}
    for c in range(classes):
        idx = np.where(labels == c)[0]
        left = len(idx) % q
        rest = idx[len(idx) - left :]
        pieces = [list(p) for p in idx[: len(idx) - left].reshape(q, -1)]
        for j in range(left):
            pieces[j].append(rest[j])
        heap[c] = pieces
    order = [c for c in range(classes) for _ in range(q)]
    rs.shuffle(order)
    i = 1
    while len(order) % clients != 0:
        order.append(order[i])
        i += 1
    order = np.array(order).reshape(clients, -1)
    out = []
    for k in range(clients):
        mine = []
        for c in order[k]:
            if len(heap[c]):
                j = rs.choice(len(heap[c]), replace=False)
                mine.append(heap[c].pop(j))
        out.append([int(v) for m in mine for v in m])
    return out


@pytest.mark.parametrize("clients, s, classes", [(100, 2, 10), (20, 5, 10), (40, 5, 9)])
def test_shards_are_the_authors(clients, s, classes):
    labels = np.random.RandomState(1).randint(0, classes, 3000)
    want = sharding(labels, clients, s, classes, np.random.RandomState(19940817))
    cfg = config("shards", clients=clients, shards_per_client=s, seed=19940817, seed_mode="numpy_legacy")
    got = make_partition(cfg, labels)
    assert [got.client(k).tolist() for k in range(clients)] == want


PATHMNIST = {"name": "shards", "clients": 200, "shards_per_client": 2}  # FedSOL: 396 shards for 400 places


def test_padded_shards_can_leave_clients_empty(tmp_path):
    """No shard is left for the 4 padded places of clients 198 and 199 (FedSOL's code then copies client 197)."""
    labels = np.arange(9000) % 9
    cfg = PartitionConfig(**PATHMNIST, seed=0, seed_mode="numpy_legacy")
    want = sharding(labels, 200, 2, 9, np.random.RandomState(0))
    assert [k for k in range(200) if not want[k]] == [198, 199]
    part = make_partition(cfg, labels)
    assert [part.client(k).tolist() for k in range(part.num_clients)] == want
    part.save(tmp_path, cfg)
    note = json.loads((tmp_path / "partition.json").read_text())
    assert (note["clients"], note["empty"], note["config"]["empty"]) == (200, 2, "left_out")
    assert load_partition(tmp_path).hash == part.hash
    assert PartitionConfig(**note["config"]) == cfg


def test_empty_clients_can_get_what_the_client_before_them_has():
    """FedSOL's code: `partition_map[i] = partition_map[i - 1]` for an empty one, in order."""
    cfg = PartitionConfig(**PATHMNIST, empty="previous", seed=0, seed_mode="numpy_legacy")
    want = sharding(np.arange(9000) % 9, 200, 2, 9, np.random.RandomState(0))
    with pytest.warns(
        PartitionWarning, match="2 of 200 clients have no samples and get those of the client before them"
    ):
        part = make_partition(cfg, np.arange(9000) % 9)
    assert [part.client(k).tolist() for k in range(200)] == [*want[:198], want[197], want[197]]


def test_a_partition_that_leaves_everybody_empty_is_an_error():
    for empty in ("left_out", "previous"):
        with pytest.raises(DataError, match="partition table: no client has a sample"):
            make_partition(config("table", table=[[0], [0]], empty=empty), np.array([0]))


def test_without_empty_clients_there_is_no_note():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        left, copied = (
            make_partition(config("shards", clients=100, empty=e), LABELS) for e in ("left_out", "previous")
        )
    assert left.hash == copied.hash


def test_iid_is_the_authors():
    rs = np.random.RandomState(5)
    want = np.array_split(rs.permutation(3000), 7)
    got = make_partition(config("iid", clients=7, seed=5, seed_mode="numpy_legacy"), LABELS)
    assert all(np.array_equal(got.client(k), want[k]) for k in range(7))
    rs, rest = np.random.RandomState(5), list(range(3000))
    got = make_partition(config("iid", clients=7, variant="fedsol", seed=5, seed_mode="numpy_legacy"), LABELS)
    for k in range(7):
        rs.shuffle(rest)
        assert got.client(k).tolist() == rest[:428]
        rest = rest[428:]


def label_skew(labels, clients, q, classes, rs):
    """FedZoo-Bench's niid-labelskew: (indices of every client, number of times the classes were drawn)."""
    times, tries = [0], 0
    while min(times) == 0:
        tries, times, held = tries + 1, [0] * classes, []
        for k in range(clients):
            mine = [k % classes]
            while len(mine) < q:
                drawn = int(rs.choice(np.arange(classes), size=1, replace=False)[0])
                if drawn not in mine:
                    mine.append(drawn)
            held.append(mine)
            for c in mine:
                times[c] += 1
    out = [[] for _ in range(clients)]
    for c in range(classes):
        idx = np.where(labels == c)[0]
        rs.shuffle(idx)
        parts = iter(np.array_split(idx, times[c]))
        for k in range(clients):
            if c in held[k]:
                out[k] += next(parts).tolist()
    return out, tries


@pytest.mark.parametrize("clients, q, again", [(20, 3, False), (4, 4, True), (5, 2, True), (10, 1, False)])
def test_label_skew_is_the_authors(clients, q, again):
    want, tries = label_skew(LABELS, clients, q, 10, np.random.RandomState(7))
    got = make_partition(
        config("label_skew", clients=clients, classes_per_client=q, seed=7, seed_mode="numpy_legacy"), LABELS
    )
    assert [got.client(k).tolist() for k in range(clients)] == want
    assert (tries > 1) is again


def test_dirichlet_client_literal():
    """The first client: q ~ Dirichlet, then choice without replacement with p proportional to q[label]."""
    rs = np.random.RandomState(3)
    q = rs.dirichlet([0.5] * 10)
    p = q[LABELS] / q[LABELS].sum()
    want = rs.choice(3000, 150, replace=False, p=p)
    got = make_partition(config("dirichlet_client", clients=20, alpha=0.5, seed=3, seed_mode="numpy_legacy"), LABELS)
    assert np.array_equal(got.client(0), want)


def test_iris_table():
    labels = np.repeat([0, 1, 2], 50)
    part = make_partition(config("table", table=[[50, 0, 0], [0, 40, 10], [0, 10, 40]]), labels)
    assert part.client(0).tolist() == list(range(50))
    assert part.client(1).tolist() == [*range(50, 90), *range(100, 110)]
    assert part.client(2).tolist() == [*range(90, 100), *range(110, 150)]


def test_natural():
    group = np.array([3, 1, 3, 1, 7, 3])
    part = make_partition(config("natural"), np.zeros(6, int), group=group)
    assert [part.client(k).tolist() for k in range(3)] == [[1, 3], [0, 2, 5], [4]]
    with pytest.warns(
        PartitionWarning, match="partition natural: 5 clients share the samples of 3, .* set partition.clients to null"
    ):
        more = make_partition(config("natural", clients=5), np.zeros(6, int), group=group)
    assert [set(group[more.client(k)]) for k in range(5)] == [{1}, {3}, {7}, {1}, {3}]
    assert sorted(more.indices) == list(range(6))


def test_subset_keeps_global_numbers():
    subset = np.arange(1, 3000, 2)
    part = make_partition(config("iid", clients=4), LABELS, subset=subset)
    assert sorted(part.indices) == subset.tolist()


def test_million_clients(tmp_path):
    part = make_partition(config("iid", clients=1_000_000), np.zeros(1_000_000, np.int64))
    part.save(tmp_path)
    loaded = load_partition(tmp_path)
    assert loaded.num_clients == 1_000_000 and np.array_equal(loaded.client(999_999), part.client(999_999))
    assert loaded.client(5).base is not None, "a client is a view, not a copy"


def test_save_load_and_tamper(tmp_path):
    cfg = config("dirichlet", clients=5, alpha=0.5)
    part = make_partition(cfg, LABELS)
    part.save(tmp_path, cfg)
    loaded = load_partition(tmp_path)
    assert loaded.hash == part.hash and np.array_equal(loaded.indices, part.indices)
    note = json.loads((tmp_path / "partition.json").read_text())
    assert PartitionConfig(**note["config"]) == cfg and note["clients"] == 5
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "partition.json",
        "partition_indices.npy",
        "partition_offsets.npy",
    ]
    changed = part.indices.copy()
    changed[[0, 1]] = changed[[1, 0]]
    np.save(tmp_path / "partition_indices.npy", changed)
    with pytest.raises(DataError, match="was changed"):
        load_partition(tmp_path)
    (tmp_path / "partition_indices.npy").write_bytes(b"no")
    with pytest.raises(DataError, match="damaged"):
        load_partition(tmp_path)
    (tmp_path / "partition.json").unlink()
    with pytest.raises(DataError, match=r"partition\.json is missing"):
        load_partition(tmp_path)


@pytest.mark.parametrize("content", ["[]", "{}", "", '{"hash": 1}', "\x00"])
def test_another_partition_json_is_damage(tmp_path, content):
    make_partition(config("dirichlet", clients=5, alpha=0.5), LABELS).save(tmp_path)
    path = tmp_path / "partition.json"
    changed = path.read_text().replace('"empty": 0', '"empty": 1')
    for text in (content, changed):
        path.write_text(text)
        with pytest.raises(DataError, match=r"is damaged .*resume the run"):
            load_partition(tmp_path)


def test_defaults_are_filled_in_and_round_trip():
    cfg = config("dirichlet", clients=5, alpha=0.5)
    assert (cfg.variant, cfg.min_size, cfg.max_retries) == ("fedzoo", 15, 10_000)
    assert config("dirichlet", clients=5, alpha=0.5, variant="takfl").min_size == 3
    assert PartitionConfig(**cfg.model_dump()) == cfg and config("iid", clients=3).variant == "fedzoo"


@pytest.mark.parametrize(
    "kw, text",
    [
        ({"name": "dirichlet", "clients": 5, "alpha": 0}, r"partition\.alpha: 0\.0 must be above 0"),
        ({"name": "dirichlet", "clients": 5}, r"partition\.alpha: dirichlet needs it"),
        ({"name": "iid", "clients": 5, "alpha": 1}, "iid does not read it .read by dirichlet, dirichlet_client, by_"),
        ({"name": "shards", "clients": 5, "variant": "fedml"}, r"partition\.variant: shards does not read it"),
        ({"name": "dirichlet", "clients": 5, "alpha": 1, "variant": "fedzo"}, "did you mean 'fedzoo'"),
        ({"name": "dirichlett", "clients": 5}, "unknown partition 'dirichlett' .did you mean 'dirichlet'"),
        ({"name": "iid"}, r"partition\.clients: iid needs it"),
        ({"name": "iid", "clients": 0}, "set 1 or more"),
        ({"name": "iid", "clients": 3, "options": {"x": 1}}, "iid has none"),
        ({"name": "iid", "clients": 5, "seed_mode": "numpy_legacy", "seed": -1}, "numpy_legacy needs one"),
        ({"name": "table", "table": [[1, 2], [3]]}, "a row for each client"),
        ({"name": "table", "table": [[1, 2]], "clients": 2}, "the table has 1 rows"),
    ],
)
def test_config_errors(kw, text):
    with pytest.raises(ConfigError, match=text):
        PartitionConfig(**kw)


def parties(draws, labels):
    """The numbers of samples of each class: `partition_data` (noniid-labeldir) of NIID-Bench, and
    `partition_data_dirichlet` of Flower's baseline, which are alike."""
    return np.array([np.bincount(labels[b], minlength=10) for b in lda(labels, 10, 0.5, "niidbench", draws)[0]])


def label_skew_of(counts):
    """The total variation distance of a party's classes from equal shares, mean over samples."""
    shares = counts / counts.sum(axis=1, keepdims=True)
    return float((counts.sum(axis=1) / counts.sum() * np.abs(shares - 0.1).sum(axis=1) / 2).sum())


def test_the_parties_of_niid_bench_and_of_flower():
    """The configurations have the numbers that the two codes draw, whatever the order of CIFAR-10's images; Flower's
    partition is the most skewed of the four (configs/niid_bench/README.md)."""
    labels = np.random.default_rng(1).permutation(np.repeat(np.arange(10), 5000))
    folder = Path(__file__).parents[2] / "configs" / "niid_bench"
    skews = []
    for seed in range(3):
        (experiment,) = load_config(folder / "cifar10_dir05.yaml", [f"seed={seed}"])
        partition = make_partition(experiment.partition, labels, seed=seed)
        expected = parties(np.random.RandomState(seed), labels)
        assert np.array_equal(partition_counts(partition, labels, 10), expected)
        skews.append(label_skew_of(expected))
    (flower,) = load_config(folder / "cifar10_dir05_flower.yaml")
    expected = parties(np.random.default_rng(42), labels)
    assert np.array_equal(flower.partition.table, expected)
    assert np.round([*skews, label_skew_of(expected)], 3).tolist() == [0.487, 0.437, 0.504, 0.557]
    drawn = [label_skew_of(parties(np.random.RandomState(seed), labels)) for seed in range(3, 33)]
    assert np.round([np.mean(drawn), np.std(drawn, ddof=1), max(drawn)], 3).tolist() == [0.489, 0.039, 0.547]


def test_the_authors_generator_takes_the_runs_seed_where_the_partition_has_none():
    """NIID-Bench seeds NumPy with its `init_seed`, once for all draws of a trial."""
    own = {"name": "dirichlet", "variant": "niidbench", "clients": 4, "alpha": 0.5, "seed_mode": "numpy_legacy"}
    labels = np.repeat(np.arange(5), 40)
    of_run = make_partition(PartitionConfig(**own), labels, seed=7)
    written = make_partition(PartitionConfig(**own, seed=7), labels, seed=1)
    assert of_run.hash == written.hash != make_partition(PartitionConfig(**own), labels, seed=8).hash
    with pytest.raises(ConfigError, match="numpy_legacy needs one"):
        make_partition(PartitionConfig(**own), labels, seed=2**32)


@pytest.mark.parametrize(
    "kw, n, text",
    [
        ({"name": "iid", "clients": 11}, 10, "11 clients for 10 training samples"),
        ({"name": "dirichlet", "clients": 10, "alpha": 1}, 100, "need 150 and there are 100"),
        (
            {"name": "dirichlet", "clients": 10, "alpha": 0.01, "max_retries": 3},
            1000,
            r"3 draws with alpha 0\.01 .*at least 15 .*largest smallest client had \d+ samples.*set min_size lower",
        ),
        ({"name": "shards", "clients": 2, "shards_per_client": 2}, 100, "fewer shards than 10 classes; use at least 5"),
        ({"name": "label_skew", "clients": 2, "classes_per_client": 2}, 100, r"set it to 5\.\.10"),
        ({"name": "table", "table": [[200] + [0] * 9]}, 100, "class 0 has .* sums to 200"),
        ({"name": "table", "table": [[1, 1]]}, 100, "2 columns for 10 classes"),
        ({"name": "natural"}, 100, r"no group ids; set data\.group"),
    ],
)
def test_data_errors(kw, n, text):
    labels = np.arange(n) % 10
    with pytest.raises((DataError, ConfigError), match=text):
        make_partition(PartitionConfig(**kw), labels)


def test_natural_ids_with_gaps_are_numbers_where_clients_says_so():
    group = np.array([4, 0, 3, 1, 0])
    part = make_partition(config("natural", clients=5), np.zeros(5, int), group=group)
    assert [part.client(k).tolist() for k in range(5)] == [[1, 4], [3], [], [2], [0]]
    with pytest.warns(PartitionWarning, match="client 2 is the one with id 3; .* set partition.clients to 5"):
        part = make_partition(config("natural"), np.zeros(5, int), group=group)
    assert [part.client(k).tolist() for k in range(4)] == [[1, 4], [3], [2], [0]]
    with pytest.warns(PartitionWarning, match="client 0 is the one with id -1"):
        make_partition(config("natural"), np.zeros(2, int), group=np.array([-1, 0]))


def test_a_warning_about_clients_names_their_ids_as_the_data_do():
    """Of five users the fourth, di, has no sample left."""
    users, group = np.array(["ann", "bob", "cy", "di", "ed"]), np.arange(120) % 5
    dataset = load_dataset(DataConfig(source="iris"))
    dataset = dataset._replace(train=dataset.train._replace(group=np.where(group == 3, 4, group)), groups=users)
    with pytest.warns(PartitionWarning, match="client 3 is the one with id 'ed'; to number those without a sample"):
        scenario = build(dataset, config("natural"), seed=0)
    assert client_ids(dataset, config("natural"), scenario.partitions)[0].tolist() == ["ann", "bob", "cy", "ed"]
    asked = config("natural", clients=5)  # the number that the warning says
    ids = client_ids(dataset, asked, build(dataset, asked, seed=0).partitions)[0]
    assert ids.tolist() == ["ann", "bob", "cy", "", "ed"]


@pytest.mark.parametrize("clients", [{}, {"clients": 3}])
def test_natural_ids_from_1_are_told_and_no_key_keeps_them(clients):
    with pytest.warns(PartitionWarning, match="sorted ids, so client 0 is the one with id 1$"):
        part = make_partition(config("natural", **clients), np.zeros(6, int), group=np.array([1, 2, 3, 1, 2, 3]))
    assert part.client(0).tolist() == [0, 3]
    with pytest.warns(PartitionWarning, match="6 clients share the samples of 3"):  # these are no numbers of clients
        make_partition(config("natural", clients=6), np.zeros(6, int), group=np.array([1, 2, 3, 1, 2, 3]))


def test_natural_fewer_clients_than_groups():
    with pytest.raises(ConfigError, match="has 3 groups"):
        make_partition(config("natural", clients=2), np.zeros(6, int), group=np.array([0, 1, 2, 0, 1, 2]))


def test_table():
    part = Partition(np.array([0, 1, 2, 3]), np.array([0, 3, 4]))
    frame = partition_table(part, np.array([1, 1, 0, 2]), 3)
    assert frame.to_numpy().tolist() == [[1, 2, 0], [0, 0, 1]]
    assert partition_csv(part, np.array([1, 1, 0, 2]), 3) == frame.to_csv()


def test_a_partition_that_no_seed_gives_again_is_said(monkeypatch):
    outside = np.random.default_rng(0)

    def halves(labels, num_classes, config, draws, group):
        here = config.options["draws"] == "its own"
        return np.array_split((draws if here else outside).permutation(len(labels)), 2)

    monkeypatch.setattr(PARTITIONS, "_table", {**PARTITIONS._table})
    PARTITIONS.add("halves_of_ones_own", halves)
    right, wrong = (
        PartitionConfig(name="halves_of_ones_own", clients=2, options={"draws": draws}) for draws in ("its own", "none")
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert make_partition(right, LABELS, seed=3).hash == make_partition(right, LABELS, seed=3).hash
        for seed, task, labels in ((3, 0, LABELS), (4, 0, LABELS), (3, 1, LABELS), (3, 0, LABELS[:-1])):
            make_partition(wrong, labels, seed=seed, task=task)
    for _ in range(2):
        with pytest.warns(PartitionWarning, match="halves .* another partition than before .*: draw from draws"):
            make_partition(wrong, LABELS, seed=3)


@pytest.mark.parametrize(
    "returned", [([[0, 1], [2, 3, 4]], {"classes": 2}), [[[0, 1], [2, 3, 4]], [[5]]], ([[0, 1], [2, 3]], [[4], [5]])]
)
def test_parts_beside_something_else_or_in_parts_are_refused_in_one_line(monkeypatch, returned):
    """Lists of unequal lengths ended in NumPy's traceback."""
    monkeypatch.setattr(PARTITIONS, "_table", {**PARTITIONS._table, "pair": lambda *_, **__: returned})
    with pytest.raises(DataError, match=r"^partition pair: .* for client 0.*; return integers \[n\]"):
        make_partition(PartitionConfig(name="pair", clients=2), np.arange(6) % 2)

"""Arrays of a script, torch's data sets, Hugging Face's objects and `.npy` folders: the same samples by every way."""

import errno
import os
from pathlib import Path

import datasets
import numpy as np
import pandas
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset

import flray
from flray.core.schema.errors import ConfigError, DataError
from flray.data import DataConfig, from_torch, load_dataset
from flray.data.sources import at_hand
from tests.support.leftovers import left_by_the_dead, left_elsewhere

ROOT = Path(__file__).parents[3]
rng = np.random.default_rng(7)
Y = np.arange(60) % 3
# channels on scales of their own; the class is the mean of the first one
X = (rng.normal(size=(60, 2, 6, 5)) * [[[[0.2]], [[30.0]]]] + Y[:, None, None, None]).astype(np.float32)
NAMES = ["low", "middle", "high"]


class Stream(IterableDataset):
    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        return ((X[row], int(Y[row])) for row in self.rows)


def tensors(rows):
    return TensorDataset(torch.from_numpy(X[rows]), torch.from_numpy(Y[rows]))


def table(rows):
    kinds = datasets.Features(
        {"scan": datasets.Array3D((2, 6, 5), "float32"), "kind": datasets.ClassLabel(names=NAMES)}
    )
    return datasets.Dataset.from_dict({"scan": X[rows].tolist(), "kind": Y[rows].tolist()}, features=kinds)


def scans(folder, **values):
    """A folder of `.npy` files, by name."""
    (folder / "scans").mkdir(exist_ok=True)
    for name, array in values.items():
        np.save(folder / "scans" / f"{name}.npy", array)
    return folder / "scans"


TRAIN, TEST = slice(0, 45), slice(45, 60)


def test_every_way_gives_the_same_entry_of_the_cache(root):
    pair = flray.data.from_arrays((X[TRAIN], Y[TRAIN]), (X[TEST], Y[TEST]), classes=NAMES)
    last = flray.data.from_arrays(
        (X[TRAIN].transpose(0, 2, 3, 1), Y[TRAIN]), (X[TEST].transpose(0, 2, 3, 1), Y[TEST]), classes=NAMES,
        channels="last",
    )  # fmt: skip
    whole = flray.data.from_torch(tensors(TRAIN), tensors(TEST), classes=NAMES)
    streamed = flray.data.from_torch(Stream(range(45)), Stream(range(45, 60)), classes=NAMES)
    hub = flray.data.from_hf(datasets.DatasetDict(train=table(TRAIN), validation=table(TEST)))
    flowing = flray.data.from_hf(table(TRAIN).to_iterable_dataset(), table(TEST).to_iterable_dataset())
    assert pair == last == whole == streamed == hub == flowing
    changed = X.copy()
    changed[3, 1, 0, 0] += 1
    assert flray.data.from_arrays((changed[TRAIN], Y[TRAIN]), (X[TEST], Y[TEST]), classes=NAMES) != pair

    dataset = load_dataset(DataConfig(**pair))
    np.testing.assert_array_equal(dataset.train.x, X[TRAIN].transpose(0, 2, 3, 1))
    assert dataset.classes == tuple(NAMES) and dataset.input_shape == (2, 6, 5)
    assert isinstance(dataset.train.x.base, np.memmap)
    np.testing.assert_allclose(dataset.mean, X[TRAIN].mean((0, 2, 3), dtype=np.float64), rtol=1e-6)
    np.testing.assert_allclose(dataset.std, X[TRAIN].std((0, 2, 3), dtype=np.float64), rtol=1e-6)

    written = scans(root, train_x=X[TRAIN], train_y=Y[TRAIN], test_x=X[TEST], test_y=Y[TEST])
    (written / "classes.txt").write_text("\n".join(NAMES))
    assert load_dataset(DataConfig(source="scans")).fingerprint == dataset.fingerprint


def test_a_generator_of_images_gets_the_constants_of_the_0_to_1_scale():
    """p = (x - low)/(high - low), so (p - mean')/std' is (x - mean)/std."""
    dataset = load_dataset(DataConfig(**flray.data.from_arrays((X, Y)), test_fraction=0.2))
    low, high = dataset.bounds
    assert low == dataset.train.x.min() and high == dataset.train.x.max()
    mean, std = map(np.array, dataset.constants)
    x = dataset.train.x[:4].astype(np.float64)
    np.testing.assert_allclose(((x - low) / (high - low) - mean) / std, (x - dataset.mean) / dataset.std, rtol=1e-9)
    digits = load_dataset(DataConfig(source="digits"))
    assert digits.constants == (digits.mean, digits.std)


def test_float_images_are_resized_and_made_grey_as_floats():
    three = np.repeat(X[:, :1], 3, axis=1) * np.array([1, 2, 3], np.float32)[:, None, None]
    source = flray.data.from_arrays((three, Y))["source"]
    grey = load_dataset(DataConfig(source=source, channels=1, test_fraction=0))
    luma = (0.299 + 2 * 0.587 + 3 * 0.114) * X[:, 0]
    np.testing.assert_allclose(grey.train.x[..., 0], luma, rtol=1e-5)
    sized = load_dataset(DataConfig(source=source, resize=12, test_fraction=0)).train.x
    want = np.asarray(Image.fromarray(three[5, 2]).resize((12, 12), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(sized[5, ..., 2], want)
    assert sized.dtype == np.float32


def test_pillow_images_stay_bytes_and_clients_are_natural():
    pixels = rng.integers(0, 256, (30, 8, 8, 3), np.uint8)
    samples = [
        (Image.fromarray(image), int(label), client)
        for client, (image, label) in enumerate(zip(pixels, Y, strict=False))
    ]
    dataset = load_dataset(DataConfig(**flray.data.from_torch(samples), test_fraction=0))
    np.testing.assert_array_equal(dataset.train.x, pixels)
    np.testing.assert_array_equal(dataset.train.group, np.arange(30))


def test_other_hugging_face_objects_are_tables_in_the_cache():
    rows = datasets.Dataset.from_dict({"a": X[:, 0, 0, 0], "b": X[:, 1, 0, 0], "kind": Y, "site": Y[::-1].copy()})
    values = flray.data.from_hf(rows, label="kind", group="site")
    dataset = load_dataset(DataConfig(**values, test_fraction=0))
    np.testing.assert_array_equal(dataset.train.x, np.stack([X[:, 0, 0, 0], X[:, 1, 0, 0]], axis=1))
    np.testing.assert_array_equal(dataset.train.group, Y[::-1])
    assert flray.data.from_hf(rows, label="kind", group="site") == values
    assert flray.data.from_hf("ylecun/mnist") == {"source": "hf:ylecun/mnist"}


@pytest.mark.parametrize(
    ("value", "call"),
    [
        (tensors(TRAIN), "from_torch"),
        (table(TRAIN), "from_hf"),
        (datasets.DatasetDict(train=table(TRAIN)), "from_hf"),
        ((X, Y), "from_arrays"),
        ({"source": X}, "from_arrays"),
    ],
)
def test_an_object_in_the_place_of_a_section_is_told_the_function_that_takes_it(value, call):
    quick = ROOT / "configs" / "quickstart.yaml"
    with pytest.raises(ConfigError, match=rf"^data: .*; write data=flray.data.{call}\("):
        flray.run(quick, data=value)
    with pytest.raises(ConfigError, match=rf"^proxy: .*; write proxy=flray.data.{call}\("):
        flray.run({"proxy": value})


def test_images_as_lists_or_in_saved_folders_are_told_the_call_that_reads_them(tmp_path):
    lists = datasets.Dataset.from_dict({"scan": X.tolist(), "label": Y.tolist()})
    with pytest.raises(DataError, match=r"'scan' holds nested lists; .*cast_column\('scan', datasets.Array3D"):
        load_dataset(DataConfig(**flray.data.from_hf(lists)))
    grey = datasets.Dataset.from_dict({"scan": X[:, 0].tolist(), "label": Y.tolist()})
    with pytest.raises(DataError, match=r"data.map\(lambda row: \{'scan': \[row\['scan'\]\]\}\).cast_column"):
        load_dataset(DataConfig(**flray.data.from_hf(grey)))
    table(TRAIN).save_to_disk(tmp_path / "saved")
    with pytest.raises(DataError, match=r"from_hf\(datasets.load_from_disk\('.*saved'\)\)"):
        load_dataset(DataConfig(source=f"hf:{tmp_path / 'saved'}"))
    (tmp_path / "files").mkdir()
    table(TRAIN).to_parquet(tmp_path / "files" / "train.parquet")
    with pytest.raises(DataError, match=r"\(Array3D\).*from_hf\(datasets.load_dataset\('.*files'\)\)"):
        load_dataset(DataConfig(source=f"hf:{tmp_path / 'files'}", label="kind"))


@pytest.mark.parametrize("kind", ["uint8", "int16", "bool", "float32"])
@pytest.mark.parametrize("way", [lambda d: d, lambda d: d.to_iterable_dataset()])
def test_arrays_of_hugging_face_keep_their_type(kind, way):
    """`datasets` gives every integer as int64."""
    x = np.random.default_rng(1).integers(0, 2 if kind == "bool" else 256, (20, 3, 8, 8)).astype(kind)
    features = datasets.Features({"scan": datasets.Array3D((3, 8, 8), kind), "label": datasets.Value("int64")})
    rows = datasets.Dataset.from_dict({"scan": list(x), "label": [k % 2 for k in range(20)]}, features=features)
    dataset = load_dataset(DataConfig(**flray.data.from_hf(way(rows)), test_fraction=0))
    assert dataset.train.x.dtype == (np.uint8 if kind in ("uint8", "bool") else np.float32)
    np.testing.assert_array_equal(dataset.train.x.transpose(0, 3, 1, 2), x * (255 if kind == "bool" else 1))


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ("\ufeffgreen\r\nred\r\nblue\r\n\r\n  \n", "green, red, blue"),
        ("green\u2028leaf\nred\x0b1\nblue", "green\u2028leaf, red\x0b1, blue"),
        ("green\n\nblue\n", "the name of class 1 is blank"),
        ("\ngreen\nblue\n", "the name of class 0 is blank"),
    ],
)
def test_names_of_classes_in_a_file_have_no_marks_and_no_blank_line(tmp_path, lines, says):
    (scans(tmp_path, train_x=X, train_y=Y) / "classes.txt").write_bytes(lines.encode())
    config = DataConfig(source="scans", root=str(tmp_path), test_fraction=0)
    if says.count(",") == 2:
        assert load_dataset(config).classes == tuple(says.split(", "))
        return
    with pytest.raises(DataError, match=says):
        load_dataset(config)


class Federated:
    """The methods of `flwr_datasets.FederatedDataset` (0.6) that are read. The real one needs the hub."""

    def __init__(self, data):
        self.data, self.partitioners = data, {"train": self}
        self.num_partitions = 4

    def load_partition(self, number, split):
        assert split == "train"
        return self.data.shard(self.num_partitions, number)

    def load_split(self, name):
        return self.data.select(range(10))


def test_partitions_of_flwr_datasets_are_the_natural_clients():
    federated = Federated(table(slice(0, 60)))
    dataset = load_dataset(DataConfig(**flray.data.from_flwr(federated), leak_check=False))
    assert np.bincount(dataset.train.group).tolist() == [15] * 4
    for client in range(4):
        own = federated.load_partition(client, "train").with_format("numpy")["scan"][:]
        np.testing.assert_array_equal(dataset.train.x[dataset.train.group == client], own.transpose(0, 2, 3, 1))
    federated.load_partition = lambda number, split: federated.data.select(range(20) if number != 1 else [])
    with pytest.raises(DataError, match=r"partition 1 of 4 has no samples, and the clients after it would get other"):
        flray.data.from_flwr(federated)
    with pytest.raises(DataError, match=r"split 'trian' has no partitioner.*'train'"):
        flray.data.from_flwr(federated, "trian")


BEYOND = Y.astype(np.uint64) + np.uint64(2**63)  # as int64 -2^63, ...
nan = X.copy()
nan[7, 1, 2, 3] = np.nan


def mixed(first):
    """Samples with a client up to the number `first`, and five without; parts have 1,024."""
    return [(X[0], 0, 3)] * first + [(X[0], 0)] * 5


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: flray.data.from_arrays((nan, Y)), r"row 7, pixel 2, 3, channel 1 is nan.*fill or remove all 1"),
        (lambda: flray.data.from_arrays((X, Y / 2)), r"labels are float64, not integers \(sample 0: 0.0\)"),
        (lambda: flray.data.from_arrays((X, Y - 1)), "label -1 is not a class; number the classes from 0"),
        (lambda: flray.data.from_arrays((X, Y[:50])), r"labels have shape \[50\]; make it \[60\]"),
        (lambda: flray.data.from_arrays((X[:, 0, 0, 0], Y)), r"have shape \[\]; give images \[C, H, W\]"),
        (lambda: flray.data.from_arrays((X, Y), (X[..., :4], Y)), r"test samples are float32 \[6, 4, 2\] and train"),
        (lambda: flray.data.from_arrays((X, Y), classes=["a", "b"]), "holds class 2; classes are 0..1"),
        (lambda: flray.data.from_arrays(X), "train is 'ndarray'; give"),
        (lambda: flray.data.from_torch([(X[0], 0), (X[1], 0.5)]), "sample 1: the label 0.5 is not an integer"),
        (lambda: flray.data.from_torch([(X[0], 0), (X[1, :, :3], 1)]), r"sample 1 is float32 \[2, 3, 5\] and an"),
        (lambda: flray.data.from_torch([X[0]]), "sample 0 is a ndarray; give"),
        (lambda: flray.data.from_hf(X), "train is a ndarray without described columns"),
        (lambda: flray.data.from_hf(pandas.DataFrame({"x": [1.0], "y": ["a"]})), "give datasets.Dataset.from_pandas"),
        (lambda: flray.data.from_torch(DataLoader([(X[0], 0)])), "is a DataLoader, .*give its data set"),
        (lambda: flray.data.from_hf(table(TRAIN), label="knid"), "no column 'knid'.*'kind'"),
        (lambda: flray.data.from_hf(table(TRAIN), table(TEST).rename_column("kind", "k")), "test has no column 'kind'"),
        (lambda: flray.data.from_hf({"test": table(TEST)}), "the splits test have no train"),
        (lambda: flray.data.from_hf({}), r"the splits \(none\) have no train"),
        (lambda: flray.data.from_arrays((X[0, 0, 0, 0], Y)), "samples have no axis"),
        (lambda: flray.data.from_arrays((X[:2], np.array([0, 10**9]))), "label 1000000000 of 2 samples"),
        (lambda: flray.data.from_arrays((X, Y), classes=("a", "b", "a")), "classes has 'a' twice; give each class a"),
        (lambda: flray.data.from_arrays((X, BEYOND)), r"sample \d+, \d+, is above 2\^63 - 1; number them"),
        (lambda: flray.data.from_arrays((X, Y, BEYOND)), r"ient.* of sample 2, \d+, is .*; number them"),
        (lambda: flray.data.from_arrays((X, Y * 2.0**53)), r"not integers \(sample 0: 0.0\)$"),
        (lambda: flray.data.from_torch([(X[0], 0, BEYOND[0])]), r"client.* of sample 0, 9223372036854775808, is above"),
        (lambda: flray.data.from_torch(mixed(1024)), "sample 1024 has no client, unlike those before it"),
    ],
)  # fmt: skip
def test_errors_name_the_sample(call, match):
    with pytest.raises(DataError, match=match):
        call()


@pytest.mark.slow
def test_a_run_resumes_on_the_same_samples_and_refuses_others(tmp_path, monkeypatch, workers_cache, ray_cluster):
    """With Ray, whose actors have this session's cache: they map the entry that the script made."""
    easy = np.where(Y == 0, -2, np.where(Y == 1, 0, 2))[:, None, None, None] + rng.normal(size=(60, 1, 8, 8))
    source = flray.data.from_arrays((easy.astype(np.float32), Y), (easy[::2].astype(np.float32), Y[::2]))
    same = {"partition": {"name": "iid", "clients": 4}, "cohort": {"size": 4}, "model": "small_cnn", "proxy": None}
    base = ROOT / "configs" / "quickstart.yaml"
    words = ["rounds=4", "algorithm=fedavg", "algorithm.lr=0.1", "data.augment.flip=true", "data.leak_check=false"]
    whole = flray.run(base, *words, data=source, **same, out=tmp_path / "whole", progress=False,
                      resources={"executor": "local"})  # fmt: skip
    assert whole.rounds["test/acc"].iloc[-1] > 0.9
    words[0] = "rounds=2"
    flray.run(base, *words, data=source, **same, out=tmp_path / "parted", progress=False,
              resources={"client_actors": 2})  # fmt: skip
    parted = flray.resume(tmp_path / "parted", rounds=4, progress=False)
    assert parted.rounds["train/loss"].tolist() == whole.rounds["train/loss"].tolist()
    monkeypatch.setenv("FLRAY_CACHE", str(tmp_path / "other"))
    with pytest.raises(DataError, match=r"given:.* is not in the data cache .*; run the script that made it again"):
        flray.resume(tmp_path / "parted", rounds=5, progress=False)


def test_a_path_is_not_a_key_of_the_cache_and_its_file_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("FLRAY_CACHE", str(tmp_path / "cache"))
    victim = tmp_path / "victim.txt"
    victim.write_text("precious")
    config = DataConfig(source=f"given:{victim}")
    with pytest.raises(DataError, match="32 hexadecimal digits"):
        load_dataset(config)
    assert not at_hand(config)
    assert victim.read_text() == "precious"


def test_a_tensor_of_bfloat16_is_floats():
    rounded = torch.from_numpy(X).bfloat16()
    source = flray.data.from_arrays((rounded, Y))
    assert source == flray.data.from_arrays((rounded.float().numpy(), Y))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("test_X", r"test_X.npy is none of .*test_x.*did you mean"),
        ("train_clients", r"train_clients.npy is none of .*'train_client'"),
        ("test_y", "test_y.npy has no test_x.npy beside it"),
    ],
)
def test_a_file_that_would_be_left_out_is_an_error(tmp_path, name, says):
    scans(tmp_path, **{"train_x": X, "train_y": Y, name: Y})
    with pytest.raises(DataError, match=says):
        load_dataset(DataConfig(source="scans", root=str(tmp_path)))


def test_other_files_of_a_folder_are_one_line_errors(root):
    folder = scans(root, train_y=Y)
    np.savez(root / "archive.npz", X)
    (root / "archive.npz").rename(folder / "train_x.npy")
    with pytest.raises(DataError, match=r"train_x.npy is not a readable .npy file.*archive"):
        load_dataset(DataConfig(source="scans"))
    scans(root, train_x=X, train_y=Y.astype(object))
    with pytest.raises(DataError, match=r"train_y.npy .*write numbers or texts, such as y.astype\(str\) with numpy"):
        load_dataset(DataConfig(source="scans"))
    scans(root, train_x=X, train_y=Y)
    (folder / "classes.txt").write_bytes("gr\xfcn\nrot\nblau".encode("latin-1"))
    with pytest.raises(DataError, match=r"classes.txt is not UTF-8"):
        load_dataset(DataConfig(source="scans"))


def test_a_full_disk_is_one_line(monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("flray.data.sources.arrays.np.ascontiguousarray", full)
    with pytest.raises(DataError, match="the disk is full"):
        flray.data.from_arrays((X, Y))
    monkeypatch.undo()
    monkeypatch.setattr("flray.data.sources.objects.sync", full)
    with pytest.raises(DataError, match="the disk is full"):
        flray.data.from_hf(datasets.Dataset.from_dict({"a": X[:, 0, 0, 0], "kind": Y}), label="kind")


def test_tables_in_the_cache_that_differ_from_their_name_are_written_again(own_cache):
    rows = datasets.Dataset.from_dict({"a": X[:, 0, 0, 0], "kind": Y})
    folder = Path(flray.data.from_hf(rows, label="kind")["source"].removeprefix("hf:"))
    whole = (folder / "train.parquet").read_bytes()
    (folder / "train.parquet").write_bytes(whole[:100])
    assert Path(flray.data.from_hf(rows, label="kind")["source"].removeprefix("hf:")) == folder
    assert (folder / "train.parquet").read_bytes() == whole
    assert [path.name for path in (own_cache / "given").iterdir()] == [folder.name]


def test_what_a_killed_process_left_is_removed_and_that_of_another_machine_after_a_day(own_cache):
    given = own_cache / "data" / "given"
    dead, old, young = left_by_the_dead(given), left_elsewhere(given), left_elsewhere(given)
    for folder in (dead, old, young):
        folder.mkdir(parents=True)
    os.utime(old, (0, 0))
    flray.data.from_arrays((X, Y))
    assert not dead.exists() and not old.exists() and young.exists()


def test_a_subset_of_ones_own_gives_its_own_labels():
    """Its labels are not those of the data set inside, whose classes are in another order in the other split."""

    class Remap(Subset):
        def __getitem__(self, place):
            x, y = super().__getitem__(place)
            return x, self.order[y]

        def __getitems__(self, places):
            return [self[place] for place in places]

    def split(classes):
        data = TensorDataset(torch.arange(8.0)[:, None], torch.arange(8) % 2)
        data.classes = classes
        subset = Remap(data, range(8))
        subset.order = [["cat", "dog"].index(name) for name in classes]
        subset.classes = ["cat", "dog"]
        return subset

    data = load_dataset(DataConfig(**from_torch(split(["dog", "cat"]), split(["cat", "dog"])), leak_check=False))
    assert data.classes == ("cat", "dog")
    assert data.train.y.tolist() == [1, 0] * 4 and data.test.y.tolist() == [0, 1] * 4

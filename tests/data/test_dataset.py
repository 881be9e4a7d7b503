"""Sources, preparation, constants, leaks, proxies; every error a user can meet."""

import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from flray.core.schema.errors import ConfigError, DataError
from flray.data import (
    SOURCES,
    Augment,
    DataConfig,
    LeakWarning,
    ProxyConfig,
    Split,
    Splits,
    dataset,
    from_arrays,
    load_dataset,
    load_proxy,
)
from flray.data.cache import digest
from tests.support.data_files import LABEL, image_column, images, load, write
from tests.support.messages import facts, mistakes, with_options
from tests.support.processes import python


@pytest.fixture
def root(root):
    """Two sets: `pets` 8x8 RGB with a string group column, `grey` 6x6 grey."""
    for name, n, seed in (("train", 20, 0), ("test", 8, 1)):
        y = pa.array(np.arange(n) % 2)
        site = pa.array(["b" if i % 4 else "a" for i in range(n)])
        write(root / "pets", name, {"img": image_column(images(n, (8, 8, 3), seed)), "site": site, "label": y}, LABEL)
        write(root / "grey", name, {"image": image_column(images(n, (6, 6), seed)), "label": y}, LABEL)
    return root


def test_parquet_images(root):
    d = load("pets", group="site")
    assert np.array_equal(d.train.x, images(20, (8, 8, 3), 0)) and np.array_equal(d.test.x, images(8, (8, 8, 3), 1))
    assert d.train.y.tolist() == [0, 1] * 10 and d.classes == ("cat", "dog") and d.num_classes == 2
    assert d.input_shape == (3, 8, 8) and d.is_image and d.train.y.dtype == np.int64
    assert d.train.group.tolist() == [0, 1, 1, 1] * 5
    x = d.train.x.astype(np.float64) / 255
    np.testing.assert_allclose(d.mean, x.mean(axis=(0, 1, 2)))
    np.testing.assert_allclose(d.std, x.std(axis=(0, 1, 2)))
    grey = load("grey")
    assert grey.train.x.shape == (20, 6, 6, 1) and grey.input_shape == (1, 6, 6) and grey.train.group is None


def test_shards_and_validation(root):
    folder = root / "pieces"
    x = images(6, (4, 4))
    for i in range(2):
        rows = slice(3 * i, 3 * i + 3)
        write(folder, f"train-{i:05d}-of-00002", {"image": image_column(x[rows]), "label": pa.array([0, 1, 0])}, LABEL)
    write(folder, "validation", {"image": image_column(images(2, (4, 4), 3)), "label": pa.array([0, 1])}, LABEL)
    d = load("pieces")
    assert np.array_equal(d.train.x[..., 0], x) and len(d.test.y) == 2
    (folder / "train-00001-of-00002.parquet").unlink()
    with pytest.raises(DataError, match="train lacks some of its 2 shards"):
        load("pieces")


@pytest.mark.parametrize(
    ("one", "other"), [("train", "train-00000-of-00001"), ("train-00000-of-00001", "train-00001-of-00002")]
)
def test_a_split_that_is_there_twice_is_refused(root, one, other):
    """Both were read: every sample counted twice."""
    folder, column = root / f"twice-{one}", {"image": image_column(images(2, (4, 4))), "label": pa.array([0, 1])}
    for name in {one, other, other.replace("00001-", "00000-")}:
        write(folder, name, column, LABEL)
    with pytest.raises(DataError, match=r"has the split train twice, in train.*\.parquet and in train.*; remove one"):
        load(folder.name)


def test_resize_and_channels(root):
    d = load("grey", resize=8, channels=3)
    assert d.input_shape == (3, 8, 8) and len(d.mean) == 3
    want = np.asarray(Image.fromarray(images(20, (6, 6))[0]).resize((8, 8), Image.Resampling.BILINEAR))
    assert all(np.array_equal(d.train.x[0, ..., c], want) for c in range(3))
    colour = load("pets", channels=1)
    want = np.asarray(Image.fromarray(images(20, (8, 8, 3))[0]).convert("L")).astype(int)
    assert np.abs(colour.train.x[0, ..., 0].astype(int) - want).max() <= 1


def test_iris_pilot():
    """PCA of centred Iris: the covariance of the projection is diagonal with the largest eigenvalues."""
    d = load("iris", test_fraction=0, pca=2)
    assert d.train.x.shape == (150, 2) and d.train.x.dtype == np.float32 and d.test is d.train
    from sklearn.datasets import load_iris

    values = np.linalg.eigvalsh(np.cov(load_iris().data.T))[::-1][:2]
    np.testing.assert_allclose(np.cov(d.train.x.T), np.diag(values), atol=1e-4)
    np.testing.assert_allclose(d.train.x.mean(axis=0), 0, atol=1e-5)
    scaled = load("iris", test_fraction=0, standardize=True)
    np.testing.assert_allclose(scaled.train.x.std(axis=0), 1, atol=1e-5)


def test_projection_is_fitted_on_train():
    d = load("iris", standardize=True)
    np.testing.assert_allclose(d.train.x.mean(axis=0), 0, atol=1e-5)
    assert np.abs(d.test.x.mean(axis=0)).max() > 1e-3


def test_drawn_test_split():
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the duplicate pair of Iris stays in train
        d = load("iris")
    assert np.bincount(d.test.y).tolist() == [10, 10, 10] and len(d.train.y) == 120
    assert np.array_equal(load("iris").test.x, d.test.x)
    assert not np.array_equal(load("iris", split_seed=1).test.x, d.test.x)
    rows = np.concatenate([d.train.x, d.test.x])
    whole = load("iris", test_fraction=0).train.x
    assert sorted(map(tuple, rows)) == sorted(map(tuple, whole))


def test_digits_and_synthetic():
    d = load("digits")
    assert d.input_shape == (1, 8, 8) and d.train.x.max() == 255 and d.num_classes == 10
    s = load("synthetic", options={"num_train": 30, "num_test": 12, "shape": [5, 4, 3], "num_classes": 3})
    assert s.input_shape == (3, 5, 4) and s.train.y.tolist() == [0, 1, 2] * 10 and len(s.test.y) == 12
    t = load("synthetic", options={"shape": 7, "num_train": 20, "num_test": 5})
    assert t.input_shape == (7,) and not t.is_image
    assert (
        t.fingerprint
        != load("synthetic", options={"shape": 7, "num_train": 20, "num_test": 5}, split_seed=1).fingerprint
    )


def test_stratified_subsample():
    d = load("synthetic", train_size=100, test_size=20)
    assert np.bincount(d.train.y).tolist() == [10] * 10 and np.bincount(d.test.y).tolist() == [2] * 10
    whole = load("synthetic")
    assert len(d.train.y) == 100 and {x.tobytes() for x in d.train.x} <= {x.tobytes() for x in whole.train.x}


def test_so_many_samples_of_each_domain(root):
    """`a` has 5 samples, all of class 0; `b` 5 of class 0 and 10 of class 1, so 3 of `b` are one and two."""
    d = load("pets", domain="site", per_source=3)
    assert [np.bincount(d.train.y[d.train.source == site], minlength=2).tolist() for site in (0, 1)] == [[3, 0], [1, 2]]
    assert d.sources == ("a", "b") and len(d.test.y) == 8, "the test split is not cut"
    in_proportion = load("pets", domain="site", train_size=6)
    assert np.bincount(in_proportion.train.source).tolist() == [2, 4], "train_size keeps the domains' proportions"
    assert len({load("pets", domain="site", per_source=3, split_seed=seed).fingerprint for seed in (0, 0, 1, 2)}) == 3
    both = load("pets", domain="site", per_source=4, train_size=4)
    assert np.bincount(both.train.source).tolist() == [2, 2]


def test_a_domain_that_has_test_samples_only_gives_train_none(root):
    for split, sites in (("train", "ab"), ("test", "abc")):
        n = 6 * len(sites)
        write(root / "shops", split, {"x": np.arange(n) / 7, "label": np.arange(n) % 2, "site": list(sites) * 6})
    d = load("shops", domain="site", per_source=4, leak_check=False)
    assert d.sources == ("a", "b", "c") and np.bincount(d.train.source).tolist() == [4, 4]
    assert np.bincount(d.test.source).tolist() == [6, 6, 6]


def test_more_components_than_training_samples_are_refused(root):
    x = {f"f{k}": np.random.default_rng(k).normal(size=30) for k in range(40)}
    write(root / "wide", "train", {**x, "label": np.arange(30) % 2})
    assert load("wide", test_fraction=0, pca=30).input_shape == (30,)
    for section, count in (({"pca": 31, "test_fraction": 0}, 30), ({"pca": 30, "test_fraction": 0.2}, 24)):
        with pytest.raises(DataError, match=rf"data.pca: {section['pca']} components of {count} training samples"):
            load("wide", **section)


@pytest.mark.parametrize(
    "normalize, want",
    [
        ("half", ((0.5,) * 3, (0.5,) * 3)),
        ("unit", ((0.0,) * 3, (1.0,) * 3)),
        ({"mean": [0.1, 0.2, 0.3], "std": [1, 2, 3]}, ((0.1, 0.2, 0.3), (1.0, 2.0, 3.0))),
    ],
)
def test_normalize(root, normalize, want):
    d = load("pets", normalize=normalize)
    assert (d.mean, d.std) == want


def test_published_constants(root):
    (root / "pets").rename(root / "cifar10")
    assert load("cifar10").std == (0.24703233, 0.24348505, 0.26158768)
    assert load("cifar10", normalize="fedzoo").std == (0.2023, 0.1994, 0.2010)
    assert load("cifar10").fingerprint != load("cifar10", normalize="fedzoo").fingerprint


def leaky(root, shared):
    """150 test images of which `shared` are copies of train images."""
    x, z = images(150, (4, 4), 5), images(150, (4, 4), 6)
    z[:shared] = x[:shared]
    y = pa.array(np.arange(150) % 2)
    write(root / f"leak{shared}", "train", {"image": image_column(x), "label": y}, LABEL)
    write(root / f"leak{shared}", "test", {"image": image_column(z), "label": y}, LABEL)
    return f"leak{shared}"


def test_leaks(root):
    with pytest.warns(LeakWarning, match="1 of 150 test samples also occur in its train split"):
        load(leaky(root, 1))
    with pytest.raises(DataError, match=r"7 of 150 test samples.*above 1%; use clean data, or set `leak_check: false`"):
        load(leaky(root, 7))
    with pytest.raises(DataError, match=r"split as data.resize 1 leaves them, above 1%; set resize otherwise, use"):
        load(leaky(root, 0), resize=1)  # 300 pixels, of 256 levels
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load("leak7", leak_check=False)
        load("pets")


def test_leaks_that_an_earlier_version_counted_by_bytes_are_counted_again(monkeypatch):
    x, y = np.eye(8, dtype=np.float32), np.arange(8) % 2
    signed = np.where(x == 0, np.float32(-0.0), x)
    config = DataConfig(**from_arrays((x, y), (signed, y)))
    with monkeypatch.context() as earlier:
        earlier.setattr(dataset, "digest", lambda *parts: digest(*parts[:3]))
        earlier.setattr(dataset, "count_leaks", lambda train, test: 0)
        before = load_dataset(config)
    with pytest.raises(DataError, match="8 of 8 test samples also occur in its train split"):
        load_dataset(config)
    after = load_dataset(config.model_copy(update={"leak_check": False}))
    assert np.signbit(after.test.x).any() and np.array_equal(before.test.x, after.test.x)


def test_own_source(monkeypatch):
    monkeypatch.setattr(SOURCES, "_table", {**SOURCES._table})  # other tests register these names, too

    def mine(config):
        x = np.full((4, 2), config.options.get("v", 1), np.float32) + np.arange(4, dtype=np.float32)[:, None]
        return Splits(Split(x, np.array([0, 1, 0, 1])), None, ("a", "b"))

    SOURCES.add("mine", mine)
    one, two = load("mine", test_fraction=0), load("mine", test_fraction=0, options={"v": 2})
    assert one.train.x[0, 0] == 1 and two.train.x[0, 0] == 2 and one.fingerprint != two.fingerprint
    assert isinstance(one.train.x.base, np.memmap)
    SOURCES.add("wrong", lambda config: Splits(Split(np.zeros((4, 2)), np.zeros(4, int)), None, ("a",)))
    with pytest.raises(DataError, match=r"source 'wrong': train.x is float64 \(4, 2\); make it"):
        load("wrong")
    SOURCES.add("off", lambda config: Splits(Split(np.zeros((4, 2), np.float32), np.arange(4)), None, ("a", "b", "c")))
    with pytest.raises(DataError, match=r"source 'off': train.y holds class 3; classes are 0..2"):
        load("off")
    infinite = np.array([[1.0, 1.0], [1.0, np.inf]], np.float32)
    SOURCES.add("infinite", lambda config: Splits(Split(infinite, np.arange(2)), None, ("a", "b")))
    with pytest.raises(DataError, match=r"train.x row 1, column 1 is inf, not a finite number; fill or remove all 1"):
        load("infinite")


@pytest.mark.parametrize(
    ("given", "says"),
    mistakes("""
cifar100 | looked for Parquet files in | cifar100 and torchvision's cifar100 files in | ; set `root` or FLRAY_DATA
pest | data set 'pest' not found; | did you mean 'pets'
iriss | did you mean 'iris'
pets {label: lable} | no column 'lable' for data.label (did you mean 'label'?); columns: img, site, label
pets {group: user} | no column 'user' for data.group
pets {input: site} | text (columns site) needs a tokenizer
pets {pca: 2} | data.pca: not an option for images, which source 'pets' has
iris {augment: {flip: true}} | data.augment: not an option for tabular features
iris {normalize: half} | data.normalize: not an option for tabular | ; data.standardize=true stand
iris {pca: 9} | 9 components of 4 features
iris {group: user} | iris has no columns to choose from
iris {options: {x: 1}} | iris does not read 'x'
pets {test_fraction: 0.5} | has an official test split of 8 samples
pets {train_size: 21} | 21 of 20 samples
pets {domain: site, per_source: 6} | data.per_source: 6 samples of 'a', which has 5; set it
pets {per_source: 6} | data.per_source: 'pets' has no domains; name their column with data.domain
iris {train_size: 121} | data.train_size: 121 of 120 samples; set it lower
iris {test_size: 31} | data.test_size: 31 of 30 samples; set it lower
iris {test_size: 3, test_fraction: 0} | data.test_size: with test_fraction: 0 the test samples are
pets {normalize: fedzoo} | fedzoo has constants for cifar10, cifar100, not for 'pets'
pets {normalize: {mean: [0.5], std: [0.5]}} | 1 values for 3 channels
synthetic {options: {shape: [2, 2]}} | neither
synthetic {options: {nmu_train: 5}} | did you mean 'num_train'
nolabel | the label column is not clear
unlabelled | value -1 in train.parquet row 1 is not a class, 0..1
scores | regression is not supported
sizes | column 'image', train.parquet row 1 has 5x4 pixels and the first image 4x4; set data.resize
broken | row 0 is not a readable image
notrain | has no train split (it has test
garbage | not a readable Parquet file
hf:/nowhere/at/all | hf:/nowhere/at/all cannot be loaded
"""),
)
def test_errors(root, given, says):
    two = pa.array([0, 1])
    write(root / "nolabel", "train", {"image": image_column(images(2, (4, 4))), "kind": two, "other": two})
    write(root / "unlabelled", "train", {"image": image_column(images(2, (4, 4))), "label": pa.array([0, -1])}, LABEL)
    write(root / "scores", "train", {"image": image_column(images(2, (4, 4))), "label": pa.array([0.5, 1.5])})
    mixed = image_column([images(1, (4, 4))[0], images(1, (4, 5))[0]])
    write(root / "sizes", "train", {"image": mixed, "label": two}, LABEL)
    write(root / "broken", "train", {"image": pa.array([b"no", b"no"]), "label": two}, LABEL)
    write(root / "notrain", "test", {"image": mixed, "label": two}, LABEL)
    (root / "garbage").mkdir()
    (root / "garbage" / "train.parquet").write_bytes(b"PAR1")
    source, kw = with_options(given)
    with pytest.raises((DataError, ConfigError), match=facts(*says)):
        load(source, **kw)


def test_no_root_says_what_to_set():
    with pytest.raises(DataError, match="needs a folder to download to"):
        load("cifar10", download=True)


def test_config_is_complete_when_saved():
    config = DataConfig(source="iris", augment=Augment(flip=True), normalize={"mean": [0.5], "std": [0.5]})
    assert DataConfig(**config.model_dump(mode="json")) == config
    with pytest.raises(ConfigError, match="mean has 2 values and std 1"):
        DataConfig(source="x", normalize={"mean": [0, 1], "std": [1]})


# --- proxies ---


def test_holdout():
    d = load("synthetic")
    proxy, private = load_proxy(ProxyConfig(source="holdout", size=200), d, seed=3)
    assert (
        len(proxy.x) == 200
        and len(private) == 1800
        and proxy.same_labels
        and np.bincount(proxy.y).tolist() == [20] * 10
    )
    mine = {x.tobytes() for x in d.train.x[private]}
    assert not any(x.tobytes() in mine for x in proxy.x)
    other, _ = load_proxy(ProxyConfig(source="holdout", size=200), d, seed=4)
    fixed, _ = load_proxy(ProxyConfig(source="holdout", size=200, seed=3, labelled=False), d, seed=4)
    assert other.fingerprint != proxy.fingerprint and np.array_equal(fixed.x, proxy.x) and fixed.y is None
    with pytest.raises(DataError, match="holdout takes 2000 of 2000"):
        load_proxy(ProxyConfig(source="holdout", size=2000), d)


def test_uniform_box():
    d = load("iris", test_fraction=0, pca=2)
    proxy, private = load_proxy(ProxyConfig(source="uniform_box"), d)
    assert proxy.x.shape == (150, 2) and proxy.y is None and not proxy.same_labels and len(private) == 150
    assert (proxy.x >= d.train.x.min(axis=0)).all() and (proxy.x <= d.train.x.max(axis=0)).all()
    with pytest.raises(DataError, match="uniform_box needs tabular features"):
        load_proxy(ProxyConfig(source="uniform_box"), load("synthetic"))


def test_public_source(root):
    d = load("pets")
    with pytest.raises(DataError, match=r"shape \(1, 6, 6\) .* and data set 'pets' \(3, 8, 8\); set proxy.resize"):
        load_proxy(ProxyConfig(source="grey"), d)
    fit = {"source": "grey", "resize": 8, "channels": 3}
    proxy, private = load_proxy(ProxyConfig(**fit), d)
    public = load("grey", resize=8, channels=3)
    assert np.array_equal(proxy.x, public.train.x) and proxy.mean == public.mean != d.mean
    assert not proxy.same_labels and len(private) == 20
    whole, _ = load_proxy(ProxyConfig(**fit, splits="all"), d)
    assert np.array_equal(whole.x, np.concatenate([public.train.x, public.test.x]))
    some, _ = load_proxy(ProxyConfig(**fit, splits="all", size=10, same_labels=True), d)
    assert np.bincount(some.y).tolist() == [5, 5] and some.same_labels
    assert len({p.fingerprint for p in (proxy, whole, some)}) == 3
    with pytest.raises(DataError, match="29 of 28 samples"):
        load_proxy(ProxyConfig(**fit, splits="all", size=29), d)
    with pytest.raises(ConfigError, match="contains the task's test samples"):
        load_proxy(ProxyConfig(source="pets", splits="all"), d)


@pytest.mark.parametrize(
    "kw, text",
    [
        ({"source": "uniform_box", "labelled": True}, "have no labels"),
        ({"source": "holdout"}, "holdout needs `size`"),
        ({"source": "holdout", "size": 3, "splits": "all"}, "reads the train split only"),
        ({"source": "mnist", "augment": {"flip": True}}, "proxy.augment: it is for the clients' samples"),
    ],
)
def test_proxy_config_errors(kw, text):
    with pytest.raises(ConfigError, match=text):
        ProxyConfig(**kw)


# --- real data ---


def test_real_usps_and_pacs(real_root):
    usps = load("usps")
    assert np.bincount(usps.train.y).tolist() == [1194, 1005, 731, 658, 652, 556, 664, 645, 542, 644]
    pacs = load("pacs", group="domain")
    assert pacs.train.group.max() == 3 and pacs.input_shape == (3, 64, 64)


@pytest.mark.slow
def test_real_cifar10(real_root):
    """Statistics of the 50,000 train images as published: manifest and README of the data folder."""
    d = load("cifar10")
    assert d.train.x.shape == (50_000, 32, 32, 3) and d.test.x.shape == (10_000, 32, 32, 3)
    assert np.bincount(d.train.y).tolist() == [5000] * 10 and d.classes[3] == "cat"
    np.testing.assert_allclose(d.train.x.mean(axis=(0, 1, 2)) / 255, (0.49139968, 0.48215841, 0.44653091), atol=2e-8)


def test_a_worker_maps_and_imports_nothing_heavy(root):
    """A fresh process, after the driver has filled the cache."""
    write(root / "text", "train", {"text": ["a film", "a plot"], "label": pa.array([0, 1])}, LABEL)
    load("iris"), load("pets"), load("text", tokenizer="train", test_fraction=0)
    code = (
        "import sys; from flray.data import DataConfig, load_dataset\n"
        "for s in ('iris', 'pets'): load_dataset(DataConfig(source=s))\n"
        "load_dataset(DataConfig(source='text', tokenizer='train', test_fraction=0))\n"
        "heavy = ('sklearn', 'PIL', 'pyarrow', 'pandas', 'torchvision', 'datasets', 'ray', 'tokenizers', "
        "'transformers')\nprint([m for m in heavy if m in sys.modules])"
    )
    assert python("-c", code, cwd=Path(__file__).parents[2]).stdout == "[]\n"


def test_a_crop_is_padded_by_no_more_than_the_image():
    """4000 would take (32 + 8000)^2 bytes an image and channel."""
    from flray.data.augment import draw

    rng = np.random.default_rng(0)
    assert draw(Augment(crop_padding=32), rng, 5, (32, 32)).shift is not None
    with pytest.raises(ConfigError, match=r"data\.augment\.crop_padding: 4000 for images of 32 x 32"):
        draw(Augment(crop_padding=4000), rng, 5, (32, 32))

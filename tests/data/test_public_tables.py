"""Public tables beside private ones: no test sample is public, columns go by their names, inputs have the private fit.

The expected numbers are computed with NumPy from the frames that were written.
"""

import numpy as np
import pandas
import pyarrow
import pytest

from flray.core.schema.errors import ConfigError, DataError
from flray.data import DataConfig, ProxyConfig, from_arrays, load_dataset, load_proxy
from flray.data.proxy import check_validation
from flray.data.sources import SOURCES
from flray.data.splits import Split, Splits

RNG = np.random.default_rng(0)


def frame(rows, seed=0, spread=(1.0, 1.0)):
    draws = np.random.default_rng(seed)
    age, bmi = (50 + spread[0] * draws.normal(size=rows), 20 + spread[1] * draws.normal(size=rows))
    return pandas.DataFrame({"age": age, "bmi": bmi, "label": np.arange(rows) % 2}).astype({"age": "f4", "bmi": "f4"})


@pytest.fixture
def root(root):
    """`whole` has no test split; `split` has one; `swapped` has the columns of `split` in another order, `others` other
    columns, `wide` another spread."""
    tables = {"train": frame(40), "test": frame(20, seed=1)}
    sets = {
        "whole": {"train": frame(40)},
        "split": tables,
        "swapped": {name: table[["bmi", "age", "label"]] for name, table in tables.items()},
        "others": {name: table.rename(columns={"age": "pulse"}) for name, table in tables.items()},
        "wide": {"train": frame(40, seed=2, spread=(1.0, 9.0)), "test": frame(20, seed=3, spread=(1.0, 9.0))},
    }
    for folder, splits in sets.items():
        (root / folder).mkdir()
        for name, table in splits.items():
            table.to_parquet(root / folder / f"{name}.parquet", index=False)
    return root


def rows(x):
    return {row.tobytes() for row in x}


@pytest.mark.parametrize(
    ("private", "public"),
    [
        ({"source": "whole", "split_seed": 1}, {"source": "whole"}),
        ({"source": "whole", "test_fraction": 0.5}, {"source": "whole"}),
        ({"source": "whole"}, {"source": "whole", "test_fraction": 0.0}),
        ({"source": "whole", "standardize": True}, {"source": "whole", "test_fraction": 0.0}),
        ({"source": "split"}, {"source": "hf:{root}/split", "splits": "all"}),
    ],
)
def test_a_test_sample_is_not_public(root, private, public):
    dataset = load_dataset(DataConfig(**private))
    config = ProxyConfig(**{**public, "source": public["source"].format(root=root)})
    with pytest.raises(DataError, match=r"test samples of .* above 1%; give it data's own test_fraction"):
        load_proxy(config, dataset)
    known, _ = load_proxy(config.model_copy(update={"leak_check": False}), dataset)
    assert rows(known.x) & rows(dataset.test.x)
    of_data = {name: value for name, value in private.items() if name in ("split_seed", "test_fraction")}
    if private["source"] == "whole":
        proxy, _ = load_proxy(ProxyConfig(source="whole", **of_data), dataset)
        assert not rows(proxy.x) & rows(dataset.test.x)


@pytest.mark.parametrize(("other", "names"), [("swapped", "bmi, age"), ("others", "pulse, bmi")])
def test_features_of_two_tables_have_the_same_names_in_the_same_order(root, other, names):
    words = f"has the features age, bmi and {other} {names};.*same order with `input`"
    with pytest.raises(DataError, match=words):
        load_dataset(DataConfig(source="union", options={"sets": ["split", other]}, leak_check=False))
    with pytest.raises(DataError, match=words):
        load_proxy(ProxyConfig(source=other), load_dataset(DataConfig(source="split")))


def test_named_columns_are_read_in_the_order_that_is_given(root):
    dataset = load_dataset(DataConfig(source="split"))
    proxy, _ = load_proxy(ProxyConfig(source="swapped", input=["age", "bmi"]), dataset)
    assert np.array_equal(proxy.x, frame(40)[["age", "bmi"]].to_numpy())


def test_frames_in_another_order_are_refused():
    train, test = frame(40), frame(20, seed=1)
    given = (train[["age", "bmi"]], train["label"]), (test[["bmi", "age"]], test["label"])
    with pytest.raises(DataError, match="from_arrays: train has the features age, bmi and test bmi, age"):
        from_arrays(*given)


def test_tables_of_pyarrow_are_read_as_frames():
    train, test = frame(40), frame(20, seed=1)
    x, y = train.drop(columns="label"), train["label"]
    of = pyarrow.Table.from_pandas
    given = from_arrays((of(x), y), (of(test[x.columns]), test["label"]))
    assert given == from_arrays((x, y), (test[x.columns], test["label"]))
    with pytest.raises(DataError, match="train has the features age, bmi and test bmi, age"):
        from_arrays((of(x), y), (of(test[["bmi", "age"]]), test["label"]))
    with pytest.raises(DataError, match="column 'age' has no value in row 3"):
        from_arrays((of(x.assign(age=x["age"].where(x.index != 3))), y))


@pytest.mark.parametrize("made", [lambda x: x, pyarrow.Table.from_pandas])
def test_an_integer_beside_floats_that_32_bits_do_not_have_is_refused(made):
    x = frame(40).drop(columns="label").assign(id=142_456_846 + np.arange(40))
    with pytest.raises(DataError, match="column 'id' holds integers that 32-bit floats do not have, such as 142456846"):
        from_arrays((made(x), np.arange(40) % 2))


@pytest.mark.parametrize(("key", "value"), [("standardize", True), ("pca", 1)])
def test_public_features_have_the_private_fit(root, key, value):
    """Standardised: (x - mean) / std of the private train split; of PCA: the private component, up to no sign."""
    dataset = load_dataset(DataConfig(source="split", **{key: value}))
    private, public = (table[["age", "bmi"]].to_numpy(np.float64) for table in (frame(40), frame(40, 2, (1.0, 9.0))))
    proxy, _ = load_proxy(ProxyConfig(source="wide"), dataset)
    if key == "standardize":
        expected = (public - private.mean(0)) / private.std(0)
    else:
        values, vectors = np.linalg.eigh(np.cov(private.T))
        axis = vectors[:, values.argmax()]
        expected = ((public - private.mean(0)) @ (axis * np.sign(axis[np.abs(axis).argmax()])))[:, None]
    np.testing.assert_allclose(proxy.x, expected, rtol=1e-4, atol=1e-4)
    with pytest.raises(ConfigError, match=rf"proxy.{key}: public features get the shift and the scale of data.{key}"):
        load_proxy(ProxyConfig(source="wide", **{key: value}), dataset)


@pytest.mark.parametrize(("channels", "wanted"), [(2, 3), (4, 3), (4, 1)])
def test_images_of_other_channels_are_not_changed(channels, wanted):
    x = np.random.default_rng(0).integers(0, 255, (6, 8, 8, channels), np.uint8)
    given = from_arrays((x, np.arange(6) % 2), channels="last")
    with pytest.raises(DataError, match=f"images of {channels} channels become no images of {wanted}"):
        load_dataset(DataConfig(**given, channels=wanted))


def test_rows_that_are_equal_by_nature_are_no_leak(root):
    """Of four truth values there are 16 different rows."""
    draws = np.random.default_rng(0)
    for name in ("own", "public"):
        (root / name).mkdir()
        for split, size in (("train", 60), ("test", 20)):
            table = pandas.DataFrame(draws.integers(2, size=(size, 4)).astype("f4"), columns=[*"abcd"])
            table.assign(label=np.arange(size) % 2).to_parquet(root / name / f"{split}.parquet", index=False)
    dataset = load_dataset(DataConfig(source="own", leak_check=False))
    assert len(load_proxy(ProxyConfig(source="public"), dataset)[0].x) == 60


SYNTHETIC = {"source": "synthetic", "options": {"shape": 2, "num_classes": 2}}
GREY = {"source": "synthetic", "options": {"num_train": 20, "num_test": 20}}
PAIR = {"source": "union", "options": {"sets": ["split", "wide"]}}


def test_written_defaults_of_an_own_source_are_no_other_source():
    """The function alone knows its defaults: the samples tell. Its test split is the task's then."""

    def mine(config):
        options = {"shift": 1.0, **config.options}
        x = np.random.default_rng(config.split_seed).normal(options["shift"], size=(40, 3)).astype(np.float32)
        return Splits(Split(x[:30], np.arange(30) % 2), Split(x[30:], np.arange(10) % 2), ("a", "b"))

    SOURCES.add("written defaults", mine)
    for private, public, same in (({}, {"shift": 1.0}, True), ({"shift": 1}, {}, True), ({}, {"shift": 2.0}, False)):
        dataset = load_dataset(DataConfig(source="written defaults", options=private, leak_check=False))
        config = ProxyConfig(source="written defaults", options=public, leak_check=False)
        assert load_proxy(config, dataset)[0].same_labels == same
        if same:
            with pytest.raises(ConfigError, match="contains the task's test samples"):
                load_proxy(config.model_copy(update={"splits": "all"}), dataset)


@pytest.mark.parametrize(
    ("private", "public", "same"),
    [
        (PAIR, PAIR, True),
        (PAIR, {**PAIR, "options": {"sets": [{"source": "wide", "train_size": 9}, "split"]}}, True),
        (PAIR, {**PAIR, "options": {"sets": ["split", "whole"]}}, False),
        ({"source": "split"}, {"source": "split", "root": "{root}/."}, True),
        ({"source": "split"}, {"source": "split", "options": {"train": "test"}}, True),
        ({"source": "split"}, {"source": "split", "root": "{root}/elsewhere"}, False),
        (SYNTHETIC, {**SYNTHETIC, "options": {**SYNTHETIC["options"], "num_train": 9}}, True),
        (SYNTHETIC, {**SYNTHETIC, "split_seed": 9}, False),
        (SYNTHETIC, {**SYNTHETIC, "options": {**SYNTHETIC["options"], "noise": 2.0}}, True),
        (SYNTHETIC, {**SYNTHETIC, "options": {"shape": [2], "num_classes": 2}}, True),
        (SYNTHETIC, {**SYNTHETIC, "options": {"shape": 2, "num_classes": 3}}, False),
        (GREY, {**GREY, "options": {**GREY["options"], "noise": 0.5, "shape": [28, 28, 1], "num_classes": 10}}, True),
        ({"source": "arrays"}, {"source": "arrays", "options": {"channels": "last"}}, True),
    ],
)
def test_the_same_source_is_the_same_folder_the_same_options_and_no_other_sets(root, private, public, same):
    """Only then have public samples labels of the task by default, and the source's test split is the task's."""
    for name in ("train", "test"):
        frame(20, seed=len(name)).to_parquet(_folder(root / "elsewhere" / "split") / f"{name}.parquet", index=False)
    for name, value in (("train", 0.0), ("test", 1.0)):
        np.save(_folder(root / "arrays") / f"{name}_x.npy", np.full((4, 2), value, np.float32))
        np.save(root / "arrays" / f"{name}_y.npy", np.arange(4) % 2)
    dataset = load_dataset(DataConfig(**private, leak_check=False))
    config = ProxyConfig(**{"root": str(root), **public, "leak_check": False})
    config = config.model_copy(update={"root": config.root.format(root=root)})
    assert load_proxy(config, dataset)[0].same_labels is same
    every = config.model_copy(update={"splits": "all"})
    if same:
        with pytest.raises(ConfigError, match="contains the task's test samples"):
            load_proxy(every, dataset)
    else:
        public = load_dataset(config)
        assert len(load_proxy(every, dataset)[0].x) == len(public.train.y) + len(public.test.y)


def _folder(path):
    path.mkdir(parents=True, exist_ok=True)
    return path


@pytest.mark.parametrize("fit", [{}, {"standardize": True}])
@pytest.mark.parametrize("public", [{"source": "whole"}, {**PAIR, "options": {"sets": ["whole", "again"]}}])
def test_a_set_without_a_test_split_is_public_once(root, public, fit):
    """`whole` and `again` have 40 rows each, and with `test_fraction: 0` none of them is drawn for a test split."""
    frame(40, seed=5).to_parquet(_folder(root / "again") / "train.parquet", index=False)
    dataset = load_dataset(DataConfig(source="split", **fit))
    public, size = {**public, "test_fraction": 0, "leak_check": False}, 40 if public["source"] == "whole" else 80
    for splits in ("train", "test", "all"):
        found, _ = load_proxy(ProxyConfig(**public, splits=splits), dataset)
        assert len(found.x) == len(rows(found.x)) == size
    some, _ = load_proxy(ProxyConfig(**public, splits="all", size=30), dataset)
    assert len(some.x) == len(rows(some.x)) == 30
    with pytest.raises(DataError, match=f"proxy.size: {size + 1} of {size} samples"):
        load_proxy(ProxyConfig(**public, splits="all", size=size + 1), dataset)


def test_a_union_with_one_set_without_a_test_split_is_not_pooled(root):
    """`wide` has 40 and 20 rows in its splits, `whole` 40 in one."""

    def public(splits, **fields):
        sets = ["wide", {"source": "whole", **fields}]
        config = ProxyConfig(source="union", options={"sets": sets}, splits=splits, leak_check=False)
        return len(load_proxy(config, dataset)[0].x)

    dataset = load_dataset(DataConfig(source="split"))
    with pytest.raises(DataError, match="all has each sample of 'whole' twice: that set has no test split"):
        public("all", test_fraction=0)
    assert public("train", test_fraction=0) == 40 + 40 and public("all") == 40 + 20 + 40


def test_tables_without_names_of_columns_have_no_order_to_differ_in():
    train, test = frame(40)[["age", "bmi"]], pandas.DataFrame(frame(20, seed=1)[["age", "bmi"]].to_numpy())
    assert from_arrays((train, frame(40)["label"]), (test, frame(20)["label"]))
    columns = [pyarrow.Table.from_pandas(each[["age", "bmi"]], preserve_index=False) for each in (frame(40), frame(20))]
    assert from_arrays((columns[0], frame(40)["label"]), (columns[1], frame(20)["label"]))


def test_public_features_of_another_number_have_no_private_fit():
    """Two principal components of three features are no two public features, though a model takes both."""
    private, public = (from_arrays((RNG.normal(size=(30, d)), np.arange(30) % 2)) for d in (3, 2))
    dataset = load_dataset(DataConfig(**private, pca=2))
    with pytest.raises(DataError, match=r"has samples of shape \(2,\) and data set .* \(3,\) before data.pca"):
        load_proxy(ProxyConfig(**public), dataset)


@pytest.mark.parametrize(("public", "shape"), [((30, 3), r"\(3,\)"), ((30, 1, 8, 8), r"\(1, 8, 8\)")])
def test_public_samples_of_another_shape_than_rows_of_a_table_are_no_pictures_to_resize(public, shape):
    private, other = (from_arrays((RNG.normal(size=size), np.arange(30) % 2)) for size in ((30, 4), public))
    words = rf"has samples of shape {shape} and data set .* \(4,\); choose another public set$"
    with pytest.raises(DataError, match=words):
        load_proxy(ProxyConfig(**other), load_dataset(DataConfig(**private)))


def test_a_validation_sample_has_no_copy_in_the_public_set():
    """Each of 100 rows occurs twice, row k as row 100 + k: the copies of the held-out rows stay with the clients."""
    x, y = RNG.normal(size=(100, 3)).astype("f4"), np.arange(200) % 2
    dataset = load_dataset(DataConfig(**from_arrays((np.concatenate([x, x]), y)), test_fraction=0))
    config = ProxyConfig(source="holdout", size=50)
    public, private = load_proxy(config, dataset)
    held_out = np.setdiff1d(np.arange(200), private)
    leaked = np.isin((private + 100) % 200, held_out)
    assert leaked.sum() > 20
    both = private[~leaked][private[~leaked] < 100]  # with their copies
    mixed = np.concatenate([private[leaked][:2], both[:49], both[:49] + 100])
    with pytest.raises(DataError, match=r"proxy 'holdout' has 2 of 100 validation samples of .*; remove copies from"):
        check_validation(config, public, dataset, mixed, private)
    check_validation(config, public, dataset, np.append(mixed[1:], both[49]), private)  # 1 of 100, the limit
    check_validation(config.model_copy(update={"leak_check": False}), public, dataset, mixed, private)
    natural = np.concatenate([private[leaked][:2], both[:49], both[1:50] + 100])  # of 2 more the others have a copy
    check_validation(config, public, dataset, natural, private)

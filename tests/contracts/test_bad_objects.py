"""Objects of a user's own, one wrong in one way each: one line names the object and says what to write instead.

Each row is (name, object, words): the words are in the first line of the error of a run of one round in this process.
Right objects, which look unusual, run.
"""

import dataclasses
import functools
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas
import pytest
import torch
import yaml
from pydantic import PrivateAttr
from torch import Tensor, nn

import flray
from flray.algorithms import ALGORITHMS
from flray.algorithms.fedavg import FedAvg
from flray.config.tracking import TRACKERS, Tracker
from flray.core.messages import Broadcast, ServerState, Update
from flray.core.protocol.probe import Probe
from flray.core.schema import own
from flray.core.schema.errors import ConfigError, FlrayError
from flray.core.schema.registry import Registry
from flray.core.schema.section import Section
from flray.data import SOURCES
from flray.data.splits import NOTED, Split, Splits
from flray.metrics.probes import PROBES
from flray.models import MODELS
from flray.scenario import DRIFTS, PARTITIONS, Drift, Partition
from flray.uplink import UPLINKS, Compressor
from tests.contracts import bad_networks as net
from tests.support.iris import FOUR_CLIENTS
from tests.support.messages import assert_says
from tests.support.processes import python

FILE = "test_bad_objects.py, line "
TRAINING = {"lr": 0.05, "local_epochs": 1, "batch_size": 8}
BASE: dict[str, Any] = {**FOUR_CLIENTS, "rounds": 1, "algorithm": {"name": "fedavg", **TRAINING}}
CLIENTS = 4


@pytest.fixture(autouse=True)
def _tables_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No name that a test adds is left in a table."""
    for table in (ALGORITHMS, UPLINKS, DRIFTS, MODELS, PARTITIONS, PROBES, SOURCES, TRACKERS):
        table.names()
        monkeypatch.setattr(table, "_table", dict(table._table))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of FLOPs that are not counted, and of few samples
        yield


def run(folder: Path, **sections: Any) -> flray.Run:
    return flray.run({**BASE, **sections}, out=folder / "run", progress=False)


def refusal(folder: Path, table: Registry | None = None, given: Any = None, **sections: Any) -> str:
    """The first line of the error of a run with `given`, registered as `mine`."""
    with pytest.raises(FlrayError) as error:
        if table is not None:
            table.add("mine", given() if _is_maker(given) else given)
        run(folder, **sections)
    return str(error.value).splitlines()[0]


class Maker:
    """Makes a class at its first use: what is wrong with the class itself is an error there."""

    def __init__(self, base: type, values: dict[str, Any], annotations: dict[str, Any]) -> None:
        self.base, self.values, self.annotations = base, values, annotations

    def __call__(self) -> Any:
        names = {**self.values, "__module__": __name__, "__annotations__": self.annotations}
        return type(self.base)("Mine", (self.base,), names, frozen=True)  # type: ignore[call-arg]


def _is_maker(given: Any) -> bool:
    return isinstance(given, Maker)


def mine(base: type[Section], annotations: dict[str, Any] | None = None, /, **values: Any) -> Maker:
    """A class `Mine` that inherits from `base`, with these methods, properties and variables."""
    return Maker(base, values, annotations or {})


# partitions -------------------------------------------------------------------------------------
def parts(labels: Any) -> list[np.ndarray]:
    return np.array_split(np.arange(len(labels)), CLIENTS)


def partition(make: Callable[[Any], Any]) -> Callable[..., Any]:
    """The partition that `make` returns for the labels."""

    def given(labels: Any, num_classes: int, config: Any, draws: Any, group: Any) -> Any:
        return make(labels)

    return given


PARTITIONS_OF_ONES_OWN = {
    "negative": (partition(lambda y: [part - 1 for part in parts(y)]), ("sample -1 for client 0", "0 to 119")),
    "too large": (partition(lambda y: [part + 1 for part in parts(y)]), ("sample 120 for client 3", "0 to 119")),
    "floats": (partition(lambda y: [part / 1 for part in parts(y)]), ("float64 [30] for client 0", "integers")),
    "masks": (partition(lambda y: [np.isin(range(120), part) for part in parts(y)]), ("mask", "np.flatnonzero")),
    "the same twice": (partition(lambda y: [parts(y)[0]] * 4), ("sample 0 for clients 0 and 1", "at most one")),
    "twice in one": (partition(lambda y: [[0, 1, 1], [2], [3], [4]]), ("sample 1 for clients 0 and 0", "once")),
    "too many": (partition(lambda y: np.array_split(np.arange(len(y)), 7)), ("7 parts; return 4",)),
    "too few": (partition(lambda y: parts(y)[:3]), ("3 parts; return 4",)),
    "nothing": (partition(lambda y: None), ("returned None (a return is missing)", "a list with one array")),
    "objects": (partition(lambda y: [np.array([1, None])] * 4), ("object [2] for client 0", "integers")),
    "columns": (partition(lambda y: [part[:, None] for part in parts(y)]), ("[30, 1] for client 0",)),
    "words": (partition(lambda y: [["a"]] * 4), ("for client 0", "integers [n]")),
    "owners": (partition(lambda y: y % 4), ("of numbers", "one array of sample numbers for each client")),
    "odd names": (partition(lambda y: dict(zip("abcd", parts(y), strict=True))), ("keys", "0 to N - 1")),
    "bad offsets": (partition(lambda y: Partition(np.arange(9), np.array([0, 20, 3, 4, 9]))), ("offsets",)),
    "an error": (partition(lambda y: [y[1000]]), ("failed: IndexError",)),
    "one argument": (lambda labels: parts(labels), ("takes (labels)", "def f(labels, num_classes, config")),
}


@pytest.mark.parametrize(
    "make",
    [
        lambda y: [part.tolist() for part in parts(y)],
        lambda y: tuple(torch.from_numpy(part) for part in parts(y)),
        lambda y: iter(parts(y)),
        lambda y: dict(enumerate(parts(y))),
        lambda y: np.stack(parts(y)),
        lambda y: [part.astype(np.uint16) for part in parts(y)],
        lambda y: np.array([*parts(y), None], dtype=object)[:4],
    ],
    ids=["lists", "tensors", "iterator", "dict", "matrix", "uint16", "array of arrays"],
)
def test_a_partition_in_another_form_is_the_same_partition(tmp_path, make):
    """Client k has the k-th quarter of iris' 120 training samples."""
    PARTITIONS.add("mine", partition(make))
    run(tmp_path, partition={"name": "mine", "clients": CLIENTS})
    indices = np.load(tmp_path / "run/partition/partition_indices.npy")
    assert indices.tolist() == list(range(120))


def test_a_partition_that_draws_from_numpys_own_generator_is_the_same_again(tmp_path):
    """The generator of the whole process has an address in the partition, and is where it was afterwards."""
    PARTITIONS.add("mine", partition(lambda y: np.array_split(np.random.permutation(len(y)), CLIENTS)))
    np.random.seed(1)
    expected = np.random.random(2).tolist()
    np.random.seed(1)
    found = []
    for folder in ("one", "other"):
        run(tmp_path / folder, partition={"name": "mine", "clients": CLIENTS})
        found.append(np.load(tmp_path / folder / "run/partition/partition_indices.npy").tolist())
    assert found[0] == found[1] and sorted(found[0]) == list(range(120)) != found[0]
    assert np.random.random(2).tolist() == expected


# sources ----------------------------------------------------------------------------------------
X = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
Y = np.arange(60) % 3
NAMES = ("a", "b", "c")


def source(x: Any = X, y: Any = Y, classes: Any = NAMES, test: Any = None, **more: Any) -> Callable[..., Any]:
    of_splits = {name: more.pop(name) for name in ("groups", *NOTED) if name in more}

    def given(config: Any) -> Any:
        return Splits(Split(x, y, **more), test, classes, **of_splits)

    return given


SOURCES_OF_ONES_OWN = {
    "nothing": (lambda config: None, ("returned None (a return is missing)", "return Splits(")),
    "a pair": (lambda config: (X, Y), ("returned (ndarray, ndarray)", "return Splits(")),
    "a dict": (lambda config: {"train": (X, Y)}, ("returned a dict", "return Splits(")),
    "a data set": (lambda config: torch.utils.data.TensorDataset(torch.zeros(2)), ("a TensorDataset",)),
    "pairs": (lambda config: Splits((X, Y), None, NAMES), ("(ndarray, ndarray) as train",)),  # type: ignore
    "tensors": (source(torch.from_numpy(X)), ("a Tensor [60, 4] as train.x", "x.numpy()")),
    "a list": (source(y=Y.tolist()), ("a list as train.y", "np.asarray")),
    "a frame": (source(pandas.DataFrame(X)), ("a DataFrame [60, 4] as train.x",)),
    "no names": (source(classes=None), ("None as classes", "in the order of the labels")),
    "a number of names": (source(classes=3), ("3 as classes", "in the order of the labels")),
    "one text": (source(classes="abc"), ("'abc' as classes",)),
    "a name twice": (source(classes=("a", "a", "b")), ("the class 'a' twice",)),
    "masked values": (source(np.ma.array(X, mask=X > 1)), ("train.x with masked values",)),
    "users' names": (source(group=np.array(["u"] * 60)), ("<U1 as train.group", "np.unique")),
    "too few users": (source(group=Y, groups=["ann", "bob"]), ("train.group with number 2", "groups has 2 names")),
    "a user below 0": (source(group=Y - 1, groups=["ann", "bob"]), ("train.group with number -1", "from 0")),
    "one user": (source(group=Y, groups="ann"), ("'ann' as groups", "the id of each number")),
    "too few domains": (source(source=Y, sources=("p", "q")), ("train.source with number 2", "sources has 2 names")),
    "one domain": (source(source=Y * 0, sources="p"), ("'p' as sources", "('photo', 'sketch')")),
    "one note": (source(notes="3 rows are left out"), ("'3 rows are left out' as notes", "several texts")),
    "one line": (source(reading="label: kind"), ("'label: kind' as reading", "several texts")),
    "one column": (source(features="abcd"), ("'abcd' as features", "names of the columns")),
    "two columns of four": (source(features=("a", "b")), ("returned 2 features", "all 4 columns of train.x")),
    "a class of no domain": (source(source=Y, sources=("p", "q", "r"), source_of=(0, 1)), ("(0, 1) as source_of", "3")),
    "two arguments": (lambda config, more: None, ("takes (config, more)", "def f(config)")),
    "an error": (lambda config: config.options["path"], ("failed: KeyError",)),
}
BAD_SPLITS = {  # `check_splits` names the source and the array
    "float64": (source(X.astype(float)), ("train.x is float64", "float32")),
    "labels of floats": (source(y=Y / 1), ("train.y is float64", "int64")),
    "short labels": (source(y=Y[:50]), ("train.y is int64 (50,)", "int64 [60]")),
    "labels from 1": (source(y=Y + 1), ("train.y holds class 3", "0..2")),
    "one-hot": (source(y=np.eye(3)[Y]), ("train.y is float64 (60, 3)", "int64 [60]")),
    "not finite": (source(np.where(X > 2, np.nan, X).astype(np.float32)), ("not a finite number",)),
    "another width": (source(test=Split(X[:9, :2], Y[:9])), ("test samples have shape (2,)",)),
    "short users": (source(group=np.zeros(3, int)), ("train.group has shape (3,)", "[60]")),
}


@pytest.mark.parametrize(
    "ids", [["ann", "bob", "cy"], np.array(["ann", "bob", "cy"]), pandas.Index(["ann", "bob", "cy"])]
)
def test_ids_of_users_are_any_sequence(tmp_path, ids):
    SOURCES.add("mine", source(group=2 - Y, groups=ids))
    run(tmp_path, data={"source": "mine"}, partition="natural", cohort={"size": 2})
    assert (tmp_path / "run/partition/clients.csv").read_text() == "client,id\n0,ann\n1,bob\n2,cy\n"


@pytest.mark.parametrize("field", [field for field in NOTED if field != "classes"])
def test_a_field_that_may_be_empty_may_be_none(tmp_path, field):
    SOURCES.add("mine", source(**{field: None}))
    assert run(tmp_path, data={"source": "mine"}).status == "finished"


DOMAINS = {"name": "domain_incremental", "domains": ["p", "q"]}


@pytest.mark.parametrize(
    ("numbers", "test", "sections"),
    [
        ({"source": Y}, Split(X[::2], Y[::2]), {"tasks": DOMAINS}),
        ({}, None, {"tasks": DOMAINS}),
        ({"source": Y, "source_of": (0, 1, 2)}, Split(X[::2], Y[::2]), {}),
    ],
)
def test_a_split_without_domains_is_one_line_only_where_they_are_read(tmp_path, numbers, test, sections):
    SOURCES.add("mine", source(test=test, sources=("p", "q", "r"), **numbers))
    data = {"source": "mine", "leak_check": False}
    assert_says(refusal(tmp_path, data=data, **sections), "domain of every training and test sample", "source=numbers")
    if "source_of" not in numbers:
        assert run(tmp_path / "without", data=data).status == "finished"


@pytest.mark.parametrize(
    "classes", [["a", "b", "c"], range(3), np.array(["x", "y", "z"]), pandas.Index(["x", "y", "z"])]
)
def test_names_of_classes_are_any_sequence(tmp_path, classes):
    SOURCES.add("mine", source(classes=classes))
    assert run(tmp_path, data={"source": "mine"}).status == "finished"


def test_channels_that_come_first_and_other_samples_are_said(tmp_path):
    """Images [n, 1, 8, 8] read as [n, H, W, C] are 1 pixel high with 8 channels."""
    images = np.random.default_rng(0).integers(0, 255, (60, 1, 8, 8)).astype(np.uint8)
    SOURCES.add("mine", source(images))
    SOURCES.add("random", lambda config: Splits(Split(np.random.default_rng().normal(size=X.shape), Y), None, NAMES))
    with pytest.warns(UserWarning, match="1 x 8 pixels with 8 channels.*transpose"):
        run(tmp_path / "images", data={"source": "mine"})
    SOURCES._table["random"] = lambda config: Splits(
        Split(np.random.default_rng().normal(size=X.shape).astype(np.float32), Y), None, NAMES
    )
    with pytest.warns(UserWarning, match="source 'random'.*other samples than before.*config.split_seed"):
        run(tmp_path / "random", data={"source": "random"})


# networks ---------------------------------------------------------------------------------------
NETWORKS = {
    "Narrow": ("model Narrow", "a tensor [2, 2]", "logits [2, 3]"),
    "Tuple": ("model Tuple", "a tuple", "logits [2, 3]"),
    "ByName": ("model ByName", "a dict", "logits [2, 3]"),
    "Labels": ("model Labels", "a tensor [2]", "logits [2, 3]"),
    "Detached": ("Detached'", "no gradient reaches its parameters", "leave detach"),
    "Writing": ("Writing'", "writes into its inputs", "x = x * 2"),
    "Failing": ("Failing' failed: ValueError: made up by the test",),
    "Unready": ("Unready' failed: AttributeError", "Module.__init__()"),
    "Unlisted": ("self.layers of Unlisted holds layers in a list", "use nn.ModuleList"),
    "Without": ("model Without failed", "forward"),
    "Double": ("Double'", "torch.float64; write model.dtype=float64"),
    "NoNetwork": ("NoNetwork' is not a torch.nn.Module class", "class Net(nn.Module)"),
    "nothing": ("nothing' returned a NoneType", "return a torch.nn.Module"),
    "Missing": ("unknown name 'Missing'",),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_probabilities_in_place_of_logits_are_said(tmp_path, dtype):
    """The sums were compared with a one of float32, which ended a network of float64 in PyTorch's error."""
    with pytest.warns(UserWarning, match="Softmax': its outputs are probabilities.*leave softmax out"):
        run(tmp_path, model={"name": f"{net.__name__}:Softmax", "dtype": dtype})


GIVEN_NETWORKS = {
    "class": (net.Right, "Right", 4),
    "with an option": ({"name": net.Right, "width": 3}, "Right", 3),
    "partial": (functools.partial(net.Right, width=5), "Right", 5),
    "function": (functools.partial(net.right, width=2), "right", 2),
    "inside": (net.Inside.Net, "Inside.Net", 4),
}


@pytest.mark.parametrize("name", GIVEN_NETWORKS)
@pytest.mark.parametrize("where", ["keyword", "configuration"])
def test_a_networks_class_given_from_python_is_recorded(tmp_path, name, where):
    """config.yaml has its import path and options, from which the same run is repeated, and resumed."""
    given, path, width = GIVEN_NETWORKS[name]
    config = {**BASE, "model": given} if where == "configuration" else BASE
    values = {"model": given} if where == "keyword" else {}
    first = flray.run(config, out=tmp_path / "run", progress=False, **values).rounds["train/loss"].tolist()
    written = yaml.safe_load((tmp_path / "run/config.yaml").read_text())["model"]
    assert written == {"name": f"{net.__name__}:{path}", "width": width}
    again = flray.run(tmp_path / "run/config.yaml", out=tmp_path / "again", progress=False)
    assert again.rounds["train/loss"].tolist() == first
    assert flray.resume(tmp_path / "run", rounds=2, progress=False).rounds["done"].tolist() == [1, 2]


def test_a_class_of_flrays_has_its_name(tmp_path):
    from flray.models.mlp import MLP

    flray.run(BASE, out=tmp_path / "run", progress=False, model=functools.partial(MLP, hidden=(3,)))
    written = yaml.safe_load((tmp_path / "run/config.yaml").read_text())["model"]
    assert written["name"] == "mlp" and written["hidden"] == [3]


class Reloaded(net.Right):
    __module__ = net.__name__


GIVEN_WRONG = {
    "a network": (net.Right((4,), 3), ("model: a Right that is built already", "model=Right")),
    "a network by name": ({"name": nn.Linear(4, 3)}, ("model.name", "built already", "model=net")),
    "of a module that was loaded again": (Reloaded, ("has another Reloaded, or none",)),
    "a module": (net, ("is a module; give a class of torch.nn.Module",)),
    "another class": (net.NoNetwork, ("NoNetwork' is not a torch.nn.Module class",)),
    "a wrong option": ({"name": net.Right, "widht": 3}, ("'widht'", "did you mean 'width'?")),
    "two, one built": ([net.Right, net.Right((4,), 3)], ("model: a Right that is built already", "model=Right")),
}


@pytest.mark.parametrize("name", GIVEN_WRONG)
def test_a_network_given_from_python_is_refused(tmp_path, name):
    given, words = GIVEN_WRONG[name]
    with pytest.raises(ConfigError) as error:
        flray.run(BASE, out=tmp_path / "run", progress=False, model=given)
    assert_says(error.value, *words)


def test_a_class_that_was_loaded_again_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(net, "Right", net.Narrow)
    with pytest.raises(ConfigError, match=r"has another Right.*import it anew"):
        flray.run(BASE, out=tmp_path / "run", progress=False, model=net.Inside.Net.__mro__[1])


# algorithms -------------------------------------------------------------------------------------
def after(method: str, change: Callable[..., Any]) -> Callable[..., Any]:
    """FedAvg's method, whose result goes through `change(result, *arguments)`."""

    def changed(self: Any, *arguments: Any) -> Any:
        return change(getattr(FedAvg, method)(self, *arguments), *arguments)

    return changed


def instead(result: Any) -> Callable[..., Any]:
    return lambda self, *arguments: result(*arguments) if callable(result) else result


def keeps_in_a_dict(self: Any, ctx: Any, state: Any, updates: Any, cohort: Any) -> Any:
    self.cache["round"] = ctx.clock.round
    return FedAvg.aggregate(self, ctx, state, updates, cohort)


def assigns(self: Any, ctx: Any, state: Any, updates: Any, cohort: Any) -> Any:
    self.lr = 0.5
    return state, {}


def assigns_by_force(self: Any, ctx: Any, state: Any, updates: Any, cohort: Any) -> Any:
    object.__setattr__(self, "lr", 0.5)
    return state, {}


async def waits(self: Any, ctx: Any, broadcast: Any, client: Any, local: Any, batch: Any) -> Any:
    return local


def shorter(message: Any) -> Any:
    return message.replace(w=message.w[:-1])


HOOKS = {
    "gradiant": (mine(FedAvg, gradiant=instead(None)), ("Mine.gradiant", "did you mean 'gradient'?", "_gradiant")),
    "aggregat": (mine(FedAvg, aggregat=instead(None)), ("did you mean 'aggregate'?",)),
    "end_": (mine(FedAvg, end_=instead(None)), ("did you mean 'end'?",)),
    "begin_client": (mine(FedAvg, begin_client=instead(None)), ("did you mean 'begin'?",)),
    "on_round_end": (mine(FedAvg, on_round_end=instead(None)), ("did you mean 'aggregate'?",)),
    "predicts": (mine(FedAvg, predicts=instead(None)), ("did you mean 'predict'?",)),
    "property": (mine(FedAvg, local_step=property(instead(None))), ("did you mean 'local_steps'?",)),
    "need_proxy": (mine(FedAvg, {"need_proxy": "ClassVar[bool]"}, need_proxy=True), ("'needs_proxy'?",)),
    "too few": (
        mine(FedAvg, aggregate=lambda self, ctx, state: None),
        ("takes (self, ctx, state)", "updates, cohort)"),
    ),
    "too many": (mine(FedAvg, predict=lambda self, ctx, p, x, y: x), ("write def predict(self, ctx, published, x)",)),
    "a value": (mine(FedAvg, aggregate=property(instead(None))), ("aggregate is a method, not a property",)),
    "a method": (mine(FedAvg, local_batches=instead((8, 1))), ("local_batches is a property", "@property")),
    "a field": (mine(FedAvg, {"step": float}, step=0.1), ("Mine.step", "give it another name")),
    "an option": (
        mine(FedAvg, lr=property(instead(0.1))),
        ("Mine.lr", "an option that", "lr: TYPE"),
    ),
    "an option ": (mine(FedAvg, momentum=instead(0.9)), ("Mine.momentum", "an option that the class inherits")),
    "an option  ": (mine(FedAvg, lr=functools.cached_property(instead(0.1))), ("Mine.lr", "an option that")),
    "coroutine": (mine(FedAvg, step=waits), ("write def in place of async def",)),
    "no class": (lambda ctx: None, ("'mine' is a function", "inherits from Algorithm")),
    "another class": (net.Right, ("'mine' is the class Right", "inherits from Algorithm")),
    "an object": (FedAvg(lr=0.1), ("'mine' is a FedAvg", "inherits from Algorithm")),
}
RETURNS = {
    "gradient": (instead(None), ("Mine.gradient", "returned None", "return loss, g")),
    "gradient ": (after("gradient", lambda pair, *_: pair[::-1]), ("a Tensor [64] as loss", "loss.mean()")),
    "gradient  ": (after("gradient", lambda pair, *_: (pair[0], pair[1][:-1])), ("a gradient [63]; it is [64]",)),
    "gradient   ": (after("gradient", lambda pair, *_: (pair[0], pair[1].mean())), ("a gradient []; it is [64]",)),
    "step": (after("step", lambda local, *_: local.w), ("Mine.step", "a Tensor [64]", "inherits from LocalState")),
    "begin": (instead(lambda ctx, broadcast, *_: broadcast), ("Mine.begin", "a Broadcast", "LocalState")),
    "batches": (instead(lambda *_: []), ("gave client", "no batch", "steps=ctx.num_steps")),
    "batches ": (
        instead(lambda c, b, s, local, data: [(x.x, x.y) for x in data.plain]),
        ("(Tensor, Tensor) as a batch",),
    ),
    "end": (after("end", lambda pair, *_: (shorter(pair[0]), pair[1])), ("a Tensor [63]", "w of its update")),
    "end ": (after("end", lambda pair, *_: (pair[0].replace(w=pair[0].w.double()), ())), ("of float64", "float32")),
    "end  ": (after("end", lambda pair, *_: ({"w": pair[0].w}, ())), ("a dict as update", "return an Update(w, b)")),
    "end   ": (after("end", lambda pair, *_: (pair[0], [1, 2])), ("client state's value is a list",)),
    "end    ": (after("end", lambda pair, *_: pair[0]), ("returned a Update", "(update, client state)")),
    "aggregate": (instead(lambda c, state, *_: state), ("returned a ServerState", "return state, {}")),
    "aggregate ": (instead(lambda c, state, *_: (shorter(state), {})), ("a Tensor [63]", "w of its server state")),
    "aggregate  ": (
        instead(lambda c, s, u, *_: (s.replace(w=u.w[None]), {})),
        ("a Tensor [1, 64]", "float32 tensor [64]"),
    ),
    "aggregate   ": (instead(lambda c, s, u, *_: (s.replace(w=u.w.numpy()), {})), ("a ndarray [64]",)),
    "aggregate    ": (instead(lambda c, s, u, *_: (s.replace(w=None), {})), ("None",)),
    "aggregate     ": (instead(lambda c, s, u, *_: (s, {"x": "high"})), ("reports a metric 'x' of 'high'",)),
    "aggregate      ": (lambda self, c, s, u, k: (s.w.zero_(), (s, {}))[1], ("wrote into the server's state",)),
    "aggregate       ": (assigns, ("self.lr is assigned",)),
    "aggregate        ": (assigns_by_force, ("self.lr changed", "client's state or the server's")),
    "init_server": (instead(lambda ctx, w, b: ServerState(w[:-1], b)), ("a Tensor [63]", "w of its server state")),
    "broadcast": (instead(lambda ctx, state: state.w), ("a Tensor [64]", "return a Broadcast(w, b)")),
    "broadcast ": (instead(lambda ctx, state: Broadcast(state.w, len)), ("its broadcast's b is a builtin",)),
    "report": (instead(1.0), ("returned a float", "metrics")),
    "init_client": (instead(lambda ctx: [1]), ("client's first state's value is a list",)),
    "published": (instead(lambda ctx, state: state.w), ("a Tensor [64]", "Published(w, b)")),
    "modes": (instead({}), ("no inference mode", "Mode(self.predict)")),
    "modes ": (instead({"global": Update}), ("as mode 'global'", "Mode(self.predict)")),
    "weights": (instead(lambda n: torch.ones(len(n)).double()), ("weights [1.0, 1.0]", "w / w.sum()")),
    "weights ": (instead(lambda n: torch.ones(1).double()), ("a Tensor [1] of float64", "[2]")),
    "weights  ": (instead(lambda n: torch.tensor([2.0, -1.0]).double()), ("[2.0, -1.0]", "none is negative")),
    "local_steps": (instead(lambda n: np.full(len(n), 2.5)), ("steps are integers",)),
    "local_steps ": (instead(lambda n: -np.ones(len(n), int)), ("0 or more",)),
    "model_of": (instead(lambda ctx, message: message.w), ("returned a Tensor [64]", "(w, b) of a message")),
    "unsuited": (instead("beware"), ("'beware'", "a tuple of sentences")),
    "local_batches": (property(instead(8)), ("returned 8", "two integers above 0")),
}


class Cached(FedAvg, frozen=True):
    cache: dict[str, int] = {}  # noqa: RUF012

    aggregate = keeps_in_a_dict


class Private(FedAvg, frozen=True):
    _last: Any = PrivateAttr(None)

    def end(self, ctx: Any, broadcast: Any, client: Any, local: Any, data: Any) -> Any:
        self._last = local.w.clone()
        return super().end(ctx, broadcast, client, local, data)


class Shared(FedAvg, frozen=True):
    seen: ClassVar[dict[int, int]] = {}

    def end(self, ctx: Any, broadcast: Any, client: Any, local: Any, data: Any) -> Any:
        self.seen[ctx.client] = 1
        return super().end(ctx, broadcast, client, local, data)


ON_SELF = {
    kind.__name__: (kind, (f"{kind.__name__}: self.{name} changed", "client's state or the server's"))
    for kind, name in ((Cached, "cache"), (Private, "_last"), (Shared, "seen"))
}


class Helped(FedAvg, frozen=True):
    """Helpers whose names are close to those of methods, a cached value, and a helper that nothing here calls."""

    scale: float = 2.0

    def gradients(self, g: Tensor) -> Tensor:
        return g * self.scale

    def gradient(self, *arguments: Any) -> Any:
        loss, g = super().gradient(*arguments)
        return loss, self.gradients(g)

    def batch(self, data: Any, steps: int) -> Any:
        return data.batches(8, steps=steps)

    def batches(self, ctx: Any, broadcast: Any, client: Any, local: Any, data: Any) -> Any:
        return self.batch(data, ctx.num_steps)

    @functools.cached_property
    def table(self) -> list[int]:
        return [1]

    def report(self, *arguments: Any) -> Any:
        return {**super().report(*arguments), "mine/table": float(len(self.table))}

    def draw_figure(self) -> None:
        """Called by a notebook alone."""


def test_helpers_of_ones_own_are_no_misspelt_methods(tmp_path):
    ALGORITHMS.add("mine", Helped)
    assert run(tmp_path, algorithm={"name": "mine", **TRAINING}).rounds["mine/table"].tolist() == [1.0]


@pytest.mark.parametrize("table", [ALGORITHMS, PROBES, DRIFTS, UPLINKS], ids=lambda table: table.kind)
def test_no_class_of_flrays_has_a_misspelt_method(table, monkeypatch):
    """Each is checked as a user's would be, against the bases in `core`, FedAvg, `drift.py` and `compressor.py`."""
    bases = ("flray.core.", "flray.algorithms.fedavg", "pydantic")
    kinds = [table.get(name) for name in table.names()]
    monkeypatch.setattr(own, "HOME", bases)
    for kind in kinds:
        own.check_hooks.__wrapped__(kind)


# diagnostics ------------------------------------------------------------------------------------
def observing(answer: Any, at: Any = frozenset({"round"}), **values: Any) -> Maker:
    annotations = {"at": "ClassVar[Any]"}
    return mine(Probe, annotations, at=at, observe=lambda self, ctx, view, memory: answer, **values)


DIAGNOSTICS = {
    "nothing": (observing(None), ("returned None", "return ([{'name': number}, ...], memory)")),
    "rows alone": (observing([{"a": 1.0}]), ("returned a list", "memory)")),
    "one row": (observing(({"a": 1.0}, None)), ("a dict as rows",)),
    "a frame": (observing((pandas.DataFrame({"a": [1]}), None)), ("a DataFrame [1, 1] as rows",)),
    "numbers": (observing(([1.0], None)), ("a float as a row",)),
    "an object": (observing(([{"a": object()}], None)), ("'a' as <object", "a number, text, None or a vector")),
    "a matrix": (observing(([{"a": torch.ones(2, 2)}], None)), ("'a'", "a vector")),
    "a number's name": (observing(([{3: 1.0}], None)), ("the name 3",)),
    "a column of flray": (observing(([{"round": 1}], None)), ("'round', which flray writes",)),
    "a memory": (observing(([], {1, 2})), ("its memory", "not set")),
    "no place": (observing(([], None), frozenset()), ("Mine observes no place", "frozenset({'round'})")),
    "a wrong place": (observing(([], None), frozenset({"rounds"})), ("at has 'rounds'", "did you mean 'round'?")),
    "a text": (observing(([], None), "round"), ("at is a str",)),
    "wrong data": (
        observing(([], None), reads=property(instead(frozenset({"test"})))),
        ("reads has 'test'", "'tests'?"),
    ),
    "reads()": (observing(([], None), reads=instead(frozenset())), ("reads is a property",)),
    "observes": (mine(Probe, observes=instead(([], None))), ("did you mean 'observe'?",)),
    "two arguments": (mine(Probe, observe=lambda self, ctx, view: None), ("def observe(self, ctx, view, memory)",)),
    "no method": (mine(Probe), ("Mine does not define observe",)),
    "a function": (lambda ctx, view, memory: ([], None), ("is a function", "inherits from Probe")),
    "an error": (
        mine(Probe, {"at": "ClassVar[Any]"}, at={"end"}, observe=instead(lambda *_: {}["a"])),
        ("failed in", "KeyError"),
    ),
}


def test_a_diagnostic_reports_tensors_arrays_and_iterators_as_numbers(tmp_path):
    rows = [{"a": torch.tensor(1.5, requires_grad=True), "v": np.ones(2), "n": np.float32(2), "t": "x", "z": None}]
    PROBES.add("mine", observing((rows, None))())
    run(tmp_path, diagnostics=["mine"])
    table = pandas.read_parquet(tmp_path / "run/diagnostics/mine")
    assert table["a"].unique().tolist() == [1.5] and table["n"].unique().tolist() == [2.0]
    assert [list(vector) for vector in table["v"]] == [[1.0, 1.0]] * len(table) and set(table["t"]) == {"x"}


# drifts -----------------------------------------------------------------------------------------
def gone(shares: Any, **values: Any) -> Maker:
    return mine(Drift, gone=lambda self, now, client: shares, **values)


DRIFTS_OF_ONES_OWN = {
    "nothing": (gone(None), ("Mine.gone", "returned None", "a dict of shares by class")),
    "a list": (gone([0.5, 0, 0]), ("[0.5, 0, 0]", "a dict of shares by class")),
    "per cent": (gone({0: 50}), ("from 0 to 1", "class 0 is 50")),
    "negative": (gone({0: -0.1}), ("from 0 to 1", "class 0 is -0.1")),
    "not a number": (gone({0: float("nan")}), ("class 0 is nan",)),
    "a text": (gone({0: "all"}), ("class 0 is 'all'",)),
    "no class": (gone({7: 0.5}), ("integers 0 to 2", "7 is none")),
    "a name": (gone({"setosa": 0.5}), ("integers 0 to 2", "'setosa' is none")),
    "active": (gone({}, active=instead(None)), ("Mine.active", "True or False")),
    "check": (gone({}, check=instead(False)), ("Mine.check", "raise ConfigError")),
    "of": (gone({}, of=instead(None)), ("Mine.of", "return a Drift")),
    "written": (gone({}, written=instead(lambda: object())), ("Mine.written", "JSON")),
    "misspelt": (mine(Drift, gones=instead({})), ("did you mean 'gone'?",)),
    "an error": (mine(Drift, gone=lambda self, now, client: {}["a"]), ("Mine.gone", "failed: KeyError")),
    "a function": (lambda now, client: {}, ("is a function", "inherits from Drift")),
}


@pytest.mark.parametrize("shares", [{np.int64(0): np.float32(0.5)}, {0: torch.tensor(0.5)}, {0: 0, 1: 1}, {}])
def test_shares_are_any_numbers(tmp_path, shares):
    DRIFTS.add("mine", gone(shares)())
    assert run(tmp_path, drift={"name": "mine"}).status == "finished"


# encodings and trackers -------------------------------------------------------------------------
def code(encode: Callable[[Tensor], Any], decode: Callable[[Any], Any] = lambda sent: sent) -> Maker:
    return mine(Compressor, encode=lambda self, x, draws: encode(x), decode=lambda self, sent, size: decode(sent))


UPLINKS_OF_ONES_OWN = {
    "nothing": (code(lambda x: None), ("Mine", "None", "dense tensors by name")),
    "a list": (code(lambda x: [x]), ("its message", "not list")),
    "bytes": (code(lambda x: b"1"), ("its message", "not bytes")),
    "sparse": (code(lambda x: x.to_sparse()), ("dense tensors by name",)),
    "too short": (code(lambda x: x, lambda sent: sent[:-1]), ("a Tensor [63]", "a tensor [64] of floats")),
    "an array": (code(lambda x: x, lambda sent: sent.numpy()), ("a ndarray [64]", "a tensor [64]")),
    "integers": (code(lambda x: x, lambda sent: sent.long()), ("a Tensor [64]", "of floats")),
    "in place": (code(lambda x: x.zero_()), ("wrote into x", "x.clone()")),
    "misspelt": (mine(Compressor, encode=instead(None), decoded=instead(None)), ("did you mean 'decode'?",)),
}


MINE = {"algorithm": {"name": "mine", **TRAINING}}
# what is refused: (its table, the sections that name it, the words of every row, the rows)
REFUSED: dict[str, tuple[Registry | None, dict[str, Any], tuple[str, ...], dict[str, Any]]] = {
    "a partition": (
        PARTITIONS,
        {"partition": {"name": "mine", "clients": CLIENTS}},
        ("partition mine", FILE),
        PARTITIONS_OF_ONES_OWN,
    ),
    "a source": (SOURCES, {"data": {"source": "mine"}}, ("source 'mine'", FILE), SOURCES_OF_ONES_OWN),
    "splits": (SOURCES, {"data": {"source": "mine"}}, ("source 'mine'",), BAD_SPLITS),
    "an algorithm's class": (ALGORITHMS, MINE, (), HOOKS | ON_SELF),
    "what its method returns": (
        ALGORITHMS,
        MINE,
        ("Mine",),
        {name: (mine(FedAvg, **{name.strip(): given}), words) for name, (given, words) in RETURNS.items()},
    ),
    "a diagnostic": (PROBES, {"diagnostics": ["mine"]}, (), DIAGNOSTICS),
    "a drift": (DRIFTS, {"drift": {"name": "mine"}}, (), DRIFTS_OF_ONES_OWN),
    "an encoding": (UPLINKS, {"uplink": {"name": "mine"}}, (), UPLINKS_OF_ONES_OWN),
}


@pytest.mark.parametrize(("what", "name"), [(what, name) for what, (*_, rows) in REFUSED.items() for name in rows])
def test_an_object_of_ones_own_is_refused(tmp_path, what, name):
    table, sections, always, rows = REFUSED[what]
    given, words = rows[name]
    assert_says(refusal(tmp_path, table, given, **sections), *always, *words)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_is_refused(tmp_path, name):
    assert_says(refusal(tmp_path, model=f"{net.__name__}:{name}"), *NETWORKS[name])


def test_an_encoding_in_half_precision_is_read_in_single(tmp_path):
    """Half precision is exact to 2^-11 of each entry."""
    UPLINKS.add("mine", code(lambda x: x.bfloat16(), lambda sent: sent)())
    UPLINKS.add("other", code(lambda x: x.bfloat16(), lambda sent: sent.float())())
    one, other = (run(tmp_path / name, uplink={"name": name}) for name in ("mine", "other"))
    assert one.rounds["train/loss"].tolist() == other.rounds["train/loss"].tolist()
    assert one.rounds["comm/up_bytes/w"].tolist() == [2 * 2 * 64]  # of two clients


def test_a_tracker_is_named_and_the_run_goes_on(tmp_path):
    TRACKERS.add("mine", mine(Tracker, backend=instead({}))())
    with pytest.warns(UserWarning, match=r"track: mine failed \(.*returned a dict; return an object with the methods"):
        assert run(tmp_path, track=["mine"]).status == "finished"
    for given, words in {
        mine(Tracker): "Mine does not define backend",
        mine(Tracker, backends=instead(None)): "did you mean 'backend'?",
    }.items():
        assert words in refusal(tmp_path / "other", TRACKERS, given, track=["mine"])


# what Python puts into a configuration ----------------------------------------------------------
@dataclasses.dataclass
class Data:
    source: str = "iris"
    standardize: bool = True


USUAL = {
    "numpy numbers": {"rounds": np.int64(1), "seed": np.uint8(3), "algorithm.lr": np.float64(0.05)},
    "a tensor": {"rounds": torch.tensor(1)},
    "numpy's true": {"data": {"source": np.str_("iris"), "standardize": np.bool_(True)}},
    "a size": {"model": {"name": "mlp", "hidden": torch.Size([4])}},
    "an array": {"model": {"name": "mlp", "hidden": np.array([4])}},
    "a range": {"model": {"name": "mlp", "hidden": range(4, 5)}},
    "a path": {"data": {"source": Path("iris"), "standardize": True}},
    "a dataclass": {"data": Data()},
}


@pytest.mark.parametrize("name", USUAL)
def test_values_of_other_libraries_are_what_they_say(tmp_path, name):
    """The same run as with Python's own values."""
    plain = run(tmp_path).rounds["train/loss"].tolist()
    given = flray.run(BASE, out=tmp_path / "given", progress=False, **USUAL[name])
    assert given.rounds["train/loss"].tolist() == plain


UNUSUAL = {
    "a set": ({"model": {"name": "mlp", "hidden": {4, 8}}}, ("model: hidden", "a set", "write a list")),
    "an iterator": ({"model": {"name": "mlp", "hidden": (n for n in (4,))}}, ("a generator", "write a list")),
    "a seed that is none": ({"seed": [0, "one"]}, ("seed", "integer")),
    "a method that is none": ({"algorithm": ["fedavg", "fedproxx"]}, ("fedproxx", "did you mean 'fedprox'?")),
    "several widths": ({"model": "resnet8", "model.projection": [4, 8]}, ("projection", "'model.projection=4,8'")),
    "a frame": ({"data": pandas.DataFrame({"a": [1]})}, ("DataFrame is an object", "flray.data.from_hf(")),
    "arrays": ({"data": (X, Y)}, ("flray.data.from_arrays(",)),
    "a data set": ({"data": torch.utils.data.TensorDataset(torch.zeros(2))}, ("flray.data.from_torch(",)),
    "a loader": ({"data": torch.utils.data.DataLoader(torch.zeros(4))}, ("from_torch(loader.dataset)",)),  # type: ignore
    "arrays by name": ({"data": {"x": X, "y": Y}}, ("flray.data.from_arrays(",)),
    "a misspelt argument": ({"progres": False}, ("progres: unknown key", "did you mean progress=")),
    "several values in a section": ({"cohort": {"size": [2, 3]}}, ("cohort.size", "'cohort.size=2,3'")),
    "layers": ({"model": torch.nn.Sequential()}, ("Sequential that is built", "def net(input_shape, num_classes)")),
    "clients' samples": ({"partition": [np.arange(5), np.arange(5, 9)]}, ("sample numbers", "PARTITIONS.add(")),
    "a schedule": ({"algorithm.lr": lambda round: 0.1}, ("algorithm.lr", "valid number")),
    "an optimizer": ({"algorithm.optimizer": torch.optim.SGD}, ("algorithm.optimizer", "'sgd' or 'adam'")),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_a_value_that_no_configuration_has_is_refused(tmp_path, name):
    given, words = UNUSUAL[name]
    with pytest.raises(FlrayError) as error:
        flray.run(BASE, out=tmp_path / "run", progress=False, **given)
    assert_says(error.value, *words)


def test_a_run_stands_for_its_folder(tmp_path):
    first = run(tmp_path)
    assert flray.resume(first, rounds=2, progress=False).rounds["done"].tolist() == [1, 2]
    assert flray.load(first).rounds["done"].tolist() == [1, 2]


@pytest.mark.parametrize("config", [None, 5, [BASE, BASE]], ids=["none", "number", "list"])
def test_what_is_no_configuration_is_refused(tmp_path, config):
    with pytest.raises(ConfigError, match="give a YAML file, a mapping or an Experiment"):
        flray.run(config, out=tmp_path / "run", progress=False)


BAD = """
from flray.scenario import PARTITIONS

def beyond(labels, num_classes, config, draws, group):
    return [range(0, 60), range(61, 121)]

PARTITIONS.add("beyond", beyond)
"""


@pytest.mark.slow
def test_on_the_command_line_it_is_one_line_and_no_traceback(tmp_path):
    """Iris has 120 training samples, 0 to 119; the second client asks for 120."""
    (tmp_path / "bad.py").write_text(BAD)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({**BASE, "partition": {"name": "beyond", "clients": 2}}))
    done = python("-m", "flray", "run", "config.yaml", "--import", "bad", "--out", "run", status=2, cwd=tmp_path)
    (line,) = [line for line in done.stderr.splitlines() if "beyond" in line]
    assert "Traceback" not in done.stderr + done.stdout
    assert_says(line, "partition beyond: beyond (bad.py, line 4)", "sample 120 for client 1", "0 to 119")

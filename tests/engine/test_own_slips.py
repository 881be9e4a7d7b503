"""Slips in a user's own parts that trained something else in silence: each is right now, or one line."""

import array
import collections
import copy
import dataclasses
import functools
import logging
import re
import sys
import warnings
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from pydantic import PrivateAttr
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributions.utils import lazy_property

import flray
from flray.algorithms.fedavg import FedAvg
from flray.core.messages import ClientState, Published, Record, ServerState
from flray.core.network import attributes
from flray.core.protocol.aggregation import Aggregated, Aggregation
from flray.core.protocol.probe import Probe
from flray.core.schema.errors import AlgorithmError, ConfigError, OwnCodeError
from flray.core.schema.hp import hp
from flray.core.schema.section import Section
from flray.data import DataConfig, load_dataset
from flray.data.sources import SOURCES
from flray.data.splits import Split, Splits
from flray.engine import blame
from flray.engine.client import out_of_scratch
from flray.engine.trial import try_network
from flray.ops.losses import cross_entropy
from flray.scenario.partition import make_partition
from flray.scenario.partition_config import PARTITIONS, PartitionConfig
from flray.uplink import Compressor
from flray.uplink.transform import Transform

BASE = {
    "name": "slips", "seed": 0, "rounds": 2, "data": {"source": "iris", "standardize": True},
    "model": {"name": "mlp", "hidden": [8]},
    "partition": {"name": "iid", "clients": 3}, "cohort": {"size": 3},
    "resources": {"executor": "local"}, "evaluate": {"clients": False},
}  # fmt: skip
LOCAL = {"lr": 0.1, "local_epochs": 2, "batch_size": 16}


class Kept(ClientState):
    last: Tensor


class KeepsView(FedAvg, frozen=True):
    """Each client starts from half of the global model and half of its own last one, which it keeps."""

    copies: bool = False

    def init_client(self, ctx):
        return Kept(ctx.objective.initial()[0])

    def begin(self, ctx, broadcast, client, data):
        return super().begin(ctx, broadcast.replace(w=0.5 * (broadcast.w + client.last)), client, data)

    def end(self, ctx, broadcast, client, local, data):
        update, _ = super().end(ctx, broadcast, client, local, data)
        return update, Kept(local.w.clone() if self.copies else local.w)


class Averaged(ServerState):
    mean: Tensor


class PolyakMean(FedAvg, frozen=True):
    """Tests read the mean of the last two global models; the next round starts from the last one."""

    whole: bool = True

    def init_server(self, ctx, w, b):
        return Averaged(w, b, mean=w)

    def aggregate(self, ctx, state, updates, cohort):
        after, metrics = super().aggregate(ctx, state, updates, cohort)
        return after.replace(mean=0.5 * (state.w + after.w)), metrics

    def published(self, ctx, state):
        return Published(state.mean, state.b)

    def model_of(self, ctx, message):
        both = isinstance(message, Averaged) and self.whole
        return (message.mean, message.b) if both else super().model_of(ctx, message)


class TwoGradients(FedAvg, frozen=True):
    """The mean of the gradients at w and at w less its step (extragradient), both kept."""

    copies: bool = False

    def gradient(self, ctx, broadcast, client, local, batch):
        loss, here = super().gradient(ctx, broadcast, client, local, batch)
        here = here.clone() if self.copies else here
        _, there = super().gradient(ctx, broadcast, client, local.replace(w=local.w - self.lr * here), batch)
        return loss, 0.5 * here + 0.5 * there


class InTheLoss(FedAvg, frozen=True):
    """FedProx as one would first write it."""

    def gradient(self, ctx, broadcast, client, local, batch):
        def loss(model):
            return cross_entropy(model(batch.x), batch.y, ctx.classes) + 0.5 * (local.w - broadcast.w).square().sum()

        return ctx.objective.value_and_grad(loss, local.w, local.b, out=local.grad)


class OtherLoss(FedAvg, frozen=True):
    """A loss that is none."""

    way: str = "none"

    def gradient(self, ctx, broadcast, client, local, batch):
        def loss(model):
            each = torch.nn.functional.cross_entropy(model(batch.x), batch.y, reduction="none")
            return {
                "none": None,
                "each": each,
                "pair": (each.mean(), each),
                "float": 0.5,
                "apart": each.mean().detach(),
            }[self.way]

        return ctx.objective.value_and_grad(loss, local.w, local.b, out=local.grad)


class Tempered(FedAvg, frozen=True):
    """A temperature beside the network, which is to be learned or, where it requires no gradient, is a constant."""

    learned: bool = True

    def gradient(self, ctx, broadcast, client, local, batch):
        temperature = torch.nn.Parameter(torch.tensor(2.0), requires_grad=self.learned)
        x = batch.x.clone().requires_grad_()  # of a gradient penalty

        def loss(model):
            value = torch.nn.functional.cross_entropy(model(x) / temperature, batch.y)
            (slope,) = torch.autograd.grad(value, x, create_graph=True)
            return value + slope.square().sum()

        return ctx.objective.value_and_grad(loss, local.w, local.b, out=local.grad)


class Noise(Transform, frozen=True):
    way: str = "copy"

    def client(self, sender, sent):
        noise = torch.from_numpy(sender.rng().normal(size=len(sent.w))).to(sent.w.dtype)
        if self.way == "in place":
            sent.w.add_(0.1 * noise)
            return sent
        w = {"copy": sent.w + noise, "double": sent.w + noise.double(), "short": sent.w[:3], "none": None}[self.way]
        return w if self.way == "none" else sent._replace(w=w)


class Measures(Transform, frozen=True):
    way: str

    def pooled(self, receiver, mean):
        norm = mean.w.norm()
        added = {"right": {"mine/norm": norm}, "ours": {"round": 77}, "text": {"x": "high"}, "list": None}[self.way]
        return mean._replace(metrics=added and {**mean.metrics, **added}), None


class Slow(Aggregation[Tensor], frozen=True):
    way: str = "right"

    def initial(self, ctx, w, b):
        return torch.zeros_like(w)

    def combine(self, ctx, own, before, updates, cohort, buffers):
        w = 0.5 * (before.w + updates.w)
        w = {"array": w.numpy(), "short": w[:3]}.get(self.way, w)
        return Aggregated(w, updates.b, [own] if self.way == "list" else own)


def trained(folder, algorithm="fedavg", **values):
    config = {**BASE, "algorithm": {"name": algorithm, **LOCAL, **values.pop("options", {})}}
    return load_file(flray.run({**config, **values}, out=folder, progress=False).folder / "model.safetensors")


class OwnStep(FedAvg, frozen=True):
    """Plain SGD by hand: nothing tells the engine of a loss."""

    def step(self, ctx, broadcast, client, local, batch):
        _, g = self.gradient(ctx, broadcast, client, local, batch)
        local.w.add_(g, alpha=-self.lr)
        return local


class OwnAdamStep(FedAvg, frozen=True):
    counts: bool = True

    def step(self, ctx, broadcast, client, local, batch):
        _, g = self.gradient(ctx, broadcast, client, local, batch)
        local.w.add_(self.direction(ctx, broadcast, local, g), alpha=-self.lr)
        moments = local.moments.replace(steps=local.moments.steps + 1)
        return local.replace(moments=moments) if self.counts else local


def test_a_step_with_adam_counts_itself(tmp_path):
    own = trained(tmp_path / "own", OwnAdamStep, options={"optimizer": "adam"})
    adam = trained(tmp_path / "adam", "fedavg", options={"optimizer": "adam"})
    assert all(torch.equal(own[key], adam[key]) for key in adam)
    with pytest.raises(AlgorithmError, match=r"OwnAdamStep\.step: .*steps=local\.moments\.steps \+ 1"):
        trained(tmp_path / "uncounted", OwnAdamStep, options={"optimizer": "adam", "counts": False})


def test_a_loss_that_no_step_counted_is_no_number(tmp_path):
    plain = {"momentum": 0.0, "weight_decay": 0.0}
    own, fedavg = (
        flray.run({**BASE, "algorithm": {"name": name, **LOCAL, **plain}}, out=tmp_path / str(n), progress=False)
        for n, name in enumerate((OwnStep, "fedavg"))
    )
    assert own.rounds["train/loss"].isna().all() and fedavg.rounds["train/loss"].notna().all()
    assert own.rounds["test/loss"].tolist() == fedavg.rounds["test/loss"].tolist()


def test_the_stored_model_is_the_one_that_tests_read(tmp_path):
    """The mean of FedAvg's models after one round and after two."""
    one, two = (trained(tmp_path / str(rounds), "fedavg", rounds=rounds) for rounds in (1, 2))
    mean = trained(tmp_path / "mean", PolyakMean)
    assert all(torch.equal(mean[key], 0.5 * (one[key] + two[key])) for key in mean)
    with pytest.raises(AlgorithmError, match=r"PolyakMean\.published .*override PolyakMean\.model_of"):
        trained(tmp_path / "other", PolyakMean, options={"whole": False})


@pytest.mark.parametrize("kind", [KeepsView, TwoGradients])
def test_what_would_be_overwritten_is_copied(tmp_path, kind):
    """The same bits as with `.clone()` in the user's code."""
    with_clone = trained(tmp_path / "a", kind, options={"copies": True})
    without = trained(tmp_path / "b", kind)
    assert all(torch.equal(without[key], with_clone[key]) for key in with_clone)
    plain = trained(tmp_path / "c")
    assert not all(torch.equal(without[key], plain[key]) for key in plain)


def test_a_state_in_scratch_memory_is_copied_and_another_is_not():
    scratch, own = torch.arange(6.0), torch.ones(2)

    class State(Record):
        view: Tensor
        array: np.ndarray
        own: Tensor

    after = out_of_scratch(State(scratch[2:4], scratch.numpy()[1:3], own), [scratch])
    scratch.zero_()
    assert after.view.tolist() == [2.0, 3.0] and after.array.tolist() == [1.0, 2.0] and after.own is own


class Outside(FedAvg, frozen=True):
    """Writes where torch does not count it, or keeps what no other process has, from round 1 on."""

    way: str = "numpy"
    calls: ClassVar[int] = 0

    @functools.cached_property
    def table(self):
        return torch.arange(3.0)

    def begin(self, ctx, broadcast, client, data):
        self.table.sum()  # computed once, and the same everywhere
        if ctx.clock.round == 1:
            del self.table  # and computed again
        if ctx.clock.round:
            if self.way == "numpy":
                broadcast.w.numpy()[:2] = 0
            elif self.way == "attribute":
                kept = self.__dict__.setdefault("velocities", {})
                kept[len(kept)] = 1
            elif self.way == "class":
                type(self).calls += 1
        return super().begin(ctx, broadcast, client, data)


class Held(FedAvg, frozen=True):
    """Keeps something in data of its class: in a place of its own, or within a container."""

    way: str
    _past: ClassVar[list] = []
    last: ClassVar[collections.deque] = collections.deque(maxlen=2)
    nested: ClassVar[dict] = {"w": [], 0: [0]}
    total: ClassVar[Tensor] = torch.zeros(1)
    counts: ClassVar[np.ndarray] = np.zeros(2)
    chosen: ClassVar[Any] = None
    number: ClassVar[re.Pattern] = re.compile("[0-9]+")

    @staticmethod
    @functools.lru_cache
    def squared(number):
        return number * number

    def gradient(self, ctx, broadcast, client, local, batch):
        if self.way == "client":
            self.nested[0][0] += 1
        self.squared(len(batch.y))
        return super().gradient(ctx, broadcast, client, local, batch)

    def aggregate(self, ctx, state, updates, cohort):
        self.number.findall("12")
        logging.getLogger(__name__).debug("round %d", self.squared(ctx.clock.round))
        match self.way:
            case "_past":
                self._past.append(1)
            case "last":
                self.last.append(1)
            case "nested":
                self.nested["w"].append(updates.w)
            case "total":
                self.total.add_(1)
            case "counts":
                self.counts[0] += 1
            case "chosen":
                type(self).chosen = 3
        return super().aggregate(ctx, state, updates, cohort)


class Writes(FedAvg, frozen=True):
    """Writes into what a cached property has computed."""

    way: str = "dict"

    @functools.cached_property
    def seen(self):
        return {"n": 0} if self.way == "dict" else torch.zeros(1)

    def gradient(self, ctx, broadcast, client, local, batch):
        if self.way == "dict":
            self.seen["n"] += 1
        else:
            self.seen.add_(1)
        return super().gradient(ctx, broadcast, client, local, batch)


class Remembers(Slow, frozen=True):
    seen: ClassVar[list] = []

    def combine(self, ctx, own, before, updates, cohort, buffers):
        if self.way == "in place":
            before.w.add_(updates.w)
        else:
            self.seen.append(1)
        return Aggregated(before.w, updates.b, own)


class Counts(Compressor, frozen=True):
    sent: ClassVar[dict] = {}

    def encode(self, x, draws):
        self.sent["n"] = 1 + self.sent.get("n", 0)
        return {"x": x}

    def decode(self, sent, size):
        return sent["x"]


class Watches(Probe, frozen=True):
    at: ClassVar[frozenset] = frozenset({"round"})
    seen: ClassVar[list] = []

    def observe(self, ctx, view, memory):
        self.seen.append(1)
        return [{"n": len(self.seen)}], memory


class OfSource(Outside, frozen=True):
    """Its cached property is its parent's."""


class Running(Section, frozen=True):
    """A part with options, and a mean of its own."""

    limits: dict[str, float] = hp({"low": 1.0}, doc="by name")
    _past: list = PrivateAttr(default_factory=list)

    @functools.cached_property
    def scale(self):
        return {"of": 2 * self.limits["low"]}


class Tally:
    """A helper: its state is in an attribute, in a slot, or in that of another one."""

    number = re.compile("[0-9]+")
    log = logging.getLogger(__name__)

    def __init__(self, inner=None):
        self.n, self.inner, self.around = 0, inner, self

    @functools.cached_property
    def scale(self):
        return Tally()


@dataclasses.dataclass(slots=True)
class Slotted:
    n: int = 0


class WithParts(FedAvg, frozen=True):
    """Keeps something in a part with options, or in a helper."""

    way: str
    detector: Running = Running()
    detectors: tuple[Running, ...] = (Running(),)
    helper: ClassVar[Tally] = Tally(Slotted())

    def works(self):
        assert self.detector.scale["of"] == 2 and self.helper.scale.n == 0
        match self.way:
            case "detector._past":
                self.detector._past.append(1.0)
            case "detector.limits":
                self.detector.limits["low"] *= 0.5
            case "detectors":
                self.detectors[0]._past.append(1)
            case "helper.n":
                self.helper.n += 1
            case "helper.inner.n":
                self.helper.inner.n += 1
            case "helper.shared":
                Tally.shared = 1
            case "helper.scale.n":
                self.helper.scale.n += 1


PARTS = (
    "detector._past",
    "detector.limits",
    "detectors",
    *(f"helper.{n}" for n in ("n", "inner.n", "shared", "scale.n")),
)


@pytest.mark.parametrize("name", PARTS)
def test_a_part_and_a_helper_keep_nothing_but_what_is_computed_once(monkeypatch, name):
    monkeypatch.setattr(WithParts, "helper", Tally(Slotted()))
    monkeypatch.setattr(Tally, "shared", 0, raising=False)
    own = WithParts(way=name, detector=Running(), detectors=(Running(),))
    standing = blame.Standing(own)
    WithParts.works(own.model_copy(update={"way": ""}))
    standing.check("in round 1")
    standing = blame.Standing(own)
    own.works()
    with pytest.raises(AlgorithmError, match=rf"WithParts: self\.{name} changed in round 2"):
        standing.check("in round 2")


@pytest.mark.parametrize("method", [OfSource, Held])
def test_what_is_computed_once_may_be_kept(tmp_path, method):
    same = trained(tmp_path / "a", method, options={"way": "none"})
    assert all(torch.equal(same[key], value) for key, value in trained(tmp_path / "b").items())


def test_an_option_that_an_own_source_has_not_read_is_said(monkeypatch):
    def line(config):
        x = np.arange(config.options.get("size", 6), dtype=np.float32)[:, None]
        return Splits(Split(x, (x[:, 0] > 2).astype(np.int64)), None, ("low", "high"))

    monkeypatch.setattr(SOURCES, "_table", {**SOURCES._table})
    SOURCES.add("line", line)
    with pytest.warns(UserWarning, match=r"data.options.sise: line .* has not read it; it reads size"):
        assert len(load_dataset(DataConfig(source="line", options={"sise": 8}, test_fraction=0)).train.y) == 6
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(load_dataset(DataConfig(source="line", options={"size": 8}, test_fraction=0)).train.y) == 8


@pytest.mark.parametrize("read", ["get", "item", "all"])
def test_an_option_that_an_own_partition_has_not_read_is_said(monkeypatch, read):
    def halves(labels, num_classes, config, draws, group):
        options = config.options
        given = dict(**options) if read == "all" else options
        size = given.get("first", 10) if read == "get" else given["first"]
        return [range(size), range(size, len(labels))]

    name = "halves"
    monkeypatch.setattr(PARTITIONS, "_table", {**PARTITIONS._table})  # other tests read the table
    PARTITIONS.add(name, halves)
    labels, config = np.arange(40) % 2, {"name": name, "clients": 2}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert make_partition(PartitionConfig(**config, options={"first": 12}), labels).sizes.tolist() == [12, 28]
    if read == "get":
        with pytest.warns(UserWarning, match=r"partition.options.frist: halves .* has not read it; it reads first"):
            make_partition(PartitionConfig(**config, options={"frist": 12}), labels)


W = r"as w; w is a float32 tensor \[\d+\]"
NEXT_W = r"as w of its next model; w is a float32 tensor \[\d+\]"
HERE = r" \(test_own_slips.py, line \d+\).*"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        # a term of the parameters beside the model
        ({"algorithm": InTheLoss}, f"loss{HERE}add the term's gradient to g"),
        *[
            ({"algorithm": OtherLoss, "options": {"way": way}}, rf"loss{HERE}{said}")
            for way, said in {
                "none": r"returned None \(a return is missing\); a loss is one number",
                "each": r"returned a Tensor \[\d+\]; .*loss.mean",
                "pair": r"returned \(Tensor, Tensor\); a loss is one number",
                "float": "returned a float; a loss is one number",
                "apart": "returned a number without a gradient; compute it from model.x.",
            }.items()
        ],
        # what no other process has, in later rounds too
        (
            {"algorithm": Outside, "options": {"way": "numpy"}},
            "Outside: a client of exchange 'train' wrote into `broadcast`",
        ),
        ({"algorithm": Outside, "options": {"way": "attribute"}}, "Outside: self.velocities changed"),
        ({"algorithm": Outside, "options": {"way": "class"}}, "Outside: self.calls changed"),
        *[
            ({"algorithm": Held, "options": {"way": way}}, rf"Held: self.{way} changed in Held.aggregate{HERE}")
            for way in ("_past", "last", "nested", "total", "counts", "chosen")
        ],
        ({"algorithm": Held, "options": {"way": "client"}}, "Held: self.nested changed while clients trained in"),
        ({"algorithm": Writes}, "Writes: self.seen changed while clients trained in"),
        ({"algorithm": Writes, "options": {"way": "tensor"}}, "Writes: self.seen changed while clients trained in"),
        ({"aggregation": Remembers()}, r"Remembers: self.seen changed in FedAvg.*return .*Aggregated\(w, b, own\)"),
        ({"uplink": [Counts()]}, "Counts: self.sent changed while clients trained in"),
        ({"diagnostics": [Watches()]}, "Watches: self.seen changed in observe.*its memory"),
        ({"aggregation": Remembers(way="in place")}, rf"Remembers.combine{HERE}in place; .*return Aggregated\(w, b\)"),
        # a transform that sends something else
        (
            {"uplink": [Noise(way="in place")]},
            f"Noise.client{HERE}wrote into the update in place; return sent._replace",
        ),
        ({"uplink": [Noise(way="double")]}, rf"Noise.client .*returned a Tensor \[\d+\] of float64 {W}"),
        ({"uplink": [Noise(way="short")]}, rf"Noise.client .*returned a Tensor \[3\] of float32 {W}"),
        ({"uplink": [Noise(way="none")]}, "Noise.client .*return sent, or sent._replace"),
        (
            {"uplink": [Measures(way="ours"), Noise()]},
            f"Measures.pooled{HERE}reports a metric 'round', and flray writes",
        ),
        ({"uplink": [Measures(way="text")]}, f"Measures.pooled{HERE}reports a metric 'x' of 'high'"),
        ({"uplink": [Measures(way="list")]}, f"Measures.pooled{HERE}metrics is a dict of numbers by name"),
        # a rule that returns no model
        ({"aggregation": Slow(way="array")}, rf"Slow.combine{HERE}returned a ndarray \[\d+\] {NEXT_W}"),
        ({"aggregation": Slow(way="short")}, rf"Slow.combine{HERE}returned a Tensor \[3\] of float32 {NEXT_W}"),
        ({"aggregation": Slow(way="list")}, f"Slow.combine{HERE}its state's value is a list"),
    ],
)
def test_a_slip_is_named_with_its_method(tmp_path, given, says):
    with pytest.raises((OwnCodeError, AlgorithmError), match=says):
        trained(tmp_path / "a", **given)


def test_a_parameter_beside_the_network_is_said_to_stay_as_it_is(tmp_path):
    with pytest.warns(UserWarning, match=rf"loss{HERE}nn.Parameter that is not the network's and is not trained"):
        trained(tmp_path / "a", algorithm=Tempered)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained(tmp_path / "b", algorithm=Tempered, options={"learned": False})


def test_a_transform_that_returns_a_new_update_is_right(tmp_path):
    noisy = trained(tmp_path / "a", uplink=[Noise()])
    assert any(not torch.equal(noisy[key], value) for key, value in trained(tmp_path / "b").items())


def test_a_transform_reports_a_tensor_as_a_number(tmp_path):
    run = flray.run({**BASE, "algorithm": {"name": "fedavg", **LOCAL}, "uplink": [Measures(way="right")]}, out=tmp_path)
    assert run.rounds["mine/norm"].dtype == float and (run.rounds["mine/norm"] > 0).all()


class Has(FedAvg, frozen=True):
    """Has an object in the class."""

    held: ClassVar[Any] = None


def standing_with(monkeypatch, held):
    monkeypatch.setattr(Has, "held", held)
    return blame.Standing(Has())


def refused(standing, name="held"):
    with pytest.raises(AlgorithmError, match=rf"Has: self\.{name} changed in a client"):
        standing.check("in a client")


def test_of_a_large_array_a_sample_is_compared(monkeypatch):
    """8 MiB, of which 1 MiB is read."""
    array = np.zeros(2**21, np.float32)
    standing = standing_with(monkeypatch, array)
    array[0] = 1  # none of the sampled places
    standing.check("in a client")
    array += 1
    refused(standing)


TENSORS = [torch.zeros(2**14) for _ in range(100)]  # 64 KiB each
ARRAYS = ({"x": np.zeros(2**19, np.float32)}, np.zeros(10))
TEXTS = ["a" * 2**21]
TABLE = {(row, column): [0.5] for row in range(100) for column in range(100)}


@pytest.mark.parametrize(
    ("held", "write"),
    [
        (TENSORS, lambda: TENSORS[99].add_(1)),
        (TENSORS, lambda: TENSORS[99].__setitem__(5, 1)),
        (ARRAYS, lambda: ARRAYS[0]["x"].__iadd__(1)),
        (ARRAYS, lambda: ARRAYS[1].__setitem__(9, 1)),
        ([TEXTS], lambda: TEXTS.__setitem__(0, "a" * 2**21 + "b")),
        (TABLE, lambda: TABLE.__setitem__((99, 98), [0.25])),
        (TABLE, lambda: [loss.append(1) for loss in TABLE.values()]),
        ([TABLE], lambda: TABLE.__setitem__("new", 1)),
    ],
)
def test_of_large_data_in_a_container_little_is_read(monkeypatch, held, write):
    """At most 1 MiB in full, and small samples."""
    pieces = list(attributes._pieces(held, attributes._Read(brief=True)))
    assert sum(map(len, pieces)) <= 2**20 + 100 * 2**12 and len(pieces) < 5000
    standing = standing_with(monkeypatch, held)
    standing.check("in a client")
    write()
    refused(standing)


class ByName(dict):
    __getattr__ = dict.__getitem__  # raises KeyError


def test_what_is_near_the_surface_counts_beside_many_rows(monkeypatch):
    held = {"rows": [[0.5] * 10 for _ in range(600)], "seen": ByName(number=0)}
    standing = standing_with(monkeypatch, held)
    standing.check("in a client")
    held["seen"]["number"] = 1
    refused(standing)


def probabilities(categorical):
    return categorical.probs  # torch keeps them


class Lazy:
    """What each is read from is stored under its own name."""

    @functools.cached_property
    def scale(self):
        return 2.0

    @lazy_property
    def probs(self):
        return torch.ones(2)

    def step(self):
        return 1


@pytest.mark.parametrize("name", ["scale", "probs"])
@pytest.mark.parametrize("around", [lambda one: one, lambda one: [one], lambda one: {"a": (one,)}])
def test_what_is_computed_once_may_appear_in_an_object_and_in_one_of_a_container(monkeypatch, name, around):
    one = Lazy()
    standing = standing_with(monkeypatch, around(one))
    getattr(one, name)
    assert name in vars(one)
    standing.check("in a client")
    one.step = one.__class__  # another value in a method's place is a state
    with pytest.raises(AlgorithmError, match=r"or lru_cache .*, a global of the module .* or a logger of logging$"):
        standing.check("in a client")


class Losses(list):
    best = 1.0


class Options(collections.UserDict):
    pass


@pytest.mark.parametrize(
    ("held", "write"),
    [
        ([Slotted()], lambda held: setattr(held[0], "n", 1)),
        ((Slotted(),), lambda held: setattr(held[0], "n", 1)),
        ({"a": Slotted()}, lambda held: setattr(held["a"], "n", 1)),
        (Losses(), lambda held: setattr(held, "best", 0.5)),
        (Options(a=1), lambda held: held.update(a=2)),
        (Options(a=1), lambda held: setattr(held, "n", 1)),
        (collections.UserDict(), lambda held: held.update(a=2)),
        (bytearray(b"ab"), lambda held: held.append(1)),
        ([bytearray(b"ab")], lambda held: held[0].__setitem__(0, 1)),
        (bytearray(), lambda held: held.append(1)),
        (array.array("d", [1.0]), lambda held: held.__setitem__(0, 2.0)),
    ],
)
def test_what_slots_attributes_of_containers_and_bytes_keep_is_state(monkeypatch, held, write):
    for nested in (False, True):
        one = copy.deepcopy(held)
        standing = standing_with(monkeypatch, {"nested": one} if nested else one)
        standing.check("in a client")
        write(one)
        refused(standing)


def test_a_helper_of_the_users_script_is_looked_at_where_another_program_runs(monkeypatch):
    """As in Ray's workers."""
    helper = type("Helper", (), {"__module__": "__main__"})()
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "/lib/site-packages/ray/default_worker.py", raising=False)
    standing = standing_with(monkeypatch, helper)
    helper.n = 1
    refused(standing, "held.n")


def test_what_an_object_of_others_caches_is_no_state(monkeypatch):
    log, categorical = logging.getLogger(f"{__name__}.cache"), torch.distributions.Categorical(logits=torch.zeros(3))
    held = {"log": [log], "drawn": (categorical, functools.partial(probabilities, categorical)), "tally": [Tally()]}
    standing = standing_with(monkeypatch, held)
    assert log.isEnabledFor(logging.CRITICAL) and log._cache and len(held["drawn"][1]()) == 3
    standing.check("in a client")
    held["log"][0] = logging.getLogger(f"{__name__}.other")
    refused(standing)


def test_each_object_is_looked_at_once(monkeypatch):
    """6 that all know each other have 6! ways through them."""
    people = [Tally() for _ in range(6)]
    for one in people:
        vars(one).update({f"of_{i}": other for i, other in enumerate(people)})
    looked, attributes_of = [], blame.attributes_of
    monkeypatch.setattr(blame, "attributes_of", lambda value: looked.append(value) or attributes_of(value))
    standing = standing_with(monkeypatch, people[0])
    assert len(looked) == 1 + 6
    people[5].n += 1
    refused(standing, "held.of_5.n")


def test_what_appears_takes_no_name_from_what_was_there(monkeypatch):
    """The object of the computed one is a deeper one's as well."""
    outer = Tally(Tally(Slotted()))
    standing = standing_with(monkeypatch, outer)
    vars(outer)["scale"] = outer.inner.inner  # as the cached property stores it
    standing.check("in a client")
    outer.inner.inner.n += 1
    refused(standing, "held.inner.inner.n")


def test_a_rule_says_how_it_gets_the_models():
    with pytest.raises(ConfigError, match=r"Odd\.pooled: 'all' is none of mean, each, streamed"):

        class Odd(Slow, frozen=True):
            pooled = "all"


class InAList(nn.Module):
    def __init__(self, where: str) -> None:
        super().__init__()
        layer = nn.Linear(4, 4)
        self.teacher = [nn.Linear(4, 3).requires_grad_(False)]  # frozen: kept so on purpose
        self.held = {
            "list": [layer], "dict": {"a": layer}, "tuple": (layer,), "parameter": [nn.Parameter(torch.ones(4))],
            "lists": [[layer]], "module list": nn.ModuleList([layer]),
        }[where]  # fmt: skip
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x)


@pytest.mark.parametrize("where", ["list", "dict", "tuple", "parameter", "lists"])
def test_layers_that_nothing_trains_are_refused(where):
    kind = {"parameter": "ParameterList", "dict": "ModuleDict"}.get(where, "ModuleList")
    with pytest.raises(ConfigError, match=f"self.held of InAList .* which nothing trains; use nn.{kind}"):
        try_network("mine", lambda: InAList(where), torch.randn(4, 4), 3, 0)


def test_registered_and_frozen_ones_are_not():
    assert isinstance(try_network("mine", lambda: InAList("module list"), torch.randn(4, 4), 3, 0)[0], InAList)

"""Starting weights: what a run wrote is what the next begins with, in every process; what does not fit is one line."""

import math

import pytest
import torch
import torchvision
from safetensors.torch import load_file, save_file, save_model

from flray.core.network.objective import Objective
from flray.core.schema.errors import ConfigError
from flray.models import ModelConfig, build_model, starts_from
from flray.models.weight_files import weights_fingerprint
from flray.models.weights import load_weights, save_weights
from tests.support.messages import facts

NAME = "tests.contracts.networks:NormNet"


@pytest.fixture
def run(tmp_path):
    """A run folder with the weights of a network of 3 classes, as the server writes them."""
    objective = Objective(build_model(ModelConfig(name=NAME), (4,), 3, seed=1))
    w, b = objective.initial()
    save_weights(objective.state_dict(w + 0.5, b + 2), tmp_path / "model.safetensors")
    return tmp_path


def build(source, head="load", classes=3, seed=2, name=NAME, **options):
    config = ModelConfig(name=name, **options, weights=str(source), weights_head=head)
    return build_model(config, (4,), classes, seed)


@pytest.mark.parametrize("place", ["{}", "{}/model.safetensors", "file://{}", "file://{}/model.safetensors"])
def test_every_process_begins_with_the_file(run, place):
    """Whatever the seed: parameters and batch-norm statistics, as the flat vectors that the algorithms see."""
    written = load_file(run / "model.safetensors")
    for seed in (2, 3):
        w, b = Objective(build(place.format(run), seed=seed)).initial()
        found = Objective(build_model(ModelConfig(name=NAME), (4,), 3, seed)).state_dict(w, b)
        assert all(torch.equal(found[name], tensor) for name, tensor in written.items())
    assert b.max() >= 2


def test_weights_in_the_cache_have_a_name(run, monkeypatch):
    """`cache://NAME` is a file in FLRAY_CACHE; the error for one that is not there has the command that makes it."""
    monkeypatch.setenv("FLRAY_CACHE", str(run))
    home = run / "weights" / "mine"
    said = facts("cache://mine", "the cache has no weights", "flray pretrain CONFIG name=mine")
    with pytest.raises(ConfigError, match=said):
        build("cache://mine")
    home.mkdir(parents=True)
    (home / "model.safetensors").write_bytes((run / "model.safetensors").read_bytes())
    module, written = build("cache://mine"), load_file(run / "model.safetensors")
    assert torch.equal(module.hidden.weight, written["hidden.weight"])
    assert weights_fingerprint("cache://mine") == weights_fingerprint(str(run))
    for name in ("", "../mine", ".hidden"):
        with pytest.raises(ConfigError, match=facts("cache://NAME")):
            build(f"cache://{name}")


def test_a_fresh_head_is_the_one_of_the_seed_and_the_rest_is_the_file(run):
    """Also for another number of classes; the other numbers drawn from the seed stay the same."""
    module, written = build(run, "fresh", classes=7), load_file(run / "model.safetensors")
    alone = build_model(ModelConfig(name=NAME), (4,), 7, seed=2)
    assert torch.equal(module.head.weight, alone.head.weight) and torch.equal(module.head.bias, alone.head.bias)
    assert torch.equal(module.hidden.weight, written["hidden.weight"]) and not torch.equal(
        module.hidden.weight, alone.hidden.weight
    )


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda t: (20 * t).round().to(torch.int8), "int8"),
        (lambda t: t > 0, "bool"),
        (lambda t: t.to(torch.complex64), "complex64"),
        (lambda t: t.to_sparse(), "sparse"),
    ],
)
def test_tensors_that_are_no_floating_numbers_are_refused(run, tmp_path, change, kind):
    """They would be cast, and an int8 loses its scale."""
    written = load_file(run / "model.safetensors")
    torch.save({name: change(t) if t.is_floating_point() else t for name, t in written.items()}, tmp_path / "mine.ckpt")
    with pytest.raises(ConfigError, match=rf"as torch.*{kind}.*, torch.float32 is needed"):
        build(tmp_path / "mine.ckpt")
    torch.save({name: t.half() if t.is_floating_point() else t for name, t in written.items()}, tmp_path / "mine.ckpt")
    assert torch.equal(build(tmp_path / "mine.ckpt").hidden.weight, written["hidden.weight"].half().float())


def test_weights_with_nan_in_what_is_trained_are_refused_and_a_mask_may_have_infinity(run, tmp_path):
    written = load_file(run / "model.safetensors")
    written["hidden.weight"][1, 2] = float("nan")
    torch.save(written, tmp_path / "mine.pt")
    with pytest.raises(ConfigError, match=r"mine\.pt has NaN or infinity in hidden\.weight; give weights"):
        build(tmp_path / "mine.pt")
    module = torch.nn.Linear(2, 1)
    module.register_buffer("mask", torch.zeros(2))
    torch.save({**module.state_dict(), "mask": torch.tensor([0.0, -math.inf])}, tmp_path / "mask.pt")
    load_weights(module, str(tmp_path / "mask.pt"), "load")
    assert module.mask.tolist() == [0.0, -math.inf]


def test_an_alias_of_the_last_child_is_a_head(tmp_path):
    own = {"name": "tests.models.own_networks:Plain"}
    save_file(build_model(ModelConfig(**own), (2,), 3, seed=1).state_dict(), tmp_path / "model.safetensors")
    module = build_model(ModelConfig(**own, weights=str(tmp_path), weights_head="fresh"), (2,), 5, seed=2)
    assert module.final.out_features == 5


def test_a_tied_tensor_has_one_value_and_is_no_fresh_head(tmp_path):
    """Of two that a file had the last was taken, and a fresh head came from the file."""
    name, place = "tests.models.own_networks:TiedHead", str(tmp_path / "model.pt")
    state = build_model(ModelConfig(name=name), (2,), 2, seed=1).state_dict()
    torch.save(state, place)
    module = build(place, name=name)
    assert torch.equal(module.head.weight, state["mid.weight"]) and module.head.weight is module.mid.weight
    with pytest.raises(ConfigError, match=r"mid.weight is a tensor of the head as well.*set model.weights_head: load"):
        build(place, "fresh", name=name)
    torch.save({**state, "head.weight": state["mid.weight"] + 1}, place)
    with pytest.raises(ConfigError, match=r"has different tensors as mid.weight and head.weight, which are one in Tie"):
        build(place, name=name)


def test_a_tied_tensor_that_is_stored_once_is_read_under_each_of_its_names(tmp_path):
    """`save_model` writes it once; the file was refused as that of another network."""
    name, place = "tests.models.own_networks:TiedHead", str(tmp_path / "model.safetensors")
    theirs = build_model(ModelConfig(name=name), (2,), 2, seed=1)
    save_model(theirs, place)
    assert len(load_file(place)) == 3
    module = build(place, name=name)
    assert module.weights_read == "" and module.head.weight is module.mid.weight
    assert all(torch.equal(tensor, theirs.state_dict()[key]) for key, tensor in module.state_dict().items())


@pytest.mark.parametrize("stored", ["once", "twice"])
@pytest.mark.parametrize(
    ("name", "again"), [("TwoNamedHead", ("head.weight", "head.bias")), ("TiedHead", ("head.weight",))]
)
def test_a_tied_tensor_under_other_names_is_read_under_each_of_its_own(tmp_path, name, again, stored):
    """A plain `nn.Sequential` has a head once that a wrapper names a second time; it was refused."""
    name, place = f"tests.models.own_networks:{name}", str(tmp_path / "model.pt")
    state = build_model(ModelConfig(name=name), (2,), 2, seed=1).state_dict()
    left_out = again if stored == "once" else ()
    torch.save({f"model.{key}": t for key, t in state.items() if key not in left_out}, place)
    module = build(place, name=name)
    assert module.weights_read.startswith("by order and shape, names differ (model.")
    assert all(torch.equal(tensor, state[key]) for key, tensor in module.state_dict().items())


def test_a_tied_tensor_with_a_shape_of_its_own_is_found_by_it(tmp_path):
    name, place = f"{__name__}:NamedTwice", str(tmp_path / "model.safetensors")
    save_file({"w": torch.ones(3, 4), "b": torch.ones(3)}, place)
    module = build(place, name=name)
    assert module.weights_read == "by shape, names differ (w is net.0.weight and 1 more)"
    assert module.net[0].weight is module.head.weight and (module.head.weight == 1).all()


@pytest.mark.parametrize("network", ["Wrapped", "Standardized"])
def test_a_head_that_is_the_whole_network_is_not_fresh(tmp_path, network):
    """Every parameter was random, and the first lines said that the run starts from the file. Buffers are no layer."""
    name, place = f"tests.models.own_networks:{network}", str(tmp_path / "model.pt")
    state = build_model(ModelConfig(name=name), (4,), 3, seed=1).state_dict()
    torch.save(state, place)
    with pytest.raises(
        ConfigError, match=f"the head of {network} is the whole network, so no layer would be read; set"
    ):
        build(place, "fresh", name=name)
    assert torch.equal(build(place, name=name).net[0].weight, state["net.0.weight"])


def test_buffers_before_a_head_of_one_layer_are_read_where_it_is_fresh(tmp_path):
    own, name = Indexed((4,), 3), f"{__name__}:Indexed"
    torch.save({**own.state_dict(), "order": torch.tensor([3, 2, 1, 0])}, tmp_path / "model.pt")
    module = build(tmp_path / "model.pt", "fresh", name=name)
    assert module.order.tolist() == [3, 2, 1, 0] and not torch.equal(module.head.weight, own.head.weight)


def test_a_head_with_two_names_is_fresh_under_both(tmp_path):
    name, place = "tests.models.own_networks:TwoNamedHead", str(tmp_path / "model.pt")
    state = build_model(ModelConfig(name=name), (2,), 2, seed=1).state_dict()
    torch.save(state, place)
    module, alone = build(place, "fresh", name=name), build_model(ModelConfig(name=name), (2,), 2, seed=2)
    assert torch.equal(module.head.weight, alone.head.weight) and module.layers[1] is module.head
    assert torch.equal(module.layers[0].weight, state["layers.0.weight"])


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ({"classes": 7}, r"has head.weight of shape \[3, 8\], \[7, 8\] is needed; set model.weights_head: fresh"),
        ({"name": "mlp", "hidden": [8]}, r"has no layers.0.weight, which MLP needs; it is of another network"),
        ({"name": "torch.nn:Linear", "in_features": 4, "out_features": 3, "head": "fresh"}, "Linear declares no head"),
    ],
)
def test_what_does_not_fit_is_named(run, case, says):
    with pytest.raises(ConfigError, match=f"model.weights: {run} {says}|model.weights: {run}: {says}"):
        build(run, **case)


def theirs(run):
    """The state dict of `run` under the names of another program, in the same order."""
    ours, other = load_file(run / "model.safetensors"), {"hidden": "fc1", "norm": "bn1", "head": "fc2"}
    ours = {name: ours[name] for name in build(run).state_dict() if name in ours}  # the order of the network
    return {".".join([other[name.partition(".")[0]], *name.split(".")[1:]]): tensor for name, tensor in ours.items()}


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda state: state,
        lambda state: {name: tensor for name, tensor in state.items() if "num_batches" not in name},
        lambda state: {"state_dict": state, "epoch": 3},
        lambda state: {"model": {f"module.{name}": tensor for name, tensor in state.items()}, "args": {"lr": 0.1}},
        lambda state: {f"_orig_mod.{name}": tensor.double() for name, tensor in state.items()},
    ],
)
def test_a_file_with_other_names_is_read_by_order_and_shape_and_said(run, wrapped):
    torch.save(wrapped(theirs(run)), run / "theirs.pt")
    module, written = build(run / "theirs.pt"), load_file(run / "model.safetensors")
    assert all(torch.equal(module.state_dict()[n], t) for n, t in written.items() if "num_batches" not in n)
    config = ModelConfig(name=NAME, weights=str(run / "theirs.pt"))
    said = starts_from(config, module)
    assert "\n" not in said and "by order and shape, names differ (fc1.weight is hidden.weight and 7 more)" in said
    assert "read" not in starts_from(ModelConfig(name=NAME, weights=str(run)), build(run))  # by name: as it was


@pytest.mark.parametrize(
    "prefix", ["module.", "_orig_mod.", "_orig_mod.module.", "module._orig_mod.", "module.module."]
)
def test_what_wrappers_put_before_the_names_is_left_out_in_any_order(run, prefix):
    """A `.safetensors` file of a compiled DataParallel was refused: four of its shapes are alike."""
    written = load_file(run / "model.safetensors")
    save_file({prefix + name: tensor for name, tensor in written.items()}, run / "theirs.safetensors")
    module = build(run / "theirs.safetensors")
    assert module.weights_read == "" and all(torch.equal(module.state_dict()[n], t) for n, t in written.items())


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod."])
def test_a_network_whose_own_names_begin_as_a_wrappers_starts_from_its_own_file(tmp_path, prefix):
    name, place = "tests.models.own_networks:OwnWrapper", tmp_path / "model.safetensors"
    state = build_model(ModelConfig(name=name), (4,), 3, seed=1).state_dict()
    save_file({prefix + key: tensor for key, tensor in state.items()}, place)
    module = build(place, name=name)
    assert module.weights_read == "" and torch.equal(module.module[0].weight, state["module.0.weight"])


def test_a_head_of_another_name_is_left_out_where_the_head_is_fresh(run):
    torch.save(theirs(run), run / "theirs.pt")
    module, written = build(run / "theirs.pt", "fresh", classes=7), load_file(run / "model.safetensors")
    alone = build_model(ModelConfig(name=NAME), (4,), 7, seed=2)
    assert torch.equal(module.hidden.weight, written["hidden.weight"])
    assert torch.equal(module.head.weight, alone.head.weight)
    said = starts_from(ModelConfig(name=NAME, weights=str(run / "theirs.pt"), weights_head="fresh"), module)
    assert said.endswith("not read: fc2.weight, fc2.bias")
    body = {name: t for name, t in written.items() if not name.startswith("head.")}
    save_file({**body, "classifier.weight": torch.zeros(5, 8)}, run / "body.safetensors")
    assert build(run / "body.safetensors", "fresh").weights_read == "by name; not read: classifier.weight"


def swapped(state, first, second):
    """The same tensors with two of them in each other's place."""
    names = list(state)
    i, j = names.index(first), names.index(second)
    names[i], names[j] = names[j], names[i]
    return {name: state[name] for name in names}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda s: swapped(s, "bn1.weight", "bn1.bias"), r"tensor 3 is bn1.bias \[4\] there and norm.weight \[4\]"),
        (lambda s: swapped(s, "bn1.running_mean", "bn1.running_var"), "is bn1.running_var .* norm.running_mean"),
        (lambda s: swapped(s, "fc1.weight", "fc2.weight"), r"tensor 1 is fc2.weight \[3, 8\] there and hidden.weight"),
        (lambda s: {**s, "fc3.weight": torch.zeros(1)}, "it has 9 tensors, 8 are needed"),
        (lambda s: dict(list(s.items())[:4]), "it has 4 tensors, 8 are needed"),
        (lambda s: {"a": s, "ema": s}, "holds the state dicts a, ema; save the network's state_dict.. alone"),
        (lambda s: {**s, "epoch": 3}, "holds epoch, which is not a tensor"),
        (lambda s: [s], "holds a list; save the network's state_dict"),
    ],
)
def test_what_another_order_could_mean_is_refused_with_the_first_difference(run, change, says):
    torch.save(change(theirs(run)), run / "theirs.pt")
    with pytest.raises(ConfigError, match=says):
        build(run / "theirs.pt")


def test_layers_of_one_shape_in_another_order_are_refused(tmp_path):
    """`h.2` before `h.1`: the shapes alone would exchange two layers in silence."""
    layers = {
        f"h.{i}.{part}": torch.full((8, 8) if part == "weight" else (8,), i)
        for i in (0, 2, 1)
        for part in ("weight", "bias")
    }
    head = {"out.weight": torch.zeros(3, 8), "out.bias": torch.zeros(3)}
    torch.save({**layers, **head}, tmp_path / "theirs.pt")
    own = {"name": "mlp", "hidden": [8, 8, 8], "weights": str(tmp_path / "theirs.pt")}
    with pytest.raises(ConfigError, match=r"h\.2\.weight comes before h\.1\.weight there"):
        build_model(ModelConfig(**own), (8,), 3, seed=0)
    torch.save({**dict(sorted(layers.items())), **head}, tmp_path / "theirs.pt")
    with pytest.raises(ConfigError, match=r"tensor 1 is h\.0\.bias \[8\] there and layers\.0\.weight"):
        build_model(ModelConfig(**own), (8,), 3, seed=0)


def test_a_safetensors_file_has_no_order_so_only_shapes_that_occur_once_are_read(run):
    """`save_file` sorts by name: `b, a` would be exchanged. Of equal shapes none is taken."""
    with pytest.raises(ConfigError, match=r"has no hidden\.weight.* 4 tensors .* keeps no order; save it"):
        save_file(theirs(run), run / "theirs.safetensors")
        build(run / "theirs.safetensors")
    torch.manual_seed(5)
    shapes = {"z.bias": (3,), "a.weight": (3, 6), "b.bias": (6,), "c.w": (6, 8)}
    other = {name: torch.randn(shape) for name, shape in shapes.items()}
    save_file(other, run / "unique.safetensors")
    module = build_model(ModelConfig(name="mlp", hidden=[6], weights=str(run / "unique.safetensors")), (8,), 3, seed=0)
    found = module.state_dict()
    assert torch.equal(found["layers.0.weight"], other["c.w"]) and torch.equal(found["head.weight"], other["a.weight"])
    assert torch.equal(found["layers.0.bias"], other["b.bias"]) and "by shape" in module.weights_read


def test_a_tensor_too_many_is_named(run):
    save_file({**load_file(run / "model.safetensors"), "extra": torch.zeros(1)}, run / "more.safetensors")
    with pytest.raises(ConfigError, match="has extra, which NormNet has not"):
        build(run / "more.safetensors")


def test_files_that_are_none(run):
    (run / "text.safetensors").write_text("no weights")
    for place, says in (
        ("nowhere", "cannot be read"),
        ("text.safetensors", "is not a .safetensors file"),
        ("checkpoints", "cannot be read"),
    ):
        (run / "checkpoints").mkdir(exist_ok=True)
        with pytest.raises(ConfigError, match=f"model.weights: {run / place} {says}"):
            build(run / place)
    for place in ("nope://x", "~no-such-user/x.safetensors"):
        with pytest.raises(ConfigError, match=f"{place} cannot be read"):
            build(place)


@pytest.mark.parametrize("place", [-1, -40, -200])
def test_one_flipped_bit_is_damage(run, place):
    path = run / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[place] ^= 4
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=f"model.weights: {run} is damaged"):
        build(run)


def test_a_file_of_another_program_has_no_checksum(run):
    path = run / "model.safetensors"
    save_file(load_file(path), path)
    assert torch.equal(build(run).state_dict()[next(iter(load_file(path)))], next(iter(load_file(path).values())))


def test_the_fingerprint_is_that_of_the_content(run):
    first = weights_fingerprint(str(run))
    assert first == weights_fingerprint(f"file://{run}") and len(first) == 32 and weights_fingerprint(None) is None
    save_file({name: t + 1 for name, t in load_file(run / "model.safetensors").items()}, run / "model.safetensors")
    assert weights_fingerprint(str(run)) != first


# the configuration ------------------------------------------------------------------------------
def test_both_options_are_written_out_and_are_none_of_the_network():
    config = ModelConfig(name="mlp", weights="runs/a")
    assert config.start == {"weights": "runs/a", "weights_head": "load"}
    assert config.model_dump() == {"name": "mlp", "hidden": [200], "activation": "relu", **config.start}
    assert config.options == ModelConfig(name="mlp").options and ModelConfig(**config.model_dump()) == config
    assert ModelConfig(name="mlp", weights=None) == ModelConfig(name="mlp") and not ModelConfig(name="mlp").start


def test_a_networks_own_option_of_that_name_stays_its_own():
    config = ModelConfig(name="torchvision.models:resnet18", weights=None, num_classes=3)
    assert config.start == {} and "weights" in config.options


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"weights_head": "fresh"}, "model.weights_head is for the head of model.weights"),
        (
            {"weights": "x", "weights_head": "frsh"},
            r"unknown value 'frsh' in model.weights_head \(did you mean 'fresh'\?\)",
        ),
        ({"weights": 3}, "model.weights: 3 is not a path"),
        ({"weights": {"a": [0.5] * 999}}, "^model.weights: a dict is not a path; .* torch.save it and give that file$"),
        ({"wieghts": "x"}, r"unknown option 'wieghts' in model 'mlp' \(did you mean 'weights'\?\)"),
    ],
)
def test_options_that_cannot_be_used(options, says):
    with pytest.raises(ConfigError, match=says):
        ModelConfig(name="mlp", **options)


def test_a_checkpoint_of_another_program_has_floating_numbers_too(tmp_path):
    """Of `pretrained`, whose names are torchvision's."""
    theirs = torchvision.models.resnet18(num_classes=3).state_dict()
    theirs["layer1.0.conv1.weight"] = theirs["layer1.0.conv1.weight"].round().to(torch.int8)
    torch.save(theirs, tmp_path / "theirs.pth")
    with pytest.raises(ConfigError, match=r"blocks.0.conv1.weight as torch.int8.*, torch.float32 is needed"):
        build_model(ModelConfig(name="resnet18", pretrained=str(tmp_path / "theirs.pth")), (3, 32, 32), 3, 0)


class NamedTwice(torch.nn.Module):
    """Its one layer has two names."""

    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(*input_shape, num_classes))
        self.head = self.net[0]

    def forward(self, x):
        return self.net(x)


class Indexed(torch.nn.Module):
    """A layer behind an order of its inputs, which the constructor draws."""

    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.register_buffer("order", torch.randperm(input_shape[0]))
        self.head = torch.nn.Linear(input_shape[0], num_classes)


def test_a_buffer_of_integers_with_fractions_is_refused_and_one_that_the_file_lacks_is_said(tmp_path):
    """A file may lack a constant such as `position_ids`. In floating whole numbers it is read."""
    own, name = Indexed((4,), 3), f"{__name__}:Indexed"
    there = {"order": torch.tensor([3, 2, 1, 0]), "head.weight": own.head.weight, "head.bias": own.head.bias}
    torch.save(there | {"order": there["order"].double()}, tmp_path / "whole.pt")
    assert build(tmp_path / "whole.pt", name=name).order.tolist() == [3, 2, 1, 0]
    torch.save(there | {"order": there["order"] + 0.5}, tmp_path / "half.pt")
    with pytest.raises(
        ConfigError, match=facts("half.pt has order as torch.float32 with fractions", "torch.int64 is needed")
    ):
        build(tmp_path / "half.pt", name=name)
    del there["order"]
    torch.save(there, tmp_path / "less.pt")
    assert load_weights(Indexed((4,), 3), str(tmp_path / "less.pt"), "load") == (
        "by name; not there, and as Indexed makes it: order"
    )


def test_complex_and_real_numbers_are_not_taken_for_each_other(tmp_path):
    for kind, other in ((torch.complex64, "floating"), (torch.float32, "complex")):
        module = torch.nn.Linear(4, 3)
        module.register_buffer("phases", torch.ones(2, dtype=kind))
        torch.save({**module.state_dict(), "phases": torch.ones(2).to(kind)}, tmp_path / "file.pt")
        load_weights(module, str(tmp_path / "file.pt"), "load")
        module.phases = module.phases.real.clone() if kind.is_complex else module.phases.to(torch.complex64)
        with pytest.raises(ConfigError, match=facts(f"has phases as {kind}", f"give dense {other} numbers")):
            load_weights(module, str(tmp_path / "file.pt"), "load")

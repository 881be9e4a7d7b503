"""Options read from signatures, seeded initialisation, a user's own network."""

import copy
import pickle
import re
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from pydantic import ValidationError
from torch import nn

from flray.core.schema import plain
from flray.core.schema.errors import ConfigError, ResourceError
from flray.engine.trial import try_in_eval
from flray.models import MODELS, ModelConfig, build_model, model_options, starts_from
from tests.models import own_networks
from tests.support.messages import facts, mistakes

OWN = "tests.models.own_networks"
SMALL = {"name": "mlp", "hidden": [4]}


def weights(module):
    return torch.cat([p.detach().flatten() for p in module.parameters()])


# options ----------------------------------------------------------------------------------------
def test_a_config_is_complete_plain_and_frozen():
    config = ModelConfig(name="resnet8", norm="group")
    options = {"stem": "cifar_pool", "norm": "group", "projection": None, "width": 64}
    assert config.model_dump() == {"name": "resnet8", **options}
    assert config.options == options
    mlp = ModelConfig(name="mlp")
    assert mlp.model_dump() == {"name": "mlp", "hidden": [200], "activation": "relu"}
    assert ModelConfig(**yaml.safe_load(yaml.safe_dump(mlp.model_dump()))) == mlp
    assert pickle.loads(pickle.dumps(mlp)) == mlp
    assert ModelConfig.model_validate(mlp) == mlp
    with pytest.raises(ValidationError, match="frozen"):
        config.norm = "batch"


@pytest.mark.parametrize(
    ("given", "says"),
    mistakes("""
{name: resnet81} | unknown model 'resnet81' (did you mean 'resnet8'?)
{name: mlp, hiden: [3]} | unknown option 'hiden' in model 'mlp' (did you mean 'hidden'?)
{name: vgg11, width: 3} | unknown option 'width' in model 'vgg11', which has no options
{name: mlp, hidden: [8, 0]} | model 'mlp', option 'hidden.1': | greater than 0, got 0
{name: mlp, hidden: '200'} | model 'mlp', option 'hidden': | got '200'
{name: resnet18, norm: grup} | option 'norm': | 'batch', 'group' or 'none_tracked', got 'grup'
{name: mlp, num_classes: 3} | model 'mlp': num_classes comes from the data; leave it out
{name: 'tests.models.own_networks:Splat'} | unknown name 'Splat' in module | own_networks' (did you mean 'Split'
{name: 'no_such_module:Net'} | cannot import 'no_such_module'
{name: 'tests.models.own_networks:number'}
     | own_networks:number' is not a torch.nn.Module class or a function annotated to return one
{name: 'tests.models.own_networks:not_a_module', x: 1}
     | is not a torch.nn.Module class or a function annotated to return
{name: 'os:system', command: touch /tmp/called} | 'os:system' is not a torch.nn.Module class
{name: 'tests.models.own_networks:Split', widht: 3} | did you mean 'width'
{name: 'tests.models.own_networks:Split', width: wide} | option 'width': | valid integer | got 'wide'
{name: 'torch.nn:Linear', in_features: 3} | option 'out_features': Field required; write model.out_features=VALUE,
     | num_classes come from
"""),
)
def test_config_errors(given, says):
    with pytest.raises(ConfigError, match=facts(*says)):
        ModelConfig(**yaml.safe_load(given))


@pytest.mark.parametrize("data", [{}, {"name": 3}, "mlp"])
def test_no_name(data):
    with pytest.raises(ValidationError):
        ModelConfig.model_validate(data)


def test_listing_reads_the_signature():
    options = {o.name: o for o in model_options("resnet8")}
    assert list(options) == ["stem", "norm", "projection", "width"]
    assert options["norm"].default == "batch"
    assert options["norm"].bounds == "batch | group | none_tracked"
    assert "running statistics" in options["norm"].doc
    for name in MODELS.names():
        assert all(option.doc for option in model_options(name)), name


# initialisation ---------------------------------------------------------------------------------
@pytest.mark.parametrize("name", [name for name in MODELS.names() if name not in ("bert", "t5")])
def test_initialisation_depends_on_the_seed_alone(name):
    config = ModelConfig(name=name, **({"width": 12, "depth": 1} if name == "vit" else {}))
    torch.manual_seed(1)
    first = weights(build_model(config, (3, 16, 16), 3, seed=7))
    torch.manual_seed(2)
    torch.rand(5)
    assert torch.equal(first, weights(build_model(config, (3, 16, 16), 3, seed=7)))
    assert not torch.equal(first, weights(build_model(config, (3, 16, 16), 3, seed=8)))


def test_seeds_of_63_bits_are_accepted():
    large, small = (build_model(ModelConfig(**SMALL), (2,), 2, seed=seed) for seed in (2**63 - 1, 0))
    assert not torch.equal(weights(large), weights(small))


def test_the_process_wide_generator_is_left_alone():
    state = torch.get_rng_state()
    build_model(ModelConfig(**SMALL), (2,), 2, seed=0)
    assert torch.equal(state, torch.get_rng_state())


# a user's own network -----------------------------------------------------------------------------
def test_own_network_with_sizes_from_the_data():
    config = ModelConfig(name=f"{OWN}:Plain")
    assert config.model_dump() == {"name": f"{OWN}:Plain", "widths": [5, 4]}  # nn.ReLU cannot stand in YAML
    with pytest.raises(ConfigError, match="option 'activation': not a plain value"):
        ModelConfig(name=f"{OWN}:Plain", activation=nn.Tanh)
    model = build_model(config, (2,), 3, seed=0)
    assert model(torch.zeros(4, 2)).shape == (4, 3)
    assert model.head is model.final
    assert not any(name.startswith("head") for name in model.state_dict())
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert twin.head is twin.final
        assert twin.head is not model.head


def test_a_function_needs_no_annotation():
    config = ModelConfig(name=f"{OWN}:unannotated", width=6)
    assert build_model(config, (2,), 3, seed=0).head.in_features == 6
    assert starts_from(config, None) is None


@pytest.mark.parametrize(("given", "says"), [(False, "random weights"), (True, "its own weights")])
def test_a_network_whose_pretrained_is_a_truth_value(given, says):
    """Of a signature like torchvision's old ones."""
    config = ModelConfig(name=f"{OWN}:truthful", pretrained=given)
    assert starts_from(config, build_model(config, (2,), 3, seed=0)).startswith(says)


def test_a_network_gets_its_own_default_values_and_those_that_yaml_can_write_stand_in_the_config():
    config = ModelConfig(name=f"{OWN}:Defaults")
    recorded = {"speed": "slow", "widths": {"1": 64, "2": 32}, "sides": {"3": 1}, "names": ["a", "b"]}
    assert config.options == {**recorded, "rate": 1.0, "kernel": None}
    read_again = ModelConfig(**yaml.safe_load(yaml.safe_dump(config.model_dump())))
    assert read_again == config
    for each in (config, read_again):
        got, expected = build_model(each, (2,), 3, seed=0).got, own_networks.Defaults((2,), 3).got
        assert got == expected
        assert {k: type(v) for k, v in got.items()} == {**{k: type(v) for k, v in expected.items()}, "rate": float}


@pytest.mark.parametrize("dtype", ["float64", np.float64, np.dtype("float64"), torch.float64])
def test_a_dtype_of_numpy_or_torch_is_recorded_by_its_name(dtype):
    assert ModelConfig(**SMALL, dtype=dtype).model_dump()["dtype"] == "float64"


def test_a_dtype_that_no_network_has_is_refused():
    with pytest.raises(ConfigError, match=r"^unknown value 'int64' in model\.dtype"):
        ModelConfig(**SMALL, dtype=np.int64)
    assert "dtype" not in ModelConfig(**SMALL, dtype=np.dtype("float32")).model_dump()


@pytest.mark.parametrize(
    ("given", "got"),
    [
        ("{speed: fast}", own_networks.Speed.FAST),
        ("{widths: {1: 8}}", {1: 8}),
        ("{sides: {1: 8}}", {1: 8}),
        ("{names: [c]}", frozenset({"c"})),
        ("{pairs: [[8, 2]]}", ([8, 2],)),
        ("{code: 1e-1}", 0.1),
        ({"kernel": (3, 3)}, [3, 3]),
        ("{speed: faster}", "faster"),
        ("{speed: null}", None),
        ("{widths: {a: 8}}", {"a": 8}),
        ("{widths: {1: 1e-1}}", {1: 0.1}),
        ("{widths: [8, 4]}", [8, 4]),
        ("{sides: {a: 8}}", {"a": 8}),
        ("{names: null}", None),
        ("{pairs: [1e-1]}", (0.1,)),
        ({"kernel": np.float64(0.1)}, 0.1),
        ({"kernel": [np.int64(3), {"at": Path("a")}]}, [3, {"at": "a"}]),
        ({"pairs": (np.float64(0.1),)}, (0.1,)),
        ("{kernel: .inf}", "option 'kernel': not a plain value (inf would be read as None)"),
        ("{kernel: [.nan]}", "option 'kernel': not a plain value ([nan] would be read as [None])"),
        ({"kernel": own_networks.Speed.SLOW}, "option 'kernel': not a plain value (<Speed.SLOW: 'slow'> would be read"),
    ],
)
def test_a_given_value_is_read_as_the_type_of_the_default_or_refused(given, got):
    """In YAML the keys of a mapping are texts; an Enum, infinity or NaN was another value for the network, unsaid."""
    options = plain.read(given, "config") if isinstance(given, str) else given
    name = f"{OWN}:Defaults"
    if isinstance(got, str) and "option" in got:
        with pytest.raises(ConfigError, match=re.escape(got)):
            ModelConfig(name=name, **options)
    else:
        (key,) = options
        built = build_model(ModelConfig(name=name, **options), (2,), 3, seed=0)
        assert built.got[key] == got and type(built.got[key]) is type(got)


@pytest.mark.parametrize(
    ("given", "got"),
    [
        ({"shape": own_networks.Shape(5)}, own_networks.Shape(5, "round")),
        ({"shape": {"kind": "flat"}}, own_networks.Shape(4, "flat")),
        ({"sides": [3, 4]}, own_networks.Sides(3, 4)),
        ({"part": {"Width": 8}}, own_networks.Part(Width=8)),
        # as it stands
        ({"count": "5"}, "5"),
        ({"on": "on"}, "on"),
        ({"on": "off"}, "off"),
        ({"count": "auto"}, "auto"),
        ({"count": 2.0}, 2.0),
        ({"count": True}, True),
        ({"rate": 2}, 2),
        ({"on": 0}, 0),
        ({"shape": {"widht": 5}}, {"widht": 5}),
        ({"shape": None}, None),
        ({"squared": {"width": 3}}, {"width": 3}),
        ({"sides": [3]}, (3,)),
    ],
)
def test_a_value_without_annotation_is_read_as_the_type_of_its_default_where_it_fits(given, got):
    config = ModelConfig(name=f"{OWN}:OfItsDefaults", **plain.plain(given, ""))
    (key,) = given
    for each in (config, ModelConfig(**plain.read(yaml.safe_dump(config.model_dump()), "it"))):
        found = build_model(each, (2,), 3, seed=0).got[key]
        assert found == got and type(found) is type(got)


def test_defaults_that_plain_values_give_again_stand_in_the_config():
    options = ModelConfig(name=f"{OWN}:OfItsDefaults").options
    made = {"shape": {"width": 4, "kind": "round"}, "sides": [1, 2], "part": {"Width": 4}}
    assert options == {"count": 1, "rate": 0.5, "on": True, **made}


def test_an_option_that_is_a_model_of_pydantic_is_written_as_it_is_read_and_refuses_unknown_keys():
    name = f"{OWN}:OfPart"
    config = ModelConfig(name=name, part={"Width": 6})
    assert config.options == {"part": {"Width": 6}} and ModelConfig(**config.model_dump()) == config
    assert build_model(config, (2,), 3, seed=0).head.in_features == 6
    assert ModelConfig(name=name).options == {"part": {"Width": 4}}
    says = f"model '{name}', option 'part.width': unknown key (did you mean 'Width'?), got 6"
    with pytest.raises(ConfigError, match=re.escape(says)):
        ModelConfig(name=name, part={"width": 6})


def test_an_option_is_recorded_by_the_names_of_its_fields_where_its_aliases_only_write():
    config = ModelConfig(name=f"{OWN}:OfWritten", part={"width": 6})
    assert config.options == {"part": {"width": 6}, "same": {"width": 5}}
    got = build_model(ModelConfig(**config.model_dump()), (2,), 3, seed=0).got
    assert got == (own_networks.Written(width=6), own_networks.Written(width=5))


def test_own_network_with_its_own_split():
    model = build_model(ModelConfig(name=f"{OWN}:Split", width=6), (2,), 3, seed=0)
    assert model.head.in_features == 6
    assert model.features(torch.zeros(4, 2)).shape == (4, 6)


def test_no_head_is_invented():
    model = build_model(ModelConfig(name=f"{OWN}:NoHead", width=4), (2,), 4, seed=0)
    assert not hasattr(model, "head")


def test_own_network_added_to_the_table(monkeypatch):
    from tests.models.own_networks import Split

    monkeypatch.setattr(MODELS, "_table", dict(MODELS._table))
    MODELS.add("mine", Split)
    assert isinstance(build_model(ModelConfig(name="mine"), (2,), 3, seed=0), Split)


def test_a_function_with_free_keywords():
    config = ModelConfig(name="torchvision.models:squeezenet1_1", num_classes=7)
    model = build_model(config, (3, 32, 32), 7, seed=0)
    assert model.classifier[1].out_channels == 7


def test_a_network_that_is_float64_already_is_built_with_model_dtype_float64():
    module = build_model(ModelConfig(name=f"{OWN}:Wide", dtype="float64"), (2,), 3, seed=0)
    assert [p.dtype for p in module.parameters()] == 4 * [torch.float64]
    assert try_in_eval(module, torch.randn(2, 2, dtype=torch.float64), 3, "Wide") > 1


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("Wide", {}, r"head.weight is torch.float64; write model.dtype=float64, or build the network in float32$"),
        ("OwnDtype", {"dtype": "float64"}, r"head.weight is torch.float64; build the network in float32 \("),
        ("OwnDtype", {"dtype": "bfloat16"}, r"head.weight is torch.bfloat16; build the network in float32 \("),
        ("Cumulative", {}, r"norm has momentum=None"),
        ("Cumulative", {"lazy": True}, r"norm.weight has no shape yet"),
        ("Dotted", {}, r"body names a part 'v1\.0', and a dot separates the names of parts; write 'v1_0'"),
    ],
)
def test_networks_that_cannot_be_used(name, options, says):
    config = ModelConfig(name=f"{OWN}:{name}", **options)
    with pytest.raises(ConfigError, match=says):
        build_model(config, (2,), 3, seed=0)


def test_the_head_of_the_features_gives_the_logits():
    """A method `features` and a `head`; a submodule of that name may be anything."""
    for name in ("Split", "Pyramid", "Apart"):
        module = build_model(ModelConfig(name=f"{OWN}:{name}"), (2,), 3, seed=0)
        refused = pytest.raises(ConfigError, match=r"Apart': head\(features\(x\)\) is not forward\(x\)")
        with refused if name == "Apart" else nullcontext():
            try_in_eval(module, torch.randn(2, 2), 3, name)


@pytest.mark.parametrize(
    ("hidden", "words"),
    [
        (10**15, r"model.hidden=\[1000000000000000\]: 'mlp' needs 16,000,000 GB for one tensor"),  # 4 bytes x 4 x 10^15
        (10**18, r"model.hidden=\[1000000000000000000\]: 'mlp' needs "),
        (10**30, r"model.hidden=\[10{30}\]: 'mlp' needs more than 2\^63 bytes for one tensor"),
    ],
)
def test_a_width_that_cannot_be_allocated_names_its_key_and_size(hidden, words):
    with pytest.raises(ResourceError, match=f"{words}.*, which cannot be allocated; lower it$"):
        build_model(ModelConfig(name="mlp", hidden=[hidden]), (4,), 3, 0)

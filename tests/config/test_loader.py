"""The configuration: presets, overrides, grids, and one clear line for everything that is wrong."""

import warnings
from typing import Any, ClassVar

import pytest
import yaml
from pydantic import Field, field_validator

from flray.aggregations.krum import Krum
from flray.algorithms import ALGORITHMS
from flray.algorithms.fedavg import FedAvg
from flray.algorithms.fedprox import FedProx
from flray.config.experiment import Experiment
from flray.config.grid import labels
from flray.config.keys import grid_notes
from flray.config.loader import load_config, self_contained
from flray.config.overrides import pairs
from flray.config.resolve import resolve_section
from flray.core.protocol.probe import Probe
from flray.core.schema.errors import ConfigError
from flray.core.schema.section import Section
from flray.metrics.probes import PROBES
from flray.uplink import UPLINKS
from flray.uplink.clip import Clip
from flray.uplink.transform import Transform
from tests.support.messages import assert_says, facts

BASE = {
    "rounds": 3,
    "data": {"source": "digits"},
    "proxy": {"source": "holdout", "size": 100},
    "partition": {"name": "dirichlet", "clients": 10, "alpha": 0.3},
    "model": {"name": "mlp", "hidden": [16]},
    "algorithm": {"name": "fedproj", "lr": 0.05, "projection_rate": 0.5, "temperature": 2.0},
    "presets": {"small": {"rounds": 1, "model": {"name": "fedavg_cnn"}, "algorithm": {"lr": 0.2}}},
}


def only(*overrides: str):
    (experiment,) = load_config(BASE, overrides)
    return experiment


def test_dump_is_complete_and_reads_back_to_the_same_experiment():
    experiment = only("algorithm.momentum=0.5", "seed=7")
    again = load_config(yaml.safe_load(experiment.yaml()))[0]
    assert again == experiment
    written = yaml.safe_load(experiment.yaml())
    assert written["algorithm"]["delta"] == 1e-12  # a default of the algorithm stands in the file
    assert written["partition"]["variant"] == "fedzoo"


def test_algorithm_switch_keeps_what_both_share():
    """`algorithm=feddf` keeps lr and temperature (both have them) and drops projection_rate (FedProj's own)."""
    switched = only("algorithm=feddf")
    assert type(switched.algorithm).__name__ == "FedDF"
    assert (switched.algorithm.lr, switched.algorithm.temperature) == (0.05, 2.0)
    assert type(only("algorithm=fedavg").algorithm).__name__ == "FedAvg"


@pytest.mark.parametrize("name", ["local", "centralized"])
def test_algorithm_switch_drops_what_a_descendant_took_away(name):
    """FedAvg's `weighting` is no option of those that average nothing."""
    switched = load_config(
        {**BASE, "algorithm": {"name": "fedavg", "weighting": "uniform", "lr": 0.05}}, [f"algorithm={name}"]
    )[0].algorithm
    assert switched.lr == 0.05 and "weighting" not in type(switched).model_fields


def test_override_beats_preset_beats_file():
    experiment = only("preset=small", "algorithm.lr=0.3")
    assert (experiment.rounds, experiment.model.name, experiment.algorithm.lr) == (1, "fedavg_cnn", 0.3)
    assert only("preset=small").algorithm.lr == 0.2
    assert only().algorithm.lr == 0.05


PRESETS = {
    "official": {"rounds": 9, "algorithm": {"lr": 0.2, "temperature": 3.0}, "model": {"hidden": [4]}},
    "scratch": {"algorithm": {"lr": 0.7}, "seed": 5},
    "vit": {"model": {"name": "fedavg_cnn"}},
}


@pytest.mark.parametrize("named", ["official,scratch", " official , scratch", "[official, scratch]"])
def test_presets_combine_a_later_one_over_an_earlier_one(named):
    """lr stands in both presets, rounds and temperature in the first alone, seed in the second alone."""
    (both,) = load_config({**BASE, "presets": PRESETS}, [f"preset={named}"])
    (turned,) = load_config({**BASE, "presets": PRESETS}, ["preset=scratch,official"])
    (in_file,) = load_config({**BASE, "presets": PRESETS, "preset": yaml.safe_load(named)})
    assert (both.algorithm.lr, both.rounds, both.algorithm.temperature, both.seed) == (0.7, 9, 3.0, 5)
    assert turned == both.model_copy(update={"algorithm": both.algorithm.model_copy(update={"lr": 0.2})})
    assert in_file == both


def test_a_preset_of_a_combination_applies_where_both_are_named():
    """`"official,scratch"` in the table: after both, whatever their order; with one of them alone it does not."""
    base = {**BASE, "presets": {**PRESETS, "official,scratch": {"rounds": 77}}}
    rounds = {named: load_config(base, [f"preset={named}"])[0].rounds for named in ("official", "scratch")}
    assert 77 not in rounds.values()
    for named in ("official,scratch", "scratch,official", '["official,scratch"]', "[scratch, official]"):
        (both,) = load_config(base, [f"preset={named}"])
        assert (both.rounds, both.seed) == (77, 5), "both presets, and what differs in combination"


def test_a_preset_that_names_another_model_drops_the_options_an_earlier_preset_gave_the_old_one():
    (found,) = load_config({**BASE, "presets": PRESETS}, ["preset=official,vit"])
    assert (found.model.name, found.rounds) == ("fedavg_cnn", 9) and "hidden" not in found.model.options


def test_a_slash_makes_a_grid_of_presets_and_a_comma_makes_none():
    cells = load_config(
        {**BASE, "presets": PRESETS}, ["preset=official/scratch/official,scratch", "algorithm.momentum=0,0.5"]
    )
    assert [(c.algorithm.lr, c.rounds, c.algorithm.momentum) for c in cells] == [
        (lr, rounds, momentum) for lr, rounds in ((0.2, 9), (0.7, 3), (0.7, 9)) for momentum in (0, 0.5)
    ]
    assert load_config({**BASE, "presets": PRESETS, "preset": "scratch"}, ["preset=null"])[0].algorithm.lr == 0.05


def test_a_run_is_told_that_a_comma_combines_presets():
    (note,) = grid_notes(["preset=official,scratch", "seed=0,1"])
    assert note.endswith("a run for each: preset=official/scratch")
    assert not grid_notes(["preset=official", "preset=official/scratch"])


def test_what_lays_values_in_combines_presets_as_well():
    """`self_contained` (sweeps) and `resolve_section` (synthesis) read presets too."""
    raw = {**BASE, "presets": PRESETS}
    values = self_contained(raw, {"preset": "official,scratch"})
    assert (values["rounds"], values["algorithm"]["lr"], values["seed"]) == (9, 0.7, 5)
    assert not {"preset", "presets"} & set(values)
    assert resolve_section(raw, ["preset=official,scratch"], Experiment)["algorithm"]["lr"] == 0.7


def test_naming_another_model_or_partition_drops_the_options_of_the_old_one():
    assert "hidden" not in only("model=fedavg_cnn").model.options
    shared = only("partition=iid").partition
    assert (shared.name, shared.clients, shared.alpha) == ("iid", 10, None)


def test_grid_is_the_product_in_the_order_written():
    cells = load_config(BASE, ["algorithm=fedavg,feddf", "seed=0..2"])
    assert [(type(c.algorithm).__name__, c.seed) for c in cells] == [
        (a, s) for a in ("FedAvg", "FedDF") for s in (0, 1, 2)
    ]


@pytest.mark.parametrize(("every", "tested"), [(1, [0, 1, 2, 3, 4]), (2, [1, 3, 4]), (3, [2, 4]), (0, [4])])
def test_the_global_model_is_tested_every_so_many_rounds_and_after_the_last(every, tested):
    evaluate = only(f"evaluate.every={every}").evaluate
    assert [round for round in range(5) if evaluate.due(round, 5)] == tested


def test_proxy_looks_below_the_same_root_as_the_data(tmp_path):
    experiment = only(f"data.root={tmp_path}")
    assert experiment.proxy.root == str(tmp_path)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("algorithm.projection_rat=1", ("algorithm.projection_rat:", "'projection_rate'")),
        ("algorithm.lr=abc", ("algorithm.lr:", "number", "'abc'")),
        ("algorithm.lr=-1", ("algorithm.lr:", "greater than 0", -1)),
        ("algorithm.rule=thresh", ("algorithm.rule:", "'threshold'", "'thresh'")),
        ("algorithm=fedporj", ("algorithm", "'fedporj'", "'fedproj'")),
        ("model=mlpp", ("model", "'mlpp'", "'mlp'")),
        ("partition=dirichle", ("partition", "'dirichle'", "'dirichlet'")),
        ("data.sorce=iris", ("data.sorce:", "'source'")),
        ("partition.alpha=0", ("partition.alpha:", 0.0, "above 0")),
        ("cohort.size=0", ("cohort.size:", "greater than or equal to 1")),
        ("resources.client.num_gpus=1.5", ("resources.client.num_gpus:", "between 0 and 1", "whole number")),
        ("resources.client.num_gpus=2", ("resources.client.num_gpus:", "a client trains on one GPU")),
        ("roundz=3", ("roundz:", "'rounds'")),
        ("preset=smal", ("preset", "'smal'", "'small'")),
        ("rounds.x=1", ("override rounds.x:", "rounds", "section")),
        ("nonsense", ("override 'nonsense'", "key=value")),
        ("algorithm..lr=1", ("override 'algorithm..lr'", "key=value")),
        ("algorithm.lr=true", ("algorithm.lr", "number", "'true'")),
        ("preset=small,smal", ("preset", "'smal'", "'small'")),
        ("preset=/", ("override preset='/'", "value")),
        ("preset=small,small", ("preset:", "'small'", "twice")),
        ("preset=small,", ("preset", "''", "small")),
        ("preset=small/smal", ("preset", "'smal'", "'small'")),
        ("algorithm.lr=yes", ("algorithm.lr", "number", "'true'")),
        ("algorithm.lr=1e400", ("algorithm.lr", "finite", "'1e400'")),
        ("algorithm.lr=.nan", ("algorithm.lr", "finite", "nan")),
        ("algorithm.name=~", ("algorithm.name", "None")),
        ("algorithm={lr: 1, lr: 2}", ("override algorithm={lr: 1, lr: 2}", "'lr'", "twice")),
        ("cohort.size=true", ("cohort.size", "integer", "'true'")),
        ("model.hidden=[true]", ("model", "'mlp'", "hidden.0", "'true'")),
        ("model=os:system", ("model", "'os:system'", "torch.nn.Module")),
        ("model={name: 'os:system', command: ls}", ("model", "'os:system'", "torch.nn.Module")),
        ("name=../..", ("name:", "one folder", "'../..'")),
        ("name=/abs", ("name:", "one folder", "'/abs'")),
        ("name=" + "x" * 300, ("name:", "one folder", "xxx")),
        ('name="a\0b"', ("name", "character")),
        ("name=2001-99-99/", ("name:", "one folder", "'2001-99-99/'")),
        ("data.source=../x", ("data.source", "folder of data sets")),
        ("data.source=/etc", ("data.source", "folder of data sets")),
        ("data.augment.preset=3", ("data.augment.preset", 3)),
        ("seed=²..3", ("seed", "integer", "'²..3'")),
        ("seed=0..2000000000", ("override seed=0..2000000000", 2_000_000_001, 10_000)),
        ("preset=[a]", ("preset", "a")),
        ("presets={small: 1}", ("presets", "unknown")),
        ("partition.variant={}", ("partition.variant", "string", "{}")),
        ("partition.name={}", ("partition.name", "{}")),
        ("partition={name: table, table: [[]]}", ("partition.table", "row")),
        ("resources.client.num_gpus=.inf", ("resources.client.num_gpus", "finite")),
        ("imports=[3]", ("imports", 3, "module")),
        ("seed=!!timestamp x", ("override seed=!!timestamp x", "'timestamp'")),
        ("seed=4..0", ["seed=4..0", "FIRST..LAST", "as 0..4"]),
        ("seed=0..4..2", ["seed=0..4..2", "FIRST..LAST"]),
        ("algorithm.lr=0.1..0.3", ["algorithm.lr=0.1..0.3", "whole numbers", "commas"]),
        # a key without its section is told where it belongs
        ("hidden=[64]", ("hidden:", "model.hidden")),
        ("lr=0.1", ("lr:", "algorithm.lr")),
        ("size=3", ("size:", "proxy.size or cohort.size")),
        ("num_gpus=1", ("num_gpus:", "resources")),
        ("device=1", ("device: unknown key; a GPU is given by resources.client.num_gpus=1",)),
        ("resources.device=1", ("resources.device: unknown key; a GPU is given by resources.client.num_gpus=1",)),
        ("gpus=1", ("gpus: unknown key; a GPU is given by resources.client.num_gpus=1",)),
        # an override is given once
        ("seed=1  seed=2", ("seed", "'1'", "'2'")),
        ("cohort=10  cohort.size=5", ("override cohort.size", "override cohort ")),
        ("model=mlp  model.name=resnet18", ("override model.name", "override model ")),
        # an entry of a table
        ("algorithm=fedavg,fedprox  algorithms.fedprox.mu=0.1,1", ("algorithms.fedprox.mu", "one value")),
        ("algorithms.fedprx.mu=1", ("fedprx", "did you mean 'fedprox'?")),
        ("algorithm=fedprox  algorithms.fedprox.mew=1", ("algorithm.mew", "unknown key")),
        ("algorithms=3", ("algorithms: 3 is not a table",)),
    ],
)
def test_what_is_wrong_is_said_in_one_line(override, words):
    """Two spaces between overrides."""
    with pytest.raises(ConfigError) as caught:
        load_config(BASE, override.split("  "))
    assert_says(caught.value, *words)


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ({"algorithm": 0}, ("algorithm:", "name", "missing")),
        ({"algorithm": {"lr": 0.1}}, ("algorithm:", "name", "missing")),
        ({"algorithm": {"name": [1]}}, ("algorithm:", "[1]", "name")),
        ({"model": 3}, ("model:", 3, "model: {name: VALUE}")),
        ({"partition": True}, ("partition:", True)),
        ({"data": None}, ("data:", None, "data: {source: VALUE}")),
        ({"presets": {"small": 1}}, ("presets:", {"small": 1}, "{NAME: {OPTION: VALUE}}")),
        ({"algorithms": ["fedavg"]}, ("algorithms:", ["fedavg"], "{NAME: {OPTION: VALUE}}")),
        ({"models": {"mlpp": {}}}, ("'mlpp'", "'mlp'")),
        ({"imports": 3}, ("imports:", 3, "imports: [my_module]")),
        ({"extends": 3}, ("extends:", 3, "YAML file")),
        ({1: 2}, ("key", 1)),
        ({"proxy": None}, ("fedproj", "`proxy`", "proxy: {source: holdout")),
        ({"algorithms": {"fedpproj": {}}}, ("'fedpproj'", "'fedproj'")),
        (
            {"presets": {"official,scratch": {}, "official": {}}, "preset": ["official,scratch"]},
            ("unknown preset 'scratch'",),
        ),
        *(({"diagnostics": value}, ("diagnostic",)) for value in (3, [3], [["divergence"]], True, {"x": 1})),
        ({"diagnostics": ["divergnce"]}, ("unknown diagnostic 'divergnce'", "'divergence'")),
        ({"diagnostics": ["divergence", "divergence"]}, ("diagnostics: ",)),
    ],
)
def test_sections_of_another_shape(section, says):
    with pytest.raises(ConfigError) as caught:
        load_config({**BASE, **section})
    assert_says(caught.value, *says)


@pytest.mark.parametrize("name", ["2024", "0.5", "true", "no"])
def test_a_number_or_a_truth_value_is_a_text_for_a_key_of_texts(name):
    from_python, from_a_shell = load_config(BASE, {"name": name}), load_config(BASE, [f"name={name}"])
    assert [each.name for each in (*from_python, *from_a_shell)] == [name, name]
    column = load_config(BASE, [f"data.group={name}"])[0]  # which takes none as well
    assert column.dump()["data"]["group"] == name and load_config(BASE, ["data.group=null"])[0].data.group is None


def test_an_override_is_given_once_as_text_or_as_a_value():
    with pytest.raises(ConfigError, match=facts("seed", "1", "2")):
        pairs(["seed=1", {"seed": 2}])


@pytest.mark.parametrize("name", ["run #3", "#3", "&a b", "R&D #1", "C#"])
def test_a_text_with_a_mark_of_yaml_is_the_one_that_was_given(name):
    from_python, from_a_shell = load_config(BASE, {"name": name}), load_config(BASE, [f"name={name}"])
    assert [each.name for each in (*from_python, *from_a_shell)] == [name, name]


def test_a_mark_of_yaml_in_a_grid_a_number_and_a_list():
    assert [each.name for each in load_config(BASE, ["name=a #1, b #2"])] == ["a #1", "b #2"]
    assert load_config(BASE, ["name='a #1'"])[0].name == "a #1"
    commented = "[8,  # of the paper\n 4]"  # several lines are a document
    assert load_config(BASE, {"model.hidden": commented})[0].dump()["model"]["hidden"] == [8, 4]
    for cut in ("seed=1 #2", "name='a' #1", "partition={name: iid} #1", "model=name: cnn #1"):
        with pytest.raises(ConfigError, match=r"seed: .*1 #2|' #'; leave the comment out, or quote the text"):
            load_config(BASE, [cut])


def test_a_grid_is_counted_before_it_is_made():
    many = ",".join(map(str, range(1, 301)))
    with pytest.raises(ConfigError, match=facts(27_000_000, "rounds 300", "seed 300", "partition.alpha 300", 10_000)):
        load_config(BASE, [f"rounds={many}", f"seed={many}", f"partition.alpha={many}"])


@pytest.mark.parametrize("by_file", [True, False])
def test_a_section_of_one_obvious_field_is_written_as_one_word(by_file):
    """In a file and as an override; the section's other options stay."""
    words = {
        "model": "fedavg_cnn",
        "data": "iris",
        "proxy": "uniform_box",
        "partition": "iid",
        "algorithm": "feddf",
        "checkpoint": 5,
    }
    base = {
        **BASE,
        "cohort": {"fraction": 0.5, "sampling": "numpy_round_seed"},
        "data": {"source": "digits", "split_seed": 3},
    }
    if by_file:
        found = load_config({**base, "presets": {"words": {**words, "cohort": 10}}, "preset": "words"})[0]
    else:
        found = load_config(base, {**words, "cohort": 10})[0]
    assert (found.model.name, found.data.source, found.data.split_seed) == ("fedavg_cnn", "iris", 3)
    assert (found.proxy.source, found.partition.name, found.partition.clients) == ("uniform_box", "iid", 10)
    assert (type(found.algorithm).__name__, found.algorithm.lr, found.checkpoint.every) == ("FedDF", 0.05, 5)
    assert (found.cohort.size, found.cohort.fraction, found.cohort.sampling) == (10, None, "numpy_round_seed")


@pytest.mark.parametrize("order", [1, -1])
def test_a_word_and_a_key_inside_the_section_combine_in_any_order(order):
    overrides = ["cohort=10", "cohort.sampling=numpy_round_seed"][::order]
    cohort = only(*overrides).cohort
    assert (cohort.size, cohort.fraction, cohort.sampling) == (10, None, "numpy_round_seed")
    assert only("cohort=0.1").cohort.fraction == 0.1
    assert only("evaluate.validation=0.2").evaluate.validation.fraction == 0.2
    assert load_config({**BASE, "cohort": 5}, ["cohort.sampling=numpy_round_seed"])[0].cohort.size == 5


def test_a_preset_of_augmentation_replaces_what_was_there():
    base = {**BASE, "data": {"source": "cifar10", "augment": {"crop_padding": 2, "crop_mode": "reflect"}}}
    expected = load_config({**BASE, "data": {"source": "cifar10", "augment": "fedsol"}})[0].data.augment
    assert load_config(base, ["data.augment=fedsol"])[0].data.augment == expected


def test_one_module_is_one_word(tmp_path, monkeypatch):
    assert only("imports=json").imports == ("json",)
    assert only("imports=json,string").imports == ("json", "string")  # no grid
    assert load_config({**BASE, "imports": "json"}, imports=["string"])[0].imports == ("json", "string")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "bad_syntax.py").write_text("x = 1\ndef f(:\n")
    (tmp_path / "bad_name.py").write_text("x = 1\ny = nowhere\n")
    (tmp_path / "leaves.py").write_text("raise SystemExit(3)\n")
    for module, says in (
        ("bad_syntax", ("--import bad_syntax", "SyntaxError", "bad_syntax.py", "line 2")),
        ("bad_name", ("NameError", "'nowhere'", "bad_name.py", "line 2")),
        ("leaves", ("--import leaves", "SystemExit", 3)),
        ("no_such_module", ("--import no_such_module",)),
        ("", ("--import ", "''")),
        ("..x", ("--import ..x",)),
    ):
        with pytest.raises(ConfigError, match=facts(*says)):
            load_config(BASE, [], [module])


@pytest.mark.parametrize("source", ["holdout", "uniform_box"])
def test_public_data_that_are_made_of_the_private_ones_are_prepared_as_those(source):
    """An option of their own would change nothing; one that repeats the data's is no mistake."""
    tables = {**BASE, "data": {"source": "iris", "pca": 2}}
    same = {"source": source, "size": 20, "pca": 2}
    assert load_config({**tables, "proxy": same})[0].proxy.pca == 2
    for key, value in {"pca": 3, "standardize": True, "normalize": "unit", "resize": 8}.items():
        with pytest.raises(ConfigError, match=facts(f"proxy.{key}", source, f"data.{key}")):
            load_config({**tables, "proxy": {**same, key: value}})


def test_cohort_fraction_takes_at_least_one_client():
    assert only("cohort.fraction=0.001").cohort.count(10) == 1
    assert only("cohort.fraction=0.29").cohort.count(10) == 2  # int(2.9), as FedSOL's code
    with pytest.raises(ConfigError, match=facts("cohort.size", 11, 10)):
        only("cohort.size=11").cohort.count(10)


# extends, and the table `algorithms` ----------------------------------------------------------
def test_a_file_extends_another_and_its_own_values_win(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "base.yaml").write_text(
        yaml.safe_dump({**BASE, "presets": {"small": {"rounds": 1}, "tiny": {"rounds": 2}}})
    )
    child = {"extends": "../base.yaml", "name": "child", "algorithm": {"lr": 0.5}, "presets": {"small": {"seed": 4}}}
    (tmp_path / "deep" / "child.yaml").write_text(yaml.safe_dump(child))
    (experiment,) = load_config(tmp_path / "deep" / "child.yaml", ["preset=small"])
    assert (experiment.name, experiment.rounds, experiment.seed) == ("child", 1, 4)
    assert (experiment.algorithm.lr, experiment.algorithm.projection_rate) == (0.5, 0.5)
    # another partition in the child: the parent's options go
    (tmp_path / "deep" / "child.yaml").write_text(
        "extends: ../base.yaml\npartition: {name: shards, shards_per_client: 2}\n"
    )
    (experiment,) = load_config(tmp_path / "deep" / "child.yaml")
    assert (experiment.partition.clients, experiment.partition.alpha) == (10, None)


def test_extending_what_is_not_there_or_itself_is_one_line(tmp_path):
    (tmp_path / "a.yaml").write_text("extends: b.yaml\n")
    with pytest.raises(ConfigError, match=facts(tmp_path / "b.yaml")):
        load_config(tmp_path / "a.yaml")
    (tmp_path / "b.yaml").write_text("extends: a.yaml\n")
    with pytest.raises(ConfigError, match=facts("extends", tmp_path / "a.yaml", tmp_path / "b.yaml")):
        load_config(tmp_path / "a.yaml")


MEMO = {
    **BASE,
    "proxy": {"source": "holdout", "size": 100, "labelled": True},
    "algorithm": {"name": "fedmemo", "detector": {"m": 3}},
}


def test_a_part_of_an_algorithm_is_laid_in_key_by_key():
    """A preset, the table of algorithms and an override each set one key of `detector`; the others stay."""
    base = {
        **MEMO,
        "presets": {"small": {"algorithm": {"detector": {"guard": 2}}}},
        "algorithms": {"fedmemo": {"detector": {"W": 9, "rho": 0.5}}},
    }
    (found,) = load_config(base, ["preset=small", "algorithm.detector.rho=0.4"])
    detector = found.algorithm.detector
    assert (detector.m, detector.guard, detector.W, detector.rho, detector.rho_off) == (3, 2, 9, 0.4, 0.4)
    assert load_config(yaml.safe_load(found.yaml()))[0] == found
    assert [e.algorithm.detector.m for e in load_config(base, ["algorithm.detector.m=1,2"])] == [1, 2]
    stored = self_contained(base, {"algorithm.detector.rho": 0.4})
    assert load_config(stored, {"algorithm": "fedmemo"})[0].algorithm.detector.rho == 0.4, "not the table's again"
    assert load_config(stored, {"algorithm": "fedmemo"})[0].algorithm.detector.W == 9
    assert "detector" not in load_config(base, ["algorithm=fedavg"])[0].dump()["algorithm"]


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("algorithm.rho=0.5", ("algorithm.rho:", "algorithm.detector.rho")),
        ("algorithm.proxy_size=9", ("algorithm.proxy_size:", "algorithm.proxy.size")),
        ("algorithm.privacy.clip=1", ("algorithm.privacy:", "gaussian, where: client")),
        ("algorithm.detector=tranad", ("algorithm.detector:", "'tranad'", "algorithm.detector: {method:")),
        ("algorithm.detector.rhoo=1", ("algorithm.detector.rhoo:", "'rho'")),
        ("algorithm.detector.rho=2", ("algorithm.detector.rho:", "less than 1")),
        ("gan_lr=1", ("gan_lr:", "algorithm.proxy.gan_lr")),
    ],
)
def test_the_former_key_of_a_part_names_the_new_one(override, says):
    with pytest.raises(ConfigError) as caught:
        load_config(MEMO, [override])
    assert_says(caught.value, *says)


def test_a_hyper_parameter_of_the_same_name_and_another_meaning_is_not_kept():
    """`alpha` weighs a divergence term in FedProj and a proximal term in FedDyn."""
    base = {**BASE, "algorithm": {**BASE["algorithm"], "alpha": 0.3}}
    switched = load_config(base, ["algorithm=feddyn"])[0].algorithm
    assert switched.lr == 0.05
    assert switched.alpha == type(switched).model_fields["alpha"].default


def test_an_option_on_top_of_a_section_written_as_one_word():
    """`augment: fedsol` with cutout off, `algorithm: fedavg` with another rate."""
    base = {**BASE, "data": {"source": "cifar10", "augment": "fedsol"}, "algorithm": "fedavg"}
    config = load_config(base, ["data.augment.cutout=0", "algorithm.lr=0.3"])[0]
    assert (config.data.augment.crop_padding, config.data.augment.flip, config.data.augment.cutout) == (4, True, 0)
    assert load_config(base)[0].data.augment.cutout == 16
    assert config.algorithm.lr == 0.3
    assert load_config(yaml.safe_load(config.yaml()))[0] == config


def test_a_file_comes_before_its_overrides_and_a_folder_is_no_file(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=facts("rounds=2", "file", "first")):
        load_config("rounds=2", ["configs/quickstart.yaml"])
    with pytest.raises(ConfigError, match=facts(tmp_path, "folder", "YAML file")):
        load_config(tmp_path)
    (tmp_path / "config.yaml").write_text("")
    with pytest.raises(ConfigError, match=facts(f"flray resume {tmp_path}")):
        load_config(tmp_path)
    (tmp_path / "quickstart.yaml").write_text("rounds: 1")
    with pytest.raises(ConfigError, match=facts("quickstrt.yaml", "'quickstart.yaml'")):
        load_config(tmp_path / "quickstrt.yaml")
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "mine.yaml").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"no configuration file mine \(did you mean configs/mine.yaml\?\)"):
        load_config("mine")
    with pytest.raises(ConfigError, match=facts(tmp_path / "config", "'config.yaml'")):
        load_config(tmp_path / "config")


def test_a_grid_over_lists():
    """`[64, 32]` in the name of a folder would be read by a shell; commas without brackets make a run for each
    value."""
    cells = [only(f"evaluate.finetune_epochs={value}") for value in ("[]", "0", "[1,5]")]
    assert labels(cells) == ["fedproj-finetune_epochsnone", "fedproj-finetune_epochs0", "fedproj-finetune_epochs1-5"]
    (note,) = grid_notes(["evaluate.finetune_epochs=0,1,5", "model.hidden=[64,32]", "seed=0,1"])
    assert note.endswith("one run with the list: 'evaluate.finetune_epochs=[0,1,5]'")


def test_the_folder_of_a_cell_has_a_name_that_a_disk_takes():
    """However many keys vary, and however long their values are; the names stay apart."""
    cells = [only(f"data.root={'x' * 300}", f"proxy.root={'y' * 300}{i}", "evaluate.every=2") for i in range(3)]
    names = labels([*cells, only()])
    assert len(set(names)) == 4 and all(len(name.encode()) <= 255 for name in names)


def test_an_entry_of_a_table_on_the_command_line_is_that_of_the_cells_with_this_name():
    """It goes over the file's entry, and under an option of the section itself."""
    values = BASE | {"algorithms": {"fedprox": {"mu": 0.5, "lr": 0.2}}}
    words = ["algorithm=fedavg,fedprox", "algorithms.fedprox.mu=0.25", "aggregation=mean,fedadam"]
    cells = load_config(values, [*words, "aggregations={fedadam: {server_lr: 0.03}}"])
    found = [
        (getattr(c.algorithm, "mu", None), c.algorithm.lr, getattr(c.aggregation, "server_lr", None)) for c in cells
    ]
    assert found == [(None, 0.05, None), (None, 0.05, 0.03), (0.25, 0.2, None), (0.25, 0.2, 0.03)]
    (given,) = load_config(values, ["algorithm=fedprox", "algorithm.mu=1", "algorithms.fedprox.mu=0.25"])
    assert given.algorithm.mu == 1


@pytest.mark.filterwarnings("ignore:.*given whole")
@pytest.mark.parametrize(
    ("table", "given", "option", "wanted"),
    [
        ({"algorithms": {"fedprox": {"mu": 0.5}}}, {"algorithm": FedProx(mu=0.1)}, "mu", 0.1),
        ({"algorithms": {"fedprox": {"mu": 0.5}}}, {"algorithm": {"name": "fedprox", "lr": 0.1}}, "mu", 0.5),
        ({"models": {"mlp": {"hidden": [8]}}}, {"model": {"name": "mlp", "hidden": [64]}}, "hidden", [64]),
        ({"partitions": {"iid": {"clients": 9}}}, {"partition": {"name": "iid", "clients": 5}}, "clients", 5),
        ({"aggregations": {"krum": {"faulty": 0.3}}}, {"aggregation": Krum(faulty=0.1)}, "faulty", 0.1),
        (
            {"drifts": {"remove_classes": {"from_round": 3}}},
            {"drift": {"name": "remove_classes", "classes": [0], "from_round": 2}},
            "from_round",
            2,
        ),
    ],
)
def test_a_whole_section_given_goes_over_the_table_of_the_file(table, given, option, wanted):
    """Its entry was merged over the section: the run had the file's value. What the section lacks is the table's."""
    base, (section,) = {**BASE, "algorithm": "fedavg", **table}, given
    (cell,) = load_config(base, given)
    assert getattr(cell, section).model_dump()[option] == wanted
    assert load_config(self_contained(base, pairs(given))) == [cell]  # a sweep keeps the tables


def test_a_table_goes_over_the_section_of_its_file_and_cells_of_one_name_stay_apart():
    base = {**BASE, "algorithm": {"name": "fedprox", "mu": 0.1}, "algorithms": {"fedprox": {"mu": 0.5}}}
    assert load_config(base)[0].algorithm.mu == 0.5
    cells = load_config(base, {"algorithm": [FedProx(mu=0.2), FedProx(mu=0.3)]})
    assert [cell.algorithm.mu for cell in cells] == [0.2, 0.3]


@pytest.mark.filterwarnings("ignore:.*given whole")
def test_cells_share_no_section_that_an_override_gives_whole():
    """An option is set in one cell of a grid, and was set in all: each had the last one."""
    cells = load_config(BASE, ["algorithm={name: fedprox}", "algorithm.mu=0.1,0.2"])
    assert [cell.algorithm.mu for cell in cells] == [0.1, 0.2]
    cells = load_config(BASE, ["uplink=[{name: clip, norm: 1}]", "uplink.clip.norm=2,3"])
    assert [cell.uplink[0].norm for cell in cells] == [2, 3]


@pytest.mark.parametrize("text", ["0-4", "00-4", "0+4", " 0_-4"])
@pytest.mark.parametrize("key", ["seed", "rounds", "cohort.size", "algorithm.lr"])
def test_a_number_that_pydantic_reads_as_another_is_refused(key, text):
    """It drops leading zeros: `seed=0-4`, meant as a range, was seed -4."""
    with pytest.raises(ConfigError, match=f"^{key}.*unable to parse"):
        load_config(BASE, {key: text})
    assert load_config(BASE, {key: "007"})[0] == load_config(BASE, {key: 7})[0]


def test_whole_data_say_what_of_the_file_they_do_not_keep():
    """As those of `from_arrays`, which are a section `{source: given:...}`."""
    base = {**BASE, "data": {"source": "digits", "leak_check": False}}
    with pytest.warns(
        UserWarning, match="data: given whole, so it has not the file's leak_check; .* add data.leak_check="
    ):
        assert load_config(base, {"data": {"source": "iris"}})[0].data.leak_check
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not load_config(base, ["data=iris"])[0].data.leak_check
        assert not load_config(base, {"data": {"source": "iris"}, "data.leak_check": False})[0].data.leak_check


def test_a_whole_section_says_what_of_the_file_it_does_not_keep():
    with pytest.warns(UserWarning, match="algorithm: given whole, so it has the defaults of lr and not"):
        whole = load_config(BASE, {"algorithm": {"name": "fedprox", "mu": 0.1}})[0]
    with pytest.warns(UserWarning, match="algorithm: given whole, so it has the defaults of .*lr.* and not"):
        load_config(BASE, {"algorithm": {"name": "flray.algorithms.fedprox:FedProx"}})  # as a class of one's own
    kept = load_config(BASE, ["algorithm=fedprox", "algorithm.mu=0.1"])[0]
    assert kept.algorithm.lr == 0.05 != whole.algorithm.lr
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_config(BASE, {"algorithm": {"name": "fedprox", "mu": 0.1, "lr": 0.2}, "model": "fedavg_cnn"})


@pytest.mark.parametrize(
    ("key", "made", "written"),
    [
        ("algorithm", FedProx(mu=0.3, lr=0.1), {"name": "fedprox", "mu": 0.3, "lr": 0.1}),
        ("aggregation", Krum(faulty=0.1), {"name": "krum", "faulty": 0.1}),
        ("uplink", [Clip(norm=2.0)], [{"name": "clip", "norm": 2.0}]),
    ],
)
def test_a_section_that_is_made_already_is_what_it_was_given(key, made, written):
    base = {**BASE, "algorithm": "fedavg"}
    assert load_config({**base, key: made}) == load_config({**base, key: written})
    assert load_config(base, [{key: made}]) == load_config(base, [{key: written}])


def test_a_space_that_is_missing_and_an_empty_file_are_one_line(tmp_path):
    file = tmp_path / "own.yaml"
    file.write_text("partition:\n  name:dirichlet\n")
    with pytest.raises(ConfigError, match=r"write a space after the colon: name: dirichlet$"):
        load_config(file)
    file.write_text("# nothing yet\n")
    with pytest.raises(ConfigError, match=r"own\.yaml is empty; write keys and values into it"):
        load_config(file)


def test_a_sweep_in_the_place_of_an_experiment_is_named(tmp_path):
    """The error was of eleven keys that are missing, or of one that belongs in a section."""
    sweep, file = {"name": "s", "experiment": BASE, "space": {"algorithm.lr": [0.1, 0.2]}}, tmp_path / "s.yaml"
    file.write_text(yaml.safe_dump(sweep))
    for words in ([], ["rounds=2"], ["algorithm.lr=0.1,0.2"]):
        with pytest.raises(ConfigError, match=facts(f"{file} is a sweep; give: flray sweep {file}")):
            load_config(file, words)
    with pytest.raises(ConfigError, match=r"this is a sweep; call flray\.sweep"):
        load_config(sweep)


@pytest.mark.filterwarnings("ignore:.*given whole")
@pytest.mark.parametrize(
    "change", [{"from_round": 1, "algorithm.lr": 0.01}, {"from_round": 1, "algorithm": {"momentum": 0.5, "lr": 0.01}}]
)
def test_an_override_of_what_the_schedule_sets_from_round_1_is_refused(change):
    """Every cell of a grid over it had the same model."""
    base = {**BASE, "algorithm": "fedavg", "schedule": [change, {"from_round": 2, "algorithm.momentum": 0.9}]}
    for given in ({"algorithm.lr": [0.1, 0.2]}, {"algorithm": {"name": "fedprox", "lr": 0.1}}):
        with pytest.raises(ConfigError, match=facts(f"override {next(iter(given))}: no round would have this lr")):
            load_config(base, given)
    with pytest.raises(ConfigError, match="no round would have this lr"):
        self_contained(base, {"algorithm.lr": 0.1})  # of a sweep
    with pytest.raises(ConfigError, match="no round would have this lr"):
        load_config({**base, "schedule": change}, ["algorithm.lr=0.1"])
    kept = load_config(base, ["algorithm.weight_decay=0.5", "algorithm=fedprox"])[0]  # nor by another key
    assert kept.algorithm.weight_decay == 0.5 and kept.schedule[0].algorithm["lr"] == 0.01
    both = load_config(base, {"algorithm.lr": 0.1, "schedule": [[], [change]]})
    assert [len(cell.schedule) for cell in both] == [0, 1]


def test_a_number_of_yaml_1_2_is_text_for_a_field_of_texts_and_a_share_for_a_cohort():
    given = only("name=12e4", "data.drop=[1e-1]", "cohort=5e-1", "algorithm.lr=1e-2")
    assert (given.name, given.data.drop, given.cohort.fraction, given.algorithm.lr) == ("12e4", ("1e-1",), 0.5, 0.01)


# options of a user's own ------------------------------------------------------------------------
class Percent(Section, frozen=True):
    share: float = 50

    @field_validator("share")
    @classmethod
    def _fraction(cls, value: float) -> float:
        return value / 100


class OwnMethod(Percent, FedAvg, frozen=True):
    pass


class OwnStep(Percent, Transform, frozen=True):
    pass


class OwnProbe(Percent, Probe, frozen=True):
    at: ClassVar = frozenset({"round"})

    def observe(self, ctx: Any, view: Any, memory: Any) -> Any:
        return [], memory


class Aliased(FedAvg, frozen=True):
    lambda_: float = Field(0.5, alias="lambda")


@pytest.mark.parametrize(
    ("table", "kind", "key", "where"),
    [
        (ALGORITHMS, OwnMethod, "algorithm", "algorithm.share"),
        (UPLINKS, OwnStep, "uplink", r"uplink(\.mine)?.share"),
        (PROBES, OwnProbe, "diagnostics", "diagnostics.mine.share"),
    ],
)
def test_options_that_config_yaml_would_not_give_back_are_refused(monkeypatch, table, kind, key, where):
    monkeypatch.setattr(table, "_table", {**table._table})
    table.add("mine", kind)
    for value in [{"name": "mine", "share": 50}, *([kind(share=50)] if key != "diagnostics" else [])]:
        with pytest.raises(ConfigError, match=rf"^{where}: {kind.__name__} makes 0.005 of 0.5 as config.yaml has it"):
            Experiment(**{**only().dump(), key: value})


def test_an_option_with_another_name_in_files_is_read_by_it(monkeypatch):
    monkeypatch.setattr(ALGORITHMS, "_table", {**ALGORITHMS._table})
    ALGORITHMS.add("mine", Aliased)
    change = {"from_round": 2, "algorithm": {"lr": 0.01}}
    values = {**BASE, "algorithm": {"name": "mine", "lambda": 0.25}, "proxy": None, "schedule": change}
    (experiment,) = load_config(values)
    assert [v.algorithm.lambda_ for v in experiment.versions] == [0.25, 0.25]
    assert Experiment(**yaml.safe_load(experiment.yaml())) == experiment
    (made,) = load_config({**values, "algorithm": Aliased(**{"lambda": 0.25})})
    assert made.algorithm == experiment.algorithm

"""The configuration: presets, overrides, grids, and one clear line for everything that is wrong."""

import pytest
import yaml

from flray.config import load_config
from flray.core.errors import ConfigError
from flray.experiment import default_folder

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
    switched = load_config({**BASE, "algorithm": {"name": "fedavg", "weighting": "uniform", "lr": 0.05}}, [f"algorithm={name}"])[
        0
    ].algorithm
    assert switched.lr == 0.05 and "weighting" not in type(switched).model_fields


def test_override_beats_preset_beats_file():
    experiment = only("preset=small", "algorithm.lr=0.3")
    assert (experiment.rounds, experiment.model.name, experiment.algorithm.lr) == (1, "fedavg_cnn", 0.3)
    assert only("preset=small").algorithm.lr == 0.2
    assert only().algorithm.lr == 0.05


def test_naming_another_model_or_partition_drops_the_options_of_the_old_one():
    assert "hidden" not in only("model=fedavg_cnn").model.options
    shared = only("partition=iid").partition
    assert (shared.name, shared.clients, shared.alpha) == ("iid", 10, None)


def test_grid_is_the_product_in_the_order_written():
    cells = load_config(BASE, ["algorithm=fedavg,feddf", "seed=0..2"])
    assert [(type(c.algorithm).__name__, c.seed) for c in cells] == [(a, s) for a in ("FedAvg", "FedDF") for s in (0, 1, 2)]


def test_a_list_is_one_value():
    assert only("model.hidden=[8, 4]").model.options["hidden"] == [8, 4]


def test_proxy_looks_below_the_same_root_as_the_data(tmp_path):
    experiment = only(f"data.root={tmp_path}")
    assert experiment.proxy.root == str(tmp_path)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("algorithm.projection_rat=1", "algorithm.projection_rat: unknown key (did you mean 'projection_rate'?)"),
        ("algorithm.lr=abc", "algorithm.lr: .*number.*'abc'"),
        ("algorithm.lr=-1", "algorithm.lr: .*greater than 0.*-1"),
        ("algorithm.rule=thresh", "algorithm.rule: .*threshold.*'thresh'"),
        ("algorithm=fedporj", "unknown algorithm 'fedporj' (did you mean 'fedproj'?)"),
        ("model=mlpp", "unknown model 'mlpp' (did you mean 'mlp'?)"),
        ("partition=dirichle", "unknown partition 'dirichle' (did you mean 'dirichlet'?)"),
        ("data.sorce=iris", "data.sorce: unknown key (did you mean 'source'?)"),
        ("partition.alpha=0", "partition.alpha: 0.0 must be above 0"),
        ("cohort.size=0", "cohort.size: .*greater than or equal to 1"),
        ("resources.client.num_gpus=1.5", "resources.client.num_gpus: must be between 0 and 1, or a whole number"),
        ("roundz=3", "roundz: unknown key (did you mean 'rounds'?)"),
        ("preset=smal", "unknown preset 'smal' in this configuration (did you mean 'small'?)"),
        ("rounds.x=1", "override rounds.x: rounds is a value, not a section"),
        ("nonsense", "override 'nonsense': write key=value"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(override, words):
    with pytest.raises(ConfigError) as caught:
        load_config(BASE, [override])
    import re

    message = str(caught.value)
    pattern = ".*".join(re.escape(part) for part in words.split(".*"))
    assert re.search(pattern, message), message
    assert "\n" not in message


def test_missing_file_names_the_nearest(tmp_path):
    (tmp_path / "quickstart.yaml").write_text("rounds: 1")
    with pytest.raises(ConfigError, match=r"did you mean 'quickstart'"):
        load_config(tmp_path / "quickstrt.yaml")


def test_feddf_without_public_data_says_what_to_add():
    without = {k: v for k, v in BASE.items() if k != "proxy"}
    with pytest.raises(ConfigError, match="needs public data: add a `proxy` section"):
        load_config(without)


def test_import_of_a_module_that_does_not_exist():
    with pytest.raises(ConfigError, match="--import no_such_module"):
        load_config(BASE, [], ["no_such_module"])


def test_default_folder_never_names_an_existing_one(tmp_path):
    experiment = only()
    first = default_folder(experiment, tmp_path)
    first.mkdir(parents=True)
    assert default_folder(experiment, tmp_path) == first.with_name(first.name + "-2")


def test_cohort_fraction_takes_at_least_one_client():
    assert only("cohort.fraction=0.001").cohort.count(10) == 1
    assert only("cohort.fraction=0.29").cohort.count(10) == 2  # int(2.9), as FedSOL's code
    with pytest.raises(ConfigError, match=r"cohort\.size: 11 clients per round, but the partition has 10"):
        only("cohort.size=11").cohort.count(10)


# extends, and the table `algorithms` ----------------------------------------------------------
def test_a_file_extends_another_and_its_own_values_win(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "base.yaml").write_text(yaml.safe_dump({**BASE, "presets": {"small": {"rounds": 1}, "tiny": {"rounds": 2}}}))
    child = {"extends": "../base.yaml", "name": "child", "algorithm": {"lr": 0.5}, "presets": {"small": {"seed": 4}}}
    (tmp_path / "deep" / "child.yaml").write_text(yaml.safe_dump(child))
    (experiment,) = load_config(tmp_path / "deep" / "child.yaml", ["preset=small"])
    assert (experiment.name, experiment.rounds, experiment.seed) == ("child", 1, 4)
    assert (experiment.algorithm.lr, experiment.algorithm.projection_rate) == (0.5, 0.5)
    # another partition in the child: the parent's options go
    (tmp_path / "deep" / "child.yaml").write_text("extends: ../base.yaml\npartition: {name: shards, shards_per_client: 2}\n")
    (experiment,) = load_config(tmp_path / "deep" / "child.yaml")
    assert (experiment.partition.clients, experiment.partition.alpha) == (10, None)


def test_extending_what_is_not_there_or_itself_is_one_line(tmp_path):
    (tmp_path / "a.yaml").write_text("extends: b.yaml\n")
    with pytest.raises(ConfigError, match=r"no configuration file .*b\.yaml"):
        load_config(tmp_path / "a.yaml")
    (tmp_path / "b.yaml").write_text("extends: a.yaml\n")
    with pytest.raises(ConfigError, match="extends itself"):
        load_config(tmp_path / "a.yaml")


def test_the_table_of_algorithms_sets_what_the_chosen_one_needs():
    base = {**BASE, "algorithms": {"fedproj": {"projection_rate": 0.25}, "feddf": {"temperature": 4.0}}}
    assert load_config(base)[0].algorithm.projection_rate == 0.25
    assert load_config(base, ["algorithm=feddf"])[0].algorithm.temperature == 4.0
    assert load_config(base, ["algorithm=feddf", "algorithm.temperature=5"])[0].algorithm.temperature == 5.0
    with pytest.raises(ConfigError, match="did you mean"):
        load_config({**BASE, "algorithms": {"fedpproj": {}}})


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

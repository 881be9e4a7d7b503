"""A sweep's file and overrides: complete, the same from any folder, and one clear line for everything that is wrong."""

import dataclasses
import pickle
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import yaml

from flray.config.loader import load_config
from flray.core.schema.errors import ConfigError
from flray.metrics.names import COLUMNS, METRICS
from flray.tuning.config import CUMULATIVE
from flray.tuning.sweep_file import load_sweep
from tests.support.messages import assert_says, mistakes

CONFIGS = Path(__file__).parents[2] / "configs"
FILES = sorted((CONFIGS / "sweeps").glob("*.yaml"))
EXPERIMENT = {
    "rounds": 20,
    "data": {"source": "digits"},
    "partition": {"name": "dirichlet", "clients": 10, "alpha": 0.3},
    "model": {"name": "mlp", "hidden": [16]},
    "algorithm": {"name": "fedsol", "lr": 0.05},
}
BASE = {"experiment": EXPERIMENT, "space": {"algorithm.rho": "auto"}}
CHOICE = {**BASE, "space": {"algorithm": ["fedavg", "fedprox"]}}


def test_defaults_are_written_out():
    sweep = load_sweep(BASE)
    assert sweep.objective == {"val/acc": "max"}
    assert (sweep.trials, sweep.hours, sweep.client_steps, sweep.budget_per) == (12, None, None, "sweep")
    assert (sweep.seed, sweep.sampler, sweep.scheduler.name) == (0, "tpe", "none")
    assert (sweep.concurrency, sweep.study) == ("auto", None)
    assert (sweep.final.top, sweep.final.seeds) == (None, 3)
    written = yaml.safe_load(sweep.yaml())
    assert written["space"] == {"algorithm.rho": {"log": [0.05, 5.0]}}
    assert written["experiment"]["evaluate"]["validation"] == {"fraction": 0.1, "of": "clients"}
    keys = "name experiment space objective trials hours client_steps budget_per seed sampler scheduler concurrency"
    assert list(written) == [*keys.split(), "study", "final"]


def test_an_override_reaches_the_sweep_or_the_experiment():
    given = """trials=40 hours=2 seed=7 name=mine scheduler.grace=2 'scheduler.seeds=[1, 3]' final.top=2 concurrency=1
        'space.algorithm.rho={log: [0.1, 1]}' 'space.partition.alpha=[0.1, 0.3]' 'objective={val/loss: min}' rounds=10
        experiment.seed=3 algorithm.local_epochs=1 experiment.name=theirs model.hidden=[8]"""
    sweep = load_sweep({**BASE, "scheduler": "asha"}, shlex.split(given))
    assert (sweep.trials, sweep.hours, sweep.seed, sweep.name, sweep.concurrency) == (40, 2.0, 7, "mine", 1)
    rule = sweep.scheduler
    assert (rule.name, rule.grace, rule.seeds, rule.reduction) == ("asha", 2, (1, 3), 3.0)
    assert (sweep.final.top, sweep.final.seeds, sweep.objective) == (2, 3, {"val/loss": "min"})
    assert sweep.space == {"algorithm.rho": {"log": [0.1, 1.0]}, "partition.alpha": {"choice": [0.1, 0.3]}}
    experiment = sweep.experiment({"algorithm.rho": 0.5, "partition.alpha": 0.1})
    assert (experiment.rounds, experiment.seed, experiment.name) == (10, 3, "theirs")
    assert experiment.algorithm.local_epochs == 1
    assert (experiment.algorithm.rho, experiment.partition.alpha, experiment.model.options["hidden"]) == (0.5, 0.1, [8])


def test_overrides_from_python_are_values():
    sweep = load_sweep(BASE, {"trials": 3, "space.partition.alpha": [0.1, 1.0], "algorithm.optimizer": "adam"})
    assert (sweep.trials, sweep.search_space.names()) == (3, ("algorithm.rho", "partition.alpha"))
    assert sweep.experiment(sweep.search_space.example()).algorithm.optimizer == "adam"


def test_values_of_numpy_and_a_dataclass_are_those_of_a_file():
    """As for a run."""
    rates, values = {"algorithm.lr": [0.5, 0.25]}, {"space.algorithm.lr": np.array([0.5, 0.25])}
    arrays = {**BASE, "trials": np.int64(3), "space": {"algorithm.lr": np.array([0.5, 0.25])}}
    scalars = {**BASE, "trials": np.int8(3), "space": {"algorithm.lr": [np.float32(0.5), np.float64(0.25)]}}
    fields = dataclasses.make_dataclass("Fields", arrays)(**arrays)
    expected = load_sweep({**BASE, "trials": 3, "space": rates})
    for given in (arrays, scalars, fields):
        assert load_sweep(given) == expected
    assert load_sweep({**BASE, "trials": 3, "space": {}}, values) == expected


def test_a_saved_sweep_is_the_same_from_any_folder(tmp_path, monkeypatch):
    """`extends` is relative to the sweep's file; nothing of it is left in what is saved."""
    (tmp_path / "configs" / "sweeps").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    presets = {"presets": {"small": {"rounds": 9, "algorithm": {"lr": 0.2}}}}
    (tmp_path / "configs" / "base.yaml").write_text(yaml.safe_dump(EXPERIMENT | presets))
    section = {"extends": "../base.yaml", "preset": "small", "cohort": {"size": 4}}
    raw = {
        **BASE,
        "experiment": section,
        "scheduler": "asha",
        "space": {"algorithm": ["fedprox", "fedsol"], "algorithm.lr": "auto"},
    }
    (tmp_path / "configs" / "sweeps" / "mine.yaml").write_text(yaml.safe_dump(raw))
    monkeypatch.chdir(tmp_path / "configs")
    sweep = load_sweep("sweeps/mine.yaml", ["algorithm.momentum=0.5"])
    assert (sweep.name, sweep.values["rounds"], sweep.values["cohort"]) == ("mine", 9, {"size": 4})
    (tmp_path / "sweep.yaml").write_text(sweep.yaml())
    monkeypatch.chdir(tmp_path / "elsewhere")
    again = load_sweep(tmp_path / "sweep.yaml")
    assert again == sweep and again.search_space == sweep.search_space and again.yaml() == sweep.yaml()
    assert not re.search("extends|preset|auto$", sweep.yaml().replace("concurrency: auto", ""), re.MULTILINE)
    copy = pickle.loads(pickle.dumps(sweep))
    assert copy == sweep and copy.search_space == sweep.search_space


@pytest.mark.parametrize(
    "overrides", [[], ["preset=small"], ["algorithm.weighting=uniform", "model=resnet18", "model.norm=batch"]]
)
def test_a_trial_is_the_experiment_that_the_file_makes_of_the_same_overrides(overrides):
    """The file's tables `algorithms` and `models` are still there when a trial names one of their entries; overrides go
    before them."""
    file = CONFIGS / "fedsol" / "cifar10_lda01.yaml"
    names = ["fedavg", "fedprox", "feddyn", "moon", "fedsol"]
    sweep = load_sweep({"experiment": {"extends": str(file)}, "space": {"algorithm": names}}, overrides)
    for name in names:
        expected = load_config(file, [f"algorithm={name}", *overrides, "evaluate.validation={fraction: 0.1}"])[0]
        assert sweep.experiment({"algorithm": name}) == expected
    table = load_config(file, ["algorithm=feddyn"])[0].algorithm
    assert (table.alpha, table.weighting) == (0.1, "examples")  # so the third case does override the table


def test_the_held_out_share_is_the_experiments_where_it_has_one_and_the_final_runs_have_none():
    sweep = load_sweep(BASE, ["evaluate.validation.fraction=0.2", "evaluate.validation.of=server"])
    trial = sweep.experiment({"algorithm.rho": 1.0})
    assert (trial.evaluate.validation.fraction, trial.evaluate.validation.of) == (0.2, "server")
    assert load_sweep(BASE, ["evaluate.validation=null"]).experiment({}).evaluate.validation.fraction == 0.1
    assert load_sweep(BASE, ["objective={comm/bytes: min}"]).experiment({}).evaluate.validation.of == "clients"
    assert sweep.experiment({"algorithm.rho": 1.0, "evaluate.validation": None, "seed": 5}).evaluate.validation is None


def test_a_shorter_choice_from_the_command_line_needs_no_other_change():
    sweep = load_sweep(CONFIGS / "sweeps" / "compare_tuned.yaml", ["space.algorithm=[fedavg, fedprox]"])
    assert sweep.search_space.names() == ("algorithm", "fedavg.lr", "fedprox.lr", "fedprox.mu")


SETS = {"algorithm.rho": "auto", "partition": ["iid", "dirichlet"], "cohort": [1, 0.5], "model.hidden": [[4], [8]]}
CHOOSES = {"algorithm": ["fedavg", "fedprox"], "fedprox.lr": [0.1, 0.2], "fedavg.momentum": 0.0}


@pytest.mark.filterwarnings("ignore:.*given whole")
@pytest.mark.parametrize(
    ("space", "override", "words"),
    [
        (SETS, "algorithm.rho=0.7", "the space sets algorithm.rho; write space.algorithm.rho=0.7"),
        (SETS, "algorithm={name: fedsol, rho: 0.7}", "the space sets algorithm.rho; write space.algorithm.rho=0.7"),
        (SETS, "algorithms.fedsol.rho=0.7", "the space sets algorithm.rho; write space.algorithm.rho=0.7"),
        (SETS, "partition=dirichlet", "the space sets partition; write space.partition=dirichlet"),
        (SETS, "cohort.size=3", "the space sets cohort.size; write space.cohort=3"),
        (SETS, "models={mlp: {hidden: [6]}}", "the space sets model.hidden; write space.model.hidden=[6]"),
        (CHOOSES, "algorithm=fedprox", 'the space sets algorithm; write space.algorithm=["fedprox"]'),
        (CHOOSES, "algorithms.fedprox.lr=0.3", "the space sets algorithm.lr; write space.fedprox.lr=0.3"),
        (
            {**CHOOSES, "fedavg.lr": 0.1},
            "algorithm.lr=0.3",
            "the space sets algorithm.lr; write space.fedavg.lr=0.3 space.fedprox.lr=0.3",
        ),
        (
            {**CHOOSES, "fedavg.lr": 0.1},
            "space.algorithm.lr=0.3",
            "each algorithm has its own; write space.fedavg.lr=0.3 space.fedprox.lr=0.3",
        ),
    ],
)
def test_an_override_of_what_the_space_sets_is_refused(space, override, words):
    """It changed no trial, in silence."""
    with pytest.raises(ConfigError) as caught:
        load_sweep({**BASE, "space": space}, [override])
    assert_says(caught.value, f"{override.partition('=')[0]}=", "changes nothing", words)


def test_an_override_of_what_some_trials_read_is_not_refused():
    sweep = load_sweep({**BASE, "space": SETS}, ["partition.alpha=3", "cohort.dropout=0.5", "algorithm.lr=0.2"])
    trial = sweep.experiment({**sweep.search_space.example(), "partition": "dirichlet"})
    assert (trial.partition.alpha, trial.cohort.dropout, trial.algorithm.lr) == (3, 0.5, 0.2)
    overrides = ["algorithm.lr=0.3", "algorithms.fedprox.momentum=0.5", "space.algorithm.local_epochs=[1, 2]"]
    sweep = load_sweep({**BASE, "space": CHOOSES}, overrides)
    fedavg, fedprox = (sweep.experiment(sweep.search_space.example(name)).algorithm for name in ("fedavg", "fedprox"))
    assert (fedavg.lr, fedprox.lr, fedprox.momentum) == (0.3, 0.1, 0.5)


def test_a_further_objective_keeps_the_one_that_the_file_leaves_out():
    """The bytes alone were minimised."""
    for objective in ({}, {"objective": {"val/acc": "max"}}):
        sweep = load_sweep({**BASE, **objective}, ["objective.comm/bytes=min"])
        assert sweep.objective == {"val/acc": "max", "comm/bytes": "min"}
    assert load_sweep(BASE, ["objective={comm/bytes: min}"]).objective == {"comm/bytes": "min"}


@pytest.mark.parametrize(
    ("override", "list_form"),
    [
        ("space.algorithm.lr=0.1,0.2", "space.algorithm.lr=[0.1, 0.2]"),
        ("space.algorithm=fedavg,fedprox", "space.algorithm=[fedavg, fedprox]"),
        ("rounds=5,10", "space.rounds=[5, 10]"),
        ("experiment.rounds=5,10", "space.rounds=[5, 10]"),
    ],
)
def test_commas_make_no_grid_in_a_sweep_and_the_list_is_named(override, list_form):
    with pytest.raises(ConfigError) as caught:
        load_sweep(BASE, [override])
    assert_says(caught.value, f"override {override}", "commas make no grid in a sweep", f"'{list_form}'")
    searched = load_sweep(BASE, [list_form]).search_space
    assert searched.names()


def test_another_file_to_extend_is_found_from_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "other.yaml").write_text(yaml.safe_dump({**EXPERIMENT, "rounds": 77}))
    monkeypatch.chdir(tmp_path)
    sweep = load_sweep(CONFIGS / "sweeps" / "fedsol_rho.yaml", ["experiment.extends=other.yaml"])
    assert sweep.experiment({}).rounds == 77


def test_modules_are_imported_before_their_names_are_read(tmp_path, monkeypatch):
    (tmp_path / "own_sweep_algorithm.py").write_text(
        "from flray.algorithms import ALGORITHMS\nfrom flray.algorithms.fedavg import FedAvg\n"
        "from flray.core.schema.hp import hp\nclass Mine(FedAvg, frozen=True):\n"
        "    pull: float = hp(0.1, log=(0.01, 1.0), gt=0, doc='how "
        "much')\nALGORITHMS.add('own_of_a_sweep', Mine)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    sweep = load_sweep(BASE, ["space={}", "space.algorithm=[fedavg, own_of_a_sweep]"], ["own_sweep_algorithm"])
    from flray.algorithms import ALGORITHMS

    try:
        assert sweep.search_space.names() == ("algorithm", "own_of_a_sweep.pull")
        assert sweep.values["imports"] == ["own_sweep_algorithm"]
        assert sweep.experiment({"algorithm": "own_of_a_sweep"}).imports == ("own_sweep_algorithm",)
    finally:
        del ALGORITHMS._table["own_of_a_sweep"]


def test_a_metric_of_ones_own_is_an_objective(tmp_path, monkeypatch):
    """With a module of one's own its metrics are known when a round reports them; without one, or of the test set, a
    name is refused at once."""
    (tmp_path / "own_metric_of_a_sweep.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    own = {**BASE, "experiment": {**EXPERIMENT, "imports": ["own_metric_of_a_sweep"]}}
    assert load_sweep({**own, "objective": {"mine/score": "min"}}).objective == {"mine/score": "min"}
    with pytest.raises(ConfigError, match="mine/score alone does not say max or min"):
        load_sweep({**own, "objective": "mine/score"})
    for settings, name in ((BASE, "mine/score"), (own, "test/acc"), (own, "personal/mine")):
        with pytest.raises(ConfigError, match=name):
            load_sweep({**settings, "objective": {name: "max"}})


# objective and scheduler ----------------------------------------------------------------------
def test_an_accuracy_alone_is_maximised_and_several_objectives_keep_their_order():
    assert load_sweep({**BASE, "objective": "val/acc"}).objective == {"val/acc": "max"}
    assert load_sweep({**BASE, "objective": "val/acc_mean10"}).objective == {"val/acc_mean10": "max"}
    assert load_sweep({**BASE, "objective": "client/acc_p10"}).objective == {"client/acc_p10": "max"}
    several = {"val/acc": "max", "comm/bytes": "min", "client_steps": "min", "time/s": "min"}
    assert list(load_sweep({**BASE, "objective": several}).objective.items()) == list(several.items())


def test_cumulative_objectives_add_columns_that_every_run_has():
    assert set(sum(CUMULATIVE.values(), ())) <= {*METRICS, *COLUMNS}
    assert {"val/acc", "val/loss"} <= set(METRICS)


@pytest.mark.parametrize(
    ("scheduler", "expected"),
    [
        ("none", {}),
        (None, {}),
        ("asha", {"grace": 4, "reduction": 3.0, "seeds": (1,), "time_attr": "round"}),
        (
            {"name": "asha", "grace": 2, "reduction": 2.5, "seeds": [1, 1, 3]},
            {"grace": 2, "reduction": 2.5, "seeds": (1, 1, 3), "time_attr": "round"},
        ),
        ("hyperband", {"reduction": 3.0}),
        ({"name": "pbt", "grace": 5}, {"grace": 5}),
        ("median", {"grace": 4, "startup": 5}),
        ({"name": "percentile", "percentile": 50, "startup": 0}, {"grace": 4, "startup": 0, "percentile": 50.0}),
        ("successive_halving", {"grace": 4, "reduction": 4.0}),
    ],
)
def test_a_scheduler_has_the_options_that_it_reads(scheduler, expected):
    found = load_sweep({**BASE, "scheduler": scheduler}).scheduler
    given = scheduler["name"] if isinstance(scheduler, dict) else scheduler or "none"
    assert {k: v for k, v in found.model_dump().items() if v is not None} == {"name": given, **expected}


def test_a_rung_must_be_reached_by_the_shortest_trial():
    assert load_sweep(BASE, ["scheduler=asha", "scheduler.grace=19"]).scheduler.grace == 19
    message = r"scheduler\.grace: the first decision is after {} rounds, a trial has {}; lower it, or raise rounds"
    with pytest.raises(ConfigError, match=message.format(20, 20)):
        load_sweep(BASE, ["scheduler=asha", "scheduler.grace=20"])
    with pytest.raises(ConfigError, match=message.format(4, 3)):
        load_sweep(BASE, ["scheduler=median", "space.rounds=[30, 3]"])
    assert load_sweep(BASE, ["rounds=3", "scheduler=none"]).scheduler.name == "none"


def test_a_trials_rounds_are_those_of_all_its_tasks():
    """The time of schedulers is `done`: two tasks of 20 rounds are 40 of them."""
    one, two = load_sweep(BASE, ["scheduler=none"]), load_sweep(BASE, ["scheduler=none", "tasks=2"])
    assert [sweep.lengths(sweep.search_space.algorithms[0]) for sweep in (one, two)] == [(20, 20), (40, 40)]
    varied = load_sweep(BASE, ["scheduler=none", "tasks=2", "space.rounds=[30, 3]", "space.tasks.num_tasks=[1, 3]"])
    assert varied.lengths(varied.search_space.algorithms[0]) == (3, 90)
    assert load_sweep(BASE, ["scheduler=median", "scheduler.grace=30", "tasks=2"]).scheduler.grace == 30
    with pytest.raises(ConfigError, match="after 40 rounds, a trial has 40"):
        load_sweep(BASE, ["scheduler=median", "scheduler.grace=40", "tasks=2"])


# the files -------------------------------------------------------------------------------------
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_sweep_of_the_repository_loads_and_so_do_the_commands_that_it_names(path):
    sweep = load_sweep(path)
    assert sweep.name == path.stem
    needs_data = {"fedsol_tuned": "cifar10", "mnist_parts": "mnist"}  # the evidence's
    source = needs_data.get(path.stem, "digits")
    assert sweep.experiment(sweep.search_space.example()).data.source == source
    commands = [shlex.split(line[1:]) for line in path.read_text().splitlines() if line.startswith("#   flray sweep ")]
    assert len(commands) >= 2
    for command in commands:
        assert Path(command[2]) == path.relative_to(CONFIGS.parent)
        overrides = [part.replace("extends=configs/", f"extends={CONFIGS}/") for part in command[3:]]
        assert load_sweep(path, overrides).search_space.names()


# what is wrong ---------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("overrides", "words"),
    mistakes("""
trails=3 | unknown key 'trails' in override trails (did you mean 'trials'?)
trials=0 | trials: input should be greater than or equal to 1, got 0
trials=1,2 | trials: input should be a valid integer
hours=0 | hours: input should be greater than 0, got 0
client_steps=0 | client_steps: input should be greater than 0
concurrency=0 | concurrency
sampler=tpee | sampler: input should be 'tpe', 'random', 'qmc', 'gp', 'nsga2' or 'nsga3', got 'tpee'
study=sweep.db | study: 'sweep.db' is not a database URL; write for example sqlite:///sweep.db
budget_per=algorithm | budget_per: algorithm, but the sweep has one
final.tops=1 | final.tops: unknown key (did you mean 'top'?)
final.seeds=0 | final.seeds: input should be greater than or equal to 1
trials.x=1 | override trials.x: trials is 12, a value, not a section
experiment=x.yaml | override experiment=x.yaml: write experiment.KEY=value
roundz=3 | unknown key 'roundz' in override roundz (did you mean 'rounds'?)
experiment.roundz=3 | roundz: unknown key (did you mean 'rounds'?)
preset=small | unknown preset 'small' in this configuration
name=a/b | name: must be the name of one folder
nonsense | override 'nonsense': write key=value
objective=val/ac | unknown metric 'val/ac' in objective (did you mean 'val/acc'?)
objective=test/acc | objective: tuning never reads the test set, so not test/acc; use val/acc
objective={personal/ft0/acc_mean: max} | objective: tuning never reads the test set, so not personal/ft0/acc_mean
objective={time/personal_s: min} | unknown metric 'time/personal_s' in objective
objective=val/loss | objective: val/loss alone does not say max or min; write objective: {val/loss: min}
objective=val/acc_mean10  experiment.tasks={num_tasks: 2, class_order: natural} | objective: val/acc_mean10 averages
    | rounds, and with tasks they are not alike; use val/acc
objective=val/acc_mean10  experiment.evaluate.every=0 | evaluate.every: 0 tests a trial of
objective={val/acc: maximum} | objective.val/acc: input should be 'max' or 'min', got 'maximum'
objective={} | objective: dictionary should have at least 1 item
scheduler=ahsa | scheduler.name: input should be
scheduler=asha  scheduler.graec=3 | scheduler.graec: unknown key (did you mean 'grace'?)
scheduler=asha  scheduler.reduction=1 | scheduler.reduction: input should be greater than 1
scheduler=asha  scheduler.seeds=[1, 0] | scheduler.seeds.1: input should be greater than or equal to 1
scheduler=asha  scheduler.seeds=[3, 1] | scheduler.seeds: [3, 1] falls; a later rung has as many seeds
scheduler=median  scheduler.seeds=[1, 3] | scheduler.seeds: median does not read it (read by asha)
scheduler.grace=3 | scheduler.grace: none does not read it (read by asha, pbt, median, percentile,
    | successive_halving)
scheduler=successive_halving  scheduler.reduction=2.5 | scheduler.reduction: successive_halving needs a whole number
scheduler=asha  objective={val/acc: max, comm/bytes: min} | scheduler: asha judges trials by one number
scheduler=asha  evaluate.every=0 | evaluate.every: 0 tests a trial of 20 rounds only at its end, asha needs a value
    | before
scheduler=pbt  space={partition.alpha: [0.1, 1]} | scheduler: pbt changes numbers of the algorithm as it goes
scheduler=pbt  space={algorithm: [fedprox, fedsol]} | scheduler: pbt copies one trial's state into another
scheduler=pbt  space={algorithm.rho: auto, partition.alpha: [0.1, 1]} | which partition.alpha may not fit
scheduler=hyperband  concurrency=2 | concurrency: hyperband halts trials and goes on with others
space.algorithm.rhoo=auto | unknown parameter 'rhoo' in space.algorithm.rhoo, of fedsol (did you mean 'rho'?)
space.algorithm.rho=[] | space.algorithm.rho: no values to choose from
scheduler.name=[a] | scheduler.name: input should be 'none', 'asha'
space.algorithm=1  space=2 | space: 
evaluate.finetune_epochs=[0, 1] | evaluate.validation: evaluate.finetune_epochs tests each client on the test set
space.algorithm=[fedavg, local] | evaluate.validation: algorithm local tests each client on the test set
    """),
)
def test_what_is_wrong_is_said_in_one_line(overrides, words):
    """Two spaces between overrides."""
    with pytest.raises(ConfigError) as caught:
        load_sweep({**BASE, "trials": 12}, overrides.split("  "))
    assert_says(caught.value, *words)


def test_a_file_that_is_no_sweep_is_said_in_one_line(tmp_path):
    with pytest.raises(ConfigError, match=r"quickstart\.yaml has no section `experiment`"):
        load_sweep(CONFIGS / "quickstart.yaml")
    with pytest.raises(ConfigError, match=r"unknown key 'spaces' in the sweep; .* \(did you mean 'space'\?\)"):
        load_sweep({**BASE, "spaces": {}})
    with pytest.raises(ConfigError, match="space: missing; add it"):
        load_sweep({"experiment": EXPERIMENT})
    with pytest.raises(
        ConfigError, match=r"no configuration file .*fedsol_roh\.yaml \(did you mean 'fedsol_rho\.yaml'\?\)"
    ):
        load_sweep(CONFIGS / "sweeps" / "fedsol_roh.yaml")
    with pytest.raises(ConfigError, match="is a folder, not a configuration file"):
        load_sweep(tmp_path)


def test_a_text_with_a_comma_and_a_number_sign_is_one_value():
    assert load_sweep(BASE, ["name=a, run #2"]).name == "a, run #2"

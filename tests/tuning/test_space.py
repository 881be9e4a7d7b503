"""The search space: what the algorithms declare and what a sweep makes of it; every suggestion is a valid
experiment."""

import pickle
import sys
from operator import attrgetter

import optuna
import pytest
import yaml
from hypothesis import given, settings, strategies as st
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FixedTrial

from flray.algorithms import ALGORITHMS, built_in
from flray.config.experiment import algorithm_name
from flray.config.loader import with_values
from flray.core.schema.errors import ConfigError
from flray.core.schema.hp import hyperparameters
from flray.core.schema.plain import read
from flray.tuning.space import resolve
from flray.tuning.sweep_file import load_sweep, narrowed
from tests.support.messages import assert_says, mistakes

BASE = {
    "rounds": 3,
    "data": {"source": "digits"},
    "proxy": {"source": "holdout", "size": 100},
    "partition": {"name": "dirichlet", "clients": 10, "alpha": 0.3},
    "model": {"name": "mlp", "hidden": [16]},
    "algorithm": {"name": "fedsol", "lr": 0.05},
}
CHOICE = {"algorithm": {"choice": ["fedavg", "fedprox", "fedsol"]}}


def distributions(space, algorithm=None, seed=0):
    """What Optuna itself says it was asked for."""
    trial = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed)).ask()
    space.suggest(trial, algorithm)
    return trial.distributions


# one algorithm --------------------------------------------------------------------------------
def test_auto_is_what_the_algorithm_declares():
    """`rho: log (0.05, 5)`, `temperature: linear (1, 5)`, `momentum: choice (0, 0.5, 0.9)` in fedsol.py and
    fedavg.py."""
    space = resolve({"algorithm.temperature": "auto", "algorithm.rho": "auto", "algorithm.momentum": "auto"}, BASE)
    assert distributions(space) == {
        "algorithm.momentum": CategoricalDistribution((0.0, 0.5, 0.9)),
        "algorithm.rho": FloatDistribution(0.05, 5.0, log=True),
        "algorithm.temperature": FloatDistribution(1.0, 5.0),
    }
    assert (space.conditional, space.algorithms) == (False, ("fedsol",))


def test_every_way_to_write_a_parameter_reaches_optuna_and_the_experiment():
    space = resolve(
        {
            "algorithm.lr": {"log": ["1e-3", 1]},  # YAML reads 1e-3 as text
            "algorithm.local_epochs": {"linear": [1, 4]},
            "algorithm.batch_size": {"log": [16, 64]},
            "algorithm.perturb": ["head", "all"],
            "algorithm.momentum": 0.5,
            "partition.alpha": {"log": [0.1, 1]},
            "model.hidden": [[8], [8, 4]],
            "cohort.size": {"choice": [2, 5]},
        },
        BASE,
    )
    assert distributions(space) == {
        "algorithm.lr": FloatDistribution(0.001, 1.0, log=True),
        "algorithm.local_epochs": IntDistribution(1, 4),
        "algorithm.batch_size": IntDistribution(16, 64, log=True),
        "algorithm.perturb": CategoricalDistribution(("head", "all")),
        "partition.alpha": FloatDistribution(0.1, 1.0, log=True),
        "model.hidden": CategoricalDistribution(("[8]", "[8, 4]")),
        "cohort.size": CategoricalDistribution((2, 5)),
    }
    params = {
        "algorithm.lr": 0.25,
        "algorithm.local_epochs": 3,
        "algorithm.batch_size": 20,
        "algorithm.perturb": "all",
        "partition.alpha": 0.5,
        "model.hidden": "[8, 4]",
        "cohort.size": 5,
    }
    overrides = space.suggest(FixedTrial(params))
    assert overrides == {**params, "model.hidden": [8, 4], "algorithm.momentum": 0.5}
    experiment = with_values(BASE, overrides)
    algorithm = experiment.algorithm
    assert (algorithm.lr, algorithm.local_epochs, algorithm.batch_size, algorithm.perturb, algorithm.momentum) == (
        0.25,
        3,
        20,
        "all",
        0.5,
    )
    assert (experiment.partition.alpha, experiment.model.options["hidden"], experiment.cohort.size) == (0.5, [8, 4], 5)
    assert set(space.names()) == set(params)


OWN = """
from torch import nn

class Net(nn.Linear):
    def __init__(self, input_shape, num_classes, p=0.1, width=8, act=None, depth: int = 2):
        super().__init__(64, num_classes)
"""


def test_an_option_without_a_type_is_what_its_default_is(tmp_path, monkeypatch):
    """Of p=0.1, written linear: [0, 1], only 0 and 1 were tried."""
    (tmp_path / "net_of_test_space.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    ranges = {"p": [0, 1], "width": [4, 64], "act": [1, 3], "depth": [1, 4]}
    own = {**BASE, "model": "net_of_test_space:Net"}
    space = resolve({f"model.{name}": {"linear": ends} for name, ends in ranges.items()}, own)
    assert distributions(space) == {
        "model.p": FloatDistribution(0.0, 1.0),
        "model.width": IntDistribution(4, 64),
        "model.act": IntDistribution(1, 3),
        "model.depth": IntDistribution(1, 4),
    }
    mixed = resolve({"model.act": {"linear": [0, 1.5]}}, own)
    assert distributions(mixed) == {"model.act": FloatDistribution(0.0, 1.5)}
    assert resolve({"model.p": [0, 1]}, own).dump() == {"model.p": {"choice": [0, 1]}}


def test_a_number_of_yaml_1_2_is_one_for_an_option_without_a_type(tmp_path, monkeypatch):
    """A network of one's own got the text `1e-1`, and `log: [1e-2, 0.5]` was no range of numbers. The name is text."""
    (tmp_path / "net_of_test_space.py").write_text(OWN.replace("act=None", "act='relu'"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "net_of_test_space", raising=False)
    file = tmp_path / "s.yaml"
    own = {**BASE, "name": "12e4x", "model": {"name": "net_of_test_space:Net", "p": "1e-1x", "act": "1e5x"}}
    text = yaml.safe_dump({"experiment": own, "space": {"algorithm.lr": [0.1, 0.2]}})
    file.write_text(text.replace("12e4x", "12e4").replace("1e-1x", "1e-1").replace("1e5x", "1e5"))
    sweep = load_sweep(file)
    (tmp_path / "again.yaml").write_text(sweep.yaml())
    for each in (sweep, load_sweep(tmp_path / "again.yaml")):
        experiment = each.experiment({})
        assert (experiment.name, experiment.model.options["p"], experiment.model.options["act"]) == ("12e4", 0.1, "1e5")
    assert load_sweep(file, ["model.p=2.5e-1"]).experiment({}).model.options["p"] == 0.25
    searched = load_sweep(file, ["space.model.p={log: [1e-2, 0.5]}"]).search_space
    assert distributions(searched)["model.p"] == FloatDistribution(0.01, 0.5, log=True)
    quoted = load_sweep(file, ["model.p='1e-1'"]).experiment({}).model.options["p"]
    assert quoted == "1e-1"


def test_a_string_stays_a_string_and_a_list_may_hold_null_and_sections():
    """YAML reads `off` as false and `a,b` would be a grid; `none` is a string, null is null."""
    base = {**BASE, "algorithm": "fednova"}
    space = resolve(
        {
            "algorithm.ccvr": ["off", "fixed"],
            "partition": [{"name": "shards", "clients": 5}, {"name": "iid", "clients": 4}],
        },
        base,
    )
    overrides = space.suggest(FixedTrial({"algorithm.ccvr": "off", "partition": '{"name": "iid", "clients": 4}'}))
    assert (with_values(base, overrides).algorithm.ccvr, with_values(base, overrides).partition.name) == ("off", "iid")
    space = resolve({"algorithm.memory_size": [50, None]}, {**BASE, "algorithm": "fedproj"})
    assert (
        with_values(
            {**BASE, "algorithm": "fedproj"}, space.suggest(FixedTrial({"algorithm.memory_size": None}))
        ).algorithm.memory_size
        is None
    )
    assert with_values(BASE, {"name": "a,b: 0..4"}).name == "a,b: 0..4"


def test_the_algorithm_may_be_fixed_by_the_space():
    space = resolve({"algorithm": "fedprox", "algorithm.mu": "auto"}, BASE)
    assert space.suggest(FixedTrial({"algorithm.mu": 0.1})) == {"algorithm": "fedprox", "algorithm.mu": 0.1}
    assert (space.names(), space.algorithms, space.conditional) == (("algorithm.mu",), ("fedprox",), False)


def test_a_key_that_only_the_space_gives_need_not_be_in_the_experiment():
    base = {**BASE, "partition": {"name": "dirichlet", "clients": 10}}
    assert distributions(resolve({"partition.alpha": [0.1, 0.3]}, base)) == {
        "partition.alpha": CategoricalDistribution((0.1, 0.3))
    }


# a choice of algorithms -----------------------------------------------------------------------
def test_a_choice_of_algorithms_brings_what_each_declares_in_its_own_class():
    """FedProx declares mu; FedSOL rho, temperature and beta with a space; FedAvg's own are everybody's and come only
    when asked for."""
    space = resolve(CHOICE, BASE)
    assert space.names("fedavg") == ()
    assert space.names("fedprox") == ("fedprox.mu",)
    assert space.names("fedsol") == ("fedsol.rho", "fedsol.temperature", "fedsol.beta")
    assert space.names() == ("algorithm", "fedprox.mu", "fedsol.rho", "fedsol.temperature", "fedsol.beta")
    assert distributions(space, "fedprox") == {"fedprox.mu": CategoricalDistribution((0.001, 0.01, 0.1, 1.0))}
    assert space.suggest(FixedTrial({"algorithm": "fedavg"})) == {"algorithm": "fedavg"}
    params = {"algorithm": "fedprox", "fedprox.mu": 0.01}
    assert space.suggest(FixedTrial(params)) == {"algorithm": "fedprox", "algorithm.mu": 0.01}
    assert space.suggest(FixedTrial({"fedprox.mu": 0.01}), "fedprox") == {"algorithm": "fedprox", "algorithm.mu": 0.01}


def test_fedproj_does_not_bring_what_it_inherits_from_feddf():
    space = resolve({"algorithm": ["feddf", "fedproj"]}, BASE)
    assert space.names("feddf") == ("feddf.temperature",)
    assert space.names("fedproj") == ("fedproj.projection_rate", "fedproj.delta", "fedproj.eps", "fedproj.alpha")


def test_an_algorithm_brings_what_its_parts_declare():
    """`detector.rho` has a linear space in ops/detect.py, `detector.rho_off` none."""
    space = resolve({"algorithm": ["fedavg", "fedmemo"], "algorithm.detector.m": [1, 5]}, BASE)
    names = space.names("fedmemo")
    assert {"fedmemo.detector.rho", "fedmemo.detector.m", "fedmemo.proxy.size"} <= set(names)
    assert "fedmemo.detector.rho_off" not in names
    params = {name: parameter for name, parameter in space.example("fedmemo").items() if name != "algorithm"}
    assert params["algorithm.detector.rho"] == 0.3 and params["algorithm.detector.m"] == 1
    assert with_values(BASE, space.example("fedmemo")).algorithm.detector.rho == 0.3
    assert set(narrowed({"algorithm": "fedmemo", "algorithm.detector.m": [1, 5], "algorithm.mu": 1})) == {
        "algorithm",
        "algorithm.detector.m",
    }


def test_a_shared_parameter_is_each_algorithms_own_and_one_alone_may_differ():
    space = resolve(
        {
            **CHOICE,
            "fedprox.lr": {"linear": [0.1, 0.2]},
            "algorithm.lr": "auto",
            "fedsol.lr": 0.3,
            "fedsol.beta": 1,
            "partition.alpha": [0.1, 1],
        },
        BASE,
    )
    alpha = {"partition.alpha": CategoricalDistribution((0.1, 1.0))}
    assert distributions(space, "fedavg") == {"fedavg.lr": FloatDistribution(1e-4, 1.0, log=True), **alpha}
    assert distributions(space, "fedprox")["fedprox.lr"] == FloatDistribution(0.1, 0.2)
    assert space.names("fedsol") == ("fedsol.rho", "fedsol.temperature", "partition.alpha")
    found = space.overrides({"fedsol.rho": 1.0, "fedsol.temperature": 2.0, "partition.alpha": 1.0}, "fedsol")
    assert (found["algorithm.lr"], found["algorithm.beta"], found["partition.alpha"]) == (0.3, 1.0, 1.0)


def test_a_shared_parameter_goes_to_those_that_have_it():
    space = resolve({**CHOICE, "algorithm.mu": [0.1, 1.0], "algorithm.perturb": ["head", "all"]}, BASE)
    assert space.names("fedprox") == ("fedprox.mu",)
    assert space.names("fedsol") == ("fedsol.rho", "fedsol.perturb", "fedsol.temperature", "fedsol.beta")
    assert distributions(space, "fedprox") == {"fedprox.mu": CategoricalDistribution((0.1, 1.0))}


# what a study keeps ---------------------------------------------------------------------------
def test_a_trial_is_rebuilt_from_the_study_that_another_process_opens(tmp_path):
    space = resolve(
        {**CHOICE, "algorithm.lr": "auto", "model.hidden": [[8], [8, 4]], "algorithm.batch_size": {"log": [10, 100]}},
        BASE,
    )

    def study():
        storage = JournalStorage(JournalFileBackend(str(tmp_path / "study.journal")))
        return optuna.create_study(
            storage=storage, study_name="s", load_if_exists=True, sampler=optuna.samplers.TPESampler(seed=3)
        )

    asked, here = [], study()
    for _ in range(14):
        trial = here.ask()
        asked.append(space.suggest(trial))
        here.tell(trial, asked[-1]["algorithm.lr"])
    assert [space.overrides(trial.params) for trial in study().trials] == asked
    assert {found["algorithm"] for found in asked} == {"fedavg", "fedprox", "fedsol"}
    assert all(space.contains(trial.params) for trial in study().trials)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"fedprox.mu": 0.1}, "trial: its algorithm is missing; this sweep chooses among fedavg, fedprox, fedsol"),
        ({"algorithm": "fedprox"}, "trial: it has no parameter fedprox.mu; is it of another sweep?"),
        (
            {"algorithm": "fedprox", "fedprox.mu": 0.2},
            "trial: fedprox.mu=0.2 is not in 0.001, 0.01, 0.1, 1, so it is of another sweep",
        ),
        (
            {"algorithm": "fedavg", "fedprox.mu": 0.1},
            "unknown parameter 'fedprox.mu' in a trial; is it of another sweep?",
        ),
        ({"algorithm": "moon"}, "unknown algorithm 'moon' in this sweep"),
    ],
)
def test_a_trial_of_another_sweep_is_one_line(params, message):
    space = resolve(CHOICE, BASE)
    with pytest.raises(ConfigError) as caught:
        space.overrides(params)
    assert str(caught.value).startswith(message)
    assert not space.contains(params)


def test_a_dump_has_nothing_left_to_look_up_and_suggests_in_the_same_order():
    """The order matters: a sampler draws parameter by parameter."""
    base = {**BASE, "algorithm": "fedprox"}
    for section in (
        {
            "partition.alpha": [0.1, 0.3],
            "algorithm.mu": "auto",
            "algorithm.lr": "auto",
            "model.hidden": [[8], [4]],
            "algorithm.momentum": 0.5,
        },
        {
            "partition.alpha": [0.1],
            "fedsol.beta": 1.0,
            "algorithm.lr": "auto",
            **CHOICE,
            "fedprox.lr": 0.1,
            "cohort.size": [2, 3],
        },
        {"algorithm": "fedsol", "algorithm.rho": "auto"},
    ):
        space = resolve(section, base)
        plain = yaml.safe_load(yaml.safe_dump(space.dump(), sort_keys=False))
        assert "auto" not in str(plain)
        again = resolve(plain, base)
        assert again == space and again.names() == space.names()
        assert pickle.loads(pickle.dumps(space)) == space


def test_population_based_training_may_change_the_algorithms_numbers_only():
    space = resolve(
        {"algorithm.rho": "auto", "algorithm.local_epochs": {"linear": [1, 4]}, "algorithm.momentum": "auto"}
        | {
            "algorithm.perturb": ["head", "all"],
            "algorithm.beta": 1.0,
            "partition.alpha": {"log": [0.1, 1]},
            "algorithm.tau": [None, 0.5],
        },
        BASE,
    )
    assert space.mutations() == {
        "algorithm.rho": (0.05, 5.0, True),
        "algorithm.local_epochs": (1, 4, False),
        "algorithm.momentum": [0.0, 0.5, 0.9],
    }
    assert resolve(CHOICE, BASE).mutations("fedprox") == {"fedprox.mu": [0.001, 0.01, 0.1, 1.0]}


def test_an_example_is_the_first_of_everything():
    space = resolve({"algorithm.rho": "auto", "algorithm.beta": 2.0, "partition.alpha": [0.3, 0.1]}, BASE)
    assert space.example() == {"algorithm.rho": 0.05, "algorithm.beta": 2.0, "partition.alpha": 0.3}
    assert resolve(CHOICE, BASE).example("fedprox") == {"algorithm": "fedprox", "algorithm.mu": 0.001}


def test_a_shorter_choice_drops_what_is_said_of_the_others():
    section = {
        "algorithm": ["fedsol", "feddf"],
        "algorithm.lr": "auto",
        "algorithm.distill_lr": "auto",
        "fedproj.eps": 1e-8,
        "rounds": [1, 2],
    }
    assert narrowed(section) == {key: form for key, form in section.items() if key != "fedproj.eps"}
    assert list(narrowed({**section, "algorithm": ["fedsol"]})) == ["algorithm", "algorithm.lr", "rounds"]
    assert list(narrowed({**section, "algorithm": "fedsol"})) == ["algorithm", "algorithm.lr", "rounds"]


# every suggestion is a valid experiment -------------------------------------------------------
class Drawn:
    """A trial whose values Hypothesis chooses, the ends of a range among them."""

    def __init__(self, data):
        self.data, self.params = data, {}

    def suggest_float(self, name, low, high, *, log=False):
        return self._keep(name, st.floats(low, high))

    def suggest_int(self, name, low, high, *, log=False):
        return self._keep(name, st.integers(low, high))

    def suggest_categorical(self, name, choices):
        return self._keep(name, st.sampled_from(list(choices)))

    def _keep(self, name, strategy):
        self.params[name] = self.data.draw(strategy, label=name)
        return self.params[name]


@pytest.fixture(scope="module")
def whole():
    """The space of every algorithm with `auto` for everything that it declares, made once."""
    made = {}
    for name in built_in():
        declared = [
            parameter.name for parameter in hyperparameters(ALGORITHMS.get(name)) if parameter.space is not None
        ]
        made[name] = resolve({"algorithm": name, **{f"algorithm.{field}": "auto" for field in declared}}, BASE)
    made["all of them"] = resolve(
        {"algorithm": built_in(), "algorithm.lr": "auto", "partition.alpha": {"log": [0.01, 100]}}, BASE
    )
    return made


@pytest.mark.parametrize("name", [*built_in(), "all of them"])
@settings(max_examples=15)
@given(data=st.data())
def test_whatever_is_suggested_is_a_valid_experiment(whole, name, data):
    space, trial = whole[name], Drawn(data)
    overrides = space.suggest(trial)
    experiment = with_values(BASE, overrides)
    assert algorithm_name(experiment.algorithm) == overrides["algorithm"]
    for key, value in overrides.items():
        if "." in key:
            assert attrgetter(key)(experiment) == value
    assert space.overrides(trial.params) == overrides and space.contains(trial.params)


# what is wrong ---------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("section", "words"),
    mistakes("""
{algorithm.rhoo: auto} | unknown parameter 'rhoo' in space.algorithm.rhoo, of fedsol (did you mean 'rho'?)
{algorithm.mu: auto} | unknown parameter 'mu' in space.algorithm.mu, of fedsol
{algorithm.perturb: auto} | space.algorithm.perturb: auto, but no search space is declared for algorithm.perturb;
    | write
{partition.alpha: auto} | space.partition.alpha: auto, but no search space is declared for partition.alpha; write
{algorithm.rho: {log: [0.1, 50]}} | space.algorithm.rho: 50 is outside of what fedsol declares (log 0.05 to 5); a
    | sweep may
{algorithm.rho: [0.0, 1.0]} | space.algorithm.rho: 0 is outside of what fedsol declares (log 0.05 to 5); a sweep may
{algorithm.rho: 7} | space.algorithm.rho: 7 is outside of what fedsol declares (log 0.05 to 5); a sweep may
{algorithm.momentum: {linear: [0.5, 0.95]}} | space.algorithm.momentum: 0.95 is outside of what fedsol declares (0,
    | 0.5, 0.9)
{algorithm.momentum: {linear: [0.5, 1.0]}} | space.algorithm.momentum: input should be less than 1, got 1.0
{algorithm.rho: {log: [2, 1]}} | space.algorithm.rho: the range from 2 to 1 is empty
{algorithm.rho: []} | space.algorithm.rho: no values to choose from
{algorithm.optimizer: [sgd, lion]} | space.algorithm.optimizer: input should be 'sgd' or 'adam', got 'lion'
{algorithm.local_epochs: {linear: [1, 2.5]}} | space.algorithm.local_epochs: input should be a valid integer
{algorithm.perturb: {linear: [0, 1]}} | space.algorithm.perturb: input should be 'head', 'body' or 'all', got 0
{algorithm.rho: [1.0, '1.0']} | space.algorithm.rho: 1 is listed twice
{algorithm.lr: auto, partition.alhpa: [1]} | space.partition.alhpa: unknown key (did you mean 'alpha'?)
{partition.alpha: {linear: [0, 1]}} | space.partition.alpha: 0.0 must be above 0
{model.hiden: [[1]]} | unknown option 'hiden' in model 'mlp' (did you mean 'hidden'?)
{model: [mlp, mlpp]} | space.model: unknown model 'mlpp' (did you mean 'mlp'?)
{roundz: [1, 2]} | unknown key 'roundz' in space.roundz (did you mean 'rounds'?)
{fedprox.mu: 0.1} | space.fedprox.mu: this sweep does not choose among algorithms; write algorithm.mu
{seed: [0, 1]} | space.seed: a seed is not tuned
{evaluate.validation.fraction: [0.1, 0.2]} | space.evaluate.validation.fraction: every trial is judged on the same
    | held-out share
{evaluate.every: [1, 2]} | space.evaluate.every: it changes no training
{uplink.topk.name: [topk, clip]} | space.uplink.topk.name: an entry goes by its name; write uplink: [[{name: ...}],
    | ...]
{aggregation.name: [mean, medain]} | space.aggregation.name: unknown aggregation 'medain' (did you mean 'median'?)
{evaluate: [{every: 1}, {every: 2}]} | space.evaluate: it has evaluate.every, and it changes no training
{algorithm: [fedavg, fedprx]} | unknown algorithm 'fedprx' (did you mean 'fedprox'?)
{algorithm: [fedavg, fedavg]} | space.algorithm: fedavg is listed twice
{algorithm: {rho: auto}} | unknown kind of space 'rho' in space.algorithm
{algorithm: {choice: [fedavg, fedprox, fedsol]}, moon.mu: 0.1} | space.moon.mu: moon is not an algorithm of this
    | sweep; add it to space.algorithm
{algorithm: {choice: [fedavg, fedprox, fedsol]}, fedprox.m: 0.1} | unknown parameter 'm' in space.fedprox.m (did you
    | mean 'mu'?)
{algorithm: {choice: [fedavg, fedprox, fedsol]}, algorithm.distill_lr: auto} | unknown parameter 'distill_lr' in
    | space.algorithm.distill_lr, of fedavg, fedprox, fedsol
{algorithm: {choice: [fedavg, fedprox, fedsol]}, algorithm.alpha: auto} | space.algorithm.alpha: auto, but no search
    | space is declared for fedsol.alpha; write fedsol.alpha:
{algorithm: {choice: [fedavg, fedprox, fedsol]}, fedprox.mu: -1} | algorithm.mu: input should be greater than or
    | equal to 0, got -1
{algorithm: [fedavg, fedmemo], algorithm.rho: auto} | space.algorithm.rho: this key has a new name; write
    | algorithm.detector.rho
{algorithm.lr: 0.1} | space: nothing to search
{} | space: nothing to search
auto | space: auto is not a mapping
    """),
)
def test_what_is_wrong_is_said_in_one_line(section, words):
    with pytest.raises(ConfigError) as caught:
        resolve(read(section, ""), BASE)
    assert_says(caught.value, *words)


def test_two_options_that_do_not_go_together_are_found_before_anything_runs():
    """FedSOL refuses `proximal: moon` with `perturb: head`, its default."""
    both = {"algorithm.proximal": ["kl", "moon"], "algorithm.perturb": ["all", "head"]}
    with pytest.raises(
        ConfigError,
        match=r"space: algorithm\.perturb=head with algorithm\.proximal=moon: .* moon does not read the head",
    ):
        resolve(both, BASE)
    assert resolve({**both, "algorithm.perturb": ["all", "body"]}, BASE).names() == (
        "algorithm.perturb",
        "algorithm.proximal",
    )


def test_an_algorithm_that_the_experiment_cannot_run_is_found_before_anything_runs():
    with pytest.raises(ConfigError, match="fedproj needs public data"):
        resolve({"algorithm": ["fedavg", "fedproj"]}, {key: value for key, value in BASE.items() if key != "proxy"})
    with pytest.raises(ConfigError, match=r"experiment\.algorithm: missing"):
        resolve({"partition.alpha": [0.1, 1]}, {key: value for key, value in BASE.items() if key != "algorithm"})


@pytest.mark.parametrize("before", [{}, {"aggregation": "median"}])
def test_the_name_of_a_section_that_may_be_left_out_is_searched(before):
    space = resolve({"aggregation.name": ["none", "mean", "median"]}, {**BASE, **before})
    (name,) = space.names("fedsol")
    rules = [
        with_values({**BASE, **before}, space.overrides({name: rule})).aggregation
        for rule in ("none", "mean", "median")
    ]
    assert [type(rule).__name__ for rule in rules] == ["NoneType", "Mean", "Median"]


def test_options_of_uplink_s_entries_are_searched_by_their_names():
    values = {**BASE, "uplink": [{"name": "clip", "norm": 1.0}, "topk", {"name": "clip", "norm": 2.0}]}
    space = resolve({"uplink.clip.norm": {"log": [0.1, 1.0]}, "uplink.clip.2.norm": [1, 2.5]}, values)
    assert space.names("fedsol") == ("uplink.clip.norm", "uplink.clip.2.norm")
    built = with_values(values, {"uplink.clip.norm": 0.5, "uplink.clip.2.norm": 2.5})
    assert [clip.norm for clip in built.uplink[::2]] == [0.5, 2.5]
    lists = [[], [{"name": "sign_flip", "clients": 0.2}]]
    assert resolve({"uplink": lists}, BASE).names("fedsol") == ("uplink",)

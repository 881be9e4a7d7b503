"""Contract 11: rules of aggregation x algorithms, in this process, with the cohort in one piece and in three."""

from functools import cache

import pytest

from flray.aggregations import AGGREGATIONS
from flray.algorithms import ALGORITHMS, built_in
from flray.contracts.played import Local, bits
from flray.core.schema.errors import ConfigError
from flray.core.schema.hp import hyperparameters
from tests.contracts.table import RULES, TABLE, experiment
from tests.support.kinds import KINDS

OWN = [name for name in AGGREGATIONS.names() if AGGREGATIONS.own_paths().get(name)]
ALGORITHMS_WITH = ("fedsol", "moon")  # each rule's two: another point, a client state
RULES_WITH = ("median",)  # each algorithm's
MEMO = {"trigger": "scheduled", "r0": 2, "mode": "client", "proxy": {"generator_steps": 2}}  # with a second exchange
OPTIONS = {"fedmemo": MEMO, "feddf": {"distill_lr": 1e-3, "distill_batch_size": 8}}


CHOSEN = {name: experiment(name) for name in TABLE if name in built_in(federated=True)}


def fits(name, rule):
    """A rule that needs the virtual clock, which has no tasks, fits no algorithm of tasks, and none with exchanges of
    its own."""
    kind, algorithm = AGGREGATIONS.get(rule), CHOSEN[name].algorithm
    return not kind().misfit(algorithm) and not (kind.mixes and (CHOSEN[name].tasks or not algorithm.sends_once))


FITTING = [(name, rule) for name in CHOSEN for rule in OWN if fits(name, rule)]
SECOND = [(name, "fedmemo") for name in ("fedscr", "mfcl")]  # with exchanges or networks of their own beside the rule's
FAST = [(n, r) for n, r in FITTING if n in ALGORITHMS_WITH or (r in RULES_WITH and n in KINDS) or (n, r) in SECOND]


def with_rule(name, rule, options=None, **sections):
    chosen = {"name": rule, **OPTIONS.get(rule, {}), **RULES[rule].options, **(options or {})}
    return experiment(name, aggregation=chosen, **{**RULES[rule].sections, **sections})


def test_every_rule_has_a_row():
    assert set(OWN) == set(RULES), "add a row to RULES of tests/contracts/table.py"
    for name, row in RULES.items():
        own = {hp.name for hp in hyperparameters(AGGREGATIONS.get(name))}
        declared = set(TABLE[name].changes) if row.changes is None else set(row.changes)
        if name not in ("fedyogi", "fedadagrad"):  # their options are FedAdam's
            assert declared >= own, name


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The bits of an algorithm after two rounds without a rule."""

    @cache
    def play(name, cohort):
        local = Local(experiment(name, cohort={"size": cohort}), tmp_path_factory.mktemp("plain"))
        return bits(local.play(2))

    return play


@pytest.mark.parametrize(
    ("name", "rule"),
    [pytest.param(*pair, marks=() if pair in FAST else pytest.mark.slow) for pair in FITTING],
)
def test_a_fitting_pair_has_the_same_bits_in_one_and_three_chunks(name, rule, plain, tmp_path):
    """And counts the bytes that its clients send; `mean` has the bits of the algorithm without a rule."""
    one, three = (Local(with_rule(name, rule), tmp_path / str(n), chunks=n) for n in (1, 3))
    assert bits(one.play(2)) == bits(three.play(2))
    assert [row["up"] for row in one.rows] == [sent["up"] for sent in one.sent] == [row["up"] for row in three.rows]
    own = {key: value for key, value in bits(one.state).items() if not key.startswith("rule.")}
    assert (own == plain(name, one.experiment.cohort.size)) == (rule == "mean")


@pytest.mark.parametrize("name", [name for name, row in RULES.items() if row.changes is None])
def test_a_name_that_is_a_rule_is_fedavg_with_it(name, tmp_path):
    options = TABLE[name].options
    local = {key: value for key, value in options.items() if key in ALGORITHMS.get("fedavg").model_fields}
    chosen = experiment(name).algorithm.model_dump()
    rule = {key: value for key, value in chosen.items() if key in AGGREGATIONS.get(name).model_fields}
    named = Local(experiment(name), tmp_path / "named")
    apart = Local(
        experiment("fedavg", local, aggregation={"name": name, **rule}, model=named.experiment.dump()["model"]),
        tmp_path / "apart",
    )
    assert bits(named.play(2)) == bits(apart.play(2))
    assert named.sent == apart.sent


@pytest.mark.parametrize(("rule", "option"), [(r, o) for r, row in RULES.items() for o in row.changes or ()])
def test_every_option_of_a_rule_changes_the_outcome(rule, option, tmp_path):
    change = RULES[rule].changes[option]
    one, other = (
        Local(with_rule("fedavg", rule, more), tmp_path / str(len(more))) for more in ({}, {option: change.value})
    )
    assert bits(one.play(3)) != bits(other.play(3))


@pytest.mark.parametrize(
    ("name", "rule", "reason"),
    [
        ("scaffold", "krum", "its control variate c moves with the same mean"),
        ("fednova", "median", "its clients send normalised updates, which are no models"),
        ("fedprotip", "fedadam", "its updates lie outside the protected span"),
        ("fedadam", "median", "it is fedavg with the rule of that name"),
        ("fedproj", "mean", "its clients read the logits of FedDF's ensemble"),
    ],
)
def test_a_misfit_is_one_line_with_the_reason(name, rule, reason):
    with pytest.raises(
        ConfigError, match=f"aggregation: {rule} does not fit algorithm {name}: {reason}.*; leave it out"
    ):
        with_rule(name, rule)


def test_statistics_that_stay_do_not_move_under_any_rule(tmp_path):
    for rule in OWN:
        sections = {"aggregation": rule, **RULES[rule].sections}
        local = Local(experiment("fedavg", {"buffers": "keep"}, **sections), tmp_path / rule)
        before = local.state.b.clone()
        assert local.play(1).b.equal(before), rule


@pytest.mark.parametrize(("name", "rule"), [("fedprox", "fedadam"), ("moon", "fedmemo")])
def test_resumed_with_a_rules_state_it_goes_on_the_same(name, rule, tmp_path):
    local, again = (Local(with_rule(name, rule), tmp_path) for _ in range(2))
    local.play(2)
    local.executor.store.save(1)
    again.position = again.executor.store.load()
    assert bits(again.state) == bits(local.state) and any(key.startswith("rule.") for key in bits(local.state))
    assert bits(again.play(1)) == bits(local.play(1))

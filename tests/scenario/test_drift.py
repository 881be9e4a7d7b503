"""Drifts: which samples vanish from whom and when, in closed form; the section of a configuration; a table of one's
own."""

import itertools
import json

import numpy as np
import pandas
import pytest
import yaml
from hypothesis import given, settings, strategies as st

from flray.config.loader import load_config
from flray.core.protocol.clock import Clock
from flray.core.schema.errors import ConfigError, DataError
from flray.scenario import DRIFTS, Scenario, drift_table
from flray.scenario.drift import Drift, Drifting, vanished
from flray.scenario.partition import from_lists
from tests.support.messages import facts, mistakes

LABELS = np.repeat(np.arange(6), 20)  # 20 samples of each of 6 classes
HELD = [np.arange(k, 120, 8) for k in range(8)]  # 8 clients with 15 samples, two or three of a class
COHORT = np.array([6, 1, 4, 3, 7])


def cohort(clock, members):
    return COHORT


def scenario(drift, seed=0, draw=cohort):
    section = drift if isinstance(drift, Drift) else section_of(**drift)
    plain = Scenario.ordinary(from_lists(HELD), 6)
    return plain.drifting(Drifting(section, LABELS, 6, 8, seed, draw))


def section_of(name, **options):
    return DRIFTS.get(name)(**options)


def at(round, phase="round"):
    return Clock(round=round - 1, done=round - 1, phase=phase)


def lost(found, round, client, phase="round"):
    """The samples that a client has not in a round (from 1)."""
    shares = found.shares(at(round, phase), np.array([client]), everyone=True)
    return set(HELD[client].tolist()) - set(shares.of(0).tolist())


def of_class(client, label):
    return {i for i in HELD[client].tolist() if LABELS[i] == label}


# full removal ------------------------------------------------------------------------------------
@pytest.mark.parametrize("to_round", [13, None])
def test_removed_classes_are_gone_from_every_client_in_the_rounds_of_the_drift(to_round):
    found = scenario({"name": "remove_classes", "classes": [1, 4], "from_round": 10, "to_round": to_round})
    for client in range(8):
        missing = of_class(client, 1) | of_class(client, 4)
        for round in range(1, 20):
            active = round >= 10 and (to_round is None or round < to_round)
            assert lost(found, round, client) == (missing if active else set()), round


def test_what_is_left_stays_in_its_order_and_who_holds_nothing_is_left_out_and_counted():
    one = from_lists([[0, 30, 5], [21, 22], [3, 100]])
    plain = Scenario.ordinary(one, 6)
    found = plain.drifting(
        Drifting(
            section_of("remove_classes", classes=[1], from_round=1), LABELS, 6, 3, 0, lambda clock, members: members
        )
    )
    shares = found.shares(at(1), np.array([2, 1, 0]))
    assert shares.clients.tolist() == [2, 0] and shares.empty == 1 and shares.indices.tolist() == [3, 100, 0, 5]
    everyone = found.shares(at(1), np.array([2, 1, 0]), everyone=True)
    assert everyone.clients.tolist() == [2, 1, 0] and everyone.sizes.tolist() == [2, 0, 2]
    assert found.drifting(None).shares(at(1), np.array([2, 1, 0])).sizes.tolist() == [2, 2, 3]


def test_the_end_of_a_task_sees_the_data_of_its_last_round_and_the_beginning_those_of_the_coming_one():
    found = scenario({"name": "remove_classes", "classes": [1], "from_round": 5, "to_round": 8})
    end = lambda done: Clock(round=done, done=done, phase="task_end")  # noqa: E731
    begin = lambda done: Clock(task=0, done=done, phase="task_begin")  # noqa: E731
    gone = [len(found.shares(clock, np.array([0])).indices) < 15 for clock in (end(4), end(5), end(7), end(8))]
    assert gone == [False, True, True, False]
    assert [len(found.shares(begin(done), np.array([0])).indices) < 15 for done in (3, 4, 6, 7)] == [0, 1, 1, 0]
    assert not lost(found, 1, 0, "task_end"), "before the first round nothing has happened"


# gradual removal ---------------------------------------------------------------------------------
GRADUAL = {"name": "gradual", "classes": [1, 5], "from_round": 100, "clients": [0, 3]}


def test_the_share_grows_from_30_to_90_percent_by_2_points_a_round():
    """Table 5: p(r) = min(.9, .30 + .02 (r - 100)); the last active round of the short setting is 129 with .88."""
    drift = section_of(**{**GRADUAL, "to_round": 130})
    assert [round(drift.share(r), 9) for r in (100, 101, 129, 130, 200)] == [0.3, 0.32, 0.88, 0.9, 0.9]
    assert drift.active(129) and not drift.active(130) and section_of(**GRADUAL).active(10**6)


@pytest.mark.parametrize("share, count, gone", [(0.3, 10, 3), (0.30 + 0.02 * 29, 50, 44), (0.7, 10, 7), (0.29, 10, 2)])
def test_a_share_that_is_a_whole_number_of_samples_is_not_cut_by_rounding(share, count, gone):
    """0.30 + 0.02 * 29 is 0.8799999999999999 in binary; floor(p n + 1e-9) of 50 is 44."""
    assert vanished(share, count) == gone


def test_only_the_named_clients_and_classes_fade():
    found = scenario(GRADUAL)
    for client in range(8):
        missing = lost(found, 120, client)
        of = [of_class(client, 1), of_class(client, 5)]
        counts = [vanished(0.7, len(samples)) if client in (0, 3) else 0 for samples in of]
        assert [len(missing & samples) for samples in of] == counts and len(missing) == sum(counts)


@pytest.mark.parametrize("of_cohort", [1, 3, None])
def test_the_first_of_the_rounds_cohort_by_number_are_affected(of_cohort):
    """The cohort is 1 3 4 6 7, drawn in another order; 3 of them where nothing is said."""
    fields = {"classes": range(6), "from_round": 1, "rate": 1.0, "rate_max": 1.0}
    found = scenario({"name": "gradual", **fields, **({"of_cohort": of_cohort} if of_cohort else {})})
    first = sorted(COHORT.tolist())[: of_cohort or 3]
    assert [client for client in range(8) if lost(found, 1, client)] == first
    # asked for some of them, as an exchange with a sample does, the same ones are affected; at a task's end all count
    assert found.shares(at(1), np.array([7, first[0]])).clients.tolist() == [7]
    assert [client for client in range(8) if lost(found, 2, client, "task_end")] == list(range(of_cohort or 3))


def test_a_share_of_the_clients_is_the_same_in_all_rounds_and_part_of_a_larger_share():
    options = {"classes": range(6), "from_round": 1, "rate": 1.0, "rate_max": 1.0}
    chosen = []
    for fraction in (0.1, 0.25, 0.5, 1.0):
        found = scenario({"name": "gradual", **options, "fraction": fraction})
        sets = [{client for client in range(8) if lost(found, round, client)} for round in (1, 7, 30)]
        assert sets[0] == sets[1] == sets[2]
        chosen.append(sets[0])
    assert [len(some) for some in chosen] == [1, 2, 4, 8]
    assert chosen[0] < chosen[1] < chosen[2] < chosen[3]


WHO = st.sampled_from([{"of_cohort": 3}, {"of_cohort": 1}, {"clients": (1, 2, 6)}, {"fraction": 0.5}])


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**31), WHO, st.floats(0, 1), st.floats(0, 0.2), st.floats(0, 1),
    st.lists(st.integers(1, 60), min_size=2, max_size=5),
)  # fmt: skip
def test_the_vanished_sets_of_a_client_only_grow(seed, who, rate, step, most, rounds):
    drift = {"name": "gradual", "classes": (0, 2), "from_round": 1, "rate": rate, "rate_step": step, "rate_max": most}
    found = scenario({**drift, **who}, seed)
    for client in range(8):
        sets = [lost(found, round, client) for round in sorted(rounds)]
        assert all(before <= after for before, after in itertools.pairwise(sets))
        assert all(LABELS[list(gone)].tolist().count(label) == 0 for gone in sets for label in (1, 3, 4, 5))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**31), st.floats(0, 1), st.floats(0, 1), st.integers(2, 20))
def test_the_gradual_glue_drift_only_grows(seed, one, other, ramp):
    low, high = sorted((one, other))
    options = {"low": low, "high": high, "gradual": True, "ramp": ramp, "to_round": None, "fraction": 0.5}
    found = scenario({"name": "glue", **options}, seed)
    for client in range(8):
        sets = [lost(found, round, client) for round in (24, 25, 28, 34, 40, 60)]
        assert not sets[0] and all(before <= after for before, after in itertools.pairwise(sets))


def test_draws_are_addressed_by_seed_client_and_class():
    """Another client, class or seed has an order of its own; one's own does not depend on who else is asked."""
    drifting = scenario(GRADUAL, 3).drift
    orders = [drifting.order(client, label, 0, 50).tolist() for client, label in ((0, 1), (1, 1), (0, 2))]
    orders.append(scenario(GRADUAL, 4).drift.order(0, 1, 0, 50).tolist())
    assert len({tuple(order) for order in orders}) == 4 and drifting.order(0, 1, 0, 50).tolist() == orders[0]
    fingerprints = {
        scenario(drift, seed).fingerprint for drift in (GRADUAL, {**GRADUAL, "rate": 0.4}) for seed in (3, 4)
    }
    assert len(fingerprints) == 4 and scenario(GRADUAL, 3).fingerprint in fingerprints
    assert scenario(GRADUAL).drifting(None).fingerprint == Scenario.ordinary(from_lists(HELD), 6).fingerprint


# GLUE --------------------------------------------------------------------------------------------
def test_glue_takes_a_share_of_its_own_from_each_of_40_percent_of_the_clients():
    labels, held = (
        np.zeros(8000, np.int64) + (np.arange(8000) % 2),
        [np.arange(k * 1000, (k + 1) * 1000) for k in range(8)],
    )
    plain = Scenario.ordinary(from_lists(held), 2)
    found = plain.drifting(Drifting(section_of("glue"), labels, 2, 8, 0, cohort))
    left = {
        r: [500 - (1000 - len(found.shares(at(r), np.array([k])).indices)) for k in range(8)] for r in (24, 25, 34, 35)
    }
    assert left[24] == left[35] == [500] * 8 and left[25] == left[34]
    shares = [1 - count / 500 for count in left[25] if count < 500]
    assert len(shares) == 3 and len(set(shares)) == 3 and all(0.298 <= share <= 0.7 for share in shares)


def test_glue_can_grow_linearly_in_ten_rounds():
    """.3 in round 25, .7 in round 34, a ninth of the way each round."""
    drift = section_of("glue", gradual=True, to_round=50)
    world = scenario(drift).drift.world
    from flray.scenario.drift import Now

    shares = [drift.share(Now(round, world, lambda: COHORT), 0) for round in (25, 26, 34, 35, 49)]
    assert shares == pytest.approx([0.3, 0.3 + 0.4 / 9, 0.7, 0.7, 0.7]) and drift.active(49) and not drift.active(50)


# a table of one's own ----------------------------------------------------------------------------
ROWS = [[2, 0, 1, 0.5], [4, 0, 1, 1.0], [3, None, 2, 0.0, 5], [6, 1, None, 0.0]]


def expected(round, client):
    """Share kept by class, written out."""
    shares = {}
    if client == 0 and 2 <= round < 4:
        shares[1] = 0.5
    if 3 <= round < 5:
        shares[2] = 0.0
    if client == 1 and round >= 6:
        shares |= dict.fromkeys(range(6), 0.0)
    return shares


def test_a_row_holds_until_the_next_of_its_kind_or_until_its_end():
    found = scenario({"name": "table", "rows": ROWS})
    for round in range(1, 9):
        for client in range(3):
            wanted = sum(vanished(1 - s, len(of_class(client, c))) for c, s in expected(round, client).items())
            assert len(lost(found, round, client)) == wanted, (round, client)


@pytest.mark.parametrize("kind", ["csv", "parquet", "mappings", "shuffled"])
def test_a_table_may_lie_in_a_file(tmp_path, kind):
    names = ["round", "client", "class", "kept", "to_round"]
    frame = pandas.DataFrame([(*row, None)[:5] for row in ROWS], columns=names)
    plain = scenario({"name": "table", "rows": ROWS})
    if kind == "mappings":
        rows = [{name: value for name, value in zip(names, row, strict=False) if value is not None} for row in ROWS]
        rows[0]["share"] = rows[0].pop("kept")
        found = scenario({"name": "table", "rows": rows})
    elif kind == "shuffled":
        found = scenario({"name": "table", "rows": [ROWS[i] for i in (3, 1, 2, 0)]})
    else:
        path = tmp_path / f"drift.{kind}"
        frame.to_csv(path, index=False) if kind == "csv" else frame.to_parquet(path)
        found = scenario({"name": "table", "file": str(path)})
    assert found.fingerprint == plain.fingerprint
    for round in range(1, 9):
        assert [lost(found, round, k) for k in range(8)] == [lost(plain, round, k) for k in range(8)]


# what is written of it ---------------------------------------------------------------------------
def test_the_table_says_what_is_left_of_every_cohort():
    found = scenario({"name": "remove_classes", "classes": [1], "from_round": 2, "to_round": 4})
    table = drift_table(found, [at(round) for round in range(1, 6)])
    assert table.columns.tolist() == ["round", "task", "client", "class", "kept", "of"]
    assert table["round"].unique().tolist() == [2, 3] and table["client"].unique().tolist() == sorted(COHORT.tolist())
    for row in table.to_dict("records"):
        count = len(of_class(row["client"], row["class"]))
        assert (row["of"], row["kept"]) == (count, 0 if row["class"] == 1 else count)
    assert not len(drift_table(found.drifting(None), [at(1)]))


# configurations ----------------------------------------------------------------------------------
BASE = {
    "rounds": 4, "data": {"source": "iris"}, "partition": {"name": "iid", "clients": 4},
    "model": {"name": "mlp", "hidden": [8]}, "algorithm": {"name": "fedavg"},
}  # fmt: skip


def configured(*overrides, **sections):
    return load_config({**BASE, **sections}, overrides)[0]


@pytest.mark.parametrize(
    ("who", "says"),
    [
        ({}, "the first 3 of every cohort"),
        ({"of_cohort": 1}, "the first 1 of every cohort"),
        ({"clients": [2, 5]}, "clients 2 5"),
        ({"fraction": 0.25}, "a random 25% of the clients"),
    ],
)
def test_a_gradual_drift_says_who_loses_what_and_when(who, says):
    drift = section_of("gradual", classes=(1,), from_round=3, to_round=6, **who)
    rate = "a share of 0.3, then 0.02 more every round up to 0.9"
    assert drift.about() == f"{says} lose classes 1 in rounds 3 to 5: {rate}"


def test_another_drift_keeps_what_both_read_and_none_takes_the_section_out():
    drift = {"name": "gradual", "classes": [2], "from_round": 2, "rate": 0.5}
    other = configured("drift=remove_classes", drift=drift).drift
    assert other == section_of("remove_classes", classes=(2,), from_round=2)
    assert configured("drift=none", drift=drift).drift is None and configured("drift=null", drift=drift).drift is None


@pytest.mark.parametrize(
    ("drift", "says"),
    mistakes("""
{name: remove_clases, from_round: 1} | unknown drift 'remove_clases' (did you mean 'remove_classes'
{from_round: 1} | drift: the name is missing; write drift: {name: remove_classes
{name: remove_classes} | drift.from_round: missing
{name: remove_classes, from_round: 1, clases: [1]} | drift.clases: unknown key (did you mean 'classes'
{name: remove_classes, from_round: 3, to_round: 3} | drift.to_round: 3 is not after from_round 3
{name: remove_classes, from_round: 0} | drift.from_round: input should be greater than or equal to 1
{name: remove_classes, from_round: 1, classes: []} | drift.classes: the list is empty
{name: gradual, from_round: 1, clients: [1], fraction: 0.5} | drift.fraction: clients also chooses
{name: gradual, from_round: 1, rate: 1.5} | drift.rate: input should be less than or equal to 1
{name: glue, low: 0.8} | drift.high: 0.7 is below low, 0.8
{name: table} | drift: table needs either rows or file
{name: table, rows: [[1, 0, 0, 1.5]]} | drift.rows: row 1: kept is 1.5
{name: table, rows: [[1, 0, 0, 1], [0, 0, 0, 1]]} | drift.rows: row 2: round is 0
{name: table, rows: [[1, 0, 0]]} | drift.rows: row 1 is [1, 0, 0]
{name: table, rows: [{round: 1, clas: 0, kept: 1}]} | row 1 has no column 'clas' (did you mean 'class'
{name: table, rows: [{round: 1, class: 0, label: 1, kept: 0}]} | with one column twice
{name: table, rows: [[3, 0, 0, 1, 2]]} | row 1: to_round 2 is not after 3
"""),
)
def test_what_cannot_be_is_one_line(drift, says):
    with pytest.raises(ConfigError, match=facts(*says)):
        configured(drift=yaml.safe_load(drift))


@pytest.mark.parametrize(
    "drift, says",
    [
        (
            {"name": "remove_classes", "classes": [1, 6], "from_round": 1},
            "drift.classes: the data set has no class 6; choose from 0 to 5",
        ),
        ({**GRADUAL, "clients": [8]}, "drift.clients: there is no client 8; choose from 0 to 7"),
        ({"name": "table", "rows": [[1, 8, 0, 1]]}, "drift.rows: there is no client 8; choose from 0 to 7"),
        ({"name": "table", "rows": [[1, 0, 9, 1]]}, "drift.rows: the data set has no class 9; choose from 0 to 5"),
    ],
)
def test_what_does_not_fit_the_data_is_one_line(drift, says):
    with pytest.raises(ConfigError, match=says):
        scenario(drift)


def test_rows_of_json_have_the_columns_of_all_of_them(tmp_path):
    rows = [{"round": 1, "kept": 1.0}, {"round": 2, "client": 3, "class": 0, "kept": 0.0, "to_round": 5}]
    (tmp_path / "d.json").write_text(json.dumps(rows))
    table = DRIFTS.get("table")(file=str(tmp_path / "d.json")).table
    assert [column.tolist() for column in table[:4]] == [[1, 2], [-1, 3], [-1, 0], [1.0, 0.0]]
    assert table.to_round[1] == 5


def test_a_file_may_have_spaces_and_blanks(tmp_path):
    (tmp_path / "d.csv").write_text("round, client, class, share\n2, , 1, 0.5\n4, 3, , 1\n")
    table = DRIFTS.get("table")(file=str(tmp_path / "d.csv")).table
    assert [column.tolist() for column in table[:4]] == [[2, 4], [-1, 3], [1, -1], [0.5, 1.0]]


@pytest.mark.parametrize(
    "text, says",
    [
        (None, "cannot be read .*No such file or directory.*; write a CSV"),
        ("round,client\n1,2\n", "has no column 'kept', but round, client"),
        ("round,client,class,kept\n", "has no row; write"),
        ("round,client,class,kept\n1,a,2,0.5\n", "column client: .*write numbers"),
        ("round,client_id,class,kept\n2,3,0,0.0\n", "column 'client_id' is not read .did you mean 'client'"),
        ("round,client,class_id,kept\n2,3,0,0.0\n", "column 'class_id' is not read .did you mean 'class'"),
        ("round,client,class,label,kept\n2,3,0,1,0.0\n", "has two columns for 'class'"),
    ],
)
def test_a_file_that_is_no_table_is_one_line(tmp_path, text, says):
    if text is not None:
        (tmp_path / "d.csv").write_text(text)
    with pytest.raises(DataError, match=says):
        scenario({"name": "table", "file": str(tmp_path / "d.csv")})


def test_what_loads_a_schedule_of_ones_own_takes_no_name_of_the_package():
    """Its module comes in late, by the registry, and was called like the function of the package that it replaced."""
    assert DRIFTS.get("table") is not None
    import flray.scenario

    assert flray.scenario.drift_table is drift_table

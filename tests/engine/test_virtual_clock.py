"""Rounds on the virtual clock. Who is late is derived from the devices' draws and the FLOPs of an MLP by hand; what the
round then does is what a run does whose file of cohorts names only the others."""

import contextlib
from unittest.mock import patch

import numpy as np
import pandas as pd
import pytest

import flray
from flray.algorithms import ALGORITHMS
from flray.algorithms.fedavg import FedAvg
from flray.config.loader import load_config
from flray.core.protocol.seeding import rng
from flray.core.schema.errors import ConfigError
from flray.doctor import examine
from flray.engine.prepare import build_data, build_scenario
from flray.engine.progress import size
from flray.engine.simulation import ExchangeWarning
from flray.results.client_figures import worked
from tests.support.stopped import model as weights

SPEED, SIGMA, LIMIT = 1e7, 0.8, 0.3
BASE = {
    "seed": 4,
    "rounds": 4,
    "data": "digits",
    "partition": {"name": "dirichlet", "clients": 12, "alpha": 0.3, "min_size": 5},
    "cohort": {"size": 6},
    "model": {"name": "mlp", "hidden": [16]},
    "algorithm": {"name": "fedavg", "lr": 0.05, "local_epochs": 2, "batch_size": 16},
    "resources": {"executor": "local", "server": {"threads": 1}},
}
LOGNORMAL = {"devices": {"speed": {"name": "lognormal", "sigma": SIGMA, "flops_per_second": SPEED}}}
DEADLINE = {**LOGNORMAL, "coordination": {"name": "deadline", "seconds": LIMIT}}
MORE = {**LOGNORMAL, "coordination": {"name": "over_selected", "share": 0.5}}
EXAMPLE = 2 * (64 * 16 + 16 * 10) * 2 + 2 * 16 * 10  # forward and weights of both layers, inputs of the second


def run(folder, *overrides, **sections):
    return flray.run({**BASE, **sections}, *overrides, out=folder, progress=False)


def planned(done, sizes, size=6):
    """{client: seconds} of a round, in cohort order: 2 epochs of full batches of 16 at the client's own speed."""
    drawn = rng(4, "cohort", 0, done).choice(12, size, replace=False).tolist()
    speed = {k: SPEED * np.exp(SIGMA * rng(4, "device", "speed", k).standard_normal()) for k in drawn}
    return {k: 2 * np.ceil(sizes[k] / 16) * EXAMPLE * min(sizes[k], 16) / speed[k] for k in drawn}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return run(tmp_path_factory.mktemp("clock") / "plain")


@pytest.fixture(scope="module")
def late(tmp_path_factory):
    return run(tmp_path_factory.mktemp("clock") / "late", **DEADLINE)


@pytest.fixture(scope="module")
def sizes(plain):
    """Samples by client."""
    counts = pd.read_csv(plain.folder / "partition" / "table.csv").set_index("client")
    return counts.sum(axis=1).astype(int).to_dict()


def trained(found):
    """Clients by round, in cohort order."""
    rows = found.clients.sort_values(["done", "position"])
    return [rows.loc[rows["done"] == done, "client"].tolist() for done in range(1, 5)]


def test_a_synchronous_round_lasts_until_its_slowest_client_and_changes_no_bit(tmp_path, plain, sizes):
    found = run(tmp_path / "run", **LOGNORMAL)
    assert weights(found) == weights(plain) and found.rounds["clients_late"].eq(0).all()
    longest = [max(planned(done, sizes).values()) for done in range(4)]
    np.testing.assert_allclose(found.rounds["time/virtual_s"], np.cumsum(longest), rtol=1e-12)


def test_a_deadline_leaves_out_who_is_late(tmp_path, late, sizes):
    """Then it is the run whose cohorts are those in time; what was sent to the late ones is counted."""
    times = [planned(done, sizes) for done in range(4)]
    within = [[k for k, seconds in each.items() if seconds <= LIMIT] for each in times]
    number = np.array([len(each) for each in within])
    assert trained(late) == within and 0 < number.min() < number.max() <= 6
    assert late.rounds["clients_late"].tolist() == (6 - number).tolist() and (late.rounds["cohort_size"] == 6).all()
    np.testing.assert_allclose(late.rounds["time/virtual_s"], np.cumsum([min(max(t.values()), LIMIT) for t in times]))
    rows = [{"round": done, "client": k} for done, each in enumerate(within) for k in each]
    pd.DataFrame(rows).to_csv(tmp_path / "cohorts.csv", index=False)
    listed = run(tmp_path / "listed", cohort={"from": str(tmp_path / "cohorts.csv")})
    assert weights(listed) == weights(late)
    down = late.rounds["comm/down_bytes"] - listed.rounds["comm/down_bytes"]
    assert down.tolist() == (listed.rounds["comm/down_bytes"] / number * (6 - number)).tolist()
    assert late.rounds["comm/up_bytes"].tolist() == listed.rounds["comm/up_bytes"].tolist()


def test_over_selection_has_the_first_k_of_more(tmp_path, sizes):
    found = run(tmp_path / "run", **MORE)
    times = [planned(done, sizes, 9) for done in range(4)]
    first = [sorted(each, key=each.get)[:6] for each in times]
    assert [set(each) for each in trained(found)] == [set(each) for each in first]
    ends = [each[clients[-1]] for each, clients in zip(times, first, strict=True)]
    np.testing.assert_allclose(found.rounds["time/virtual_s"], np.cumsum(ends), rtol=1e-12)
    assert found.rounds["clients_late"].tolist() == [3] * 4 and found.rounds["cohort_size"].tolist() == [9] * 4


def test_a_deadline_that_nobody_meets_is_said_and_changes_nothing(tmp_path):
    short = {**LOGNORMAL, "coordination": {"name": "deadline", "seconds": 1e-6}}
    with pytest.warns(ExchangeWarning, match="no client delivers within coordination.seconds=1e-06; raise it"):
        found = run(tmp_path / "run", "rounds=1", **short)
    assert found.rounds["clients_late"].tolist() == [6] and found.rounds["time/virtual_s"].tolist() == [1e-6]
    accuracy = found.tests.sort_values("done")["acc"].tolist()
    assert accuracy[0] == accuracy[-1]


def test_curves_over_virtual_time_end_where_the_clock_does(late):
    figure = flray.results.curves([late.folder], x="virtual")
    (line,) = figure.axes[0].get_lines()[:1]
    assert line.get_xdata()[0] == 0.0 and line.get_xdata()[-1] == pytest.approx(late.rounds["time/virtual_s"].iloc[-1])
    assert "virtual time" in figure.axes[0].get_xlabel()


class InTurn(FedAvg):
    """FedAvg whose clients train one after the other."""

    @property
    def training(self):
        return super().training._replace(order="sequential")


def test_clients_that_train_in_turn_work_one_after_the_other(tmp_path, sizes):
    """By number, each from the end of the one before it; a round takes the sum."""
    with patch.dict(ALGORITHMS._table, {"in_turn": InTurn}):
        found = run(tmp_path / "run", "algorithm.name=in_turn", "rounds=2", **LOGNORMAL)
        table = worked(found)
    seconds = [planned(done, sizes) for done in range(2)]
    np.testing.assert_allclose(found.rounds["time/virtual_s"], np.cumsum([sum(each.values()) for each in seconds]))
    second = table[table["round"] == 2]
    assert second["client"].tolist() == sorted(seconds[1])
    lengths = [seconds[1][client] for client in second["client"]]
    np.testing.assert_allclose(second["until"] - second["began"], lengths)
    np.testing.assert_allclose(second["began"], sum(seconds[0].values()) + np.cumsum([0, *lengths[:-1]]))


@pytest.mark.parametrize(
    ("size", "share", "says"),
    [
        (8, 0.5, ""),  # 12 of 12
        (9, 0.5, "over_selected draws all 12 clients, not 14; lower cohort.size or share"),
        (12, 0.5, "over_selected has none to add to a cohort of all 12 clients; lower cohort.size"),
    ],
)
def test_more_clients_than_there_are_cannot_be_drawn(size, share, says, recwarn):
    """12 clients hold samples. Fewer than asked are one warning, none at all is an error: nobody would be left out."""
    more = {"name": "over_selected", "share": share}
    asked = load_config({**BASE, **LOGNORMAL, "cohort": {"size": size}, "coordination": more})[0]
    data = build_data(asked)
    with pytest.raises(ConfigError, match=says) if size == 12 else contextlib.nullcontext():
        build_scenario(asked, data)
    told = [str(w.message) for w in recwarn if "over_selected" in str(w.message)]
    assert len(told) == (size == 9) and all(says in text for text in told)


@pytest.mark.parametrize(
    ("coordination", "says"),
    [
        ({"name": "over_selected", "share": 0.5}, "6 clients a round, the first of 9 drawn"),
        ({"name": "buffered", "size": 2, "concurrency": 5}, "2 clients a round, of 5 at work"),
    ],
    ids=["over_selected", "buffered"],
)
def test_the_doctor_counts_who_is_drawn_and_who_sends(tmp_path, coordination, says):
    """Against the bytes of the run's first round."""
    sections = {**BASE, **LOGNORMAL, "coordination": coordination, "rounds": 1}
    first = flray.run(sections, out=tmp_path / "run", progress=False).rounds.iloc[0]
    told = {row["check"]: row["result"] for row in examine(load_config(sections)[0]).checks}
    down, up = (size(first[f"comm/{way}_bytes"]) for way in ("down", "up"))
    assert told["cohort"] == says and told["traffic"] == f"{down} down a round at first, {up} up"

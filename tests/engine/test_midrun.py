"""`schedule`: hyper-parameters that change from a round on: when, and every error; after a resume and on actors:
`test_same_bits.py`."""

from pathlib import Path

import pytest

from flray.algorithms import ALGORITHMS
from flray.algorithms.fedavg import FedAvg
from flray.config.loader import load_config
from flray.config.schedule import Change
from flray.core.protocol.clock import Clock
from flray.core.schema.errors import ConfigError
from flray.engine.runtime import in_force
from flray.rundir import checkpoint
from flray.rundir.reader import Run
from flray.running import simulate
from tests.support.commands import QUICK
from tests.support.messages import assert_says, facts

SMALL = [
    "evaluate.clients=false", "partition.clients=6", "cohort.size=3", "rounds=4", "algorithm.local_epochs=1",
    "data.train_size=700", "algorithm.lr=0.5", "checkpoint=1",
]  # fmt: skip
ADAM = "schedule=[{from_round: 3, algorithm.optimizer: adam, algorithm.lr: 0.01}]"


def experiment(*words: str, algorithm: str = "fedavg", executor: str = "local"):
    given = (*SMALL, f"algorithm={algorithm}", f"resources.executor={executor}", *words)
    (found,) = load_config(QUICK, list({word.partition("=")[0]: word for word in given}.values()))
    return found


def weights(folder: Path) -> bytes:
    """The bits of the model at the end."""
    return checkpoint.latest(folder).server.message().w.tobytes()


def ran(folder: Path, *words: str, **kw: str) -> tuple[bytes, list[float]]:
    """(the model, the training loss of every round)."""
    simulate(experiment(*words, **kw), folder)
    return weights(folder), Run(folder).rounds["train/loss"].tolist()


@pytest.fixture(scope="module")
def adam(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adam") / "run"
    return folder, *ran(folder, ADAM)


def test_an_algorithm_of_the_users_script_has_versions_where_its_name_is_unknown(monkeypatch):
    """A server's process gets the class itself; the script that registers its name does not run there."""

    class Growing(FedAvg, frozen=True):
        pass

    monkeypatch.setitem(ALGORITHMS._table, "growing", Growing)
    found = experiment(ADAM, algorithm="growing")
    monkeypatch.delitem(ALGORITHMS._table, "growing")
    optimizers = [(version.from_round, version.algorithm.optimizer) for version in found.versions]
    assert optimizers == [(1, "sgd"), (3, "adam")]


def test_it_changes_at_that_round_and_not_before(adam, tmp_path):
    """Rounds 1 and 2 are those without a schedule. From round 1 on it is a run with these values."""
    _, model, losses = adam
    plain, without = ran(tmp_path / "plain")
    assert losses[:2] == without[:2] and losses[2] != without[2] and model != plain
    always, from_1 = ran(tmp_path / "from 1", ADAM.replace("from_round: 3", "from_round: 1"))
    written, own = ran(tmp_path / "own", "algorithm.optimizer=adam", "algorithm.lr=0.01")
    assert always == written and from_1 == own and from_1[0] != without[0]


def test_a_decay_begins_at_its_round(tmp_path):
    """0.5 in rounds 1 and 2, then 0.25 and 0.125: halves are exact, so the models have the same bits."""
    decay, _ = ran(tmp_path / "decay", "schedule={from_round: 2, algorithm.lr_decay: 0.5}")
    steps = "schedule=[{from_round: 3, algorithm.lr: 0.25}, {from_round: 4, algorithm: {lr: 0.125}}]"
    assert decay == ran(tmp_path / "steps", steps)[0] != ran(tmp_path / "plain")[0]


def test_a_new_rate_stays_under_the_decay_that_runs():
    """By hand: a new lr alone in round 3 is halved twice by the decay from round 1; a new decay in round 4 counts from
    there, also for the lr of round 5."""
    later = "schedule=[{from_round: 3, algorithm.lr: 0.25}, {from_round: 4, algorithm.lr_decay: 0.25}"
    found = experiment(f"{later}, {{from_round: 5, algorithm.lr: 1}}]", "algorithm.lr_decay=0.5", "rounds=6").versions
    rates = []
    for round in range(6):
        algorithm = in_force(found, Clock(round=round, done=round))
        rates.append(algorithm.lr * algorithm.lr_decay**round)
    assert rates == [0.5, 0.25, 0.25 / 4, 0.25, 1 / 4, 1 / 16]
    assert "a new lr alone stays under the lr_decay" in Change.model_fields["algorithm"].description


@pytest.mark.parametrize("decay", [1e-200, 1e-155])
def test_a_decay_that_underflows_before_it_begins_is_one_line(decay):
    """1e-200^2 is 0, and 0.5 / 1e-310 is more than a floating-point number holds."""
    with pytest.raises(ConfigError, match=facts("schedule, from_round 3: lr_decay=", "write lr at each round instead")):
        experiment(f"schedule={{from_round: 3, algorithm.lr_decay: {decay}}}")


def test_a_server_half_reads_the_same_values(tmp_path):
    """FedNova's server half multiplies by the learning rate: the rate of round 1 would give another model."""
    changed, _ = ran(tmp_path / "a", "schedule={from_round: 1, algorithm.lr: 0.125}", algorithm="fednova")
    assert changed == ran(tmp_path / "b", "algorithm.lr=0.125", algorithm="fednova")[0]


def test_config_yaml_says_what_changes(adam):
    again = load_config(adam[0] / "config.yaml", [])[0]
    assert again.schedule == experiment(ADAM).schedule


def test_what_follows_a_round_has_its_values():
    """The end of task 0, after round 4, has those of round 4; the beginning of task 1 those of round 5."""
    tasks = "tasks={name: class_incremental, num_tasks: 2}"
    found = experiment("schedule=[{from_round: 2, algorithm.lr: 0.1}, {from_round: 5, algorithm.lr: 0.2}]", tasks)
    moments = [Clock(done=0), Clock(done=1), Clock(phase="task_end", done=4), Clock(1, phase="task_begin", done=4)]
    assert [in_force(found.versions, clock).lr for clock in moments] == [0.5, 0.1, 0.1, 0.2]
    assert in_force(found.versions, Clock(phase="task_begin")).lr == 0.5


def test_show_says_what_changes(adam):
    from flray.results.essentials import about
    from flray.results.tables import settings

    assert "from round 3 optimizer adam, lr 0.01" in about(settings(Run(adam[0])))


@pytest.mark.parametrize(
    "text, told",
    [
        ("{from_round: 3, algorithm.lr: -1}", ("schedule, from_round 3.lr", "greater than 0", -1)),
        ("{from_round: 3, algorithm.optimiser: adam}", ("fedavg", "'optimiser'", "'optimizer'")),
        ("{from_round: 3, algorithm.batch_size: 2}", ("algorithm.batch_size", "lr, ")),
        ("{from_round: 9, algorithm.lr: 2}", ("from_round 9", 4, "lower it")),
        ("{from: 3, algorithm.lr: 2}", ("schedule.0.from_round: missing", "did you mean 'from_round'")),
        ("{from_round: 0, algorithm.lr: 2}", ("schedule.0.from_round", "greater than or equal to 1")),
        ("{from_round: 3}", ("schedule.0.algorithm: missing",)),
        ("{from_round: 3, algorithm: 1, algorithm.lr: 2}", ("algorithm is 1", "algorithm.KEY: VALUE")),
        ("[{from_round: 3, algorithm.lr: 1}, {from_round: 3, algorithm.lr: 2}]", ("from_round 3", "after 3")),
    ],
)
def test_errors(text, told):
    with pytest.raises(ConfigError) as caught:
        experiment(f"schedule={text}")
    assert_says(caught.value, *told)


def test_what_cannot_change_says_so():
    tasks = "tasks={name: class_incremental, num_tasks: 2}"
    with pytest.raises(ConfigError, match=facts("lr_decay", "write lr at each round")):
        experiment("schedule={from_round: 6, algorithm.lr_decay: 0.5}", tasks)
    with pytest.raises(ConfigError, match=facts("algorithm.optimizer")):  # its moments are state
        experiment(ADAM, algorithm="local")
    with pytest.raises(ConfigError, match=facts("schedule:", "algorithm.lr_decay")):
        experiment("schedule={from_round: 3, algorithm.lr: 0.1}", algorithm="centralized")

"""What an algorithm keeps of earlier tasks' samples is counted at every task's end, and told beside the accuracy."""

import pytest

import flray
from flray.algorithms import ALGORITHMS, built_in
from flray.cli.finished import report
from flray.contracts.played import Local
from flray.core.messages import nbytes, to_numpy
from tests.contracts.table import TABLE, experiment

LOCAL = {"executor": "local", "server": {"threads": 1}, "client": {"num_cpus": 1}}
TASKS = {"rounds": 1, "tasks": {"num_tasks": 2}, "resources": LOCAL, "partition": {"name": "iid", "clients": 3}}


@pytest.mark.parametrize(("name", "sample"), [("fedscr", 4 * 4), ("glfc", 16)])
def test_the_bytes_are_those_of_the_stored_states(name, sample, tmp_path, capsys):
    """Iris has four float32 features, an image of 4 x 4 pixels 16 bytes."""
    own = experiment(name, {"memory_size": 4}, **TASKS)
    run = flray.run(own, out=tmp_path / "run", progress=False)
    ends = run.tasks[run.tasks["phase"] == "task_end"]
    local = Local(own, run.folder)
    local.executor.store.load()
    states = list(local.client_states().values())
    numbers = 3 * 4 if name == "fedscr" else 3 * (4 // 3) * 3  # three clients; of three classes floor(4 / 3)
    last = ends.iloc[-1]
    assert (last["kept/clients"], last["kept/samples"], last["kept/sample_bytes"]) == (3, numbers, numbers * sample)
    assert last["kept/client_bytes"] == sum(nbytes(to_numpy(state)) for state in states)
    server = nbytes(to_numpy(local.state)) - local.state.w.nbytes - local.state.b.nbytes
    assert last["kept/server_bytes"] == server > 0
    report(run.folder)
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("kept:"))
    assert own.algorithm.keeps in line and "3 clients: states of" in line and f"{numbers} samples of" in line


def test_what_keeps_nothing_says_nothing(tmp_path, capsys):
    run = flray.run(experiment("fedavg", **TASKS), out=tmp_path / "run", progress=False)
    assert not any(column.startswith("kept/") for column in run.tasks)
    report(run.folder)
    assert "kept:" not in capsys.readouterr().out


@pytest.mark.parametrize("name", built_in(federated=True))
def test_who_keeps_exemplars_says_so(name):
    algorithm = ALGORITHMS.get(name)
    assert not algorithm.keeps_exemplars or algorithm.keeps
    assert "\n" not in algorithm.keeps and len(algorithm.keeps) < 100 and name in TABLE

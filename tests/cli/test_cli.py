"""The command line as a user meets it: exit codes, one-line errors, grids, listings."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas
import pytest
import typer
from sklearn.datasets import load_iris

from flray.cli import runs
from flray.cli.interrupts import interruptible
from flray.cli.runs import ray_for
from flray.config.experiment import Experiment
from flray.config.loader import load_config
from flray.core.schema.errors import ConfigError
from flray.doctor import examine
from flray.engine.ray import cluster
from flray.scenario import PartitionWarning
from tests.support.commands import interrupted, invoke, succeeded
from tests.support.messages import assert_says, facts
from tests.support.processes import python

QUICK = str(Path(__file__).parents[2] / "configs" / "quickstart.yaml")
FAST = ["rounds=2", "partition.clients=4", "cohort.size=4", "algorithm.local_epochs=1", "evaluate.clients=false"]
LOCAL = [*FAST, "resources.executor=local"]


def flray(*words: str, timeout: int = 120) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "flray", *words], capture_output=True, text=True, timeout=timeout)


def test_errors_are_one_line_and_exit_code_2(tmp_path):
    result = flray("run", QUICK, "algorithm.lrr=1", "--out", str(tmp_path / "x"))
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1] == "error: algorithm.lrr: unknown key (did you mean 'lr'?)"
    assert all(line.startswith("starting ") for line in result.stderr.splitlines()[:-1])
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("text", "overrides", "insecure"),
    [
        ("# resources.insecure_ray: true", [], False),
        ("presets: {x: {resources: {insecure_ray: true}}}", [], False),
        ("presets: {x: {resources: {insecure_ray: true}}}", ["preset=x"], True),
        ("rounds: 3", ["resources.insecure_ray=true"], True),
    ],
)
def test_a_ray_without_protection_is_started_early_where_the_configuration_allows_it(
    tmp_path, monkeypatch, text, overrides, insecure
):
    """A comment, or a preset that is not chosen, allows nothing."""
    (tmp_path / "c.yaml").write_text(f"extends: {QUICK}\n{text}\n")
    started = []
    monkeypatch.setattr(runs, "own_process", True)
    monkeypatch.setattr(cluster, "Background", lambda work: work())
    monkeypatch.setattr(cluster, "connect", lambda *arguments: started.append(arguments[3]))
    with runs.starting(tmp_path / "c.yaml", [*overrides, "resources.executor=calls"]):
        pass
    assert started == [insecure]


def test_a_file_that_is_no_text_is_left_to_the_reader_of_configurations(tmp_path):
    """The early start of Ray looks into it first, and ended in a traceback."""
    (tmp_path / "c.yaml").write_bytes(b"\xff\xfe resources:")
    assert ray_for(tmp_path / "c.yaml", []) is None
    with pytest.raises(ConfigError, match=facts(tmp_path / "c.yaml")):
        load_config(tmp_path / "c.yaml")


@pytest.mark.parametrize(
    ("text", "overrides", "here"),
    [
        ("rounds: 3", [], True),
        ("rounds: 3  # executor: local, address: auto", [], True),
        ("address: null", ["resources.client_actors=1"], True),
        ("rounds: 3\naddress: auto", [], False),
        ("rounds: 3", ["address=10.0.0.1:6379"], False),
        ("resources: {client_actors: 5000}", [], False),
        ("rounds: 3", ["resources.client.num_cpus=5000"], False),
        ("resources: {executor: local}", [], False),
        ("resources:\n  'executor' : \"local\"", [], False),
        ('"resources": {"executor":"local"}', [], False),
        ('"resources": {"executor":"local"}', ["resources.executor=calls"], True),
        ("presets: {here: {resources: {executor: local}}}", [], True),
        ("presets: {here: {resources: {executor: local}}}", ["preset=here"], False),
        ("rounds: 3", ["resources.executor=local"], False),
        ("rounds: 3", ["seed=0..4", "resources.executor=local"], False),
    ],
)
def test_ray_starts_early_where_the_configuration_asks_for_neither_another_nor_more_of_it(
    tmp_path, text, overrides, here
):
    (tmp_path / "wide.yaml").write_text(f"extends: {QUICK}\nmodel: {{hidden: [100000]}}\n")  # no small run
    (tmp_path / "base.yaml").write_text(f"extends: wide.yaml\n{text}\n")
    (tmp_path / "config.yaml").write_text("extends: base.yaml\n")  # what another file says counts
    for file in ("base.yaml", "config.yaml"):
        assert (ray_for(tmp_path / file, overrides) is not None) == here, file
    assert (ray_for(tmp_path, overrides) is not None) == here, "the folder of a run"
    assert ray_for(tmp_path / "other.yaml", overrides) is None, "there is no such file"


def test_an_experiment_in_json_that_is_local_starts_no_ray(tmp_path):
    values = {**load_config(QUICK)[0].dump(), "resources": {"executor": "local"}}
    (tmp_path / "c.json").write_text(json.dumps(values, separators=(",", ":")))
    assert ray_for(tmp_path / "c.json", []) is None


def test_an_existing_run_is_not_written_over(tmp_path):
    out = tmp_path / "r"
    succeeded("run", QUICK, *LOCAL, "--out", out)
    before = (out / "model.safetensors").read_bytes()
    second = invoke("run", QUICK, *LOCAL, "seed=1", "--out", out)
    assert_says(second.exception, out, "--overwrite")
    assert (out / "model.safetensors").read_bytes() == before
    succeeded("run", QUICK, *LOCAL, "seed=1", "--out", out, "--overwrite")
    assert (out / "model.safetensors").read_bytes() != before


def test_doctor_shows_the_partition_and_trains_nothing(tmp_path):
    result = succeeded("doctor", QUICK, "--figure", tmp_path / "p.png")
    assert "20 clients" in result.output and "1138 samples" not in result.output
    assert (tmp_path / "p.png").stat().st_size > 5_000


@pytest.mark.parametrize(
    ("overrides", "proxy"),
    [
        ([], "holdout: 300 samples, held out for every algorithm, not read by fedavg"),
        (["algorithm=feddf"], "holdout: 300 samples, labelled, read by feddf"),
        (["proxy=null"], "none"),
        (["proxy.source=iris", "proxy.size=50"], "iris: not read by fedavg"),
    ],
)
def test_doctor_says_whether_the_proxy_data_are_read(overrides, proxy):
    assert results_of(load_config(QUICK, overrides)[0])["proxy"] == proxy


def results_of(experiment: Experiment) -> dict[str, str]:
    return {row["check"]: row["result"] for row in examine(experiment).checks}


def test_doctor_counts_what_travels_by_the_fields_of_the_messages():
    """SCAFFOLD: a model and a control variate each way. FedDF: the server holds the model of each of the 10 clients."""
    rows = {}
    for name, options in {"fedavg": (), "scaffold": (), "feddf": ("proxy.source=holdout", "proxy.size=20")}.items():
        rows[name] = results_of(load_config(QUICK, [f"algorithm={name}", *options])[0])
    assert rows["fedavg"]["traffic"] == rows["feddf"]["traffic"] == "193 kB down a round at first, 193 kB up"
    assert rows["scaffold"]["traffic"] == "385 kB down a round at first, 385 kB up"
    assert rows["fedavg"]["server memory"] == "about 77.1 kB for parameters"
    assert rows["feddf"]["server memory"] == "about 270 kB for parameters, of each client w, b"
    assert rows["fedavg"]["into the server"] == "at most 193 kB of sums, however many actors"
    assert rows["scaffold"]["into the server"].endswith("; cannot be added up: state of each client, 193 kB")
    assert rows["feddf"]["into the server"] == "cannot be added up: w, b of each client, 193 kB"


def test_doctor_says_who_takes_no_part_and_what_the_tasks_are():
    """A table of two clients without samples, and two of a class each."""
    partition = {"name": "table", "table": [[3, 0, 0], [0, 0, 0], [0, 2, 1], [0, 0, 0]]}
    config = {**load_config(QUICK)[0].dump(), "data": "iris", "partition": partition, "cohort": {}, "proxy": None}
    with pytest.warns(PartitionWarning, match=facts("2 of 4 clients", "client 1")):
        findings = examine(load_config(config, ["model=mlp"])[0])
    found = {row["check"]: row["result"] for row in findings.checks}
    empty = "2 of them have no sample and take no part"
    assert found["partition"] == f"table: 4 clients, 3 to 3 samples (median 3); {empty}"
    assert found["cohort"].startswith("2 clients a round")
    assert findings.partition.to_numpy().tolist() == partition["table"] and findings.all_clients
    tasks = {"num_tasks": 2, "class_order": [1, 2, 0], "partition": "once"}
    with pytest.warns(PartitionWarning):
        found = results_of(load_config({**config, "tasks": tasks}, ["model=mlp", "rounds=3"])[0])
    assert found["algorithm"] == "fedavg, 6 rounds"
    assert (
        found["task 0"] == "classes 1 2; tested on 20 samples (test: all tasks so far)"
        and found["task 1"]
        == "classes 0 (only one, so a loss over its own logits is 0); tested on 30 samples (test: all tasks so far)"
    )
    assert (
        found["partition of task 1"]
        == "table: 4 clients, 3 to 3 samples (median 3); 3 of them have no sample and take no part"
    )


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_a_command_without_ray_as_ctrl_c_does(tmp_path, capsys, number, code):
    """A run in one process was killed on the spot: no checkpoint, and a STATUS that said `running`. SIGHUP is that of a
    closed terminal; under nohup it is ignored, and stays so."""
    before = signal.signal(number, signal.SIG_DFL)
    try:
        with pytest.raises(typer.Exit) as ended, interruptible(tmp_path, "the same command continues"):
            os.kill(os.getpid(), number)
            time.sleep(10)  # the signal comes between two steps of Python
        assert ended.value.exit_code == code and "the same command continues" in capsys.readouterr().err
        assert signal.getsignal(number) is signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN)
        with interruptible(tmp_path):
            os.kill(os.getpid(), number)
            assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)


def test_a_run_says_what_it_does_before_its_first_round_and_what_to_try_after_it(ray_cluster, tmp_path):
    done = succeeded("run", QUICK, *FAST, "proxy=null", "--out", tmp_path / "r")  # of one local epoch
    before = [line for line in done.stderr.splitlines() if not line.endswith(" s")]  # the slow ones say so
    assert before[:2] == ["loading torch", "reading data: digits"], "in this process Ray runs already"
    assert "starting server and clients" in before
    assert f"flray run {tmp_path / 'r'}/config.yaml algorithm=fedsol " in done.stderr, (
        "another algorithm, and one without proxy data"
    )
    assert ("tensorboard" in done.stdout) == (importlib.util.find_spec("tensorboard") is not None)
    replay = ["replay", str(tmp_path / "r"), "--client", "0"]
    wrong = invoke(*replay, "--round", "77")
    assert str(wrong.exception) == "--round 77: the run has rounds 1 to 2"
    assert "client 0, round 2" in invoke(*replay).stdout, "of a finished run the last round"


@pytest.mark.slow
def test_a_grid_says_how_many_cells_and_at_its_end_where_they_are(ray_cluster, tmp_path):
    done = succeeded("run", QUICK, *FAST, "algorithm=fedavg,fedprox", "seed=0,1", "--out", tmp_path / "g")
    assert "a grid of 4 cells" in done.stderr.splitlines()
    assert f"results: {tmp_path / 'g'}: 4 run folders" in done.stdout
    proposed = [
        line.split("flray ", 1)[1].split("   (")[0].split() for line in done.stderr.splitlines() if "flray " in line
    ]
    assert [words[0] for words in proposed] == ["figure", "figure", "compare", "resume"]
    for number, line in enumerate(proposed[:3]):  # what is proposed works
        succeeded(*(word if word[-4:] != ".png" else tmp_path / f"{number}.png" for word in line))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seeds", "way"),
    [
        ("0", "finished rounds are saved in {0}, continue with: flray resume {0}"),
        ("0,1", "finished work is in {0}; the same command continues"),
    ],
)
def test_ctrl_c_in_a_run_or_a_grid_is_the_code_130_and_the_way_on_is_said(ray_cluster, tmp_path, seeds, way):
    stopped = interrupted(tmp_path / "r", "run", QUICK, *FAST[1:], "rounds=2000", f"seed={seeds}")
    assert stopped.stderr.splitlines()[-1] == f"warning: interrupted; {way.format(tmp_path / 'r')}"
    assert seeds != "0" or (tmp_path / "r" / "STATUS").read_text().startswith("interrupted after round")


@pytest.mark.parametrize("words", [["run", "seed=0,1"], ["ablate", "seed=0,1"], ["pretrain"]])
@pytest.mark.parametrize("overwrite", [False, True])
def test_what_ctrl_c_says_does_not_begin_anew(tmp_path, monkeypatch, words, overwrite):
    """With --overwrite the same command removed the rounds that were finished."""

    def stop(*_, **__):
        raise KeyboardInterrupt

    for place in ("flray.tuning.ablate.run_grid", "flray.running.simulate"):
        monkeypatch.setattr(place, stop)
    command, *more = words
    again = ["--overwrite"] if overwrite else []
    said = invoke(command, QUICK, *LOCAL, *more, "--out", tmp_path, *again).stderr.splitlines()[-1]
    way = "the same command without --overwrite continues" if overwrite else "the same command continues"
    assert said == f"warning: interrupted; finished work is in {tmp_path}; {way}"


MINE = """
from flray.algorithms import ALGORITHMS
from flray.algorithms.fedavg import FedAvg

class Mine(FedAvg):
    pass

ALGORITHMS.add("mine", Mine)
"""


@pytest.mark.slow
def test_own_modules_and_relative_data_are_found_from_any_folder(ray_cluster, tmp_path, monkeypatch):
    """A run and a grid with `data.root=data` and an own algorithm, then resumed and replayed elsewhere by processes of
    their own."""
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here / "data" / "toy", there):
        folder.mkdir(parents=True)
    (here / f"mine_{tmp_path.name}.py").write_text(MINE)
    x, y = load_iris(return_X_y=True)
    for split, rows in (("train", slice(0, None, 2)), ("test", slice(1, None, 2))):
        pandas.DataFrame(x[rows], columns=list("abcd")).assign(label=y[rows]).to_parquet(
            here / "data" / "toy" / f"{split}.parquet"
        )
    words = [
        "data.source=toy",
        "data.root=data",
        "data.leak_check=false",
        "proxy=null",
        "algorithm=mine",
        "partition.min_size=1",
    ]
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for more in (["--out", "r"], ["seed=0,1", "--out", "g"]):
        succeeded("run", QUICK, *FAST, *words, "--import", f"mine_{tmp_path.name}", *more)
    folder = here / "g" / "mine-seed1"
    env = {**os.environ, "PYTHONPATH": str(Path(QUICK).parent.parent), "CUDA_VISIBLE_DEVICES": ""}
    for command in (["resume", "../here/r", "rounds=3"], ["replay", str(folder), "--client", "0", "--round", "2"]):
        python("-m", "flray", *command, cwd=there, env=env)
    assert list(pandas.read_parquet(here / "r" / "rounds")["round"]) == [1, 2, 3]
    assert list(there.iterdir()) == []

"""A sweep end to end on a real Ray: resumed, budgets, honest, one-line errors."""

import itertools
import os
import signal
from pathlib import Path

import pandas
import pytest

import flray
from flray.core.schema.errors import CheckpointError, ConfigError, ResourceError
from flray.engine.prepare import build_data, build_scenario
from flray.rundir.lock import FolderLock
from flray.running import simulate
from flray.tuning.drive import Show
from flray.tuning.sweep import _begin, _fingerprints, _tune, resume_sweep, run_sweep
from flray.tuning.sweep_file import load_sweep
from flray.tuning.trials import trials_table
from tests.support.iris_sweep import EXPERIMENT, ended, studies_of
from tests.support.sweeps import SWEEP, found, rungs


def tiny(**changes):
    return load_sweep({**SWEEP, **changes})


@pytest.fixture(scope="module")
def whole(ray_cluster, tmp_path_factory):
    """An uninterrupted sweep."""
    folder = tmp_path_factory.mktemp("sweep") / "whole"
    run_sweep(tiny(), folder, progress=False)
    return folder


def test_a_sweep_leaves_run_folders_a_table_and_a_final_test(whole):
    table = pandas.read_parquet(whole / "sweep.parquet")
    assert len(table) == 6 and set(table["state"]) <= {"finished", "pruned"} and (table["state"] == "finished").any()
    for row in table.to_dict("records"):
        run = flray.load(whole / row["folder"])
        assert len(run.rounds) == row["round"]
        assert run.status == "finished" if row["state"] == "finished" else run.status.startswith("paused after round")
        assert run.experiment.algorithm.rho == row["algorithm.rho"]
        assert run.rounds["val/acc"].iloc[-1] == row["val/acc"]
        assert row["client_steps"] == run.rounds["client_steps"].sum()
    assert (whole / "STATUS").read_text() == "finished\n"
    assert not (whole / ".flray-tune").exists()
    assert (whole / "figures" / "history.png").exists()


def test_tuning_never_reads_the_test_set_and_the_final_runs_read_it_once(whole):
    for folder in (whole / "trials").iterdir():
        assert not [name for name in flray.load(folder).rounds if name.startswith("test/")]
    best = (
        pandas.read_parquet(whole / "sweep.parquet")
        .query("state == 'finished'")
        .sort_values("val/acc", ascending=False, kind="stable")
        .iloc[0]
    )
    finals = sorted((whole / "final").glob("[!.]*"))  # beside .made, the list of what flray made there
    assert len(finals) == 2
    for folder in finals:
        run = flray.load(folder)
        assert run.experiment.algorithm.rho == best["algorithm.rho"]
        assert run.experiment.evaluate.validation is None
        assert run.experiment.seed not in {flray.load(p).experiment.seed for p in (whole / "trials").iterdir()}
        assert run.rounds["test/acc"].notna().tolist() == [False] * 5 + [True]
        # all training data: a trial's clients lack the validation split
        assert len(flray.load(folder).clients["num_examples"]) and run.clients["num_examples"].iloc[:4].sum() == 120


def test_the_final_table_has_the_final_runs(whole):
    table = pandas.read_csv(whole / "final.csv")
    finals = [flray.load(folder) for folder in (whole / "final").glob("[!.]*")]
    assert sorted(table["test/acc"]) == sorted(run.rounds["test/acc"].iloc[-1] for run in finals)
    assert "test acc %" in (whole / "final.md").read_text()


def test_ctrl_c_in_a_sweep_ends_a_script_too(ray_cluster, tmp_path, monkeypatch):
    """In the first round of the first trial, for which Ray Tune returns as after the last trial. That trial would have
    been the last one of this budget."""
    presses = iter([signal.SIGINT])
    press = lambda *_, **__: [os.kill(os.getpid(), number) for number in presses]  # noqa: E731
    monkeypatch.setattr(Show, "on_trial_result", press)
    with pytest.raises(KeyboardInterrupt):
        flray.sweep({**SWEEP, "client_steps": 1, "concurrency": 1}, out=tmp_path / "s", progress=False)
    assert (tmp_path / "s" / "STATUS").read_text().startswith("interrupted after 0 of 6 trials; continue with: ")


@pytest.mark.parametrize(
    ("budget", "trials", "says"),
    [
        ({"client_steps": 200, "trials": 9}, 4, "client_steps"),  # one configuration; 72 steps each: three trials
        ({"client_steps": 200, "trials": 3}, 4, "client_steps"),
        ({"hours": 9, "trials": 5}, 6, "trials"),
        ({"client_steps": 50, "trials": 9}, 2, "client_steps"),
    ],
)
def test_a_sweep_ends_where_each_algorithm_has_come_to_another_end(tmp_path, monkeypatch, budget, trials, says):
    """The space of one is exhausted, the budget of the other is used up: nobody pressed Ctrl-C."""
    space = {"algorithm": ["fedavg", "fedprox"], "fedavg.lr": [0.1], "fedprox.mu": {"log": [0.01, 1.0]}}
    studies = studies_of(tmp_path / "s", space=space, budget_per="algorithm", **budget)

    def drive(folder, searcher, *_):
        """Ray Tune, one trial at a time."""
        for number in itertools.count():
            config = searcher.suggest(str(number))
            if not isinstance(config, dict):
                return
            searcher.on_trial_complete(str(number), {**ended(0.5), "key": config["key"]})

    monkeypatch.setattr("flray.tuning.sweep.drive", drive)
    spent = _tune(studies.sweep, tmp_path / "s", studies, None, False)
    assert spent is not None and spent.startswith(f"{says}: ")
    assert len(studies.ended()) == trials
    monkeypatch.setattr("flray.tuning.sweep.drive", lambda folder, searcher, *_: searcher.suggest("interrupted"))
    fresh = studies_of(tmp_path / "t", space=space, budget_per="algorithm", **budget)
    assert _tune(fresh.sweep, tmp_path / "t", fresh, None, False) is None


@pytest.mark.slow
def test_a_trial_that_had_ended_but_was_not_told_of_is_told_and_not_run_again(ray_cluster, tmp_path):
    """The driver was killed between the last round of a run and the study's entry."""
    sweep, folder = tiny(trials=1, final={"top": 0}), tmp_path / "s"
    folder.mkdir()
    first = sweep.experiment(sweep.search_space.example())
    data = build_data(first)
    lock = FolderLock.acquire(folder)
    studies = _begin(sweep, folder, lock, False, _fingerprints(sweep, data, build_scenario(first, data)))
    key, overrides, home = studies.next()
    lock.release()
    simulate(sweep.experiment(overrides), home)
    stamp = (home / "model.safetensors").stat().st_mtime_ns
    resume_sweep(folder, [], progress=False)
    (row,) = found(folder)
    assert (row["state"], row["round"], row["val/acc"]) == ("finished", 6, flray.load(home).rounds["val/acc"].iloc[-1])
    assert (home / "model.safetensors").stat().st_mtime_ns == stamp and key == "0000"


@pytest.mark.slow
def test_a_budget_ends_a_sweep_and_a_resume_raises_it(whole, tmp_path):
    # 6 rounds of 4 clients with 3 batches (23 of 30 samples; 8 a batch): spent when the first trial has ended
    run_sweep(tiny(client_steps=72), tmp_path / "s", progress=False)
    status = (tmp_path / "s" / "STATUS").read_text()
    assert status.startswith("finished with 1 of 6 trials (client_steps: ") and "more with: flray sweep" in status
    assert {p.name.split("-seed")[0] for p in (tmp_path / "s" / "final").glob("[!.]*")} == {"fedsol-0000"}
    resume_sweep(tmp_path / "s", ["client_steps=null"], progress=False)
    assert found(tmp_path / "s") == found(whole)


@pytest.mark.slow
def test_a_trial_that_has_begun_when_a_budget_is_spent_trains_to_its_end(ray_cluster, tmp_path):
    """72 steps a trial: the second one begins with 72 of 100 done, and ends with 144."""
    sweep = tiny(client_steps=100, scheduler="none", final={"top": 0}, concurrency=1)
    run_sweep(sweep, tmp_path / "s", progress=False)
    assert [(row["state"], row["round"], row["client_steps"]) for row in found(tmp_path / "s")] == [
        ("finished", 6, 72), ("finished", 6, 72)
    ]  # fmt: skip
    resume_sweep(tmp_path / "s", [], progress=False)
    assert len(found(tmp_path / "s")) == 2, "nothing starts"


@pytest.mark.slow
def test_several_objectives_have_a_front(ray_cluster, tmp_path):
    sweep = tiny(
        trials=3,
        scheduler="none",
        objective={"val/acc": "max", "client_steps": "min"},
        space={"algorithm.local_epochs": [1, 2, 5]},
    )
    run_sweep(sweep, tmp_path / "s", progress=False)
    rows = found(tmp_path / "s")
    # rounds, clients, batches
    assert [row["client_steps"] for row in rows] == [6 * 4 * 3 * row["algorithm.local_epochs"] for row in rows]
    assert len(list((tmp_path / "s" / "final").glob("[!.]*"))) >= 2


# bad input ---------------------------------------------------------------------------------------


def test_an_objective_that_no_run_reports_is_one_line(ray_cluster, tmp_path):
    local = {**SWEEP["experiment"], "resources": {"executor": "local"}}
    sweep = tiny(objective={"project/share": "max"}, trials=3, experiment=local)
    with pytest.raises(ConfigError, match=r"objective project/share: no run reports it; this one reports .*val/acc"):
        run_sweep(sweep, tmp_path / "s", progress=False)


def test_more_than_the_cluster_has_is_one_line(ray_cluster, tmp_path):
    sweep = load_sweep(SWEEP, ["resources.client_actors=9"])
    with pytest.raises(
        ResourceError, match=r"no trial fits: a trial takes .* 9 client actors .*, and the cluster has 4 CPUs"
    ):
        run_sweep(sweep, tmp_path / "s", progress=False)
    assert not (tmp_path / "s" / "sweep.yaml").exists()


def test_a_place_that_cannot_be_written_is_one_line(ray_cluster, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot create"):
        run_sweep(tiny(), Path(tmp_path / "file" / "s"), progress=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["asha", "hyperband"])
def test_trials_on_actors_have_the_bits_of_one_process(ray_cluster, tmp_path, name):
    """In the trials' placement groups; trials are stopped (asha), or paused and taken up again (hyperband)."""
    rule = {"asha": {"grace": 2, "reduction": 2}, "hyperband": {"reduction": 2}}[name]
    resources = {**EXPERIMENT["resources"], "executor": "calls"}
    changes = {"experiment": {**SWEEP["experiment"], "resources": resources}, "concurrency": "auto"}
    folder = tmp_path / "s"
    run_sweep(tiny(scheduler={"name": name, **rule}, trials=4, final={"top": 0}, **changes), folder, progress=False)
    ended = [row["folder"] for row in found(folder) if row["state"] == "finished"]
    assert ended
    for trial in ended:
        alone = flray.run(folder / trial / "config.yaml", "resources.executor=local", out=tmp_path / trial)
        assert (alone.folder / "model.safetensors").read_bytes() == (folder / trial / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_trials_of_one_virtual_time_are_judged_at_its_end(ray_cluster, tmp_path):
    """Their lengths differ, by the local epochs; the study's value is the last row's, and none counts as stopped."""
    experiment = {**EXPERIMENT, "rounds": 40, "devices": {"speed": "equal"}, "until": {"virtual_s": 2e-5}}
    space = {"algorithm.local_epochs": {"choice": [1, 2, 3, 4]}}
    changes = {"trials": 4, "sampler": "random", "scheduler": "none", "final": {"top": 0}, "concurrency": "auto"}
    run_sweep(tiny(experiment=experiment, space=space, **changes), tmp_path / "s", progress=False)
    table = trials_table(tmp_path / "s")
    table = table[[(tmp_path / "s" / folder).exists() for folder in table["folder"]]]  # equal parameters run once
    runs = [flray.load(tmp_path / "s" / folder) for folder in table["folder"]]
    lengths = {run.experiment.algorithm.local_epochs: len(run.rounds) for run in runs}
    assert len(lengths) > 1 and 1 <= lengths[max(lengths)] < lengths[min(lengths)] < 40
    assert table["state"].eq("finished").all()
    assert table["round"].tolist() == [len(run.rounds) for run in runs]
    assert table["val/acc"].tolist() == [run.rounds["val/acc"].iloc[-1] for run in runs]


@pytest.mark.slow
def test_asha_by_virtual_time_judges_what_the_rounds_say(ray_cluster, tmp_path):
    """A value in `rungs.json` is that of the run's last test by the rung; a trial with more local epochs has fewer."""
    experiment = {**EXPERIMENT, "rounds": 40, "devices": {"speed": "equal"}, "until": {"virtual_s": 1.5e-4}}
    space = {"algorithm.local_epochs": {"choice": [1, 2, 3, 4]}, "algorithm.lr": {"log": [1e-4, 0.1]}}
    rule = {"name": "asha", "time_attr": "time/virtual_s", "grace": 3e-5, "reduction": 2}
    changes = {"trials": 8, "sampler": "random", "final": {"top": 0}, "concurrency": "auto"}
    run_sweep(tiny(experiment=experiment, space=space, scheduler=rule, **changes), tmp_path / "s", progress=False)
    assert [at for at, _ in rungs(tmp_path / "s")["rungs"]] == [3e-5, 6e-5, 1.2e-4]
    table, judged = trials_table(tmp_path / "s"), 0
    for at, values in rungs(tmp_path / "s")["rungs"]:
        for key, value in values.items():
            rows = flray.load(tmp_path / "s" / "trials" / key).rounds.dropna(subset="val/acc")
            assert value == rows.loc[rows["time/virtual_s"] <= at, "val/acc"].iloc[-1]
            judged += 1
    assert judged > 8 and "pruned" in table["state"].to_list()

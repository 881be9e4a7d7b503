"""`ray job submit` against a head on this machine: run, status, logs, stop, resume; with and without a token; two
nodes."""

import json
import re
import shutil

import pandas
import pytest

from flray import run
from tests.support.commands import QUICK, wait_for_rounds
from tests.support.heads import flray, ray_head
from tests.support.runs import model

FAST = ("partition.clients=4", "cohort.size=4", "algorithm.local_epochs=1", "evaluate.clients=false")


@pytest.fixture
def submitted(tmp_path):
    """The words of `flray run` as a job, in a working directory that holds a configuration and nothing else."""
    folder = tmp_path / "job"
    folder.mkdir()
    shutil.copy(QUICK, folder)
    return "--working-dir", str(folder), "--", "flray", "run", "quickstart.yaml"


# jobs -----------------------------------------------------------------------------------------
@pytest.mark.slow
def test_a_job_runs_on_the_cluster_and_gives_the_bits_of_a_run_here(ray_cluster, submitted, tmp_path):
    with ray_head() as head:
        job = head.job("submit", *submitted, "rounds=2", *FAST)
        assert job.returncode == 0 and "succeeded" in job.stdout, job.stdout
        assert re.search(r"lies in Ray's temporary folder .* give out \(--out\) on a shared", job.stdout)
        (folder,) = head.folder.glob(
            "*/session_latest/runtime_resources/working_dir_files/*/runs/quickstart/fedavg-seed0"
        )
        actors = json.loads((folder / "environment.json").read_text())["actors"]
        assert actors["client_actors"] == 2, "the head's CPUs, not this machine's"
        found = model(folder)
    assert not head.processes() and not head.folder.exists()
    assert found == model(run(QUICK, "rounds=2", *FAST, out=tmp_path / "here").folder)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_stopped_job_says_so_and_is_resumed_to_the_same_bits_on_a_cluster_with_a_token(
    ray_cluster, submitted, tmp_path
):
    out, token = tmp_path / "run", "0123456789abcdef" * 4
    with ray_head(token=token) as head:
        bad = head.job("submit", *submitted, "algorithm.lrr=1")
        assert bad.returncode != 0 and "failed" in bad.stdout and "exit code 2" in bad.stdout
        assert "error: algorithm.lrr: unknown key (did you mean 'lr'?)" in bad.stdout.splitlines(), (
            "one line in the job's log"
        )
        for wrong in ({"RAY_AUTH_MODE": "disabled"}, {"RAY_AUTH_TOKEN": "another"}):
            refused = head.job("submit", *submitted, **wrong)
            assert refused.returncode != 0 and "AuthenticationError" in refused.stdout
        # Ray waits 3 s, and a large model takes longer to save
        patient = '{"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": "60"}}'
        more = ("--no-wait", "--submission-id", "long", "--runtime-env-json", patient)
        long = ("rounds=4000", "checkpoint.every=0", *FAST, "--out", str(out))
        begun = head.job("submit", *more, *submitted, *long)
        assert begun.returncode == 0, begun.stdout
        wait_for_rounds(out, 3)
        assert "RUNNING" in head.job("status", "long").stdout
        assert "was stopped" in head.job("stop", "long").stdout
        assert f"interrupted; finished rounds are saved in {out}" in head.job("logs", "long").stdout
        done = int(pandas.read_parquet(out / "rounds")["round"].max())
        assert (out / "STATUS").read_text().startswith(f"interrupted after round {done}; continue with: flray resume")
        # by a job, with `address: auto` as well as with the address that Ray gives it
        again = head.job("submit", "--", "flray", "resume", str(out), f"rounds={done + 2}", "address=auto")
        assert again.returncode == 0 and "succeeded" in again.stdout, again.stdout
        # by a driver from another shell of this machine
        shell = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
        last = flray("resume", out, f"rounds={done + 4}", f"address={head.address}", **shell)
        assert last.returncode == 0, last.stdout
    assert json.loads((out / "environment.json").read_text())["ray_auth_mode"] == "token"
    assert model(out) == model(run(QUICK, f"rounds={done + 4}", *FAST, out=tmp_path / "whole").folder)
    assert pandas.read_parquet(out / "rounds")["round"].tolist() == list(range(1, done + 5))

"""`ray job submit` against a head on this machine: run, status, logs, stop, resume; with and without a token; what is uploaded."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pandas
import pytest
from typer.testing import CliRunner

from flray import run
from flray.cli import app
from flray.core.errors import ConfigError, ResourceError
from flray.engine.upload import LIMIT, RAYIGNORE, working_dir
from tests.heads import flray, ray_head

ROOT = Path(__file__).parents[1]
QUICK = ROOT / "configs" / "quickstart.yaml"
FAST = ("partition.clients=4", "cohort.size=4", "algorithm.local_epochs=1", "evaluate.clients=false")


@pytest.fixture
def submitted(tmp_path):
    """A working directory that holds a configuration and nothing else."""
    folder = tmp_path / "job"
    folder.mkdir()
    shutil.copy(QUICK, folder)
    return folder


def model(folder):
    return (folder / "model.safetensors").read_bytes()


def wait_for_rounds(folder, count):
    until = time.monotonic() + 120
    while not list(folder.glob("rounds/part-*.parquet")) or pandas.read_parquet(folder / "rounds")["round"].max() < count:
        assert time.monotonic() < until, f"no round {count} in {folder}"
        time.sleep(0.1)


# jobs -----------------------------------------------------------------------------------------
def test_a_job_runs_on_the_cluster_and_gives_the_bits_of_a_run_here(ray_cluster, submitted, tmp_path):
    with ray_head() as head:
        job = head.job("submit", "--working-dir", str(submitted), "--", "flray", "run", "quickstart.yaml", "rounds=2", *FAST)
        assert job.returncode == 0 and "succeeded" in job.stdout, job.stdout
        assert "lies in Ray's copy of the job's working directory" in job.stdout and "give --out on shared disk" in job.stdout
        (folder,) = head.folder.glob("*/session_latest/runtime_resources/working_dir_files/*/runs/quickstart/fedavg-seed0")
        actors = json.loads((folder / "environment.json").read_text())["actors"]
        assert actors["client_actors"] == 2, "the head's CPUs, not this machine's"
        found = model(folder)
    assert not head.processes() and not head.folder.exists()
    assert found == model(run(QUICK, "rounds=2", *FAST, out=tmp_path / "here").folder)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_stopped_job_says_so_and_is_resumed_to_the_same_bits_on_a_cluster_with_a_token(ray_cluster, submitted, tmp_path):
    out, token = tmp_path / "run", "0123456789abcdef" * 4
    with ray_head(token=token) as head:
        bad = head.job("submit", "--working-dir", str(submitted), "--", "flray", "run", "quickstart.yaml", "algorithm.lrr=1")
        assert bad.returncode != 0 and "failed" in bad.stdout and "exit code 2" in bad.stdout
        assert "error: algorithm.lrr: unknown key (did you mean 'lr'?)" in bad.stdout.splitlines(), "one line in the job's log"
        for wrong in ({"RAY_AUTH_MODE": "disabled"}, {"RAY_AUTH_TOKEN": "another"}):
            refused = head.job("submit", "--working-dir", str(submitted), "--", "true", **wrong)
            assert refused.returncode != 0 and "AuthenticationError" in refused.stdout
        words = ("flray", "run", "quickstart.yaml", "rounds=4000", "checkpoint.every=0", *FAST, "--out", str(out))
        patient = '{"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": "60"}}'  # Ray waits 3 s, and a large model takes longer to save
        more = ("--no-wait", "--submission-id", "long", "--runtime-env-json", patient)
        begun = head.job("submit", "--working-dir", str(submitted), *more, "--", *words)
        assert begun.returncode == 0, begun.stdout
        wait_for_rounds(out, 3)
        assert "RUNNING" in head.job("status", "long").stdout
        assert "was stopped" in head.job("stop", "long").stdout
        assert "interrupted; finished rounds are saved" in head.job("logs", "long").stdout
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


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_second_node_joins_and_clients_are_spread_over_both(ray_cluster, submitted, tmp_path):
    with ray_head(cpus=1) as head:
        assert any(head.start(f"--address={head.address}", cpus=1) for _ in range(3)), head.log.read_text()
        out = tmp_path / "two"
        job = head.job(
            "submit", "--working-dir", str(submitted), "--", "flray", "run", "quickstart.yaml", "rounds=3", *FAST, "--out", str(out)
        )
        assert job.returncode == 0, job.stdout
    assert json.loads((out / "environment.json").read_text())["actors"]["client_actors"] == 2, "each node has one CPU"
    assert model(out) == model(run(QUICK, "rounds=3", *FAST, out=tmp_path / "here").folder)


# what is uploaded -----------------------------------------------------------------------------
def test_what_would_be_uploaded_is_what_ray_packs(tmp_path):
    """Against the archive that Ray itself makes: nested ignore files, a negated pattern, folders, an unreadable name."""
    import zipfile

    from ray._private.runtime_env.packaging import create_package

    (tmp_path / "big").mkdir()
    top = tmp_path / "top"
    for name, size in {
        "run.yaml": 10, "data/train.parquet": 5000, "src/a.py": 100, "src/cache/b.bin": 3000, "src/keep/c.bin": 70,
        "src/.gitignore": 0, ".git/objects/x": 900, "out/r/s/t.log": 800, "ünï.txt": 7,
    }.items():  # fmt: skip
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_bytes(b"x" * size)
    (top / ".gitignore").write_text("*.log\n!t.log\n/data/\n")
    (top / "src" / ".gitignore").write_text("*.bin\n!keep/*.bin\n")
    (top / ".rayignore").write_text("run.*\n")
    create_package(str(top), tmp_path / "ray.zip", include_gitignore=True, excludes=[".git", ".venv", "venv", "__pycache__"])
    packed = {i.filename: i.file_size for i in zipfile.ZipFile(tmp_path / "ray.zip").infolist() if not i.is_dir()}
    found = working_dir(top)
    assert {"src/keep/c.bin", "out/r/s/t.log"} <= set(packed) and not {"run.yaml", "data/train.parquet", ".git/objects/x"} & set(packed)
    assert found.files == len(packed)
    assert found.bytes == pytest.approx((tmp_path / "ray.zip").stat().st_size, abs=200)
    assert found.largest[0] == ("out/r/s/t.log", 800)
    assert dict(found.largest)["src/"] == packed["src/a.py"] + packed["src/keep/c.bin"] + packed["src/.gitignore"]


def test_too_much_to_upload_is_one_line_that_names_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deep" / "er").mkdir(parents=True)
    for name, size in (("deep/er/features.bin", LIMIT), ("other.bin", 3_000_000)):
        with (tmp_path / name).open("wb") as file:
            file.truncate(size)  # sparse
    words = ["doctor", str(QUICK), "--working-dir", "."]
    result = CliRunner().invoke(app, words)
    assert isinstance(result.exception, ResourceError)
    text = str(result.exception)
    assert "Ray uploads at most 105 MB" in text and "lines such as /deep/er/features.bin in .rayignore" in text and "\n" not in text
    assert "deep/er/features.bin 105 MB, other.bin 3 MB" in text
    (tmp_path / ".rayignore").write_text("/deep/\n")
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0 and "2 files, 3 MB of at most 105 MB" in result.output
    assert "a new one here; RAY_AUTH_MODE=disabled" in " ".join(result.output.split())
    with pytest.raises(ConfigError, match="no such folder"):
        working_dir(tmp_path / "nowhere")


def test_a_first_rayignore_is_written_and_an_own_one_stays(tmp_path):
    for name in ("train.py", "data/cifar.bin", "lib/data/readers.py", "runs/a/model.safetensors", "x.parquet", "see.ipynb"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    words = ["doctor", str(QUICK), "--working-dir", str(tmp_path), "--write-rayignore", "data.root=" + str(tmp_path / "data")]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert (tmp_path / ".rayignore").read_text() == RAYIGNORE
    assert working_dir(tmp_path).files == 3, "train.py, lib/data/readers.py and the .rayignore itself"
    assert "lies in the working directory" in " ".join(result.output.split())
    (tmp_path / ".rayignore").write_text("train.py\n")
    assert "is there, and stays as it is" in CliRunner().invoke(app, words).output
    assert (tmp_path / ".rayignore").read_text() == "train.py\n"


def test_this_repository_is_small_enough_to_send_along():
    """The README's `--working-dir .`; its .rayignore is the one that flray writes."""
    assert (ROOT / ".rayignore").read_text() == RAYIGNORE
    upload = working_dir(ROOT)
    assert upload.bytes < LIMIT / 10
    assert not any(name.startswith(("runs/", ".git/")) for name, _ in upload.largest)
    assert os.path.exists(ROOT / "flray" / "data" / "sources.py") and not any("flray/data" in line for line in RAYIGNORE.splitlines())

"""A process of Ray itself that dies, memory that runs out: one line of flray's is the last word, and the run goes on to
the same bits."""

import contextlib
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from ray.exceptions import OutOfMemoryError

import flray
from flray.core.schema.errors import ResourceError
from flray.engine.ray import alive
from flray.engine.ray.calls import CallsExecutor
from flray.engine.ray.pool import ActorPool
from flray.rundir.checkpoint import checkpoints
from tests.support import heads
from tests.support.commands import QUICK, wait_for_rounds

FAST = (
    "partition.clients=4",
    "cohort.size=4",
    "algorithm.local_epochs=1",
    "evaluate.clients=false",
    "checkpoint.every=0",
)


@pytest.fixture
def home():
    """RAY_TMPDIR of a process of the test's own: what it starts is known by it."""
    folder = Path(tempfile.mkdtemp(prefix="fa.", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
@pytest.mark.parametrize("who, what", [("raylet", "raylet"), ("gcs_server", "GCS")])
def test_a_process_of_ray_that_dies_is_said_in_one_line_and_the_run_resumes_to_the_same_bits(
    ray_cluster, tmp_path, home, who, what
):
    out, kind = tmp_path / "run", "resources.executor=calls"
    words = [sys.executable, "-m", "flray", "run", str(QUICK), "rounds=4000", *FAST, kind, "--out", str(out)]
    environment = {**os.environ, "RAY_TMPDIR": str(home)}
    process = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for_rounds(out, 3, process)
    (pid,) = heads.named(home, who)
    os.kill(pid, signal.SIGKILL)
    output, errors = process.communicate(timeout=120)
    line = (
        f"Ray's {what} on this machine has died (killed, or memory ran out); continue from the last checkpoint with: "
        f"flray resume {out}"
    )
    assert process.returncode == 2 and errors.splitlines()[-1] == f"error: {line}", errors
    assert "state-dump" not in output + errors
    run = flray.load(out)
    assert run.status == f"failed: {line}"
    assert run.rounds["round"].tolist() == list(range(1, len(run.rounds) + 1))
    assert [path.name for path in checkpoints(out)] == [f"round-{len(run.rounds):06}"], "the actors still answered"
    rounds = len(run.rounds) + 2
    again, whole = flray.resume(out, rounds=rounds), flray.run(QUICK, *FAST, rounds=rounds, out=tmp_path / "whole")
    assert again.rounds["round"].tolist() == list(range(1, rounds + 1))
    assert (again.folder / "model.safetensors").read_bytes() == (whole.folder / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_memory_that_runs_out_is_said_in_one_line(tmp_path, home):
    """Ray's monitor ends workers when more than a thousandth of the memory is in use."""
    environment = {
        "RAY_TMPDIR": str(home),
        "RAY_memory_usage_threshold": "0.001",
        "RAY_memory_monitor_refresh_ms": "200",
    }
    done = heads.flray("run", QUICK, *FAST, "resources.executor=calls", "--out", tmp_path / "run", **environment)
    assert done.returncode == 2
    assert re.fullmatch(
        r"error: .* died .*\(memory ran out: Ray ended it before the machine had none left\).* lower "
        r"resources\.client_actors .*",
        done.stdout.splitlines()[-1],
    )


def test_a_death_for_lack_of_memory_is_called_that(monkeypatch):
    monkeypatch.setattr(alive, "_watch", None)  # no Ray here that could have died
    pool = ActorPool.__new__(ActorPool)
    pool._oom_kills = sys.maxsize  # the kernel has ended none since
    assert pool._reason(OutOfMemoryError("Task was killed due to the node running low on memory.")).startswith(
        "memory ran out: Ray"
    )
    assert pool._reason(RuntimeError("first\nsecond")) == "RuntimeError: first"
    pool._oom_kills = -1
    assert pool._reason(RuntimeError("killed")) == "memory ran out: the kernel ended processes for it"


def test_a_process_with_many_open_files_is_watched_too(tmp_path, monkeypatch):
    """`select` cannot wait for a descriptor over 1,023, which a process with many files and sockets open has."""
    monkeypatch.setattr(alive, "PROBE_S", 0.05)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip("this user may open fewer than 2,048 files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    raylet, gcs = socket.socket(socket.AF_UNIX), socket.create_server(("127.0.0.1", 0))
    with contextlib.ExitStack() as held:
        held.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        held.enter_context(gcs)
        held.enter_context(raylet)
        raylet.bind(str(tmp_path / "raylet"))
        raylet.listen()
        while held.enter_context(open(os.devnull)).fileno() < 1024:
            pass
        watch = alive.RayWatch("here", f"127.0.0.1:{gcs.getsockname()[1]}", tmp_path / "raylet", own=False)
        held.callback(watch.close)
        connection, _ = raylet.accept()
        assert not watch._ended.wait(0.3) and not watch.lost
        connection.close()
        assert watch._ended.wait(60) and watch.lost.startswith("Ray's raylet on this machine has died")


@pytest.fixture
def dead(monkeypatch):
    """A pool of this process, whose raylet has died three seconds ago."""
    watch = alive.RayWatch.__new__(alive.RayWatch)
    watch.key, watch.lost, watch._lost_at = "here", "Ray's raylet has died", time.monotonic() - 3
    monkeypatch.setattr(alive, "_watch", watch)
    pool = ActorPool.__new__(ActorPool)
    monkeypatch.setattr(pool, "_here", lambda: True)
    return pool


def test_who_is_patient_waits_for_the_actors_after_a_death_and_no_longer(dead):
    with pytest.raises(ResourceError):
        dead.look()
    with dead.patient(60):
        dead.look()
    with dead.patient(2), pytest.raises(ResourceError):
        dead.look()
    with pytest.raises(ResourceError):
        dead.look()


def test_a_checkpoint_is_written_after_a_death(dead, monkeypatch):
    monkeypatch.setattr(dead, "start", lambda *_, **__: dead.look())
    monkeypatch.setattr(dead, "wait", lambda _: "saved")
    executor = CallsExecutor(dead, None, {})
    assert executor.call_store(None) == "saved"


def test_what_ends_as_another_thread_leaves_ray_is_no_signal(dead, tmp_path, monkeypatch):
    """Ray raises `SystemExit` in a call that waits meanwhile; a signal's own one is left alone, also after a death."""
    with pytest.raises(SystemExit), alive.translate_errors(tmp_path, dead.check_connection):
        raise SystemExit(143)
    monkeypatch.setattr(alive, "_watch", None)
    dead._process, dead.connection = os.getpid(), "here"
    monkeypatch.setattr(dead, "_here", lambda: False)
    for error in (SystemExit(0), RuntimeError("of Ray itself")):
        with (
            pytest.raises(ResourceError, match=f"has left the Ray .*continue .*: flray resume {tmp_path}$"),
            alive.translate_errors(tmp_path, dead.check_connection),
        ):
            raise error
    with pytest.raises(KeyboardInterrupt), alive.translate_errors(tmp_path, dead.check_connection):
        raise KeyboardInterrupt

"""Joining a cluster, or not: errors in one line, the token, SIGTERM; several nodes on this machine, one of which goes
away."""

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pandas
import pytest

from flray.core.protocol import seeding
from flray.core.protocol.generators import process_wide
from flray.core.schema.errors import ResourceError
from flray.engine.ray import cluster
from flray.engine.ray.versions import knows_tokens
from tests.support.commands import QUICK, wait_for_rounds
from tests.support.heads import BIN, facts_of, flray, listening, processes_of, ray_head, run
from tests.support.messages import assert_says
from tests.support.stopped import model

ROOT = Path(__file__).parents[3]

tokens = pytest.mark.skipif(not knows_tokens(), reason="this Ray knows no token")

# says for every address what `connect` says, one line each
ASK = """
import sys, time
from flray.engine.ray.cluster import connect, os, ray
from flray.core.protocol import seeding
from flray.core.protocol.generators import process_wide
from flray.core.schema.errors import ResourceError
if sys.argv[1] != "same":
    ray.__version__ = sys.argv[1]
for address in sys.argv[2:]:
    began = time.monotonic()
    try:
        connect(address, 1)
        print("joined", os.environ["RAY_AUTH_MODE"])
        ray.shutdown()
    except ResourceError as error:
        print(f"{time.monotonic() - began:.0f} s {error}")
"""


def ask(*addresses: str, version: str = "same", **environment: str) -> list[str]:
    known = {name: value for name, value in os.environ.items() if not name.startswith("RAY_A")}
    found = run(BIN / "python", "-c", ASK, version, *addresses, **{**known, **environment})
    assert found.returncode == 0, found.stdout
    return [line for line in found.stdout.splitlines() if not line.startswith("[")]  # Ray's own log lines


# joining --------------------------------------------------------------------------------------
def test_addresses_where_no_cluster_is_are_one_line_each_at_once():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # bound and not listening: refused
        refused = f"127.0.0.1:{free.getsockname()[1]}"
        lines = ask(refused, "http://127.0.0.1:8265", "ray://127.0.0.1:10001", "somewhere")
    assert len(lines) == 4 and all(float(line.split(" s ")[0]) < 20 for line in lines), lines
    assert (
        f"address={refused}: no Ray cluster answers (" in lines[0] and "start one with `ray start --head`" in lines[0]
    )
    for line in lines[1:3]:
        assert "give the head's HOST:PORT" in line and "ray job submit --address http://HEAD:8265" in line
    assert "address=somewhere: no Ray cluster answers (" in lines[3]


# a Ray of one's own -------------------------------------------------------------------------------
PRIVATE = """
from flray.engine.ray.cluster import connect, os, ray
connect(None, 2)
actor = ray.remote(type("Actor", (), {"mode": lambda self: os.environ["RAY_AUTH_MODE"]})).remote()
print(ray.get(actor.mode.remote()), ray.get_runtime_context().gcs_address, flush=True)
input()
"""
ASK_GCS = (
    "import sys; from ray._raylet import GcsClient; print(GcsClient(address=sys.argv[1]).internal_kv_keys(b'', "
    "b'fun', 5))"
)


@pytest.fixture
def shell(tmp_path):
    """The environment of a user with an empty home who says nothing about Ray."""
    folder = Path(tempfile.mkdtemp(prefix="fs.", dir="/tmp"))  # short: sockets lie below it
    known = {name: value for name, value in os.environ.items() if not name.startswith("RAY_A")}
    yield {**known, "HOME": str(tmp_path), "RAY_TMPDIR": str(folder)}
    shutil.rmtree(folder, ignore_errors=True)


@tokens
def test_a_node_that_does_not_come_up_in_time_is_one_line(monkeypatch):
    """Ray raises a bare `Exception` of several lines then."""

    def late(**options):
        raise Exception("The current node timed out during startup.\nThis could happen because of many things.")

    monkeypatch.setattr(cluster.ray, "init", late)
    with pytest.raises(ResourceError) as caught:
        cluster._init("a new cluster here", address="local")
    assert "\n" not in str(caught.value)
    assert_says(caught.value, "timed out during startup", "resources.executor=local")


@tokens
def test_without_stderr_the_line_says_what_to_open(monkeypatch):
    """A daemon's streams are closed; Ray raises in `ray.init`."""

    def refuse(**options):
        raise RuntimeError("sys.stderr is None")

    monkeypatch.setattr(cluster.ray, "init", refuse)
    monkeypatch.setattr(sys, "stderr", None)
    with pytest.raises(ResourceError, match=r"open them .*resources\.executor=local"):
        cluster._init("a new cluster here", address="local")


@pytest.mark.slow
def test_a_cluster_of_this_process_listens_on_loopback_only_and_asks_for_the_token(shell, tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", PRIVATE],
        env=shell,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        mode, address = process.stdout.readline().split()
        assert mode == "token", "in the actor"
        found = listening(processes_of(Path(shell["RAY_TMPDIR"])))
        assert len(found) >= 5, "at least the GCS, the raylet, its agent, the actor and this driver"
        assert set(found) <= {"127.0.0.1", "::1", "::ffff:7f00:1"}  # the last: IPv4 by a socket of IPv6
        token = tmp_path / ".ray" / "auth_token"
        assert len(token.read_text()) == 64 and token.stat().st_mode & 0o777 == 0o600
        refused = run(sys.executable, "-c", ASK_GCS, address, **shell, RAY_AUTH_MODE="disabled")
        assert refused.returncode != 0 and "Authentication token is missing or incorrect" in refused.stdout
        other = run(sys.executable, "-c", ASK_GCS, address, **shell, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="0" * 64)
        assert other.returncode != 0 and "Authentication token is missing or incorrect" in other.stdout
        known = run(sys.executable, "-c", ASK_GCS, address, **shell, RAY_AUTH_MODE="token")
        assert known.returncode == 0, known.stdout
    finally:
        _, errors = process.communicate("\n", timeout=60)
    assert process.returncode == 0, errors


@tokens
def test_a_token_that_is_there_is_used_and_closed_to_others(shell, tmp_path):
    code = (
        "import os; from flray.engine.ray.auth import make_ready; make_ready(False); "
        "print(len(os.environ.get('RAY_AUTH_TOKEN', '')))"
    )
    shell["RAY_AUTH_MODE"] = "token"
    token = tmp_path / ".ray" / "auth_token"
    token.parent.mkdir()
    token.write_text("mine" * 16)
    token.chmod(0o644)  # as Ray makes it
    assert run(sys.executable, "-c", code, **shell).stdout == "0\n"
    assert token.read_text() == "mine" * 16 and token.stat().st_mode & 0o777 == 0o600
    token.write_text("")  # of a process that was killed as it wrote
    assert run(sys.executable, "-c", code, **shell).stdout == "0\n"
    assert len(token.read_text()) == 64 and list(token.parent.iterdir()) == [token]
    # where no file can be written, the workers inherit the token
    assert run(sys.executable, "-c", code, **{**shell, "HOME": "/proc"}).stdout == "64\n"
    code = "from flray.engine.ray.cluster import connect; connect(None, 1)"
    missing = run(sys.executable, "-c", code, **shell, RAY_AUTH_TOKEN_PATH="/nope")
    assert (
        "ResourceError: a new cluster here: RAY_AUTH_TOKEN_PATH is set but file cannot be opened or is empty: /nope"
        in missing.stdout
    )


@pytest.mark.slow
def test_what_the_environment_says_of_the_token_is_kept():
    code = "import flray.engine.ray.auth as c; print(c.auth_mode(None), c.auth_mode('host:6379'))"
    known = {name: value for name, value in os.environ.items() if name not in ("RAY_AUTH_MODE", "RAY_ADDRESS")}
    assert run(BIN / "python", "-c", code, **known).stdout == "token disabled\n"
    assert run(BIN / "python", "-c", code, **known, RAY_ADDRESS="host:6379").stdout == "disabled disabled\n"
    for mode in ("token", "disabled"):
        assert run(BIN / "python", "-c", code, **known, RAY_AUTH_MODE=mode).stdout == f"{mode} {mode}\n"


# a token ------------------------------------------------------------------------------------------
@tokens
@pytest.mark.slow
def test_a_cluster_with_a_token_says_what_is_missing(tmp_path):
    token = "fedcba9876543210" * 4
    with ray_head(cpus=1, token=token) as head:
        where = f"address={head.address}: "
        shell = {"RAY_TMPDIR": str(head.folder)}
        assert ask(head.address, **shell, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=token) == ["joined token"]
        (unset,) = ask(head.address, **shell, RAY_AUTH_TOKEN=token)
        assert (
            f"{where}the cluster asks for a token, and RAY_AUTH_MODE is disabled; run with RAY_AUTH_MODE=token" in unset
        )
        (wrong,) = ask(head.address, **shell, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="another")
        assert (
            where in wrong and "missing or incorrect; put the token of the cluster's nodes into RAY_AUTH_TOKEN" in wrong
        )
        (none,) = ask("auto", **shell, RAY_AUTH_MODE="token", HOME=str(tmp_path), RAY_ADDRESS=head.address)
        assert (
            "address=auto: Token authentication is enabled but no authentication token was found; put the token" in none
        )
        (old,) = ask(head.address, version="2.59.0", **shell, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=token)
        assert "Version mismatch: The cluster was started with: Ray: 2." in old and old.endswith(
            "install the cluster's versions"
        )


# SIGTERM --------------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize("executor", ["local", "auto"])
def test_sigterm_saves_the_finished_rounds(tmp_path, executor):
    """What a stopped job and a SLURM job out of time get; Ray was started from another thread than the main one, or
    there is none."""
    words = [
        "run",
        QUICK,
        f"resources.executor={executor}",
        "rounds=4000",
        "partition.clients=4",
        "cohort.size=4",
        "evaluate.clients=false",
        "checkpoint.every=0",
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "flray", *words, "--out", tmp_path / "run"],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    wait_for_rounds(tmp_path / "run", 3, process)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM and "continue with: flray resume" in errors
    done = pandas.read_parquet(tmp_path / "run" / "rounds")["round"].max()
    assert (
        (tmp_path / "run" / "STATUS")
        .read_text()
        .startswith(f"interrupted after round {done}; continue with: flray resume")
    )


# several nodes --------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_three_nodes_and_a_lost_one_give_the_bits_of_a_run_here(tmp_path):
    found = {}
    for mode in ("stay", "working", "delivered"):
        found[mode] = facts_of("tests.engine.ray.nodes", tmp_path / mode, mode, "resources.executor=calls")
        assert found[mode]["server_here"] and found[mode]["nodes"] == 3, (
            "the server at the run folder, a client actor on every node"
        )
        assert [row["round"] for row in found[mode]["rounds"]] == [1, 2, 3, 4, 5, 6]
    config = tmp_path / "stay" / "config.yaml"
    here = flray("run", config, "address=null", "resources.client_actors=1", "--out", tmp_path / "here")
    assert here.returncode == 0, here.stdout
    for mode, facts in found.items():
        assert model(tmp_path / mode) == model(tmp_path / "here")
        assert [row["actors"] for row in facts["rounds"]][-1] == (3 if mode == "stay" else 2) and bool(
            facts["gone"]
        ) == (mode != "stay")
    actors = {mode: json.loads((tmp_path / mode / "environment.json").read_text())["actors"] for mode in found}
    assert actors["stay"]["repeated_work"] == 0 and actors["working"]["repeated_work"] >= 1


def test_ray_that_starts_neither_moves_the_users_generators_nor_draws_beside_a_split(monkeypatch):
    """Ray draws names for its connections from Python's generator."""
    monkeypatch.setattr(cluster, "_join", lambda *_: [random.random() for _ in range(9)])
    monkeypatch.setattr(cluster.ray, "is_initialized", lambda: False)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    random.seed(5)
    expected, inside, tried = random.random(), threading.Event(), threading.Event()
    with process_wide(1, "partition"):
        alone = random.random()
    random.seed(5)

    def start():
        assert inside.wait(30)
        tried.set()
        cluster._connect("127.0.0.1:1", 1, 0, False)

    background = cluster.Background(start)
    with process_wide(1, "partition"):
        inside.set()
        assert tried.wait(30) and not background._done.wait(0.2)
        assert random.random() == alone
    background.join()
    assert random.random() == expected


def test_ray_that_starts_within_the_work_of_a_run_does_not_wait_for_it(monkeypatch):
    joined = []
    monkeypatch.setattr(seeding, "TURN_S", 0.5)  # were it to wait, this would be its error
    monkeypatch.setattr(cluster, "_join", lambda address, _: joined.append(address))
    monkeypatch.setattr(cluster.ray, "is_initialized", lambda: False)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with process_wide(1, "partition"):
        cluster.Background(lambda: cluster._connect("127.0.0.1:1", 1, 0, False)).join()
    assert joined == ["127.0.0.1:1"]


@pytest.mark.skipif(sys.platform != "linux", reason="127.0.0.2 is an address of every Linux machine")
@pytest.mark.parametrize(
    ("address", "other", "same"),
    [
        ("127.0.0.1:6379", "127.0.0.2:6379", True),  # as a head names itself by the address of its network
        ("localhost:6379", "127.0.0.1:6379", True),
        ("127.0.0.1:6379", "127.0.0.2:6380", False),
        ("127.0.0.1:6379", "203.0.113.7:6379", False),  # RFC 5737: nobody's
        ("203.0.113.8:6379", "203.0.113.7:6379", False),
    ],
)
def test_the_addresses_of_this_machine_are_one_place(address, other, same):
    assert cluster._same_place(address, other) == same


@pytest.mark.parametrize(
    ("address", "variable", "said"),
    [(None, " ", "RAY_ADDRESS is blank: unset it"), (" ", "", "address=' ' is blank: leave it out")],
)
def test_a_blank_address_is_refused_by_its_name(monkeypatch, address, variable, said):
    monkeypatch.setattr(cluster.ray, "is_initialized", lambda: False)
    monkeypatch.setenv("RAY_ADDRESS", variable)
    with pytest.raises(ResourceError, match=f"^{said}$"):
        cluster._connect(address, 1, 0, False)

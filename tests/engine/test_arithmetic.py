"""The kernels of a processor are part of what decides the bits: they are recorded, and a change is said.

`ATEN_CPU_CAPABILITY=default` takes kernels that no processor chooses by itself: a run in a process of its own has them.
"""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

import flray
from flray.engine.devices import arithmetic
from flray.engine.ray.pool import ActorPool
from flray.engine.replay import Replay
from tests.support.messages import facts

KERNELS, HERE = torch.backends.cpu.get_cpu_capability(), arithmetic(torch.device("cpu"))
CONFIG = """
{data: iris, partition: {name: iid, clients: 3}, model: mlp, algorithm: fedavg, rounds: 1, resources: {executor: local}}
"""


@pytest.fixture
def config(tmp_path):
    (tmp_path / "iris.yaml").write_text(CONFIG)
    return tmp_path / "iris.yaml"


def elsewhere(config, out):
    words = [sys.executable, "-m", "flray", "run", str(config), "--out", str(out)]
    subprocess.run(words, check=True, capture_output=True, env=os.environ | {"ATEN_CPU_CAPABILITY": "default"})


def noted(run):
    return json.loads((run / "environment.json").read_text())


@pytest.mark.skipif(KERNELS == "DEFAULT", reason="this processor has the default kernels alone")
def test_a_resume_on_another_kind_of_processor_is_said_and_recorded(config, tmp_path):
    elsewhere(config, tmp_path / "run")
    assert noted(tmp_path / "run")["fingerprints"]["arithmetic"].startswith("DEFAULT ")
    with pytest.warns(UserWarning, match=facts("computed with DEFAULT", f"this replay with {HERE}")):
        Replay(tmp_path / "run")
    with pytest.warns(UserWarning, match=facts("computed with DEFAULT", f"goes on with {HERE}")) as said:
        flray.resume(tmp_path / "run", "rounds=2", progress=False, accept=["initial_weights"])  # drawn by these kernels
    assert len([one for one in said if "goes on" in str(one.message)]) == 1
    after = noted(tmp_path / "run")
    changed = {change["what"]: change["is"] for change in after["accepted"]}
    assert changed["arithmetic"] == changed["client_arithmetic"] == after["fingerprints"]["arithmetic"] == HERE


@pytest.mark.parametrize("count", [1, 3, 8])
def test_threads_and_the_callers_dtype_are_no_kind_of_processor(count):
    before = torch.get_num_threads(), torch.get_default_dtype()
    torch.set_num_threads(count)
    torch.set_default_dtype(torch.float64)
    try:
        assert arithmetic(torch.device("cpu")) == HERE and torch.get_num_threads() == count
    finally:
        torch.set_num_threads(before[0])
        torch.set_default_dtype(before[1])


def test_a_run_has_the_kernels_of_this_process(config, tmp_path):
    run = flray.run(config, out=tmp_path / "run", progress=False)
    found = noted(run.folder)
    assert found["fingerprints"]["arithmetic"] == HERE and HERE.startswith(KERNELS)
    assert found["fingerprints"]["torch"] == f"torch {torch.__version__}" and found["accepted"] == []


def test_an_actor_on_another_kind_of_node_is_named():
    first = {"actor": "client-0", "node": "10.0.0.1", "arithmetic": "AVX2"}
    pool = SimpleNamespace(processes=[{"actor": "server", "node": "10.0.0.1"}, first])
    with pytest.warns(UserWarning, match=facts("client-1 on 10.0.0.2", "AVX512", "client-0 on 10.0.0.1", "AVX2")):
        ActorPool._check_arithmetic(pool, {"actor": "client-1", "node": "10.0.0.2", "arithmetic": "AVX512"})
    ActorPool._check_arithmetic(pool, first | {"actor": "client-2"})

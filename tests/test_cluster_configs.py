"""configs/cluster: as valid as can be said without Kubernetes, AWS and SLURM; the SLURM script runs for real, with srun
on this machine."""

import json
import os
import re
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pandas
import pytest
import ray
import yaml

from flray.config.loader import load_config
from tests.support.commands import wait_for_rounds
from tests.support.heads import BIN, flray, processes_of, run

ROOT = Path(__file__).parents[1]
HOME = ROOT / "configs" / "cluster"
QUICK = ROOT / "configs" / "quickstart.yaml"
FAST = ("partition.clients=4", "cohort.size=4", "evaluate.clients=false", "checkpoint.every=0")


def experiment_of(command: str):
    """The experiment behind `flray run CONFIG KEY=VALUE ... --out DIR`, wherever it stands in a command line."""
    words = shlex.split(command)
    words = words[words.index("run") + 1 :]
    words = words[: words.index("--out")] if "--out" in words else words
    return load_config(ROOT / words[0].removeprefix("/flray/"), words[1:])[0]


# Docker ---------------------------------------------------------------------------------------
def test_the_image_is_built_from_files_that_are_here_and_reach_the_builder():
    """A daemon that builds it is not on this machine; the commands of its RUN lines were run by hand."""
    lines = [line.split() for line in (HOME / "Dockerfile").read_text().splitlines()]
    copied = {name for line in lines if line[:1] == ["COPY"] for name in line[1:-1]}
    ignored = (HOME / "Dockerfile.dockerignore").read_text().splitlines()
    assert copied == {line[1:] for line in ignored if line.startswith("!")}
    assert all((ROOT / name).exists() for name in copied)


# KubeRay --------------------------------------------------------------------------------------
# names of the fields in ray.io/v1, from KubeRay's API reference (1.5.1 and newer)
JOB = {
    "entrypoint", "backoffLimit", "shutdownAfterJobFinishes", "ttlSecondsAfterFinished", "rayClusterSpec",
    "activeDeadlineSeconds",
    "runtimeEnvYAML", "submissionMode", "submitterPodTemplate", "metadata", "entrypointNumCpus", "entrypointNumGpus",
    "suspend",
}  # fmt: skip
CLUSTER = {
    "rayVersion",
    "authOptions",
    "headGroupSpec",
    "workerGroupSpecs",
    "enableInTreeAutoscaling",
    "autoscalerOptions",
}
HEAD = {"rayStartParams", "template", "serviceType", "enableIngress", "headService"}
WORKERS = {
    "groupName",
    "replicas",
    "minReplicas",
    "maxReplicas",
    "numOfHosts",
    "rayStartParams",
    "template",
    "idleTimeoutSeconds",
}


def test_the_rayjob_manifest():
    job = yaml.safe_load((HOME / "rayjob.yaml").read_text())
    assert (job["apiVersion"], job["kind"], set(job)) == (
        "ray.io/v1",
        "RayJob",
        {"apiVersion", "kind", "metadata", "spec"},
    )
    spec = job["spec"]
    cluster = spec["rayClusterSpec"]
    head, (workers,) = cluster["headGroupSpec"], cluster["workerGroupSpecs"]
    assert set(spec) <= JOB and set(cluster) <= CLUSTER and set(head) <= HEAD and set(workers) <= WORKERS
    assert cluster["rayVersion"] == ray.__version__ and cluster["authOptions"] == {"mode": "token"}
    assert workers["replicas"] == workers["minReplicas"] == workers["maxReplicas"], "flray counts the CPUs once"
    assert all(isinstance(value, str) for group in (head, workers) for value in group["rayStartParams"].values())
    pods = [group["template"]["spec"] for group in (head, workers)]
    for pod in pods:
        (container,) = pod["containers"]
        assert {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]} == {
            "data": "/data",
            "runs": "/runs",
        }
        assert {volume["name"] for volume in pod["volumes"]} == {"data", "runs"}
        assert container["resources"]["limits"] == container["resources"]["requests"]
    assert pods[0]["containers"][0]["image"] == pods[1]["containers"][0]["image"]
    shell, flag, script = shlex.split(spec["entrypoint"])
    assert (shell, flag) == ("sh", "-c") and "flray resume /runs/c10;" in script
    experiment = experiment_of(script)
    assert experiment.data.root == "/data" and 0 < experiment.resources.client.num_gpus <= 1


# ray up ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("provider", ["aws", "local"])
def test_the_ray_up_file_fits_rays_schema(provider):
    """As it stands, and with the machines of one's own that its comment describes."""
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = yaml.safe_load((HOME / "ray_up.yaml").read_text())
    if provider == "local":
        for key in ("available_node_types", "head_node_type", "max_workers"):
            config.pop(key)
        config["provider"] = {"type": "local", "head_ip": "a", "worker_ips": ["b", "c"]}
        config["auth"]["ssh_private_key"] = "~/.ssh/id_ed25519"
    filled = prepare_config(config)
    validate_config(filled)
    assert (
        filled["max_workers"] == 2 and sum(kind["min_workers"] for kind in filled["available_node_types"].values()) == 2
    )
    for commands in (config["head_start_ray_commands"], config["worker_start_ray_commands"]):
        assert commands[-1].startswith("RAY_AUTH_MODE=token ray start --")
    assert config["docker"]["image"].startswith(f"rayproject/ray:{ray.__version__}-py311")
    assert config["file_mounts"]["/home/ray/.ray/auth_token"] == "~/.ray/auth_token"


def test_the_job_of_the_ray_up_files_comment_is_an_experiment():
    text = (HOME / "ray_up.yaml").read_text()
    (command,) = [line.removeprefix("#").strip() for line in text.splitlines() if "flray run" in line]
    assert experiment_of(command).data.root == "/home/ray/data"


# SLURM ----------------------------------------------------------------------------------------
SRUN = """#!/usr/bin/env bash
while [[ $1 == --* ]]; do shift; done
exec "$@"
"""


@pytest.fixture
def slurm(tmp_path):
    """The environment of a batch script on the first of two nodes, both of which are this machine."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, text in {"srun": SRUN, "scontrol": "#!/usr/bin/env bash\nprintf 'one\\ntwo\\n'\n"}.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    known = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    job = {
        "SLURM_JOB_ID": f"t{os.getpid()}-{time.monotonic_ns() % 10**6}",
        "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURM_CPUS_PER_TASK": "1",
    }
    return {**known, **job, "PATH": f"{tools}:{BIN}:{os.environ['PATH']}"}


def test_the_slurm_script_is_valid_bash_and_ends_no_ray_but_its_own():
    assert run("bash", "-n", str(HOME / "slurm.sh"), **os.environ).returncode == 0
    commands = [line for line in (HOME / "slurm.sh").read_text().splitlines() if not line.startswith("#")]
    assert not any(
        "ray stop" in line or "symmetric-run" in line or "pkill" in line or "killall" in line for line in commands
    )
    assert run("bash", str(HOME / "slurm.sh"), **os.environ).returncode == 2, "without arguments it says how to use it"
    for line in re.findall(r"^from flray.*", (HOME / "slurm.sh").read_text(), re.M):  # the test that runs it is slow
        exec(line, {})


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_slurm_script_runs_on_its_nodes_saves_at_the_time_limit_and_resumes(slurm, tmp_path):
    out, script = tmp_path / "run", str(HOME / "slurm.sh")
    process = subprocess.Popen(
        ["bash", script, "run", QUICK, "rounds=4000", *FAST, "--out", out],
        env=slurm,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    wait_for_rounds(out, 3, process)
    process.send_signal(signal.SIGTERM)  # as SLURM does with --signal=B:TERM@120
    text, _ = process.communicate(timeout=120)
    assert process.returncode == 143, text
    done = int(pandas.read_parquet(out / "rounds")["round"].max())
    assert (out / "STATUS").read_text().startswith(f"interrupted after round {done}")
    assert json.loads((out / "environment.json").read_text())["actors"]["client_actors"] == 2, (
        "one CPU on each of two nodes"
    )
    scratch = Path(f"/tmp/ray-{slurm['SLURM_JOB_ID']}")
    assert not processes_of(scratch) and not scratch.exists()
    again = run("bash", script, "resume", str(out), f"rounds={done + 2}", **slurm)
    assert again.returncode == 0, again.stdout
    assert not processes_of(scratch)
    here = flray("run", QUICK, f"rounds={done + 2}", *FAST, "--out", tmp_path / "here")
    assert here.returncode == 0, here.stdout
    assert (out / "model.safetensors").read_bytes() == (tmp_path / "here" / "model.safetensors").read_bytes()

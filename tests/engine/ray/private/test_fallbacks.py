"""A Ray that has nothing of what flray uses beyond the public API: a Ray as it starts itself."""

import subprocess

import pytest
import ray

import flray
from flray.engine.ray import versions
from tests.support.commands import QUICK
from tests.support.processes import python

SMALL = ("rounds=2", "partition.clients=4", "cohort.size=4", "algorithm.local_epochs=1", "evaluate.clients=false")
CALLS = "resources.executor=calls"

# the command line, in a process where no module of `private` can be imported
WITHOUT = """
import importlib.abc, sys
class Without(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.startswith("flray.engine.ray.private"):
            raise ImportError(name)
sys.meta_path.insert(0, Without())
from flray.cli import main
main()
"""


def run_without(*words: str) -> subprocess.CompletedProcess[str]:
    return python("-c", WITHOUT, "run", QUICK, *SMALL, CALLS, *words, status=None)


@pytest.mark.slow
def test_without_what_is_private_a_run_has_the_same_bits(tmp_path):
    """It starts only where the user allows a Ray that other machines can reach, and says what it lacks, a line each."""
    refused = run_without("--out", str(tmp_path / "refused"))
    assert refused.returncode == 2
    assert "not bound to loopback" in refused.stderr and "resources.insecure_ray: true" in refused.stderr

    allowed = run_without("resources.insecure_ray=true", "--out", str(tmp_path / "allowed"))
    assert allowed.returncode == 0, allowed.stderr
    for feature, instead in {
        "fast start": "Ray starts all of its processes",
        "loopback": "other machines can reach this Ray (resources.insecure_ray)",
        "silence": "Ray may print logs of its own",
    }.items():
        (line,) = (x for x in allowed.stderr.splitlines() if x.startswith(f"warning: {feature} not available"))
        assert f"with Ray {ray.__version__}" in line and line.endswith(f"; {instead}")

    here = flray.run(QUICK, *SMALL, "resources.executor=local", out=tmp_path / "here").folder
    assert (here / "model.safetensors").read_bytes() == (tmp_path / "allowed" / "model.safetensors").read_bytes()


def test_a_ray_newer_than_any_tested_is_said_once(monkeypatch, recwarn):
    monkeypatch.setattr(versions, "_said", set())
    for version in ("2.49.0", f"{versions.LAST_TESTED[0]}.{versions.LAST_TESTED[1]}.9"):
        monkeypatch.setattr(ray, "__version__", version)
        versions.warn_untested()
    assert not recwarn.list
    monkeypatch.setattr(ray, "__version__", "2.100.0rc1")
    versions.warn_untested()
    versions.warn_untested()
    assert [str(w.message) for w in recwarn.list] == [
        f"Ray 2.100.0rc1 is newer than {versions.LAST_TESTED[0]}.{versions.LAST_TESTED[1]}, the last that flray was "
        "tested with"
    ]

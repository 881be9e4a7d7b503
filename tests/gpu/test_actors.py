"""Client actors on one GPU: shares of it, several at once, a share that is measured."""

import pytest

import flray
from flray.contracts.played import flatten
from flray.rundir import checkpoint


def run(folder, actors, share, **sections):
    values = {
        "data": {"source": "digits"},
        "partition": {"name": "iid", "clients": 16},
        "cohort": {"size": 8},
        "model": {"name": "mlp", "hidden": [32]},
        "algorithm": {"name": "scaffold", "local_epochs": 1, "batch_size": 16},
        "rounds": 2,
        "resources": {
            "client_actors": actors,
            "client": {"num_cpus": 0.5, "num_gpus": share},
            "server": {"num_cpus": 0.5, "threads": 1},
        },
        **sections,
    }
    return flray.run(values, out=folder, progress=False)


def bits(run):
    return {name: array.tobytes() for name, array in flatten(checkpoint.latest(run.folder).server.message()).items()}


@pytest.mark.parametrize("actors", [2, 4, 8])
def test_any_number_of_actors_on_one_gpu_has_the_same_bits(actors, tmp_path):
    one, several = run(tmp_path / "one", 1, 1.0), run(tmp_path / "several", actors, 1 / actors)
    assert one.status == several.status == "finished" and bits(one) == bits(several)


def test_a_measured_share_lets_several_small_clients_share_a_gpu(tmp_path):
    found = run(tmp_path / "run", "auto", "auto")
    share = found.environment["actors"]["client_resources"]["num_gpus"]
    assert found.status == "finished" and 0 < share <= 0.1  # of a network of 3,000 parameters


def test_a_run_on_a_gpu_resumes_to_the_same_bits(tmp_path):
    whole = run(tmp_path / "whole", 2, 0.5)
    cut = run(tmp_path / "cut", 2, 0.5, rounds=1)
    longer = flray.resume(cut.folder, rounds=2, progress=False)
    assert bits(longer) == bits(whole)

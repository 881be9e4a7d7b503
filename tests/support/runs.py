"""A run of four rounds on iris, with every part of a checkpoint, and what it leaves."""

from pathlib import Path

from safetensors.numpy import load_file

from flray.config.loader import load_config
from flray.contracts.played import flatten
from flray.core.protocol.clock import Clock
from flray.engine.cohort import sample_cohort
from flray.rundir import checkpoint
from tests.support.iris import UNEQUAL


def on_actors(algorithm="fedavg", rounds=4, **sections):
    """:func:`config` with two client actors, where processes are what is tested."""
    return config(algorithm, rounds, resources={"client_actors": 2, **sections.pop("resources", {})}, **sections)


def config(algorithm="fedavg", rounds=4, **sections):
    """Of a run in this process, where the resources name neither actors nor another executor."""
    options = {"name": algorithm} if isinstance(algorithm, str) else algorithm
    base = {
        **UNEQUAL,
        "rounds": rounds,
        "imports": ["tests.contracts.own", "tests.engine.faulty"],
        "model": {"name": "tests.contracts.networks:NormNet"},
        "cohort": {"size": 3},
        "algorithm": {"lr": 0.05, "local_epochs": 1, "batch_size": 4, **options},
    }
    given = sections.pop("resources", {})
    here = {} if "client_actors" in given else {"executor": "local"}
    resources = {**here, "server": {"threads": 1}, **given}
    return load_config({**base, "resources": resources, **sections})[0]


def cohort(round):
    return sample_cohort(config().cohort, 3, Clock(0, round, done=round), range(5)).tolist()


def model(folder):
    return {n: a.tobytes() for n, a in load_file(Path(folder) / "model.safetensors").items()}


def last_state(folder):
    return {n: a.tobytes() for n, a in flatten(checkpoint.latest(Path(folder)).server.message()).items()}

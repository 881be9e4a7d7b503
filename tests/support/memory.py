"""A small experiment with images, and the memory that a client of it needs, predicted on the CPU."""

import numpy as np

from flray.contracts.played import Local
from flray.core.protocol.clock import Clock
from flray.engine import cohort as cohorts
from flray.engine.device_memory import client_memory
from tests.contracts.table import experiment

CLIENTS = 4


def small(name, model="fedavg_cnn", batch=24, uplink=None, **options):
    """Clients of 44 images of 32 x 32, which train one batch after the other."""
    images = {"shape": [32, 32, 3], "num_classes": 10, "num_train": 200, "num_test": 30}
    return experiment(
        name,
        {"batch_size": batch, "local_epochs": 1, **options},
        data={"source": "synthetic", "options": images},
        model={"name": model},
        uplink=uplink,
        partition={"name": "iid", "clients": CLIENTS},
    )


def chunk_of(local):
    algorithm, clients = local.experiment.algorithm, np.arange(CLIENTS)
    return cohorts.turns(local.scenario, algorithm, clients, Clock(), algorithm.training)[0][0].chunks[0]


def broadcast_of(local):
    return local.experiment.algorithm.broadcast(local.server.runtime.context(Clock()), local.server.state)


def predicted(config, folder):
    local = Local(config, folder / "cpu")
    return client_memory(local.server.runtime, chunk_of(local), broadcast_of(local), CLIENTS)

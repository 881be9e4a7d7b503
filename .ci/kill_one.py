"""Run CONFIG in FOLDER and kill a client actor after round 2: `kill_one.py CONFIG FOLDER [key=value ...]`."""

import os
import signal
import sys
from pathlib import Path

import ray

import flray
from flray.api import play
from flray.config.loader import load_config
from flray.engine.ray import leases

config, folder, *overrides = sys.argv[1:]
(experiment,) = load_config(Path(config), overrides, [])
for row in play(experiment, Path(folder)):
    pool = leases.newest()
    if row["round"] == 2 and pool is not None:
        os.kill(ray.get(pool.clients[0].setup.remote(*pool._setup))["pid"], signal.SIGKILL)
assert flray.load(folder).environment["actors"]["repeated_work"] >= 1, "nobody noticed the death"

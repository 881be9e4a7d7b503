"""Sweeps: search spaces from the algorithms' declarations, Optuna studies, trials of Ray Tune.

Only this package imports ray.tune and optuna.
"""

from flray.core.protocol.seeding import preserved

with preserved():  # rich draws from Python's generator as it is imported, and Ray Tune imports it
    import rich.style  # noqa: F401

import flray.engine.ray  # noqa: F401  # before Ray Tune: it keeps Ray's imports quiet in a notebook

"""Sweeps: search spaces from the algorithms' declarations, Optuna studies, trials of Ray Tune.

Only this package imports ray.tune and optuna.
"""

import flray.engine.ray  # noqa: F401  # before Ray Tune: it keeps Ray's imports quiet in a notebook

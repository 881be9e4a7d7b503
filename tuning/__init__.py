"""Sweeps: search spaces from the algorithms' own declarations, Optuna studies, trials of Ray Tune.

The only home of both.
"""

import flray.engine.ray  # noqa: F401  # before Ray Tune: it keeps Ray's imports quiet in a notebook

"""Sweeps: search spaces read from the algorithms' own declarations, Optuna studies, Ray Tune trials. The only home of `ray.tune` and `optuna`."""

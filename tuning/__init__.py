"""Sweeps: search spaces from the algorithms' own declarations, Optuna studies, trials of Ray Tune.

The only home of both.
"""

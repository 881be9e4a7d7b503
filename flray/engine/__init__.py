"""A run of an experiment: the round loop, the server's and the client's half, evaluation, replay; `ray/` has it on Ray.

The driver imports `flray.engine.simulation`; an actor imports its own file and `runtime`.
"""

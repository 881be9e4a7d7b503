"""Ray: server and client actors, the round loop, checkpoints, the recorder. The only home of `import ray`.

The driver imports `flray.engine.simulation`; an actor imports its own file and `workbench`.
"""

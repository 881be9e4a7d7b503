"""A card that Ray counts and no machine has: in every process of a run that imports it, a client takes half of it."""

from flray.engine.ray.actors import ClientActor

ClientActor.peak_gpu_memory = lambda self, chunk: (45, 100)  # type: ignore[method-assign]

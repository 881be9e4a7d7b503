"""Which runs are so small that `resources.executor: auto` means this process, without Ray.

The configuration and the process decide, never a measured speed: a planned number of FLOPs below a constant. The bits
of a run do not depend on its executor.
"""

from __future__ import annotations

import itertools
import math
import os
import sys
from pathlib import Path
from typing import Any

from flray.config.experiment import Experiment
from flray.core.schema.errors import ConfigError
from flray.files import cache_root

LIMIT = 2e11  # FLOPs of a small run: 2 to 10 s on a core, which is what a start of Ray takes
STEP = 1e7  # FLOPs that a core computes in the time of a local step without arithmetic
# training samples before a test split is drawn, and [C, H, W] or [d]; the number of samples of other sources is unknown
SOURCES: dict[str, tuple[int, tuple[int, ...]]] = {
    "iris": (150, (4,)),
    "digits": (1_797, (1, 8, 8)),
    "mnist": (60_000, (1, 28, 28)),
    "fashion_mnist": (60_000, (1, 28, 28)),
    "cifar10": (50_000, (3, 32, 32)),
    "cifar100": (50_000, (3, 32, 32)),
    "svhn": (73_257, (3, 32, 32)),
    "cinic10": (90_000, (3, 32, 32)),
    "pathmnist": (89_996, (3, 28, 28)),
    "tissuemnist": (165_466, (1, 28, 28)),
}
# FLOPs of a gradient for one sample and pixel, of ResNets at width 64; `mlp` has its own formula
PER_PIXEL = {
    "simple_cnn": 3.8e3,
    "small_cnn": 8e3,
    "fedavg_cnn": 1e5,
    "resnet8_3stage": 3.1e5,
    "resnet8": 4.3e5,
    "vgg11": 1.2e6,
    "resnet18": 3.5e6,
}


def runs_here(experiment: Experiment) -> bool:
    """Whether the run computes in this process, without Ray: `resources.executor: local`, or `auto` and a small run.

    With `auto`, an address (also in RAY_ADDRESS), an initialised Ray, a number of client actors, CPUs of the server or
    GPUs mean actors, and so does a centralized run.
    """
    resources = experiment.resources
    if resources.executor != "auto":
        return resources.executor == "local"
    asks = (
        experiment.algorithm.centralized
        or names_ray(experiment)
        or resources.client_actors != "auto"
        or resources.client.num_gpus != 0
        or resources.server.num_cpus
        or resources.server.num_gpus
        or resources.insecure_ray
    )
    work = None if asks else planned_flops(experiment)
    return work is not None and work <= LIMIT


def names_ray(experiment: Experiment) -> bool:
    """Whether there is a Ray to use: an address, RAY_ADDRESS, or one that this process is connected to."""
    connected = getattr(sys.modules.get("ray"), "is_initialized", bool)()
    return experiment.address is not None or bool(os.environ.get("RAY_ADDRESS")) or connected


def planned_flops(experiment: Experiment) -> float | None:
    """FLOPs of all local steps, each with `STEP` more; None where the configuration does not tell.

    A client has the mean number of samples, with those of a validation split or a held-out proxy. An algorithm that
    computes several gradients a step counts as one that computes one.
    """
    read, clients = _data(experiment), getattr(experiment.partition, "clients", None)
    epochs, batch = (getattr(experiment.algorithm, name, None) for name in ("local_epochs", "batch_size"))
    if not isinstance(epochs, int) or not isinstance(batch, int):  # of a user's own algorithm
        return None
    if read is None or not clients or experiment.cohort.file is not None:
        return None
    samples, shape = read
    flops = _flops_of_sample(experiment.model.name, experiment.model.options, shape)
    try:
        cohort = experiment.cohort.count(clients)
    except ConfigError:  # more clients a round than there are, which the run refuses
        return None
    if flops is None:
        return None
    held: float = samples / experiment.num_tasks / clients
    passes: int = experiment.total_rounds * cohort * epochs  # over a client's samples
    return passes * (held * flops + math.ceil(held / batch) * STEP)


def _data(experiment: Experiment) -> tuple[int, tuple[int, ...]] | None:
    """(the most training samples, the shape of one)."""
    data = experiment.data
    if data.source == "synthetic":
        shape = data.options.get("shape", [28, 28, 1])
        plain = (shape,) if isinstance(shape, int) else (shape[-1], *shape[:-1])
        found: tuple[int, tuple[int, ...]] | None = (data.options.get("num_train", 2000), plain)
    elif data.source.startswith("given:"):
        found = _of_arrays(cache_root() / "data" / data.source.removeprefix("given:") / "train_x.npy")
    else:
        found = SOURCES.get(data.source)
    if found is None or data.per_source is not None:
        return None
    samples, shape = found
    if len(shape) == 3:
        side = (data.resize, data.resize) if data.resize else shape[1:]
        shape = (data.channels or shape[0], *side)
    return min(samples, data.train_size or samples), shape


def _of_arrays(file: Path) -> tuple[int, tuple[int, ...]] | None:
    """(samples, the shape of one) of the arrays that a script has given, by the header of their file in the cache."""
    import numpy as np

    try:
        samples, *shape = np.load(file, mmap_mode="r", allow_pickle=False).shape
    except (OSError, ValueError):  # the run builds the entry again, or says what is wrong
        return None
    return samples, tuple(shape)


def _flops_of_sample(name: str, options: dict[str, Any], shape: tuple[int, ...]) -> float | None:
    """FLOPs of a gradient for one sample; two matrix products backward for one forward."""
    if name == "mlp":
        widths: list[int] = [math.prod(shape), *options.get("hidden", ())]
        return 6.0 * (sum(a * b for a, b in itertools.pairwise(widths)) + widths[-1] * 10)
    if name not in PER_PIXEL or len(shape) != 3:
        return None
    width: float = options.get("width", 64) / 64
    return PER_PIXEL[name] * shape[1] * shape[2] * width**2

"""Look at an experiment before it runs: data, partition, model, memory, disk, actors. Trains nothing, starts no Ray."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch

from flray.data import partition_figure, partition_table
from flray.engine.prepare import build_data, build_partition
from flray.engine.progress import size
from flray.engine.workbench import Workbench
from flray.experiment import Experiment, algorithm_name


def examine(experiment: Experiment, figure: Path | None = None) -> tuple[list[dict[str, Any]], str]:
    """(rows of what was found, a text table of the partition). Raises the error that the run would raise."""
    from flray.core.messages import nbytes
    from flray.engine.cluster import cores

    dataset, proxy, private = build_data(experiment)
    partition = build_partition(experiment, dataset, private)
    bench = Workbench(experiment)
    objective, algorithm = bench.objective, experiment.algorithm
    cohort = experiment.cohort.count(partition.num_clients)
    ctx = bench.context(0, 0, 0, partition.num_clients, cohort, len(partition.indices))
    state = algorithm.init_server(ctx, *objective.initial())
    down = nbytes(algorithm.broadcast(ctx, state))
    sizes = partition.sizes
    vector = objective.layout.size * 4
    server = vector * (cohort + 4 if algorithm.pool == "stack" else 4)
    memory = (len(dataset.train.x) + len(dataset.test.x)) * dataset.train.x[0].nbytes
    free = shutil.disk_usage(Path.cwd()).free
    rows = [
        ("algorithm", f"{algorithm_name(algorithm)}, {experiment.rounds} rounds"),
        (
            "data",
            f"{dataset.name}: {len(dataset.train.y)} train, {len(dataset.test.y)} test, {dataset.num_classes} classes, "
            f"input {dataset.input_shape}",
        ),
        ("data in memory", f"{size(memory)}, memory-mapped, once a node"),
        ("proxy", "none" if proxy is None else f"{len(proxy.x)} samples, {'labelled' if proxy.y is not None else 'unlabelled'}"),
        (
            "partition",
            f"{experiment.partition.name}: {partition.num_clients} clients, {sizes.min()} to {sizes.max()} samples "
            f"(median {int(torch.tensor(sizes).median())})",
        ),
        ("partition hash", partition.hash),
        ("cohort", f"{cohort} clients a round"),
        (
            "model",
            f"{experiment.model.name}: {objective.layout.count:,} parameters, {objective.buffer_layout.count:,} batch-norm statistics",
        ),
        ("batch norm", f"statistics: {getattr(algorithm, 'buffers', 'average')}" if objective.buffer_layout.count else "none"),
        ("traffic", f"{size(down * cohort)} down a round before the algorithm has state of its own, {size(vector * cohort)} up"),
        ("server memory", f"about {size(server)} for parameters ({algorithm.pool} of the updates)"),
        ("checkpoint", f"about {size(vector)}, the last {experiment.checkpoint.keep or 'all'} kept; {size(free)} of disk free"),
        ("this machine", f"{cores()} cores, {torch.cuda.device_count()} GPUs; client actors: {experiment.resources.client_actors}"),
    ]
    frame = partition_table(partition, dataset.train.y, dataset.num_classes) if partition.num_clients <= 10_000 else None
    if figure is not None:
        partition_figure(partition, dataset.train.y, dataset.classes, figure)
    text = "" if frame is None else frame.head(20).to_string() + ("\n..." if len(frame) > 20 else "")
    return [{"check": name, "found": value} for name, value in rows], text

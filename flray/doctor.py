"""Look at an experiment before it runs: data, partition, model, memory, disk, actors. Trains nothing, starts no Ray."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import torch

from flray.core.errors import ResourceError
from flray.engine.prepare import build_data, build_partition
from flray.engine.progress import size
from flray.engine.workbench import Workbench
from flray.experiment import Experiment, algorithm_name
from flray.rundir.folder import default_folder
from flray.rundir.storage import Storage
from flray.scenario import partition_figure, partition_table


def examine(experiment: Experiment, figure: Path | None = None) -> tuple[list[dict[str, Any]], str]:
    """(rows of what was found, a text table of the partition). Raises the error that the run would raise."""
    from flray.core.messages import nbytes
    from flray.engine.ray.cluster import auth_mode, cores

    storage = Storage.of(experiment.storage, default_folder(experiment))
    if storage is not None:
        storage.probe()
    dataset, proxy, private = build_data(experiment)
    partition = build_partition(experiment, dataset, private)
    bench = Workbench(experiment)
    objective, algorithm = bench.objective, experiment.algorithm
    cohort = experiment.cohort.count(partition.num_clients)
    dropout = f", each drops out with probability {experiment.cohort.dropout:g}" if experiment.cohort.dropout else ""
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
        ("proxy", _proxy(experiment, proxy, 0 if private is None else len(dataset.train.y) - len(private))),
        (
            "partition",
            f"{experiment.partition.name}: {partition.num_clients} clients, {sizes.min()} to {sizes.max()} samples "
            f"(median {int(torch.tensor(sizes).median())})",
        ),
        ("partition hash", partition.hash),
        ("cohort", "none: all clients' data in one place" if algorithm.centralized else f"{cohort} clients a round{dropout}"),
        (
            "model",
            f"{experiment.model.name}: {objective.layout.count:,} parameters, {objective.buffer_layout.count:,} batch-norm statistics",
        ),
        ("batch norm", f"statistics: {getattr(algorithm, 'buffers', 'average')}" if objective.buffer_layout.count else "none"),
        ("traffic", "none" if algorithm.centralized else f"{size(down * cohort)} down a round at first, {size(vector * cohort)} up"),
        ("server memory", f"about {size(server)} for parameters ({algorithm.pool} of the updates)"),
        ("checkpoint", f"about {size(vector)}, the last {experiment.checkpoint.keep or 'all'} kept; {size(free)} of disk free"),
        ("storage", "none" if storage is None else f"{storage.uri} can be written"),
        (
            "ray",
            f"{experiment.address or os.environ.get('RAY_ADDRESS') or 'a new one here'}; RAY_AUTH_MODE={auth_mode(experiment.address)}",
        ),
        ("this machine", f"{cores()} cores, {torch.cuda.device_count()} GPUs; client actors: {experiment.resources.client_actors}"),
    ]
    frame = partition_table(partition, dataset.train.y, dataset.num_classes) if partition.num_clients <= 10_000 else None
    if figure is not None:
        partition_figure(partition, dataset.train.y, dataset.classes, figure)
    text = "" if frame is None else frame.head(20).to_string() + ("\n..." if len(frame) > 20 else "")
    return [{"check": name, "found": value} for name, value in rows], text


def _proxy(experiment: Experiment, proxy: Any, held: int) -> str:
    """What the server's public data are, of which `held` samples are taken from the clients: also where the algorithm reads none."""
    name = algorithm_name(experiment.algorithm)
    if experiment.proxy is None:
        return "none"
    if proxy is None:
        taken = f"{held} samples, held out for every algorithm, " if held else ""
        return f"{experiment.proxy.source}: {taken}not read by {name}"
    return f"{experiment.proxy.source}: {len(proxy.x)} samples, {'labelled' if proxy.y is not None else 'unlabelled'}, read by {name}"


def examine_upload(experiment: Experiment, folder: Path) -> list[dict[str, Any]]:
    """Rows of what `ray job submit --working-dir FOLDER` would upload. Raises `ResourceError` when Ray would refuse it."""
    from flray.data.sources.options import data_root
    from flray.engine.ray.job_folder import LIMIT, working_dir

    upload = working_dir(folder)
    largest = ", ".join(f"{name} {size(held)}" for name, held in upload.largest)
    if upload.bytes > LIMIT:
        raise ResourceError(
            f"--working-dir {folder}: {size(upload.bytes)} in {upload.files} files, and Ray uploads at most {size(LIMIT)} "
            f"(largest: {largest}); exclude what the job does not need by lines such as /{upload.largest[0][0]} in "
            f"{folder / '.rayignore'} (patterns as in .gitignore; --write-rayignore writes a first one)"
        )
    rows = [
        ("upload", f"{upload.files} files, {size(upload.bytes)} of at most {size(LIMIT)}"),
        ("largest", largest or "nothing is left to upload"),
    ]
    root = data_root(experiment.data)
    if root is not None and root.resolve().is_relative_to(folder.resolve()):
        where = f"{root} lies in the working directory: uploaded with every job, or ignored and then missing"
        rows.append(("data.root", f"{where}; name a folder that the nodes have"))
    return [{"check": name, "found": value} for name, value in rows]

"""Look at an experiment before it runs: data, partition, model, memory, disk, actors. Trains nothing, starts no Ray."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from flray.config.experiment import Experiment, algorithm_name
from flray.core.protocol.clock import Clock
from flray.core.schema.errors import AlgorithmError, ResourceError
from flray.data import Dataset
from flray.engine.prepare import build_data, build_scenario, drift_effects
from flray.engine.progress import size
from flray.engine.workbench import TaskSummary, Workbench
from flray.rundir.folder import default_folder
from flray.rundir.storage import Storage
from flray.scenario import Drift, Scenario, Stage, partition_table

if TYPE_CHECKING:
    import pandas

SHOWN = 20  # clients in the table


def examine(experiment: Experiment, figure: Path | None = None) -> tuple[list[dict[str, Any]], str]:
    """(rows of what was found, a text table of the partition). Raises the error that the run would raise."""
    from flray.core.messages import nbytes
    from flray.engine.ray.auth import auth_mode
    from flray.engine.threads import cores

    storage = Storage.of(experiment.storage, default_folder(experiment))
    if storage is not None:
        storage.probe()
    dataset, proxy, private = build_data(experiment)
    scenario = build_scenario(experiment, dataset, private)
    bench = Workbench(experiment, TaskSummary.of(scenario))
    objective, algorithm = bench.objective, experiment.algorithm
    cohort = max(experiment.cohort.count(len(scenario.members(task))) for task in range(len(scenario.stages)))
    dropout = f", each drops out with probability {experiment.cohort.dropout:g}" if experiment.cohort.dropout else ""
    table = drift_effects(experiment, scenario)
    ctx = bench.context(Clock())
    state = algorithm.init_server(ctx, *objective.initial())
    broadcast = algorithm.broadcast(ctx, state)
    vector = objective.layout.size * 4
    up, alone = _update(bench, broadcast, scenario)
    traffic = [size(each * cohort) for each in (nbytes(broadcast), sum(up.values()))]
    server = vector * 4 + sum(up[name] for name in alone) * cohort
    memory = (len(dataset.train.x) + len(dataset.test.x)) * dataset.train.x[0].nbytes
    free = shutil.disk_usage(Path.cwd()).free
    rows = [
        ("algorithm", f"{algorithm_name(algorithm)}, {experiment.total_rounds} rounds"),
        (
            "data",
            f"{dataset.name}: {len(dataset.train.y)} train, {len(dataset.test.y)} test, {dataset.num_classes} classes, "
            f"input {dataset.input_shape}",
        ),
        ("data in memory", f"{size(memory)}, memory-mapped, once a node"),
        ("proxy", _proxy(experiment, proxy, 0 if private is None else len(dataset.train.y) - len(private))),
        *_samples_by_client(experiment, scenario, dataset),
        ("drift", "none" if scenario.drift is None else _drift(scenario.drift.drift, experiment.total_rounds, table)),
        (
            "cohort",
            "none: all clients' data in one place" if algorithm.centralized else f"{cohort} clients a round{dropout}",
        ),
        (
            "model",
            f"{experiment.model.name}: {objective.layout.count:,} parameters, {objective.buffer_layout.count:,} "
            "batch-norm statistics",
        ),
        ("starts from", bench.starts_from or "random weights"),
        (
            "batch norm",
            f"statistics: {getattr(algorithm, 'buffers', 'average')}" if objective.buffer_layout.count else "none",
        ),
        ("traffic", "none" if algorithm.centralized else f"{traffic[0]} down a round at first, {traffic[1]} up"),
        (
            "server memory",
            f"about {size(server)} for parameters" + (f", of each client {', '.join(alone)}" if alone else ""),
        ),
        (
            "checkpoint",
            f"about {size(vector)}, the last {experiment.checkpoint.keep or 'all'} kept; {size(free)} of disk free",
        ),
        ("storage", "none" if storage is None else f"{storage.uri} can be written"),
        (
            "ray",
            f"{experiment.address or os.environ.get('RAY_ADDRESS') or 'a new one here'}; "
            f"RAY_AUTH_MODE={auth_mode(experiment.address)}",
        ),
        (
            "this machine",
            f"{cores()} cores, {torch.cuda.device_count()} GPUs; client actors: {experiment.resources.client_actors}",
        ),
    ]
    text = partition_table(scenario.union(SHOWN), dataset.train.y, dataset.num_classes).to_string()
    if figure is not None:
        from flray.results.figures import save
        from flray.results.partition_figures import drift_figure, partition_figure

        save(partition_figure(scenario, dataset.train.y, dataset.classes), figure)
        if len(table):
            save(drift_figure(table, experiment.total_rounds, dataset.classes), beside(figure))
    return [{"check": name, "found": value} for name, value in rows], text + (
        "\n..." if scenario.population > SHOWN else ""
    )


def _samples_by_client(experiment: Experiment, scenario: Scenario, dataset: Dataset) -> list[tuple[str, str]]:
    """Who holds how much, in every task."""
    rows = []
    for stage, partition in zip(scenario.stages, scenario.partitions, strict=True):
        sizes = partition.sizes[partition.sizes > 0]
        empty = scenario.population - len(sizes)
        text = (
            f"{experiment.partition.name}: {scenario.population} clients, {sizes.min()} to {sizes.max()} samples "
            f"(median {int(torch.tensor(sizes).median())})"
        )
        if empty:
            text += f"; {empty} of them hold none and take no part"
        if experiment.tasks is not None:
            name, tested = next(iter(stage.tests.items()))
            of = f"{len(tested.labels(dataset))} samples ({name}: all tasks so far)"
            rows.append((f"task {stage.index}", f"{_what(stage)}; tested on {of}"))
            rows.append((f"partition of task {stage.index}", text))
        else:
            rows.append(("partition", text))
    return [*rows, ("partition hash", scenario.fingerprint)]


def _what(stage: Stage) -> str:
    """The classes of a task, or its domain, and what cannot be learned in it."""
    classes = " ".join(map(str, stage.classes)) if len(stage.classes) <= 20 else f"{len(stage.classes)} of them"
    text = f"classes {classes}" if stage.source < 0 else f"domain {stage.name}, classes {classes}"
    if stage.source >= 0 and stage.outputs[0] != stage.classes[0]:
        text += f" at outputs {stage.outputs.min()} to {stage.outputs.max()}"
    return f"{text} (alone, so a loss among its own logits is 0)" if len(stage.classes) == 1 else text


def beside(figure: Path) -> Path:
    """Where the picture of the drift goes: `NAME_drift.png` beside that of the partition."""
    return figure.with_name(f"{figure.stem}_drift{figure.suffix}")


def _drift(drift: Drift, rounds: int, table: pandas.DataFrame) -> str:
    """What the drift is, and what it leaves of the samples of the cohorts of so many rounds."""
    lost = table[table["kept"] < table["of"]]
    if not len(lost):
        return f"{drift.about()}; nobody loses a sample in {rounds} rounds"
    sums = table.groupby("round")[["kept", "of"]].sum()
    sums = sums[sums["kept"] < sums["of"]]
    share = sums["kept"] / sums["of"]
    text = (
        f"{drift.about()}. Of {rounds} rounds {len(sums)} ({sums.index[0]} to "
        f"{sums.index[-1]}) train on {share.min():.0%} to {share.max():.0%} of their cohort's samples"
    )
    empty = int((sums["kept"] == 0).sum())
    return f"{text}; {empty} of them have none and change nothing" if empty else text


def _proxy(experiment: Experiment, proxy: Any, taken_samples: int) -> str:
    """The server's public data, also if the algorithm reads none. `taken_samples`: how many come from clients."""
    name = algorithm_name(experiment.algorithm)
    if experiment.proxy is None:
        return "none"
    if proxy is None:
        taken = f"{taken_samples} samples, held out for every algorithm, " if taken_samples else ""
        return f"{experiment.proxy.source}: {taken}not read by {name}"
    return (
        f"{experiment.proxy.source}: {len(proxy.x)} samples, {'labelled' if proxy.y is not None else 'unlabelled'}, "
        f"read by {name}"
    )


def examine_upload(experiment: Experiment, folder: Path) -> list[dict[str, Any]]:
    """Rows of what `ray job submit --working-dir FOLDER` would upload.

    Raises `ResourceError` when Ray would refuse it.
    """
    from flray.data.sources.options import data_root
    from flray.engine.ray.job_folder import working_dir

    upload = working_dir(folder)
    if upload is None:
        return []
    largest = ", ".join(f"{name} {size(held)}" for name, held in upload.largest)
    if upload.bytes > upload.limit:
        raise ResourceError(
            f"--working-dir {folder}: {size(upload.bytes)} in {upload.files} files, and Ray uploads at most "
            f"{size(upload.limit)} (largest: {largest}); exclude what the job does not need by lines such as "
            f"/{upload.largest[0][0]} in {folder / '.rayignore'} (patterns as in .gitignore; --write-rayignore writes "
            "a first one)"
        )
    rows = [
        ("upload", f"{upload.files} files, {size(upload.bytes)} of at most {size(upload.limit)}"),
        ("largest", largest or "nothing is left to upload"),
    ]
    root = data_root(experiment.data)
    if root is not None and root.resolve().is_relative_to(folder.resolve()):
        where = f"{root} lies in the working directory: uploaded with every job, or ignored and then missing"
        rows.append(("data.root", f"{where}; name a folder that the nodes have"))
    return [{"check": name, "found": value} for name, value in rows]


def _update(bench: Workbench, broadcast: Any, scenario: Scenario) -> tuple[dict[str, int], list[str]]:
    """(bytes of a client's update by field, the fields of which the server keeps every client's): that of one which
    makes one step.

    Raises `AlgorithmError` where a method of the client writes into the broadcast.
    """
    from flray.core.messages import Record, equal, map_tensors, nbytes_by_field, to_numpy
    from flray.core.messages.fields import pools
    from flray.engine.blame import Note, find_writer, write_error

    algorithm, clock = bench.algorithm, Clock()
    if algorithm.centralized:
        return {}, []
    shares = scenario.drifting(None).shares(clock, np.array([scenario.members(0)[0]]))
    ctx = bench.client_context(clock, int(shares.clients[0]), num_steps=1, num_examples=len(shares.indices), weight=1.0)
    client, data = algorithm.init_client(ctx), bench.client_data(ctx, shares.indices)
    sent, updates = to_numpy(map_tensors(torch.clone, broadcast)), []

    def run(note: Note) -> None:
        note(algorithm.begin)
        local = algorithm.begin(ctx, broadcast, client, data)
        note(algorithm.batches)
        for batch in algorithm.batches(ctx, broadcast, client, local, data):
            if len(batch.y) > 1:  # else batch norm cannot train on it
                note(algorithm.step)
                local = algorithm.step(ctx, broadcast, client, local, batch)
            break
        note(algorithm.end)
        updates.append(algorithm.end(ctx, broadcast, client, local, data)[0])

    if who := find_writer(run, lambda: equal(sent, to_numpy(broadcast))):
        raise AlgorithmError(write_error(who))
    (update,) = updates
    how = pools(type(update)) if isinstance(update, Record) else {}
    return nbytes_by_field(update), [name for name, pool in how.items() if pool == "each"]

"""Look at an experiment before it runs: data, partition, model, memory, disk, actors. Trains nothing, starts no Ray."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flray.aggregations import AGGREGATIONS
from flray.config.experiment import Experiment, algorithm_name, registered_name
from flray.config.suited import cautions
from flray.core.network.objective import Objective
from flray.core.protocol.clock import Clock
from flray.core.schema.errors import ResourceError
from flray.data import Dataset
from flray.engine.arrivals import Arrivals, planned_work
from flray.engine.cohort import costliest_client
from flray.engine.message_sizes import MessageSizes, message_sizes
from flray.engine.prepare import build_data, build_scenario, drift_effects
from flray.engine.progress import size
from flray.engine.runtime import Runtime, TaskSummary
from flray.engine.tickets import Schedule, concurrency
from flray.rundir.folder import default_folder
from flray.rundir.storage import Storage
from flray.scenario import Drifting, Scenario, Stage, partition_table

if TYPE_CHECKING:
    import pandas

SHOWN = 20  # clients in the table


class Findings(NamedTuple):
    """`checks`: rows of `check` and `result`; `partition`: samples by client (the first `SHOWN`) and class."""

    checks: list[dict[str, Any]]
    partition: pandas.DataFrame
    all_clients: bool


def examine(experiment: Experiment, figure: Path | None = None) -> Findings:
    """What a run would do. Raises the error that the run would raise."""
    storage = Storage.of(experiment.storage, default_folder(experiment))
    if storage is not None:
        storage.probe()
    data = build_data(experiment)
    dataset, proxy, private = data
    scenario = build_scenario(experiment, data)
    runtime = Runtime(experiment, TaskSummary.of(scenario))
    runtime.first_uplink()
    drift = drift_effects(experiment, scenario)
    memory = (len(dataset.train.x) + len(dataset.test.x)) * dataset.train.x[0].nbytes
    held_out = 0 if private is None else len(dataset.train.y) - len(private)
    samples = f"{len(dataset.train.y)} train, {len(dataset.test.y)} test, {dataset.num_classes} classes"
    rows = [
        ("algorithm", f"{algorithm_name(experiment.algorithm)}, {experiment.total_rounds} rounds"),
        ("aggregation", _aggregation(experiment)),
        *(("unsuited", caution) for caution in cautions([experiment])),
        ("data", f"{dataset.name}: {samples}, input {dataset.input_shape}"),
        *(("read", line) for line in dataset.reading),
        ("data in memory", f"{size(memory)}, memory-mapped, once a node"),
        ("proxy", _proxy(experiment, proxy, held_out)),
        *_samples_by_client(experiment, scenario, dataset),
        ("drift", "none" if scenario.drift is None else _drift(scenario.drift, experiment.total_rounds, drift)),
        *_model(runtime, scenario),
        *_device_memory(runtime, scenario),
        ("storage", "none" if storage is None else f"{storage.uri} can be written"),
        *_machine(experiment),
    ]
    if figure is not None:
        from flray.results.client_figures import drift_figure, partition_figure
        from flray.results.figures import save

        save(partition_figure(scenario, dataset.train.y, dataset.classes), figure)
        if len(drift):
            save(drift_figure(drift, experiment.total_rounds, dataset.classes), drift_picture(figure))
    partition = partition_table(scenario.union(SHOWN), dataset.train.y, dataset.num_classes)
    return Findings(_checks(rows), partition, scenario.population <= SHOWN)


def _aggregation(experiment: Experiment) -> str:
    """The rule of aggregation, and whether it needs every client's model at the server."""
    rule = experiment.rule
    if rule is None:
        return "the algorithm's own, for most the mean"
    named = experiment.aggregation  # None: the algorithm is its own rule
    name = algorithm_name(experiment.algorithm) if named is None else registered_name(AGGREGATIONS, named)
    return name if rule.pooled == "mean" else f"{name}: reads every client's model, so the server gets all of them"


def _checks(rows: Iterable[tuple[str, str]]) -> list[dict[str, Any]]:
    return [{"check": name, "result": text} for name, text in rows]


def _model(runtime: Runtime, scenario: Scenario) -> list[tuple[str, str]]:
    """The cohort, the model, and the bytes that messages, the server and a checkpoint need."""
    experiment, algorithm, objective = runtime.experiment, runtime.algorithm, runtime.objective
    sizes = message_sizes(runtime, scenario)
    cohort, by_client, vector = sizes.cohort, sizes.single, sizes.vector
    drawn, who = _drawn(experiment, scenario, cohort)
    dropout = f", each drops out with probability {experiment.cohort.dropout:g}" if experiment.cohort.dropout else ""
    down, up = size(sizes.broadcast * drawn), size(sum(sizes.update.values()) * cohort)
    counts = f"{objective.layout.count:,} parameters, {objective.buffer_layout.count:,} batch-norm statistics"
    buffers = f"statistics: {getattr(algorithm, 'buffers', 'average')}" if objective.buffer_layout.count else "none"
    free = size(shutil.disk_usage(Path.cwd()).free)
    one_place = algorithm.centralized
    return [
        ("cohort", "none: all clients' data in one place" if one_place else f"{cohort} clients a round{who}{dropout}"),
        *_devices(runtime, scenario),
        ("model", f"{experiment.model.name}: {counts}"),
        ("starts from", runtime.starts_from or "random weights"),
        ("batch norm", buffers),
        ("buffers", buffer_kinds(objective)),
        ("traffic", "none" if one_place else f"{down} down a round at first, {up} up"),
        ("into the server", "nothing" if one_place else _into_server(sizes)),
        (
            "server memory",
            f"about {size(sizes.server_bytes)} for parameters"
            + (f", of each client {', '.join(by_client)}" if by_client else ""),
        ),
        (
            "checkpoint",
            f"about {size(vector)}, the last {experiment.checkpoint.keep or 'all'} kept; {free} of disk free",
        ),
    ]


def _drawn(experiment: Experiment, scenario: Scenario, cohort: int) -> tuple[int, str]:
    """(clients that get the broadcast of a round whose `cohort` trains, whom else a round has, in words)."""
    clients, coordination = len(scenario.members(0)), experiment.coordination
    if coordination.size is not None:
        return cohort, f", of {concurrency(experiment, clients)} at work"
    if coordination.share is None:
        return cohort, ""
    drawn = coordination.drawn(cohort, clients)
    return drawn, f", the first of {drawn} drawn"


def _devices(runtime: Runtime, scenario: Scenario) -> list[tuple[str, str]]:
    """The virtual seconds of the clients of the first round, and who of them is waited for."""
    if scenario.devices is None:
        return []
    work = planned_work(runtime, costliest_client(runtime.experiment, scenario))
    there, asked = list[tuple[str, str]](), np.asarray(scenario.members(0), dtype=np.int64)[:10_000]
    if scenario.devices.presence is not None:
        count = int((scenario.devices.presence.spans(asked, 0.0)[0] <= 0).sum())
        there = [("availability", f"{count:,} of {len(asked):,} clients are there at the start")]
    if runtime.experiment.coordination.size is not None:
        return [*there, ("devices", _buffered(Schedule(runtime.experiment, scenario, work), runtime.experiment.rounds))]
    first = Arrivals(runtime.experiment, scenario, work).of_round(Clock())
    low, middle, high = np.quantile(first.all_seconds, [0, 0.5, 1]) if len(first.all_seconds) else (0.0, 0.0, 0.0)
    waits = f"; {runtime.experiment.coordination.name} leaves {first.late} of them out" if first.late else ""
    if first.taken:
        waits += f"; {len(first.taken)} of them stop early, after {min(first.taken.values())} steps or more"
    return [("devices", f"the clients of round 1 take {low:.3g} to {high:.3g} s (median {middle:.3g}){waits}"), *there]


def _buffered(schedule: Schedule, rounds: int) -> str:
    """The virtual seconds, ages and kept models of the first server steps of a run, in a sentence."""
    steps = [schedule.step(number) for number in range(min(rounds, 100))]
    ages = [number - ticket.version for number, step in enumerate(steps) for ticket in step.tickets]
    stale = sum(len(step.stale) for step in steps)
    kept = max(len({*step.held, number + 1}) for number, step in enumerate(steps))
    return (
        f"the first {len(steps)} server steps take {steps[-1].seconds:.3g} s; updates are {np.mean(ages):.2g} steps "
        f"old (at most {max(ages)}), {stale} are dropped, and the server keeps at most {kept} models"
    )


def buffer_kinds(objective: Objective) -> str:
    """The buffers of a network by kind, the first three of each by name (`core/network/buffers.py`)."""
    by_kind: dict[str, list[str]] = {}
    for buffer in objective.buffers:
        by_kind.setdefault(buffer.kind, []).append(" = ".join(buffer.names))
    parts = []
    for kind, names in by_kind.items():
        more = f", and {len(names) - 3} more" if len(names) > 3 else ""
        parts.append(f"{kind}: {', '.join(names[:3])}{more}")
    return "; ".join(parts) or "none"


def _into_server(sizes: MessageSizes) -> str:
    """The bytes that reach the server's process in a round, after actors have added up what has a mean or a sum."""
    from flray.engine.ray.combiners import most_bytes

    added, cohort = sizes.summed_bytes, sizes.cohort
    parts = [f"at most {size(most_bytes(cohort, added))} of sums, however many actors"] if added else []
    own = sizes.single | ({"state": sizes.state} if sizes.state else {})
    if sum(own.values()):
        parts.append(f"cannot be added up: {', '.join(own)} of each client, {size(sum(own.values()) * cohort)}")
    return "; ".join(parts) or "nothing"


def _device_memory(runtime: Runtime, scenario: Scenario) -> list[tuple[str, str]]:
    from flray.engine.device_memory import CUDA, HELD, WORKSPACE, largest_client_memory

    if runtime.algorithm.centralized:
        return []
    memory = largest_client_memory(runtime, scenario)
    parts = ", ".join(f"{name} {size(part)}" for name, part in memory._asdict().items())
    return [
        (
            "GPU memory",
            f"about {size(memory.total)} a client actor on a GPU: {parts}; {size(WORKSPACE + CUDA)} for CUDA and "
            f"kernels; PyTorch holds {HELD:g} times the tensors, as four networks did on an H100: not measured here",
        )
    ]


def _machine(experiment: Experiment) -> list[tuple[str, str]]:
    from flray.engine import devices
    from flray.engine.ray.auth import auth_mode
    from flray.engine.threads import cores

    address = experiment.address or os.environ.get("RAY_ADDRESS") or "a new one here"
    actors = experiment.resources.client_actors
    return [
        ("ray", f"{address}; RAY_AUTH_MODE={auth_mode(experiment.address)}"),
        ("this machine", f"{cores()} cores, {devices.gpus()}; client actors: {actors}"),
    ]


def _samples_by_client(experiment: Experiment, scenario: Scenario, dataset: Dataset) -> list[tuple[str, str]]:
    rows = []
    for stage, partition in zip(scenario.stages, scenario.partitions, strict=True):
        sizes = partition.sizes[partition.sizes > 0]
        empty = scenario.population - len(sizes)
        text = (
            f"{experiment.partition.name}: {scenario.population} clients, {sizes.min()} to {sizes.max()} samples "
            f"(median {np.median(sizes):g})"
        )
        if empty:
            text += f"; {empty} of them have no sample and take no part"
        if experiment.tasks is not None:
            name, tested = next(iter(stage.tests.items()))
            of = f"{len(tested.labels(dataset))} samples ({name}: all tasks so far)"
            rows.append((f"task {stage.index}", f"{_what(stage)}; tested on {of}"))
            rows.append((f"partition of task {stage.index}", text))
        else:
            rows.append(("partition", text))
    return [*rows, ("partition hash", scenario.fingerprint)]


def _what(stage: Stage) -> str:
    """The classes of a task, or its domain."""
    classes = " ".join(map(str, stage.classes)) if len(stage.classes) <= 20 else f"{len(stage.classes)} of them"
    text = f"classes {classes}" if stage.source < 0 else f"domain {stage.name}, classes {classes}"
    if stage.source >= 0 and stage.outputs[0] != stage.classes[0]:
        text += f" at outputs {stage.outputs.min()} to {stage.outputs.max()}"
    return f"{text} (only one, so a loss over its own logits is 0)" if len(stage.classes) == 1 else text


def drift_picture(figure: Path) -> Path:
    """The file of the drift's picture: `NAME_drift.png` beside the partition's `NAME.png`."""
    return figure.with_name(f"{figure.stem}_drift{figure.suffix}")


def _drift(drifting: Drifting, rounds: int, table: pandas.DataFrame) -> str:
    """The drift, and the share of the cohorts' samples that it leaves in so many rounds."""
    drift, whose = drifting.drift, "an example cohort's" if drifting.chosen_by else "their cohort's"
    lost = table[table["kept"] < table["of"]]
    if not len(lost):
        return f"{drift.about()}; no client loses a sample in {rounds} rounds"
    sums = table.groupby("round")[["kept", "of"]].sum()
    sums = sums[sums["kept"] < sums["of"]]
    share = sums["kept"] / sums["of"]
    text = (
        f"{drift.about()}. Of {rounds} rounds {len(sums)} ({sums.index[0]} to "
        f"{sums.index[-1]}) train on {share.min():.0%} to {share.max():.0%} of {whose} samples"
    )
    empty = int((sums["kept"] == 0).sum())
    return f"{text}; {empty} of them have no sample and change nothing" if empty else text


def _proxy(experiment: Experiment, proxy: Any, taken_samples: int) -> str:
    """The server's public data, also if the algorithm reads none. `taken_samples`: how many are the clients'."""
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
    """Rows about the upload of `ray job submit --working-dir FOLDER`. Raises `ResourceError` if Ray would refuse it."""
    from flray.data.sources.options import data_root
    from flray.engine.ray.job_folder import working_dir

    upload = working_dir(folder)
    if upload is None:
        return []
    largest = ", ".join(f"{name} {size(count)}" for name, count in upload.largest)
    if upload.bytes > upload.limit:
        raise ResourceError(
            f"--working-dir {folder}: {size(upload.bytes)} in {upload.files} files, and Ray uploads at most "
            f"{size(upload.limit)} (largest: {largest}); exclude what the job does not need by lines such as "
            f"/{upload.largest[0][0]} in {folder / '.rayignore'} (patterns as in .gitignore; --write-rayignore writes "
            "a first one)"
        )
    rows = [
        ("upload", f"{upload.files} files, {size(upload.bytes)} of at most {size(upload.limit)}"),
        ("largest", largest or "no file to upload"),
    ]
    root = data_root(experiment.data)
    if root is not None and root.resolve().is_relative_to(folder.resolve()):
        where = f"{root} lies in the working directory: uploaded with every job, or ignored and then missing"
        rows.append(("data.root", f"{where}; name a folder that the nodes have"))
    return _checks(rows)

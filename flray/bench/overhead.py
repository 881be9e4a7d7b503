"""`flray bench --only table5`: FedProj's Table 5 (journal version, C.6), the client's cost of the projection: the
paper's numbers, its cost model, and torch's counts and times here.

The paper's numbers are not measured: time = 2 c E K F / (35e12 * 0.3), with c = 3 passes of a local step (6 of
FedProj's), E epochs of K steps, F multiply-accumulates of a forward pass of one sample, and without the batch size. The
projection adds 1.24 %. A round is the client's time and 14.54 ms on the server (Table 5).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from flray.api import simulate
from flray.bench.bare import Workload
from flray.config.loader import load_config
from flray.core.network.threads import threads
from flray.core.schema.errors import ConfigError
from flray.engine.live_bytes import Alive
from flray.engine.replay import Replay
from flray.reference.papers import read_csv
from flray.rundir.reader import Run, load

PASSES = {"FedAvg": 3, "FedDF": 3, "FedProj": 6}  # c: FLOPs of a local step over those of a forward pass
VECTORS = {"FedAvg": 4, "FedDF": 4, "FedProj": 7}  # weights, gradient, Adam's two moments; g_local, g_mem and g
F = 65.25e6  # with it the model gives the paper's milliseconds; the paper says 65e6
PROXY = 400  # public samples; a memory batch is as large as a local batch
# 8 clients of 448 samples beside the public ones: K = 7 steps an epoch, as in the paper
SMALL = Workload(8, 448 + PROXY // 8, (32, 32, 3), 2, 64, {"name": "fedavg_cnn"})


def constants() -> dict[str, float]:
    """The inputs of the paper's model."""
    return {row["name"]: float(row["value"]) for row in read_csv("fedproj_000_table5_constants.csv")}


def modelled(method: str) -> tuple[float, float]:
    """(client, round) milliseconds by the paper's model."""
    given = constants()
    flops = 2 * PASSES[method] * given["E"] * given["K"] * F
    share = 1 + given["projection_share_percent"] / 100 if method == "FedProj" else 1.0
    client = 1e3 * flops * share / (given["device_flops"] * given["efficiency"])
    return client, client + given["server_kd_ms"]


def table(repeats: int, home: Path, rounds: int = 3, workload: Workload = SMALL) -> list[dict[str, Any]]:
    """One row a method, and FedProj over FedAvg. Printed: in the paper; model: by its formula; here: measured.

    GFLOP: a client's local steps in a round, by torch's counter. Vectors: the most tensors of the model's size that are
    alive at once in a local step, the broadcast among them. MB: to and from one client. ms: medians over rounds without
    the first (in which FedProj has no memory) and over `repeats` interleaved runs, one thread, one client after the
    other; a round is one client's steps and the server half.
    """
    if rounds < 2:
        raise ConfigError(f"bench: table5 leaves the first round out; rounds={rounds} must be at least 2")
    times_of: dict[str, list[dict[str, float]]] = {method: [] for method in PASSES}
    with threads(1):
        for _ in range(repeats):
            for method in PASSES:
                times_of[method].append(_measured(method, workload, rounds, home))
        peaks = {method: vectors(home / method) for method in PASSES}
    printed = {row["method"]: row for row in read_csv("fedproj_000_table5_overhead.csv")}
    here = {
        method: {name: median(row[name] for row in rows) for name in rows[0]} | {"vectors": peaks[method]}
        for method, rows in times_of.items()
    }
    model = {
        method: dict(zip(("client", "round"), modelled(method), strict=True))
        | {"gflop": PASSES[method] * here["FedAvg"]["gflop"] / PASSES["FedAvg"], "vectors": VECTORS[method]}
        for method in PASSES
    }

    def row(name: str, at: Callable[[dict[str, dict[str, float]], str], float]) -> dict[str, Any]:
        return {
            "method": name,
            "GFLOP model": at(model, "gflop"),
            "GFLOP here": at(here, "gflop"),
            "vectors model": at(model, "vectors"),
            "vectors here": at(here, "vectors"),
            "MB here": at(here, "sent"),
            "client ms printed": float(printed[name]["client_time_ms"]),
            "client ms model": at(model, "client"),
            "client ms here": at(here, "client"),
            "round ms printed": float(printed[name]["round_time_ms"]),
            "round ms model": at(model, "round"),
            "round ms here": at(here, "round"),
        }

    rows = [row(method, lambda values, key, method=method: values[method][key]) for method in PASSES]  # type: ignore[misc]
    return [*rows, row("overhead", lambda values, key: values["FedProj"][key] / values["FedAvg"][key])]


def _measured(method: str, workload: Workload, rounds: int, home: Path) -> dict[str, float]:
    """From a run's tables: FLOPs, bytes and milliseconds of one client, and of a round with one."""
    options: dict[str, Any] = {"name": method.lower(), "optimizer": "adam", "lr": 0.001, "batch_size": workload.batch}
    experiment = load_config(
        workload.experiment(rounds),
        {
            "algorithm": {**options, "local_epochs": workload.epochs},
            "proxy": {"source": "holdout", "size": min(PROXY, workload.clients * workload.images // 2)},
            "resources": {"executor": "local", "server": {"threads": 1}},
            "checkpoint": {"every": 1, "keep": 0},
        },
    )[0]
    simulate(experiment, home / method, overwrite=True)
    run: Run = load(home / method)
    later = run.rounds[run.rounds["done"] > 1]
    clients, one = run.clients[run.clients["done"] > 1], later / later["cohort_size"].iloc[0]
    client, server = 1e3 * clients["time/client_s"].median(), 1e3 * later["time/server_s"].median()
    return {
        "gflop": float(one["client_flops"].median()) / 1e9,
        "sent": float((one["comm/up_bytes"] + one["comm/down_bytes"]).median()) / 1e6,
        "client": float(client),
        "round": float(client + server),
    }


def vectors(folder: Path) -> float:
    """The most tensors of the model's size that are alive at once during the local steps of a client in the last
    round."""
    replay = Replay(folder)
    replay.goto(replay.experiment.total_rounds - 1)
    size = 4 * replay.bench.objective.layout.count
    with Alive(size) as alive:
        next(replay.clients())
    return float(alive.most / size)

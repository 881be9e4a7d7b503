"""Prefix tuning of a small T5: a round beside a bare loop of the same steps, and each actor's own memory of the frozen
backbone.

The texts are random words in a Parquet file. Rounds use the local executor, so flray's side is the whole round
(clients, server, rows). Both sides take turns on one thread, in seconds of CPU time, on which other load on the machine
has little influence.
"""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flray.bench.bare import WARM_UP, Bare, Way
from flray.config.experiment import Experiment
from flray.config.loader import load_config
from flray.core.messages import to_numpy
from flray.core.network.threads import threads
from flray.core.protocol.clock import Clock
from flray.data import load_dataset
from flray.data.splits import Split
from flray.engine import cohort as cohorts
from flray.engine.client import Client
from flray.engine.workbench import TaskSummary, Workbench
from flray.scenario import Scenario, build

CLIENTS, TEXTS, COHORT, BATCH = 8, 64, 4, 16
NETWORK = {"name": "t5", "layers": 4, "hidden": 256, "heads": 4, "intermediate": 1024}
LARGE = {"name": "t5", "layers": 6, "hidden": 512, "heads": 8, "intermediate": 2048}  # t5-small's shape
ACTORS = (1, 2, 4)
Found = dict[str, tuple[float, str]]  # name -> value, detail


def costs(repeats: int, home: Path) -> Found:
    """The rows by name; `4 repeats` rounds of either side, and `ACTORS` processes at once."""
    rows = {"text: prefix tuning, round flray/bare": _round(experiment(home, NETWORK, WARM_UP + 4 * repeats), home)}
    return rows | {"text: backbone that each actor holds alone": _memory(experiment(home, LARGE, 1))}


def experiment(home: Path, network: dict[str, Any], rounds: int) -> Experiment:
    """FedAvg on texts of 16 to 40 random words of 100, of two classes."""
    import pandas

    draws, folder = np.random.default_rng(0), home / "data" / "text"
    folder.mkdir(parents=True, exist_ok=True)
    words = [f"{a}{b}" for a in "bcdfghjklmnpqrstvwxz" for b in "aeiou"]
    texts = [" ".join(draws.choice(words, draws.integers(16, 41))) for _ in range(CLIENTS * TEXTS)]
    labels = ["ba", "zu"] * (len(texts) // 2)
    pandas.DataFrame({"text": texts, "label": labels}).to_parquet(folder / "train.parquet")
    data = {
        "source": "text", "root": str(home / "data"), "tokenizer": "train", "max_length": 64, "test_fraction": 0,
        "words": {"ba": "ba", "zu": "zu"}, "prompt": "text: {text}",
        "leak_check": False,
    }  # fmt: skip
    config = {
        "rounds": rounds, "data": data, "partition": {"name": "iid", "clients": CLIENTS}, "model": network,
        "algorithm": {"name": "fedavg", "lr": 0.1, "batch_size": BATCH, "local_epochs": 1},
        "cohort": {"size": COHORT}, "evaluate": {"every": 0, "clients": False}, "checkpoint": {"every": 0},
        "resources": {"executor": "local", "server": {"threads": 1}},
    }  # fmt: skip
    return load_config(config)[0]


class BareText(Bare):
    """Token ids in memory, int64 in a batch; frozen parameters stay as they are."""

    @staticmethod
    def _in_memory(split: Split, channels_last: bool) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(split.x.copy()), torch.from_numpy(split.y.copy())

    def inputs(self, rows: Tensor) -> Tensor:
        return self.x[rows].long()


def _round(chosen: Experiment, home: Path) -> tuple[float, str]:
    """(median of the rounds' ratios of CPU time, tokens a second of both sides)."""
    from flray.api import play

    dataset = load_dataset(chosen.data)
    scenario = build(dataset, chosen.partition, seed=chosen.seed)
    times: list[tuple[float, float]] = []
    with threads(1):
        bare = BareText(chosen, scenario, Way(1, 1), addressed=True)
        weights = [parameter.detach().clone() for parameter in bare.parameters]
        began = time.process_time()
        for number, _ in enumerate(play(chosen, home / "text", scenario=scenario, overwrite=True)):
            ours = time.process_time() - began
            began = time.process_time()
            clients = _cohort(chosen, scenario, number)
            bare.train(weights, number, clients, [1 / COHORT] * COHORT)
            torch._foreach_copy_(weights, bare.total)
            times.append((ours, time.process_time() - began))
            began = time.process_time()
    times = times[WARM_UP:]
    assert dataset.vocabulary is not None
    tokens = COHORT * TEXTS * float((np.asarray(dataset.train.x) != dataset.vocabulary.pad).sum(1).mean())
    ratios = sorted(ours / theirs for ours, theirs in times)
    speeds = [f"{tokens / min(side):,.0f}" for side in zip(*times, strict=True)]
    detail = f"{' and '.join(speeds)} tokens a second of CPU, one thread; ratios {ratios[0]:.2f} to {ratios[-1]:.2f}"
    return median(ratios), detail


def _cohort(chosen: Experiment, scenario: Scenario, number: int) -> list[int]:
    clock = Clock(0, number, done=number)
    drawn: list[int] = cohorts.sample_cohort(chosen.cohort, chosen.seed, clock, scenario.members(0)).tolist()
    return drawn


# memory ------------------------------------------------------------------------------------------
def _memory(chosen: Experiment) -> tuple[float, str]:
    """(the share of the backbone in each actor's own memory, a text on the MB of an actor as their number grows)."""
    shared = {count: _actors(chosen, count, True) for count in ACTORS}
    (copied, own), (_, least) = _actors(chosen, ACTORS[-1], False), shared[ACTORS[-1]]
    network = Workbench(chosen, _task_summary(chosen)).objective
    backbone = sum(network.state_dict(*network.initial())[name].nbytes for name in network.frozen) / 2**20
    detail = ", ".join(f"{mb:.0f} MB with {count}" for count, (mb, _) in shared.items())
    detail = f"an actor (PSS): {detail}; {copied:.0f} with {ACTORS[-1]} that have a copy each"
    detail += f" of the {backbone:.0f} MB that are frozen"
    return 1 - (own - least) / backbone, detail


def _actors(chosen: Experiment, count: int, shared: bool) -> tuple[float, float]:
    """Memory of one of `count` processes after a client's work, in MB: with shared pages (PSS), and without files."""
    context = torch.multiprocessing.get_context("spawn")
    workers = []
    for _ in range(count):
        parent, child = context.Pipe()
        process = context.Process(target=_serve, args=(child, chosen, shared), daemon=True)
        process.start()
        child.close()
        workers.append((process, parent))
    for _, pipe in workers:
        pipe.recv()
    sizes = [_pss(process.pid) for process, _ in workers]
    for process, pipe in workers:
        pipe.send(None)
        process.join()
    total, anonymous = (sum(size) / count for size in zip(*sizes, strict=True))
    return total, anonymous


def _serve(pipe: Any, chosen: Experiment, shared: bool) -> None:
    """What a client actor does: a workbench, and a client of the first round."""
    torch.set_num_threads(1)
    client = Client(Workbench(chosen, _task_summary(chosen), one_of_many=shared))
    algorithm, clock = chosen.algorithm, Clock()
    state = algorithm.init_server(client.bench.context(clock), *client.bench.objective.initial())
    broadcast = to_numpy(algorithm.training.broadcast(client.bench.context(clock), state))
    scenario = build(client.bench.dataset, chosen.partition, seed=chosen.seed)
    _, drawn = cohorts.draw_cohort(chosen, clock, scenario.members(0))
    (turn,), _ = cohorts.turns(scenario, algorithm, drawn[:1], clock, algorithm.training)
    client.work(turn.chunks[0], algorithm.training, broadcast, None)
    pipe.send("ready")
    pipe.recv()


def _task_summary(chosen: Experiment) -> TaskSummary:
    return TaskSummary.of(build(load_dataset(chosen.data), chosen.partition, seed=chosen.seed))


def _pss(pid: int | None) -> tuple[float, float]:
    """MB of a process, with each shared page divided among its users: all pages, and pages without a file."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    values = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
    return values["Pss"] / 1024, values["Pss_Anon"] / 1024

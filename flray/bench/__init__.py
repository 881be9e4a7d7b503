"""`flray bench`: flray's cost relative to a bare PyTorch loop, of the start, the memory, a sweep and an error.

Compared programs run side by side on this machine, interleaved. A number is the best of `repeats` medians over rounds,
in wall time from the end of one round to the end of the next. The bare loop does the same gradient steps on the same
images: uint8 NCHW data, gather and normalise, `torch.optim.SGD`, the global weights copied in and the weighted sum
taken out for each client. It runs as one process with all threads and as one process a core; the better one counts. A
row of its own compares with a bare loop whose convolutions are channels-last, as flray's are. In the rows called
evaluated both sides test the global model on 2,000 samples after every round.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from flray.bench import processes
from flray.bench.bare import WARM_UP, BarePool, Measured, Way, Workload, measure
from flray.core.schema.errors import ConfigError, unknown
from flray.engine.progress import line

Row = dict[str, Any]
HOPELESS = 3.0  # times the best bare loop


W1 = Workload(100, 500, (32, 32, 3), 10, 50, {"name": "fedavg_cnn"})
W2 = Workload(1000, 20, (28, 28, 1), 100, 10, {"name": "mlp", "hidden": [200]})
TESTED = 2_000  # samples after each round of the evaluated rows
TARGETS = {  # name: unit, must, aim
    "W1 round flray/bare": ("ratio", 0.95, 0.80),
    "W1 round flray/channels-last bare": ("ratio", 1.05, 1.00),
    "W1 evaluated round flray/bare": ("ratio", 0.75, 0.70),
    "server share of a W1 round": ("share", 0.10, 0.03),
    "W2 round flray/bare": ("ratio", 1.15, 1.00),
    "W2 evaluated round flray/bare": ("ratio", 1.20, 1.10),
    "W2 round buffered/synchronous": ("ratio", 1.10, 1.00),
    "W2 memory of all processes": ("MB", 900, 600),
    "quickstart, whole process flray/bare": ("ratio", 1.5, 1.2),
    "W2 start to the end of round 1": ("s", 6.5, 5),
    "sweep / the same runs in a row": ("ratio", 1.10, 1.00),
    **dict.fromkeys(processes.COMMANDS, ("ratio", 10, 5)),
}


class Benchmark(NamedTuple):
    """Rows that are measured together; `seconds` for three repeats on 2 quiet cores, which the display counts on."""

    seconds: float
    rows: Callable[[Path, int, int | None], list[Row]]  # of (folder, repeats, rounds)


def bench(names: Sequence[str] | None = None, rounds: int | None = None, repeats: int = 3) -> list[Row]:
    """Rows of name, value, unit, must, aim, met (value <= must), detail, of these `BENCHMARKS`; None: of `DEFAULT`.

    `rounds` are the counted ones of each run. A line on stderr names the present benchmark and about how many seconds
    are left. Raises `ConfigError` for another name and for numbers below 1.
    """
    names = DEFAULT if names is None else names
    for name in names:
        if name not in BENCHMARKS:
            raise unknown("benchmark", name, BENCHMARKS)
    if repeats < 1 or (rounds is not None and rounds < 1):
        raise ConfigError(f"bench: rounds={rounds} and repeats={repeats} must be at least 1")
    rows: list[Row] = []
    chosen = [name for name in BENCHMARKS if name in names]
    with tempfile.TemporaryDirectory(prefix="flray-bench-") as home:
        try:
            for i, name in enumerate(chosen):
                left = sum(BENCHMARKS[later].seconds for later in chosen[i:]) * repeats / 3
                line(f"flray bench {name} ({i + 1} of {len(chosen)}); about {left:.0f} s left in all")
                rows += BENCHMARKS[name].rows(Path(home), repeats, rounds)
        finally:
            if "flray.engine.ray.cluster" in sys.modules:
                sys.modules["flray.engine.ray.cluster"].close()
    return sorted(rows, key=lambda row: list(TARGETS).index(row["name"]))


def _cli(home: Path, repeats: int, rounds: int | None) -> list[Row]:
    return [_row(name, *cost) for name, cost in processes.costs(repeats).items()]


def _startup(home: Path, repeats: int, rounds: int | None) -> list[Row]:
    return [
        _row("quickstart, whole process flray/bare", *processes.quickstart(home, repeats)),
        _row("W2 start to the end of round 1", *processes.first_round(home, repeats)),
    ]


def _w1(home: Path, repeats: int, rounds: int | None) -> list[Row]:
    tested = W1._replace(tested=TESTED)
    return [
        *compare("W1 round flray/bare", W1, rounds or 5, repeats, home),
        *compare("W1 evaluated round flray/bare", tested, rounds or 5, repeats, home),
    ]


def _w2(home: Path, repeats: int, rounds: int | None) -> list[Row]:
    tested, rounds = W2._replace(tested=TESTED), rounds or 30
    plain = compare("W2 round flray/bare", W2, rounds, repeats, home)[:1]  # without the server's share
    return [*plain, *compare("W2 evaluated round flray/bare", tested, rounds, repeats, home)]


def _buffered(home: Path, repeats: int, rounds: int | None) -> list[Row]:
    """Server steps of a server that does not wait beside rounds of one that does, of as many clients."""
    from flray.engine.prepare import build_data, build_scenario

    kinds = {"synchronous": "synchronous", "buffered": {"name": "buffered", "size": W2.cohort, "concurrency": 200}}
    devices, times = {"speed": {"name": "lognormal", "sigma": 1.0}}, dict[str, list[float]]()
    for _ in range(repeats):
        for kind, coordination in kinds.items():
            experiment = W2.experiment((rounds or 30) + WARM_UP + 1, devices=devices, coordination=coordination)
            scenario = build_scenario(experiment, build_data(experiment))
            times.setdefault(kind, []).append(measure(experiment, scenario, home / kind).round_s)
    waits, goes_on = min(times["synchronous"]), min(times["buffered"])
    detail = f"buffered {goes_on * 1e3:.1f} ms, synchronous {waits * 1e3:.1f} ms for {W2.cohort} clients"
    return [_row("W2 round buffered/synchronous", goes_on / waits, detail)]


def _memory(home: Path, repeats: int, rounds: int | None) -> list[Row]:
    return [_row("W2 memory of all processes", *processes.peak_memory(home, W2.experiment(12).yaml()))]


def _sweep(home: Path, repeats: int, rounds: int | None) -> list[Row]:
    return [_row("sweep / the same runs in a row", *processes.sweep_ratio(home, repeats, rounds))]


BENCHMARKS = {
    "cli": Benchmark(15, _cli),
    "startup": Benchmark(45, _startup),
    "W1": Benchmark(120, _w1),
    "W2": Benchmark(60, _w2),
    "buffered": Benchmark(40, _buffered),
    "memory": Benchmark(20, _memory),
    "sweep": Benchmark(200, _sweep),
}
DEFAULT = ("cli", "startup", "W1", "W2", "memory")  # at most 6 minutes


def _row(name: str, value: float, detail: str) -> Row:
    unit, must, aim = TARGETS[name]
    return {
        "name": name,
        "value": float(value),
        "unit": unit,
        "must": must,
        "aim": aim,
        "met": bool(value <= must),
        "detail": detail,
    }


# comparisons -----------------------------------------------------------------------------------
def compare(
    name: str, workload: Workload, rounds: int, repeats: int, home: Path, ways: Sequence[tuple[int, int]] | None = None
) -> list[Row]:
    """Row `name` (flray / the best plain bare loop) and, of rounds without tests, two more.

    These two are the ratio to the channels-last loop, if there are convolutions, and the server's share. `ways` are
    (processes, threads) of the bare loop.
    """
    from flray.engine.threads import cores

    experiment = workload.experiment(rounds + WARM_UP + 1)
    scenario = workload.scenario(experiment)
    layouts = (False, True) if workload.shape[-1] > 1 and not workload.tested else (False,)
    numbers = ways or list(dict.fromkeys([(cores(), 1), (1, cores())]))
    seconds: dict[Way, list[float]] = {}
    runs: list[Measured] = []
    with ExitStack() as stack:
        possible = [Way(*number, fused, last) for last in layouts for number in numbers for fused in (False, True)]
        pools = [stack.enter_context(BarePool(experiment, scenario, way)) for way in possible]
        # threads of one process on cores that others use can be 100 times slower: out after two rounds
        first = {pool.way: pool.measure(1) and pool.measure(1) for pool in pools}
        fastest = min(first.values())[0]
        pools = [pool for pool in pools if first[pool.way][0] < HOPELESS * fastest]
        for _ in range(repeats):
            for pool in pools:
                took, steps = pool.measure(rounds)
                seconds.setdefault(pool.way, []).append(took)
            runs.append(measure(experiment, scenario, home / name.split()[0]))
            if runs[-1].steps != steps:
                raise RuntimeError(
                    f"{name}: flray took {runs[-1].steps} gradient steps a round and the bare loop {steps}"
                )
    plain = {way: times for way, times in seconds.items() if not way.channels_last}
    rows = [_beside(name, runs, plain)]
    if len(plain) < len(seconds):
        last = {way: times for way, times in seconds.items() if way.channels_last}
        rows.append(_beside(name.replace("/bare", "/channels-last bare"), runs, last))
    if not workload.tested:
        flray, share = min(run.round_s for run in runs), median(run.server for run in runs)
        rows.append(_row("server share of a W1 round", share, f"{share * flray * 1e3:.1f} of {flray * 1e3:.1f} ms"))
    return rows


def _beside(name: str, runs: Sequence[Measured], seconds: dict[Way, list[float]]) -> Row:
    """The best of flray's rounds over the best of the bare loop's; `seconds` by way and repeat."""
    bare = {way: min(times) for way, times in seconds.items()}
    chosen = min(bare, key=lambda way: bare[way])
    flray = min(run.round_s for run in runs)
    ratios = sorted(run.round_s / seconds[chosen][i] for i, run in enumerate(runs))
    ways = ", ".join(f"{way} {best * 1e3:.1f}" for way, best in bare.items())
    spread = f"ratios {ratios[0]:.2f} to {ratios[-1]:.2f}"
    detail = f"flray {flray * 1e3:.1f} ms; bare {ways} ms; {runs[0].steps} steps a round; {spread}"
    return _row(name, flray / bare[chosen], detail)

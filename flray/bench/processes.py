"""Whole processes, as a user starts them: the first error, the start, the memory of all of them, a sweep beside the
same runs in a row."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median

from flray.core.schema.errors import FlrayError
from flray.shipped import shipped

_COMMAND = "from flray.cli import main; main()"
PLAIN = "import yaml, pydantic, typer, rich"
QUICKSTART = str(shipped("configs") / "quickstart.yaml")
COMMANDS = {  # row: arguments, exit code
    "flray --help / plain imports": (("--help",), 0),
    "flray list algorithms / plain imports": (("list", "algorithms"), 0),
    "flray run, wrong key / plain imports": (("run", QUICKSTART, "algorithm.lrr=0.1"), 2),
}
HOME = Path(__file__).resolve().parents[2]  # the checkout, or the folder of installed packages


def costs(repeats: int) -> dict[str, tuple[float, str]]:
    """By row: (the command's time in units of `python -c "import yaml, pydantic, typer, rich"`, the seconds of both).

    The shortest of `repeats` x 3 interleaved calls each.
    """
    plain: list[float] = []
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(3 * repeats):
        plain.append(_timed("cli", ("-c", PLAIN))[0])
        for name, (arguments, code) in COMMANDS.items():
            times[name].append(_timed("cli", ("-m", "flray", *arguments), code)[0])
    base = min(plain)
    return {name: (min(each) / base, f"{min(each):.2f} s / {base:.2f} s") for name, each in times.items()}


def _timed(bench: str, arguments: Sequence[str], code: int = 0) -> tuple[float, str]:
    """(seconds of a whole Python process that can import this flray, the last line that it printed)."""
    began = time.perf_counter()
    done = subprocess.run([sys.executable, *arguments], env=_environment(), capture_output=True, text=True)
    if done.returncode != code:
        what = " ".join(arguments) if arguments[0] == "-m" else "a process"
        raise FlrayError(f"bench {bench}: {what} ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    return time.perf_counter() - began, (done.stdout.splitlines() or [""])[-1]


# FedAvg; argv[1] is JSON: of each round the numbers of samples of its clients
_LOOP = """
import json, sys, torch
from sklearn.datasets import load_digits
from torch import nn

torch.set_num_threads(1)
digits = load_digits()
x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
train, test = torch.randperm(len(x)).split((1437, 360))
model, loss, steps = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)), nn.CrossEntropyLoss(), 0
for cohort in json.loads(sys.argv[1]):
    start, total = [p.detach().clone() for p in model.parameters()], [torch.zeros_like(p) for p in model.parameters()]
    for size in cohort:
        part = train[torch.randperm(len(train))[:size]]
        with torch.no_grad():
            for p, value in zip(model.parameters(), start):
                p.copy_(value)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        for _ in range(5):
            for batch in part[torch.randperm(size)].split(16):
                optimizer.zero_grad()
                loss(model(x[batch]), y[batch]).backward()
                optimizer.step()
                steps += 1
        with torch.no_grad():
            for value, p in zip(total, model.parameters()):
                value.add_(p, alpha=size / sum(cohort))
    with torch.no_grad():
        for p, value in zip(model.parameters(), total):
            p.copy_(value)
        right = int((model(x[test]).argmax(1) == y[test]).sum())
    print(f"acc {100 * right / len(test):.2f} %")
print(steps)
"""


def quickstart(home: Path, repeats: int) -> tuple[float, str]:
    """`flray run configs/quickstart.yaml` / a bare loop with as many steps of as large clients, whole processes.

    They take turns. flray also tests each client before and after its training, and writes a run folder. Raises
    `FlrayError` if they do not take the same number of steps.
    """
    from flray.rundir.reader import load

    times: dict[str, list[float]] = {"flray": [], "bare": []}
    for _ in range(repeats):
        command = "run", QUICKSTART, "--out", str(home / "startup"), "--overwrite"
        times["flray"].append(_timed("startup", ("-c", _COMMAND, *command))[0])
        clients = load(home / "startup").clients
        sizes = [each.tolist() for _, each in clients.groupby("round")["num_examples"]]
        seconds, steps = _timed("startup", ("-c", _LOOP, json.dumps(sizes)))
        times["bare"].append(seconds)
        if int(steps) != clients["num_steps"].sum():
            raise FlrayError(f"bench startup: flray took {clients['num_steps'].sum()} steps, the bare loop {steps}")
    flray, bare = min(times["flray"]), min(times["bare"])
    runs = ", ".join(f"{one:.2f} / {other:.2f}" for one, other in zip(*times.values(), strict=True))
    return flray / bare, f"{flray:.2f} s / {bare:.2f} s; runs: {runs} s"


_FIRST = """
import sys
from pathlib import Path
from flray import bench
from flray.running import play
experiment = bench.W2.experiment(2)
for row in play(experiment, Path(sys.argv[1]), overwrite=True):
    print("ready", file=sys.stderr, flush=True)
    break
"""
_BARE = """
import sys, torch, ray
ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
print("ready", file=sys.stderr, flush=True)
"""


def first_round(home: Path, repeats: int) -> tuple[float, str]:
    """Seconds from the start of a process to the end of W2's first round, beside one that imports torch and starts a
    Ray.

    They take turns; other load on the machine changes both times, and the ratio less.
    """
    times: dict[str, list[float]] = {"flray": [], "bare": []}
    for _ in range(repeats):
        for name, code, arguments in (("flray", _FIRST, [str(home / "first")]), ("bare", _BARE, [])):
            began = time.perf_counter()
            process = _python(code, *arguments)
            assert process.stderr is not None
            seen = []
            for line in process.stderr:
                seen.append(line)
                if line == "ready\n":
                    times[name].append(time.perf_counter() - began)
                    break
            process.stderr.read()
            if process.wait() or not seen or seen[-1] != "ready\n":
                raise FlrayError(f"bench startup: {name} failed: {seen[-1].strip() if seen else 'no output'}")
    flray, bare = min(times["flray"]), min(times["bare"])
    runs = ", ".join(f"{one:.2f} / {other:.2f}" for one, other in zip(*times.values(), strict=True))
    return flray, f"{flray / bare:.2f} of importing torch and starting Ray ({bare:.2f} s); runs: {runs} s"


def peak_memory(home: Path, experiment: str) -> tuple[float, str]:
    """(MB without mapped files, with them) of driver and actors at the peak of `flray run` with this configuration."""
    config = home / "memory.yaml"
    config.write_text(experiment)
    process = _python(_COMMAND, "run", str(config), "--out", str(home / "memory"), "--overwrite")
    most, unmapped = 0.0, 0.0
    while process.poll() is None:
        total, own, _ = pss(process.pid)
        most, unmapped = max(most, total), max(unmapped, own)
        time.sleep(0.05)
    _, errors = process.communicate()
    if process.returncode:
        raise FlrayError(f"bench memory: the run failed: {errors.strip()[-300:] or 'no output'}")
    return unmapped, f"driver and actors without mapped files; with them {most:.0f}"


TRIALS = 8
_IN_A_ROW = """
import sys, yaml
from pathlib import Path
from flray.running import simulate
from flray.config.loader import load_config
spec = yaml.safe_load(open(sys.argv[1]))
for i, lr in enumerate(spec["space"]["algorithm.lr"][: spec["trials"]]):
    simulate(load_config(spec["experiment"], {"algorithm.lr": lr})[0], Path(sys.argv[2]) / str(i), overwrite=True)
"""


def sweep_ratio(home: Path, repeats: int, rounds: int | None) -> tuple[float, str]:
    """(wall time of `flray sweep` over that of the same runs in one process, its spread), for `TRIALS` trials of the
    quickstart one at a time, with tables and figures; each from the start of the process to its end, with a Ray of its
    own and every core for one run. They take turns, `repeats` times."""
    config = _written(home, rounds)
    times: dict[str, list[float]] = {"row": [], "sweep": []}
    for number in range(repeats):
        sweep = (_COMMAND, "sweep", str(config), "--out", str(home / f"sweep-{number}"))
        times["row"].append(_timed("sweep", ("-c", _IN_A_ROW, str(config), str(home / "row")))[0])
        times["sweep"].append(_timed("sweep", ("-c", *sweep))[0])
    detail = "; ".join(f"{way}: " + ", ".join(f"{t:.1f}" for t in seconds) + " s" for way, seconds in times.items())
    return median(a / b for a, b in zip(times["sweep"], times["row"], strict=True)), detail


def _written(home: Path, rounds: int | None) -> Path:
    import yaml

    from flray.engine.threads import cores

    experiment = {
        "extends": QUICKSTART,
        "evaluate": {"validation": {"fraction": 0.1}},
        "resources": {"client_actors": cores()},
        **({} if rounds is None else {"rounds": rounds}),
    }
    values = [0.01 * (i + 1) for i in range(TRIALS)]
    budget = {"trials": TRIALS, "concurrency": 1, "sampler": "random", "final": {"top": 0}}
    config = home / "sweep.yaml"
    config.write_text(
        yaml.safe_dump({"name": "bench", "experiment": experiment, "space": {"algorithm.lr": values}, **budget})
    )
    return config


def _python(code: str, *arguments: str) -> subprocess.Popen[str]:
    """Starts a process that imports this flray and starts its own Ray."""
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.Popen(command, env=_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def _environment() -> dict[str, str]:
    env = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    env["PYTHONPATH"] = os.pathsep.join([str(HOME), *filter(None, [env.get("PYTHONPATH")])])
    return env


_FORKS = "flray.engine.forked", "ray/private/worker.py\0"  # the actors' parent, and who waits for each of them
_ACTORS = "ray::ClientActor", "ray::ServerActor"


def pss(root: int) -> tuple[float, float, float]:
    """MB with each shared page divided among its users: driver, actors and `_FORKS`, the same without mapped files, the
    driver alone."""
    parents: dict[int, int] = {}
    commands = [*_FORKS]
    with _gone():
        commands += filter(None, [Path(f"/proc/{root}/cmdline").read_text()])  # a fork of the driver has its command
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with _gone():
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    total, unmapped, driver = 0, 0, 0
    for pid in parents:
        with _gone():
            command = Path(f"/proc/{pid}/cmdline").read_text()
            counted = command.startswith(_ACTORS) or any(words in command for words in commands)
            if pid == root or (counted and root in _ancestors(pid, parents)):
                lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
                values = {key: int(rest.split()[0]) for key, _, rest in (line.partition(":") for line in lines)}
                total += values["Pss"]
                unmapped += values["Pss_Anon"] + values["Pss_Shmem"]
                driver += values["Pss"] if pid == root else 0
    return total / 1024, unmapped / 1024, driver / 1024


def _ancestors(pid: int, parents: dict[int, int]) -> Iterator[int]:
    while pid in parents:
        pid = parents[pid]
        yield pid


@contextmanager
def _gone() -> Iterator[None]:
    """Allows that a process ends while it is read."""
    with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
        yield

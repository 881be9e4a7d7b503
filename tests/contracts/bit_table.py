"""The bits of every algorithm, written down: nothing that only moves code may change them.

    python -m tests.contracts.bit_table            # compare with bit_table.json; exit code 1 names what changed
    python -m tests.contracts.bit_table --write    # after a change that is meant; its commit says which bits and why

The kernels are held to plain SSE arithmetic, MKL's to AVX2, on one thread, so that most machines agree. `canary` is a
bare PyTorch loop, no flray in it: machines on which it has other bits round differently, and have a table of their own
in the file. On a machine without one nothing can be compared; `--write` adds it.
"""

import json
import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

PORTABLE = {
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_CBWR": "AVX2",  # for SSE it takes square roots from RSQRTPS, which processors round in their own ways
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}  # read when torch is imported
FILE = Path(__file__).with_suffix(".json")
ROOT = Path(__file__).parents[2]
ROUNDS = 3


def canary() -> str:
    """Forty steps of SGD on a small network with batch norm and a distillation loss, and MKL's functions: the
    operations that the table rests on."""
    import torch

    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(12, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Linear(16, 3)
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    x, y, teacher = torch.randn(64, 12), torch.randint(3, (64,)), torch.randn(64, 3)
    for _ in range(40):
        optimizer.zero_grad()
        logits = net(x)
        soft = torch.nn.functional.kl_div(logits.log_softmax(1), teacher.softmax(1), reduction="batchmean")
        (torch.nn.functional.cross_entropy(logits, y) + soft).backward()
        optimizer.step()
    positive = torch.rand(1000) + 0.01
    functions = [f(positive) for f in (torch.sqrt, torch.exp, torch.log, torch.tanh, torch.sigmoid, torch.norm)]
    tensors = [*(p.detach() for p in net.parameters()), *functions]
    return _digest(torch.cat([tensor.flatten() for tensor in tensors]).numpy().tobytes())


def entry(experiment: Any) -> dict[str, str]:
    """Checksums after three rounds: the model as it is saved, the server's and the clients' state, and the numbers of
    the rounds."""
    from flray.contracts.played import Local, flatten

    with tempfile.TemporaryDirectory() as folder:
        local = Local(experiment, Path(folder))
        state = local.play(ROUNDS)
        clients = {f"{k}/{name}": array for k, s in local.client_states().items() for name, array in flatten(s).items()}
        found = {
            # the state of a rule was the algorithm's own once, and has the names that it had there
            "state": _arrays({name.removeprefix("rule."): array for name, array in flatten(state).items()}),
            "clients": _arrays(clients),
            "rounds": _digest(_numbers(local).encode()),
        }
        if experiment.algorithm.global_model:
            named = local.server.runtime.objective.state_dict(state.w, state.b)
            found["model"] = _arrays({name: tensor.numpy() for name, tensor in named.items()})
    return found


def _numbers(local: Any) -> str:
    """Every number of the rounds, and the last test; to nine digits, because NumPy's own sums differ between
    processors."""
    rows = [{**row, **sent} for row, sent in zip(local.rows, local.sent, strict=True)]
    runtime, experiment = local.server.runtime, local.experiment
    if experiment.algorithm.global_model:
        from flray.core.protocol.clock import Clock

        counts = next(iter(local.server.evaluate(Clock(local.position.task, ROUNDS - 1, done=ROUNDS - 1)).values()))
        rows.append({"loss": counts.loss, "right": counts.right.sum(), "parameters": runtime.objective.layout.count})
    plain = [
        {name: value if isinstance(value, str | bool) else f"{float(value):.9g}" for name, value in row.items()}
        for row in rows
    ]
    return json.dumps(plain, sort_keys=True)


def _arrays(arrays: dict[str, Any]) -> str:
    parts = (f"{name}{a.dtype.str}{a.shape}".encode() + a.tobytes() for name, a in sorted(arrays.items()))
    return _digest(b"".join(parts))


def _digest(content: bytes) -> str:
    import hashlib  # one that is everybody's: the table outlives the project's own choice

    return hashlib.blake2b(content, digest_size=8).hexdigest()


def measure() -> dict[str, Any]:
    import torch

    from flray.algorithms import built_in
    from flray.config.loader import load_config
    from tests.contracts.table import TABLE, experiment

    torch.set_num_threads(1)
    found = {name: entry(experiment(name)) for name in TABLE if name in built_in(federated=True)}
    over_tasks = {name: row for name, row in TABLE.items() if row.sections and name in found}
    found |= {f"{name} over tasks": entry(experiment(name, **row.sections)) for name, row in over_tasks.items()}
    found["quickstart"] = entry(load_config(ROOT / "configs" / "quickstart.yaml", ["resources.server.threads=1"])[0])
    return found


def differences(known: dict[str, Any], found: dict[str, Any], elsewhere: Iterable[str] = ()) -> dict[str, str]:
    """By name what is not as it is `known`. A new name that is known `elsewhere`, on another machine, is none."""
    lines = {}
    for name in dict.fromkeys([*known, *found]):
        was, now = known.get(name, {}), found.get(name, {})
        changed = [what for what in dict.fromkeys([*was, *now]) if was.get(what) != now.get(what)]
        if changed and (was or name not in elsewhere):
            lines[name] = ", ".join(changed)
    return lines


def written(tables: dict[str, Any], machine: str, found: dict[str, Any]) -> dict[str, Any]:
    """The tables by machine with what was `found` on this one. The others lose the rows whose bits changed here."""
    stale = differences(tables[machine], found, elsewhere=found) if machine in tables else {}
    others = {other: {name: row for name, row in rows.items() if name not in stale} for other, rows in tables.items()}
    return {**others, machine: found}


if __name__ == "__main__":
    if any(os.environ.get(name) != value for name, value in PORTABLE.items()):
        os.execve(
            sys.executable,
            [sys.executable, "-m", "tests.contracts.bit_table", *sys.argv[1:]],
            {**os.environ, **PORTABLE},
        )
    import torch

    version, machine = torch.__version__.split("+")[0], canary()
    known = json.loads(FILE.read_text())
    tables = known["machines"] if known["torch"] == version else {}
    if "--write" in sys.argv:
        content = {"torch": version, "machines": written(tables, machine, measure())}
        FILE.write_text(json.dumps(content, indent=1) + "\n")
        sys.exit()
    if machine not in tables:
        print(f"cannot compare: no table for torch {version} on a machine that rounds as {machine}")
        sys.exit(77)
    elsewhere = {name for rows in tables.values() for name in rows}
    changed = differences(tables[machine], measure(), elsewhere)
    print("\n".join(f"{name}: {what}" for name, what in changed.items()) or "every bit is as it was")
    sys.exit(bool(changed))

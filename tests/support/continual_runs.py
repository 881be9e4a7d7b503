"""Run folders written by hand: tests of single tasks, tests through a window of missing data."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import yaml

from tests.support.tables import config, put


def counted(name: str, mode: str, right: Any, total: Any, **when: Any) -> dict[str, Any]:
    """A row of tests/ from counts by class."""
    right, total = np.asarray(right), np.asarray(total)
    return {
        **{"done": 0, "task": 0, "round": 0, "phase": "round"}, **when, "set": name, "mode": mode,
        "total": int(total.sum()), "right": int(right.sum()), "covered": int(total.sum()), "loss_sum": 1.0,
        "class_total": total.tolist(), "class_right": right.tolist(),
    }  # fmt: skip


def written(path: Path, values: Any, tests: list[dict[str, Any]], rounds: int, status: str = "finished") -> Path:
    """A run folder with these rows of tests/ and as many rounds."""
    path.mkdir(parents=True)
    (path / "config.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
    (path / "STATUS").write_text(status + "\n")
    whole = {row["done"]: row["right"] / row["total"] for row in tests if row["set"] == "test"}
    rows = {
        "done": list(range(1, rounds + 1)),
        "task": 0,
        "round": 1,
        "test/acc": [whole.get(d + 1) for d in range(rounds)],
    }
    for name, table in (("rounds", pandas.DataFrame(rows)), ("tests", pandas.DataFrame(tests))):
        put(path, name, table)
    return path


def tasks(
    path: Path, percent: Any, *, seed: int = 0, algorithm: str = "fedavg", ended: int | None = None, **more: Any
) -> Path:
    """A run of T tasks of one class and 100 test samples each, one round a task, tested at each task's end.

    `percent [T, T]`: the matrix of the mode `global`, in per cent; the mode `aware` has five samples more of each task.
    The mode `tip` has the same as `global` and predicts the right task for `percent` of the samples, and task 0 for the
    others. The initial model has 10 % everywhere.
    """
    size, tests = len(percent), []

    def one(number: int, value: int, mode: str, **when: Any) -> dict[str, Any]:
        right, total = np.zeros(size, int), np.zeros(size, int)
        right[number], total[number] = value, 100
        row = counted(f"task-{number}", mode, right, total, **when)
        if mode == "tip" and when:
            sent = np.zeros(size, int)
            sent[number] += value
            sent[0] += 100 - value
            row["predicted_tasks"] = sent.tolist()
        return row

    for mode in ("global", "aware", "tip"):
        tests += [one(task, 10, mode) for task in range(size)]
    for after in range(size if ended is None else ended):
        when = {"done": after + 1, "task": after, "round": 1, "phase": "task_end"}
        for mode in ("global", "aware", "tip"):
            values = [min(100, value + 5 * (mode == "aware")) for value in percent[after]]
            parts = [one(task, value, mode, **when) for task, value in enumerate(values)]
            seen = parts[: after + 1]
            right, total = (np.sum([row[key] for row in seen], axis=0) for key in ("class_right", "class_total"))
            tests += [counted("test", mode, right, total, **when), *parts]
    own = config(algorithm, seed, tasks={"name": "class_incremental", "num_tasks": size}, rounds=1, **more)
    return written(path, own, tests, size if ended is None else ended, "finished" if ended is None else "running")


def drift(
    path: Path, percent: Any, start: int, stop: int | None, *, seed: int = 0, algorithm: str = "fedavg", **more: Any
) -> Path:
    """A run with a window in which class 0 of two is missing; `percent [N, 2]`: accuracy by class from round 0."""
    tests = [counted("test", "global", row, [100, 100], done=done, round=done) for done, row in enumerate(percent)]
    window = {"name": "remove_classes", "classes": [0], "from_round": start, "to_round": stop}
    return written(path, config(algorithm, seed, drift=window, **more), tests, len(percent) - 1)


def watched(folder: Path, on: set[int]) -> Path:
    """The run with diagnostics of six rounds as the probe `latent_forgetting` writes them: an alarm in these."""
    rows = [
        {"done": d, "wv": 1e-4 / d, "smoothed": 1e-4, "reference": 2e-4, "threshold": 7e-5, "alarm": d in on}
        for d in range(1, 7)
    ]
    return put(folder, "diagnostics/latent_forgetting", rows)

"""Learning and forgetting of one run in numbers, by inference mode: over its tasks, and through a drift of its data."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from flray.core.schema.errors import CheckpointError, message_of
from flray.files import read_checksummed, regular
from flray.metrics import forgetting
from flray.metrics.classification import accuracy, per_class
from flray.metrics.names import OF_ALARMS, OF_DRIFT, OF_EXEMPLARS, OF_TASKS
from flray.results.alarms import is_watched, of_alarms
from flray.rundir.by_task import ClassCounts, TaskTests, class_counts, counts_of_begun, task_tests
from flray.rundir.reader import Run

if TYPE_CHECKING:
    import pandas


class DriftWindow(NamedTuple):
    """The rounds `start <= round < stop` in which a drift takes data away, counted over all tasks from 1."""

    start: int
    stop: float  # inf: the data never return
    classes: tuple[int, ...]  # the outputs of those that are missing


def is_continual(config: Mapping[str, Any]) -> bool:
    """Whether a configuration (`tables.settings`) has several tasks or a drift."""
    return any(key.startswith(("tasks.", "drift.")) for key in config)


def numbers(run: Run, config: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """The metrics `OF_TASKS` of the tasks that have ended, `OF_DRIFT` and `OF_EXEMPLARS`, by inference mode.

    The first mode also has the metrics that belong to none: `OF_ALARMS` by detector (`detect/f1@fedmemo`). `config` is
    `tables.settings(run)`. Raises `CheckpointError` for a damaged table.
    """
    watched = is_watched(run)
    if not (watched or is_continual(config)) or not len(run.tests):
        return {}
    modes = [str(mode) for mode in run.tests["mode"].unique()]
    over_tasks, window = task_tests(run.tests), drift_window(run, config)
    by_mode = {mode: of_tasks(over_tasks[mode]) if mode in over_tasks else {} for mode in modes}
    for mode in modes:
        counts = class_counts(run.tests, tested_set(config), mode)
        if counts is not None and window is not None:
            by_mode[mode] |= of_drift(counts, window, counts_of_begun(run.tests, window.start, mode))
    for values in by_mode.values():
        values |= stored_exemplars(run) if values else {}
    if watched:
        by_mode[modes[0]] |= of_alarms(run) if window is None else of_alarms(run, window.start, window.stop)
    return {mode: values for mode, values in by_mode.items() if values}


def stored_exemplars(run: Run) -> dict[str, float]:
    """`OF_EXEMPLARS` at the last task's end: samples of earlier tasks on all clients, and their bytes; {} if none."""
    if "kept/samples" not in run.tasks or not (run.tasks["kept/samples"] > 0).any():
        return {}
    ends = run.tasks.dropna(subset="kept/samples")[["kept/samples", "kept/sample_bytes"]]
    return dict(zip(OF_EXEMPLARS, map(float, ends.iloc[-1]), strict=True))


def by_column(by_mode: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """The numbers as columns of `compare`: the first mode's by their own name, another mode's as `ACC@mode`."""
    return {
        name if number == 0 else f"{name}@{mode}": value
        for number, (mode, values) in enumerate(by_mode.items())
        for name, value in values.items()
    }


def is_column(name: str) -> bool:
    """Whether `by_column` gives columns of this name."""
    return name.partition("@")[0] in (*OF_TASKS, *OF_EXEMPLARS, *OF_DRIFT, *OF_ALARMS)


def of_tasks(tests: TaskTests) -> dict[str, float]:
    """The metrics over the tasks that have ended, as shares, defined in `flray/metrics/forgetting.py`.

    `task_prediction` only if the mode predicts tasks. FWT is 0 in a mode whose answers never have a class of the
    next task, as `global`.
    """
    ended = len(tests.right)
    matrix = tests.matrix[:, :ended]
    measures = {
        "ACC": forgetting.average_accuracy(matrix),
        "FT": forgetting.forgetting(matrix),
        "AIA": forgetting.average_incremental_accuracy(matrix),
        "BWT": forgetting.backward_transfer(matrix),
        "FWT": forgetting.forward_transfer(matrix, tests.initial),
        "ACC_pooled": forgetting.pooled_accuracy(tests.right[:, :ended], tests.total[:, :ended]),
        "FT_std": forgetting.forgetting_std(matrix),
    }
    if tests.predicted is not None:
        measures["task_prediction"] = forgetting.task_prediction_accuracy(tests.predicted[-1, :ended])
    return {name: measures[name] for name in OF_TASKS if name in measures}


def of_drift(counts: ClassCounts, window: DriftWindow, begun: ClassCounts | None) -> dict[str, float]:
    """Accuracy before, in and after the window over all classes, and that of the missing classes at its end.

    `begun`: the counts of the tasks that had begun before the window; None: there are no tasks. Accuracies before, in
    and after the window are compared, so they are of these: the test set of `counts` grows with the tasks.
    """
    same = counts if begun is None else begun
    overall = per_class(same.right.sum(axis=1), same.total.sum(axis=1))
    through = forgetting.through_window(same.done, overall, window.start, window.stop)
    inside = [i for i, done in enumerate(counts.done) if window.start <= done < window.stop]
    missing = list(window.classes)
    at_end = (
        accuracy(counts.right[inside[-1], missing], counts.total[inside[-1], missing])
        if inside and missing
        else math.nan
    )
    values = (through.before, through.window_end, at_end, through.final, through.recovered_after, through.worst_drop)
    return dict(zip(OF_DRIFT, values, strict=True))


def drift_window(run: Run, config: Mapping[str, Any]) -> DriftWindow | None:
    """The window of a run's drift; None without a drift, or if no client has lost a sample.

    The configuration of a user's own schedule has no window. Then it lasts from the first to the last round in which a
    client of the cohort lost samples, over the classes that lost some (`partition/drift.parquet`). These are also the
    classes of `glue` in a union of text, which is configured by labels within each task. Raises `CheckpointError` if
    that table cannot be read.
    """
    if "drift.name" not in config:
        return None
    start, stop = config.get("drift.from_round"), config.get("drift.to_round")
    classes = json.loads(config.get("drift.classes") or "[]")
    within_tasks = config["drift.name"] == "glue" and config.get("data.source") == "union"
    if start is None or within_tasks:
        lost = _lost(run)
        classes = sorted(set(lost["class"].tolist()))
        if start is None and lost.empty:
            return None
        if start is None:
            start, stop = lost["round"].min(), lost["round"].max() + 1
    return DriftWindow(int(start), math.inf if stop is None else float(stop), outputs_of(run, config, classes))


def _lost(run: Run) -> pandas.DataFrame:
    """The rows of `partition/drift.parquet` that lost samples. Raises `CheckpointError`."""
    import pandas

    path = run.folder / "partition" / "drift.parquet"
    try:
        table = pandas.read_parquet(regular(path))
        return table[table["kept"] < table["of"]]
    except (OSError, ValueError, KeyError) as error:
        why = message_of(error)
        raise CheckpointError(f"{path} cannot be read ({why}): which rounds drift is not known") from error


def outputs_of(run: Run, config: Mapping[str, Any], classes: Sequence[int]) -> tuple[int, ...]:
    """The outputs of these classes, by which tests count. With separate heads each class has one in every domain.

    Raises `CheckpointError` if the stored tasks, which have them, cannot be read.
    """
    if config.get("tasks.heads") != "separate":
        return tuple(classes)
    path = run.folder / "partition" / "scenario.json"
    try:
        pairs = [zip(of["classes"], of["outputs"], strict=True) for of in read_checksummed(path)["stages"]]
        return tuple(sorted(output for pair in pairs for label, output in pair if label in classes))
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = message_of(error)
        raise CheckpointError(f"{path} cannot be read ({why}): the missing classes' outputs are not known") from error


def tested_set(config: Mapping[str, Any]) -> str:
    """The test set of the metric `test/acc`, or of `val/acc` if a validation split is held out."""
    return "val" if any(key.startswith("evaluate.validation.") for key in config) else "test"

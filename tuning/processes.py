"""Runs experiments side by side in processes of this machine, without Ray: the cells of a grid of small runs.

A process reads jobs from its standard input, a line each, and answers with a line after each round and for each
warning. It pauses its run and ends when the input ends or the answer finds no reader. A job whose process is lost goes
on in a new one.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import queue
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flray.config.experiment import Experiment
from flray.config.loader import with_values
from flray.core.schema.errors import failure
from flray.core.schema.plain import words as texts
from flray.core.schema.registry import MAIN, Registry
from flray.engine import forked
from flray.engine.threads import PROCESS_BYTES, cores, memory
from flray.rundir.reader import Run
from flray.tuning.display import Display
from flray.tuning.trial_run import TrialRun

LOST = 3  # processes that a job may lose

Answers = queue.SimpleQueue[tuple[str, dict[str, Any]]]


class Job(NamedTuple):
    """A run: its `key`, its `folder`, the experiment. `replaces` is the inode of a run there that the job overwrites, 0
    for none, a run that is begun is resumed."""

    key: str
    folder: str
    experiment: dict[str, Any]
    own: str  # of `by_value.dumped`
    replaces: int
    path: list[str]

    @classmethod
    def of(cls, folder: Path, experiment: Experiment, overwrite: bool) -> Job:
        replaces = folder.stat().st_ino if overwrite and folder.exists() else 0
        here = experiment.resources.model_copy(update={"executor": "local"})
        dump = experiment.model_copy(update={"resources": here}).dump()
        return cls(folder.name, str(folder.absolute()), dump, _own(experiment), replaces, sys.path)


def _own(experiment: Experiment) -> str:
    """What only this process knows, see :func:`by_value.dumped`; "" imports no Ray."""
    words, imports = set(texts(experiment.dump())), experiment.imports
    known = any(table.of_main() or table.own_entries(words, imports) for table in Registry.tables)
    if not known and not any(word.startswith(MAIN) for word in words):
        return ""
    from flray.engine.ray import by_value

    return by_value.dumped(experiment)


def at_once(experiment: Experiment, concurrency: int | str) -> int:
    """How many runs like this one are computed at a time: as many as cores hold, within memory and `concurrency`."""
    fit = max(1, min(cores() // max(1, int(experiment.resources.client.num_cpus)), memory() // PROCESS_BYTES))
    return fit if concurrency == "auto" else min(fit, int(concurrency))


def run_jobs(jobs: Sequence[Job], processes: int, display: Display) -> None:
    """Runs each job to its end, so many at a time, and tells the display. An error of a run is its status."""
    feeders = [_Feeder() for _ in range(min(processes, len(jobs)))]
    waiting, lock, answers = iter(jobs), threading.Lock(), Answers()
    warned: dict[Any, Any] = {}

    def next_job() -> Job | None:
        with lock:
            return next(waiting, None)

    threads = [threading.Thread(target=feeder.feed, args=(next_job, answers)) for feeder in feeders]
    for thread in threads:
        thread.start()
    try:
        for _ in jobs:
            key, answer = answers.get()
            while not answer["done"]:
                if "warning" in answer:
                    _show_warning(warned, *answer["warning"])
                else:
                    display.progressed(key, answer["round"], answer["rounds"])
                key, answer = answers.get()
            display.ended_with(key, answer)
    finally:
        for feeder in feeders:
            feeder.close()
        for thread in threads:
            thread.join()


def _show_warning(
    warned: dict[Any, Any], text: str, lineage: Sequence[tuple[str, str]], filename: str, lineno: int, module: str
) -> None:
    """Shows a warning of another process as this one shows its own, by its filters. `warned`: the `registry` of
    `warnings.warn_explicit`; `lineage`: (module, name) of its class and of the bases."""
    known = (getattr(sys.modules.get(home), name, None) for home, name in lineage)  # others can be in no filter
    base: Any = next(each for each in known if isinstance(each, type) and issubclass(each, Warning))
    kind = _of_text(lineage[0][1], base)
    try:
        warnings.warn_explicit(text, kind, filename, lineno, module, warned)
    except kind as error:  # a filter makes an error of it, too late for its run, and no other run is to end by it
        warnings.showwarning(error, kind, filename, lineno)


@functools.cache  # one class is one entry of a registry
def _of_text(name: str, base: type[Warning]) -> type[Warning]:
    """A class of warnings that takes a text, whatever its `base` takes."""
    return type(name, (base,), {"__init__": Warning.__init__, "__str__": Warning.__str__})


class _Feeder:
    """Gives jobs to one process at a time, and starts the next where one is lost."""

    def __init__(self) -> None:
        self._process: forked.Child | None = None
        self._closed, self._starting = False, threading.Lock()

    def feed(self, next_job: Callable[[], Job | None], answers: Answers) -> None:
        """Until there are no more jobs, or :meth:`close`."""
        while not self._closed and (job := next_job()) is not None:
            try:
                ending = self._tried(job, answers)
            except Exception as error:  # a job without an answer would be waited for
                ending = {"done": True, "status": f"failed: {failure(error)}"}
                self._drop()  # what it still says is of this job
            answers.put((job.key, ending))
        self.close()
        self._drop()

    def _drop(self) -> None:
        with self._starting:
            process, self._process = self._process, None
        if process is not None:
            process.terminate()
            process.wait()
            process.close()

    def _tried(self, job: Job, answers: Answers) -> dict[str, Any]:
        """The last answer to the job, of one of `LOST` processes."""
        code = 0
        for _ in range(LOST):
            if (ending := self._ending(job, answers)) is not None:
                return ending
            if self._closed:
                break
            assert self._process is not None
            code = self._process.wait()
            self._drop()
        lost = f"failed: its process was lost {LOST} times, the last time with exit status {code}"
        return {"done": True, "status": lost}

    def _ending(self, job: Job, answers: Answers) -> dict[str, Any] | None:
        """The last answer to the job; None: the process is lost."""
        with self._starting:
            if self._closed:
                return None
            if self._process is None:
                self._process = forked.fork(f"{__name__}:work")
        with contextlib.suppress(BrokenPipeError, ValueError):  # it is lost, or closed meanwhile
            self._process.stdin.write(f"{json.dumps(job)}\n")
            self._process.stdin.flush()
        for line in self._process.stdout:
            answer: dict[str, Any] = json.loads(line)
            if answer["done"]:
                return answer
            answers.put((job.key, answer))
        return None

    def close(self) -> None:
        """The process pauses the run that it has, and ends."""
        with self._starting:
            self._closed, process = True, self._process
        if process is not None:
            process.terminate()
            process.wait()


# the process -----------------------------------------------------------------------------------
def work() -> None:
    """Runs the jobs of the standard input."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the code of a run prints is no answer
    signal.signal(signal.SIGTERM, _stop)

    def answer(values: Mapping[str, Any]) -> None:
        answers.write(f"{json.dumps(values)}\n")

    def show(message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: Any, **__: Any) -> None:
        lineage = [(each.__module__, each.__name__) for each in category.__mro__]
        # code of a script, which came by value, has no module here
        files = {getattr(module, "__dict__", {}).get("__file__"): name for name, module in [*sys.modules.items()]}
        with contextlib.suppress(BrokenPipeError):  # the run goes on to its next answer, and is paused there
            answer(
                {"done": False, "warning": (str(message), lineage, filename, lineno, files.get(filename, "__main__"))}
            )

    warnings.showwarning = show
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        for line in sys.stdin:
            with contextlib.closing(_answers(Job(*json.loads(line)))) as told:
                for values in told:
                    answer(values)
    os._exit(0)  # at once: a closed pipe of answers would be a traceback, and what imports left open has nothing to say


def _stop(number: int, frame: Any) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # one interruption; a second would come into the writing of a pause
    raise KeyboardInterrupt


def _experiment(job: Job) -> Experiment:
    """The experiment of a job, in a process that has imported nothing of the user's."""
    sys.path.extend(entry for entry in job.path if entry not in sys.path)
    if job.own:
        from flray.engine.ray import by_value

        by_value.adopt(job.own)
    return with_values(job.experiment, {})


def _answers(job: Job) -> Generator[dict[str, Any]]:
    """After each round, and at the end with the run's status."""
    told = {"round": 0, "rounds": 0}
    try:
        experiment = _experiment(job)
    except Exception as error:  # also of the user's modules, as this process imports them
        yield {"done": True, **told, "status": f"failed: {failure(error)}"}
        return
    told["rounds"] = experiment.total_rounds
    run = TrialRun(experiment, Path(job.folder), (), bool(job.replaces), job.replaces or None)
    try:
        run.wait()
        run.recall(run.saved)  # and finishes a run that has its last checkpoint
        while not run.ended:
            run.advance()
            told["round"] = run.round
            yield {"done": False, **told}
        status = Run(run.folder).status
    except Exception as error:
        status = f"failed: {failure(error)}"
    finally:
        run.pause()
    yield {"done": True, **told, "status": status}

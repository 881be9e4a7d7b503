"""One trial as Ray Tune runs it: the same experiment in an ordinary run folder, round by round, inside the trial's
placement group."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ray import tune

from flray.config.experiment import Experiment
from flray.config.loader import with_values
from flray.core.schema.errors import ConfigError, ResourceError, failure
from flray.engine.ray import by_value, leases
from flray.engine.ray.placement import trial_of_sweep
from flray.engine.ray.places import Places
from flray.log import LOGGER
from flray.rundir.reader import Run
from flray.tuning.studies import disk_full
from flray.tuning.trial_run import TrialRun


class ObjectiveError(ConfigError):
    """Raised if no trial can report the objective."""


class Job(NamedTuple):
    """A trial: its `key` in the sweep, its run `folder`, the experiment, and its objectives.

    `rungs` are (round over all tasks, number of seeds over which a value there is the mean). `overwrite`: replaces the
    run that is in the folder when the job is made (known by its inode, `replaces`); a later one is the job's own.
    """

    key: str
    folder: str
    experiment: dict[str, Any]
    own: str  # what a script or a notebook defines
    objectives: tuple[str, ...]
    rungs: tuple[tuple[int, int], ...]
    path: tuple[str, ...]
    overwrite: bool = False
    replaces: int | None = None
    place: str = "."  # where relative paths begin
    places: tuple[str, dict[str, str]] = ("", {})  # of `engine.ray.places.Places`

    @classmethod
    def of(
        cls,
        key: str,
        folder: Path,
        experiment: Experiment,
        objectives: Sequence[str],
        rungs: Sequence[tuple[int, int]],
        overwrite: bool = False,
    ) -> Job:
        replaces = folder.stat().st_ino if overwrite and folder.exists() else None
        settings = (experiment.dump(), by_value.dumped(experiment), tuple(objectives), tuple(rungs), tuple(sys.path))
        return cls(key, str(folder.absolute()), *settings, overwrite, replaces, os.getcwd(), Places.here())

    def config(self, values: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The job for Ray Tune as one string, so that Ray Tune finds no search space in it; population-based
        training changes `values`."""
        return {"job": json.dumps(self._asdict()), "key": self.key, "values": dict(values or {})}

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> Job:
        content = json.loads(config["job"])
        return cls(**{**content, "rungs": tuple(map(tuple, content["rungs"]))})


class Trial(tune.Trainable):
    """Reports after every tested round. A trial that ends or is stopped leaves a run that can be resumed."""

    _before: Exception | None = None  # an error that the trial before left in this process

    def setup(self, config: dict[str, Any]) -> None:
        leases.keep(True)  # the next seed, or the next trial in this process, has the same actors
        self._begin(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        try:
            self._pause()
        except Exception as error:
            self._begin(new_config)
            if disk_full(error):  # the trial before has ended; this one's report says what concerns all
                self._before = error
            else:
                LOGGER.warning(f"the trial before could not be kept for a resume: {failure(error)}")
        else:
            self._begin(new_config)
        return True

    def _begin(self, config: dict[str, Any]) -> None:
        self.job = Job.read(config)
        Places(*self.job.places).adopt()
        sys.path.extend(entry for entry in self.job.path if entry not in sys.path)
        with contextlib.suppress(OSError):  # on another node
            os.chdir(self.job.place)
        by_value.adopt(self.job.own)
        self._values: dict[str, Any] = config["values"]
        self.experiment = with_values(self.job.experiment, self._values)
        self._before = None
        self._runs: list[TrialRun] = []  # one a seed, as far as a rung has asked for it
        self._judged = 0  # the last round that was reported
        self._told = False  # of the values that the run has from before

    def _run(self, index: int) -> TrialRun:
        for new in range(len(self._runs), index + 1):
            seeded = self.experiment.model_copy(update={"seed": self.experiment.seed + new})
            folder = Path(self.job.folder + (f"-seed{new}" if new else ""))
            self._runs.append(
                TrialRun(
                    seeded, folder, self.job.objectives, self.job.overwrite, self.job.replaces, tuple(self._values)
                )
            )
        return self._runs[index]

    # one report -------------------------------------------------------------------------------
    def step(self) -> dict[str, Any]:
        """The objectives at the next tested round. Retries after the loss of a node. Any other error of the run
        becomes a result (with `everyone` if every trial would have it)."""
        try:
            if self._before is not None:
                raise self._before
            with trial_of_sweep():
                result = self._step()
        except ResourceError:
            raise
        except Exception as error:
            result = {"round": self._judged, "done": True, "status": f"failed: {failure(error)}"}
            if disk_full(error) or isinstance(error, ObjectiveError):
                result["everyone"] = True
        result |= {
            "spent": sum(run.sums["client_steps"] for run in self._runs),
            "seconds": sum(run.sums["time/s"] for run in self._runs),
        }
        in_time = bool(self._runs) and self._runs[0].in_time  # it has ended before its last round (`until`)
        rounds = result["round"] if in_time else self.experiment.total_rounds
        return {**result, "key": self.job.key, "rounds": rounds}

    def _step(self) -> dict[str, Any]:
        run = self._run(0)
        run.wait()
        if self._judged == 0 and not run.row and run.saved:
            self._go_on(run)
        else:
            run.advance()
        while not (run.tested or run.ended):
            if run.round > 1 and (missing := run.unknown()):
                numbers = ", ".join(sorted(name for name, value in run.row.items() if isinstance(value, int | float)))
                raise ObjectiveError(f"objective {missing[0]}: no run reports it; this one reports {numbers}")
            run.advance()
        due = [seeds for at, seeds in self.job.rungs if self._judged < at <= run.round]
        self._judged = run.round
        judged = [run]
        if due and due[-1] > 1 and not run.diverged:
            run.pause()  # the other seeds run on the same actors
            judged += [self._run(index) for index in range(1, due[-1])]
            for other in judged[1:]:
                other.until(run.round)
        values = {name: [each.value(name) for each in judged] for name in self.job.objectives}
        result: dict[str, Any] = {
            name: sum(own) / len(own) for name, own in values.items() if all(map(math.isfinite, own))
        }
        diverged = [each for each in judged if each.diverged]
        done = bool(diverged) or run.ended
        status = Run((diverged or [run])[0].folder).status if done else "running"
        if (seconds := run.row.get("time/virtual_s")) is not None:
            result = {"time/virtual_s": seconds, **result}
        if not self._told and all(seeds == 1 for _, seeds in self.job.rungs):
            # rounds that came with another trial's checkpoint, or that an earlier process reported to a lost driver
            result["before"] = [[at, value] for at, value in run.values.items() if at < run.round]
        self._told = True
        return {
            **result,
            "round": run.round,
            "seeds": len(judged),
            "done": done,
            "diverged": bool(diverged),
            "status": status,
        }

    def _go_on(self, run: TrialRun) -> None:
        """Continues at the last checkpoint of an earlier process of this trial. It may not have reported the
        checkpoint's round, so this one reports it again."""
        self._judged = run.recall(run.saved)
        for index in range(1, max((seeds for at, seeds in self.job.rungs if at <= self._judged), default=1)):
            self._run(index).recall(self._run(index).saved)

    def _pause(self) -> None:
        for run in self._runs:
            run.pause()

    # Ray Tune's own checkpoints: hyperband takes trials off and on again, population-based training copies one into
    # another
    def save_checkpoint(self, checkpoint_dir: str) -> None:
        self._pause()
        self._run(0).copy_to(Path(checkpoint_dir))

    def load_checkpoint(self, checkpoint_dir: str) -> None:  # save_checkpoint writes a folder
        self._pause()
        self._run(0).go_on_from(Path(checkpoint_dir))
        self._judged, self._told = self._run(0).saved, False

    def cleanup(self) -> None:
        self._pause()
        leases.keep(False)

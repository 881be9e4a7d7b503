"""One trial as Ray Tune runs it: the same experiment in an ordinary run folder, round by round, inside the trial's placement group."""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ray import tune

from flray.config import load_config
from flray.core.errors import ConfigError, FlrayError, ResourceError
from flray.engine import checkpoint
from flray.engine.pool import Pool
from flray.engine.simulation import play
from flray.experiment import Experiment
from flray.results import Run
from tuning.config import CUMULATIVE


class Job(NamedTuple):
    """What a trial is: its `key` in the sweep, its run `folder`, the experiment, and how it is judged.

    `rungs` are (round, number of seeds over which a value at that round is the mean); the last one is the last round. `overwrite`: the run
    that is in the folder when the job is made (known by its inode, `replaces`) is to be replaced; what is there later is the job's own.
    """

    key: str
    folder: str
    experiment: dict[str, Any]
    objectives: tuple[str, ...]
    rungs: tuple[tuple[int, int], ...]
    path: tuple[str, ...]
    overwrite: bool = False
    replaces: int | None = None

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
        settings = (experiment.dump(), tuple(objectives), tuple(rungs), tuple(sys.path))
        return cls(key, str(folder.absolute()), *settings, overwrite, replaces)

    def config(self, values: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """For Ray Tune: one string, so that nothing in it is taken for a search space; population-based training changes `values`."""
        return {"job": json.dumps(self._asdict()), "key": self.key, "values": dict(values or {})}

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> Job:
        found = json.loads(config["job"])
        return cls(**{**found, "rungs": tuple(map(tuple, found["rungs"]))})


class Trial(tune.Trainable):
    """Reports after every round that was tested. A trial that ends, is stopped or is taken off leaves a run that can be resumed."""

    def setup(self, config: dict[str, Any]) -> None:
        self._begin(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """The next trial in the same processes."""
        self._pause()
        self._begin(new_config)
        return True

    def _begin(self, config: dict[str, Any]) -> None:
        self.job = Job.read(config)
        sys.path.extend(entry for entry in self.job.path if entry not in sys.path)
        self.experiment = load_config(self.job.experiment, config["values"])[0]
        self._rows: Generator[dict[str, Any]] | None = None
        self._judged = 0  # the last round that was reported

    def folder(self, index: int) -> Path:
        """The run folder of the trial's seed number `index`."""
        return Path(self.job.folder + (f"-seed{index}" if index else ""))

    # one report -------------------------------------------------------------------------------
    def step(self) -> dict[str, Any]:
        """The objectives at the next round that was tested. An error of the run is a result; what a lost node causes is tried again."""
        try:
            result = self._step()
        except ResourceError:
            raise
        except Exception as error:
            text = str(error).splitlines()[0] if isinstance(error, FlrayError) else f"{type(error).__name__}: {error}"
            result = {"round": self._judged, "done": True, "status": f"failed: {text}"}
        return {**result, "key": self.job.key, "rounds": self.experiment.rounds}

    def _step(self) -> dict[str, Any]:
        row = self._next()
        while not (self._complete(row) or row["round"] >= self.experiment.rounds or row.get("diverged")):
            if row["round"] > 1 and (missing := [name for name in self.job.objectives if name not in CUMULATIVE and name not in row]):
                numbers = ", ".join(sorted(name for name, value in row.items() if isinstance(value, int | float)))
                raise ConfigError(f"objective {missing[0]}: no run reports it; this one reports {numbers}")
            row = self._next()
        due = [seeds for at, seeds in self.job.rungs if self._judged < at <= row["round"]]
        self._judged = row["round"]
        rows = [row]
        if due and due[-1] > 1 and not row.get("diverged"):
            self._pause()  # the other seeds run on the same actors
            rows += [self._until(index, row["round"]) for index in range(1, due[-1])]
        diverged = any(bool(row.get("diverged")) for row in rows)
        done = diverged or row["round"] >= self.experiment.rounds
        measured = [self._measured(index, row["round"]) for index in range(len(rows))]
        result: dict[str, Any] = {
            name: sum(values[name] for values in measured) / len(measured)
            for name in self.job.objectives
            if all(math.isfinite(values.get(name, math.nan)) for values in measured)
        }
        result |= {"round": row["round"], "seeds": len(rows), "done": done, "diverged": diverged}
        result |= {"spent": sum(values["client_steps"] for values in measured), "seconds": sum(values["time/s"] for values in measured)}
        home = next((index for index, row in enumerate(rows) if row.get("diverged")), 0)
        result["status"] = Run(self.folder(home)).status if done else "running"
        return result

    def _complete(self, row: Mapping[str, Any]) -> bool:
        """Whether the row has every objective that a single round can have."""
        return all(row.get(name) is not None for name in self.job.objectives if name not in CUMULATIVE)

    def _measured(self, index: int, last: int) -> dict[str, float]:
        """Objectives of one run at a round, from what is on disk: sums over its rounds, or the last value."""
        rounds = Run(self.folder(index)).rounds
        rounds = rounds[rounds["round"] <= last]
        found = {name: float(rounds[[c for c in columns if c in rounds]].sum().sum()) for name, columns in CUMULATIVE.items()}
        for name in self.job.objectives:
            values = rounds[name].dropna() if name in rounds else ()
            if name not in CUMULATIVE and len(values):
                found[name] = float(values.iloc[-1])
        return found

    # rounds -----------------------------------------------------------------------------------
    def _next(self) -> dict[str, Any]:
        """The next round of the trial's own run. After a resume that is the last one before it: whether it was judged is not known."""
        if self._rows is None and self._judged == 0 and (done := self._done(0)):
            return self._row(0, done)
        if self._rows is None:
            self._rows = self._play(0)
        row = next(self._rows)
        if row["round"] >= self.experiment.rounds or row.get("diverged"):
            _finish(self._rows)
        return row

    def _until(self, index: int, last: int) -> dict[str, Any]:
        """Another seed's run, up to round `last`: its row of that round, or the one in which it diverged."""
        if self._done(index) >= last:
            return self._row(index, last)
        rows = self._play(index)
        row = next(row for row in rows if row["round"] == last or row.get("diverged"))
        if row["round"] >= self.experiment.rounds:
            _finish(rows)
        rows.close()
        return row

    def _play(self, index: int) -> Generator[dict[str, Any]]:
        experiment = self.experiment.model_copy(update={"seed": self.experiment.seed + index})
        folder, begun = self.folder(index), self._done(index) > 0
        # a folder without a checkpoint is this trial's own beginning; a run that only the storage has is somebody's
        return play(experiment, folder, resume=begun, overwrite=not begun and (self.job.overwrite or folder.exists()))

    def _done(self, index: int) -> int:
        """Rounds in the last checkpoint of a run folder; none in that of a run that is to be replaced."""
        if self.job.replaces is not None and self.folder(index).stat().st_ino == self.job.replaces:
            return 0
        saved = checkpoint.checkpoints(self.folder(index))
        return checkpoint.rounds_done(saved[-1]) if saved else 0

    def _row(self, index: int, round: int) -> dict[str, Any]:
        """The row of a round that was done before; a run that lacks nothing but its end is ended."""
        folder = self.folder(index)
        if round >= self.experiment.rounds and not Run(folder).status.startswith(("finished", "diverged")):
            _finish(self._play(index))
        rounds = Run(folder).rounds
        found: dict[str, Any] = rounds[rounds["round"] == round].iloc[-1].dropna().to_dict()  # Python's own numbers: the study is JSON
        return found

    def _pause(self) -> None:
        """Checkpoint and leave the run: it can be resumed, by this trial or by anyone."""
        if self._rows is not None:
            self._rows.close()
            self._rows = None

    # Ray Tune's own checkpoints: hyperband takes trials off and on again, population-based training copies one into another
    def save_checkpoint(self, checkpoint_dir: str) -> None:
        self._pause()
        latest = checkpoint.checkpoints(self.folder(0))[-1]
        shutil.copytree(latest, Path(checkpoint_dir) / latest.name)

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        self._pause()
        (source,) = Path(checkpoint_dir).glob("round-*")
        home = self.folder(0) / "checkpoints"
        shutil.rmtree(home, ignore_errors=True)  # it goes on from there, whatever it had done itself
        shutil.copytree(source, home / source.name)
        self._judged = checkpoint.rounds_done(source)

    def cleanup(self) -> None:
        self._pause()
        if Pool.current is not None:
            Pool.current.kill()


def _finish(rows: Iterator[Any]) -> None:
    """What a run does behind its last round."""
    for _ in rows:
        pass

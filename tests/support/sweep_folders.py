"""Sweep folders for tests: a real Optuna study in the agreed layout, its trials' run folders written by the
recorder."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
import yaml
from optuna.study import Study
from optuna.trial import Trial, TrialState

from flray.rundir.recorder import Recorder
from flray.tuning.studies import open_storage

Suggest = Callable[[Trial], Any]


class FakeSweep:
    """A sweep folder that a test fills trial by trial, without training anything."""

    def __init__(self, root: Path, objective: Mapping[str, str], name: str = "demo", url: str | None = None) -> None:
        self.root, self.objective, self.name = root, dict(objective), name
        root.mkdir(parents=True)
        sweep = {
            "name": name,
            "experiment": {"algorithm": {"name": "fedsol", "lr": 0.1}},
            "objective": self.objective,
            "study": url,
        }
        (root / "sweep.yaml").write_text(yaml.safe_dump(sweep, sort_keys=False))
        self.storage = open_storage(url, root)

    def study(self, algorithm: str = "") -> Study:
        return optuna.create_study(
            study_name=f"{self.name}/{algorithm}" if algorithm else self.name,
            storage=self.storage,
            directions=["maximize" if direction == "max" else "minimize" for direction in self.objective.values()],
            sampler=optuna.samplers.RandomSampler(seed=0),
        )

    def trial(
        self,
        study: Study,
        params: Mapping[str, Any] | Suggest,
        curves: Mapping[str, Sequence[float]],
        state: TrialState | None = TrialState.COMPLETE,
        *,
        values: Sequence[float] | None = None,
        seeds: int = 1,
        status: str = "finished",
    ) -> Trial:
        """One trial whose run recorded `curves` (column -> a value a round).

        `params`: floats in [0, 10], or what suggests them.

        Its `values` are the last ones of the curves, unless given; `state` None leaves it running.
        """
        if callable(params):
            trial = study.ask()
            params(trial)
        else:
            study.enqueue_trial(dict(params))
            trial = study.ask({name: optuna.distributions.FloatDistribution(0, 10) for name in params})
        folder = "trials/" + "-".join(filter(None, [study.study_name.partition("/")[2], f"{trial.number:04d}"]))
        rounds = max(map(len, curves.values()), default=0)
        trial.set_user_attr("folder", folder)
        for seed in range(seeds):
            record(self.root / (folder if seed == 0 else f"{folder}-seed{seed}"), curves, status)
        if len(self.objective) == 1:
            for number, value in enumerate(next(iter(curves.values()), []), start=1):
                trial.report(value, number)
        if state is not None:
            facts = {
                "round": rounds,
                "client_steps": 100 * rounds,
                "seconds": 1.5 * rounds,
                "seeds": seeds,
                "status": status,
            }
            for name, value in facts.items():
                trial.set_user_attr(name, value)
            found = [curve[-1] for curve in curves.values()] if values is None else values
            study.tell(trial, found if state == TrialState.COMPLETE else None, state=state)
        return trial


def record(folder: Path, curves: Mapping[str, Sequence[float]], status: str = "finished") -> Path:
    """An ordinary run folder with these columns in its rounds."""
    folder.mkdir(parents=True)
    recorder = Recorder(folder)
    for number in range(max(map(len, curves.values()), default=0)):
        recorder.round(
            {
                "done": number + 1,
                "task": 0,
                "round": number + 1,
                **{name: curve[number] for name, curve in curves.items()},
            },
            [],
        )
    recorder.close()
    recorder.status(status)
    return folder

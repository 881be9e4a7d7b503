"""What was measured and counted of one experiment on one machine: the file of `flray plan --measure FILE`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from flray.config.experiment import Experiment
from flray.core.schema.errors import ConfigError
from flray.rundir.recorder import write_text

# sections and keys of an experiment on which its step's costs depend
KEYS = (
    "algorithm", "model", "data", "proxy", "precision", "encoding", "evaluate.clients", "tasks",
    "resources.client.num_cpus",
)  # fmt: skip
FREE = ("data.root", "proxy.root", "data.download", "proxy.download")


class ExchangeCost(BaseModel, frozen=True, extra="forbid"):
    """One exchange of a round, or of a task's beginning or end.

    `broadcast`, `summed`, `single`, `state`: bytes of a client: down, of a partial sum, of what is not summed, of its
    state. `client_s` and `step_s`: seconds of a client without its local steps, and of one step. `server_s`: of the
    server half, for `measured_clients`. `step_flops`: of a local step, `client_flops`: of other work of a client.
    """

    name: str
    phase: Literal["round", "task_begin", "task_end"]
    order: Literal["parallel", "sequential"]
    who: str
    broadcast: int
    summed: int
    single: int
    state: int
    client_s: float
    step_s: float
    server_s: float
    measured_clients: int
    step_flops: float
    client_flops: float


class Measured(BaseModel, frozen=True, extra="forbid"):
    """`timed`: seconds were measured; else only bytes and FLOPs were counted, and all seconds are 0.

    `test_s`, `test_flops`: of one test sample. `process_bytes`: private memory of a process that has imported torch;
    `client_bytes`: what building the model and training a client added to it at its peak; `gpu_bytes`: of a client
    actor on a GPU, predicted (`None`: not). `device`: of the measurement. `slowdown`: how much longer a client took
    while `together` processes trained at the same time (1: measured alone). `test_batch`: samples of a test's batch
    (0: not known).
    """

    machine: str
    device: str
    cores: int
    threads: int
    torch: str
    experiment: dict[str, Any]
    parameters: int
    vector: int
    exchanges: tuple[ExchangeCost, ...]
    timed: bool
    test_s: float
    test_flops: float
    process_bytes: int
    client_bytes: int
    gpu_bytes: int | None = None
    slowdown: float = 1.0
    together: int = 1
    test_batch: int = 0

    def write(self, path: Path) -> None:
        write_text(path, self.model_dump_json(indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> Measured:
        """Raises `ConfigError` if there is no such file, or if it is another one."""
        try:
            return cls.model_validate(json.loads(path.read_text()))
        except OSError as error:
            why = error.strerror or error
            raise ConfigError(f"--measured {path}: {why}; write it with flray plan CONFIG --measure {path}") from error
        except (ValidationError, ValueError) as error:
            raise ConfigError(
                f"--measured {path} is no file of flray plan --measure ({type(error).__name__}); write one with "
                f"flray plan CONFIG --measure {path.with_suffix('.measured.json')}"
            ) from error

    @classmethod
    def check_out(cls, path: Path) -> None:
        """Raises `ConfigError` if there is something else than a measurement, which writing would overwrite."""
        if path.exists():
            try:
                cls.read(path)
            except ConfigError as error:
                raise ConfigError(
                    f"--measure {path} would overwrite a file that is no measurement; name another file"
                ) from error

    def check(self, experiment: Experiment, path: Path) -> None:
        """Raises `ConfigError` with the first key in which the measured experiment differs."""
        here = costly(experiment)
        for key in dict.fromkeys((*self.experiment, *here)):
            then, now = self.experiment.get(key), here.get(key)
            if then != now:
                raise ConfigError(
                    f"--measured {path}: measured with {key}: {json.dumps(then)}, the configuration has "
                    f"{json.dumps(now)}; measure it again with flray plan CONFIG --measure FILE"
                )


def costly(experiment: Experiment) -> dict[str, Any]:
    """The values on which a step's costs depend, by dotted key."""
    values = json.loads(json.dumps(_flat(experiment.dump())))
    kept = {key: value for key, value in values.items() if any(key == k or key.startswith(f"{k}.") for k in KEYS)}
    return {key: value for key, value in kept.items() if key not in FREE}


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {f"{prefix}{key}": value}
    return flat

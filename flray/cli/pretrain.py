"""Starting weights: the model of a configuration, trained in one place on all its training samples.

They are stored in flray's cache under the configuration's name, with a card: `model.weights=cache://NAME`.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flray.config.experiment import Experiment, algorithm_name
from flray.config.loader import load_config
from flray.config.overrides import pairs
from flray.core.schema.errors import ConfigError
from flray.files import atomic_folder, file_checksum, with_checksum, writing
from flray.models.weight_files import CARD, FILE, cached_weights

# replaces what the configuration says about clients; the optimiser's hyper-parameters stay
CENTRAL: Mapping[str, Any] = {
    "algorithm": "centralized",
    "partition": {"name": "iid", "clients": 1},
    "proxy": None,
    "cohort": {},
    "evaluate.finetune_epochs": [],
}


def pretraining(
    config: str | Path | Mapping[str, Any] | Experiment, overrides: Iterable[str] = (), imports: Sequence[str] = ()
) -> Experiment:
    """The experiment that trains the weights: `rounds` x `algorithm.local_epochs` epochs over all training samples.

    It starts from random weights, unless an override names `model.weights`; the file's own are not used. Raises
    `ConfigError` in one line.
    """
    changes = pairs(overrides)
    cells = load_config(config, {**CENTRAL, **changes}, imports)
    if len(cells) != 1:
        raise ConfigError(f"pretrain trains one model, these overrides make {len(cells)}; give one value for each key")
    experiment = cells[0]
    if not experiment.algorithm.centralized:
        raise ConfigError(
            f"pretrain trains in one place, algorithm {algorithm_name(experiment.algorithm)} does not; leave algorithm "
            "out"
        )
    if experiment.model.start and "model.weights" not in changes:
        model = type(experiment.model)(name=experiment.model.name, **experiment.model.options)
        experiment = experiment.model_copy(update={"model": model})
    return experiment


def folder_of(experiment: Experiment) -> Path:
    """The run folder of a pretraining without `--out`; the same command continues the run in it."""
    return Path("runs") / experiment.name / f"{algorithm_name(experiment.algorithm)}-seed{experiment.seed}"


def store(folder: Path, command: Sequence[str]) -> dict[str, Any]:
    """Copy the weights of a finished run into flray's cache, with their card. Returns the card.

    The card names data, network, epochs, test accuracy, and the command; `weights` is the checksum of the file, which
    `environment.json` of a run from these weights has too. Weights and card replace earlier ones together. Raises
    `ConfigError` for a run that did not finish, or whose weights are damaged.
    """
    from flray.models.weights import read_weights
    from flray.rundir.reader import Run

    run = Run(folder)
    if run.status != "finished":
        raise ConfigError(f"{folder} is {run.status}: its weights are not stored; run the command again")
    try:
        read_weights(str(folder), "pretrain")
    except ConfigError as error:
        raise ConfigError(f"{error}: flray resume {folder}, then this command again") from error
    experiment, home = run.experiment, cached_weights(run.experiment.name)
    tested = run.rounds["test/acc"].dropna() if "test/acc" in run.rounds else run.rounds.iloc[:0, 0]
    card = {
        "name": experiment.name,
        "weights": file_checksum(folder / FILE),
        "bytes": (folder / FILE).stat().st_size,
        "model": experiment.model.model_dump(mode="json"),
        "data": experiment.data.source,
        "data_fingerprint": run.environment["fingerprints"]["data"],
        "epochs": experiment.rounds * getattr(experiment.algorithm, "local_epochs", 1),
        "test_accuracy": float(tested.iloc[-1]) if len(tested) else None,
        "seed": experiment.seed,
        "command": shlex.join(command),
        "flray": run.environment["packages"]["flray"],
        "git": run.environment["git"],
    }
    with writing(home, ", or set FLRAY_CACHE, and give the same command again", ConfigError):
        home.parent.mkdir(parents=True, exist_ok=True)
        with atomic_folder(home, durable=True) as temporary:
            shutil.copyfile(folder / FILE, temporary / FILE)
            (temporary / CARD).write_text(with_checksum(card), encoding="utf-8")
    return card

"""What keeps the algorithm of an experiment from working in it, as its card says: shown before the run begins."""

from __future__ import annotations

from collections.abc import Iterable

from flray.config.experiment import Experiment, algorithm_name
from flray.core.protocol.algorithm_section import Setting
from flray.core.schema.errors import ConfigError


def cautions(experiments: Iterable[Experiment]) -> list[str]:
    """The sentences of `AlgorithmSection.unsuited` for each experiment, after the algorithm's name; each once."""
    return list(
        dict.fromkeys(
            f"{algorithm_name(experiment.algorithm)}: {sentence}"
            for experiment in experiments
            for sentence in experiment.algorithm.unsuited(setting_of(experiment))
        )
    )


def setting_of(experiment: Experiment) -> Setting:
    """The experiment's setting as its configuration states it."""
    clients = getattr(experiment.partition, "clients", None)
    try:
        cohort = None if clients is None else experiment.cohort.count(clients)
    except ConfigError:  # more clients a round than there are, which the run refuses
        cohort = None
    proxy = None if experiment.proxy is None else experiment.proxy.size
    return Setting(experiment.rounds, experiment.num_tasks, clients, cohort, proxy, bool(experiment.personal_epochs))

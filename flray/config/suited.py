"""What keeps the algorithm of an experiment from working in it, as its card says: shown before the run begins."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flray.aggregations import AGGREGATIONS
from flray.config.experiment import Experiment, algorithm_name, registered_name
from flray.config.schedule import is_factor
from flray.core.protocol.algorithm_section import Setting
from flray.core.schema.errors import ConfigError
from flray.uplink.chain import Uplink


def cautions(experiments: Iterable[Experiment]) -> list[str]:
    """The sentences of `MethodSection.unsuited` for each experiment, after the method's name, and its options that
    change nothing (:func:`ignored`), and what an epsilon assumes (:func:`assumed`); each once."""
    sentences: dict[str, None] = {}
    for experiment in experiments:
        unsuited = _of_versions(experiment)
        if (rule := experiment.aggregation) is not None:
            name = registered_name(AGGREGATIONS, rule)
            unsuited += [f"{name}: {sentence}" for sentence in rule.unsuited(setting_of(experiment))]
        sentences.update(dict.fromkeys([*unsuited, *filter(None, [ignored(experiment), assumed(experiment)])]))
    return list(sentences)


def _of_versions(experiment: Experiment) -> list[str]:
    """The sentences of the algorithm before the first change of `schedule` and after each, with the rate that the round
    of the change has; each once."""
    name, setting, said = algorithm_name(experiment.algorithm), setting_of(experiment), dict[str, int]()
    for begin, algorithm in {version.from_round: version.algorithm for version in experiment.versions}.items():
        lr: Any = getattr(algorithm, "lr", None)
        decay: Any = getattr(algorithm, "lr_decay", None)
        one_task = experiment.num_tasks == 1  # a task begins with the whole rate
        if begin > 1 and one_task and is_factor(lr, decay):
            algorithm = algorithm.model_copy(update={"lr": lr * decay ** (begin - 1)})
        for sentence in algorithm.unsuited(setting):
            said.setdefault(sentence, begin)
    return [f"{name}{f' from round {begin} on' if begin > 1 else ''}: {text}" for text, begin in said.items()]


def ignored(experiment: Experiment) -> str:
    """The options of `resources`, and the address, that the run's executor does not read, in a sentence; "": none."""
    resources = experiment.resources
    given: dict[str, tuple[object, object]]  # by key: (the value, the default)
    if resources.executor == "local":
        given = {
            "address": (experiment.address, None),
            "resources.client_actors": (resources.client_actors, "auto"),
            "resources.client.num_gpus": (resources.client.num_gpus, 0),
            "resources.server.num_cpus": (resources.server.num_cpus, 0),
            "resources.server.num_gpus": (resources.server.num_gpus, 0),
            "resources.insecure_ray": (resources.insecure_ray, False),
            "precision": (experiment.precision == "tf32" and "tf32", False),
        }
        why = "resources.executor=local computes in this process, on its CPU"
    elif experiment.algorithm.centralized:
        given = {"resources.server.num_gpus": (resources.server.num_gpus, 0)}
        why = "a centralized run's workers compute, and its server only holds the state"
    elif experiment.precision == "tf32" and not resources.client.num_gpus and not resources.server.num_gpus:
        given = {"precision": ("tf32", "fp32")}
        why = "only GPUs have TF32, and no actor takes one (resources.client.num_gpus)"
    else:
        return ""
    changed = [f"{key}={value}" for key, (value, default) in given.items() if value != default]
    return f"{', '.join(changed)} {'change' if len(changed) > 1 else 'changes'} nothing: {why}" if changed else ""


def assumed(experiment: Experiment) -> str:
    """What the epsilon of a private run assumes of its cohorts, in a sentence; "": it is exact."""
    setting = setting_of(experiment)
    exact = experiment.cohort.sampling == "poisson" or not experiment.draws_among_all
    if Uplink(experiment.uplink).gaussian is None or exact:
        return ""
    if setting.cohort is not None and setting.cohort == setting.clients:
        return ""
    return (
        "gaussian: epsilon is that of cohorts that each client joins independently, and these have a fixed size; "
        "set cohort.sampling: poisson"
    )


def setting_of(experiment: Experiment) -> Setting:
    """The experiment's setting as its configuration states it."""
    clients = getattr(experiment.partition, "clients", None)
    try:
        unknown = clients is None or experiment.cohort.file is not None
        cohort = None if clients is None or unknown else experiment.cohort.count(clients)
        cohort = experiment.coordination.size or cohort
    except ConfigError:  # more clients a round than there are, which the run refuses
        cohort = None
    proxy = None if experiment.proxy is None else experiment.proxy.size
    return Setting(experiment.rounds, experiment.num_tasks, clients, cohort, proxy, bool(experiment.personal_epochs))

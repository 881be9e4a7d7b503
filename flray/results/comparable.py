"""Reasons why runs cannot be compared: other settings, other data, other versions, other seeds, other cost."""

from __future__ import annotations

import inspect
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, combinations
from typing import TYPE_CHECKING, Any

from flray.algorithms import ALGORITHMS, as_written
from flray.config.objects import SECTIONS
from flray.core.schema.registry import MAIN
from flray.files import read_checksummed
from flray.models import MODELS
from flray.models.libraries import LIBRARIES
from flray.results.answers import ranked, unequal_cost
from flray.results.paired import describe, find, labels, missing
from flray.results.tables import ignored, keys_of, over_seeds, side_by_side
from flray.rundir.provenance import FINGERPRINTS
from flray.rundir.reader import Run

if TYPE_CHECKING:
    import pandas

_MACHINE = (  # of environment.json: (key, name, what it is in words), each of which may change a result's bits
    ("packages", "flray", "versions of flray"),
    ("packages", "torch", "versions of torch"),
    ("fingerprints", "arithmetic", "kinds of arithmetic of the server"),
    ("fingerprints", "client_arithmetic", "kinds of arithmetic of the clients"),
)
_DATA_SECTIONS = (
    "data.",
    "partition.",
    "proxy.",
    "tasks.",
    "evaluate.",
)  # sections that divide the samples among clients
_DATA = {"data": "training data", "partition": "partition", "weights": "first weights"}  # fingerprints, in words


def caveats(
    runs: Sequence[Run],
    frame: pandas.DataFrame,
    metric: str = "test/acc",
    reference: str | Mapping[str, Any] | None = None,
    cost: bool = True,
) -> list[str]:
    """Sentences on what is not comparable among these runs, the most serious first. `frame` is `compare`'s table of
    them.

    Every setting is compared with one of them: `reference` as `paired` reads it, or the best by `metric`. Two settings
    are comparable if they differ only in the algorithm and its hyper-parameters, or if the algorithm is the same and a
    key of the setting is studied. Other sentences name several runs of one seed, different training data or client
    shares at the same seed, changes that resumes accepted, different versions of flray and torch, seeds that only one
    of two settings has, and unequal cost. Empty without a reason. Raises `ConfigError` as `paired` does.
    """
    groups = [(setting, values) for setting, values, *_ in over_seeds(frame, metric)]
    if len(groups) < 2:
        return _repeated(frame, metric) + _sources(runs, side_by_side(runs)) + _resumed(runs) + _versions(runs)
    if reference is not None:
        chosen = find([setting for setting, _ in groups], frame, reference)
    else:
        names = [name for name, _ in ranked(frame, metric)]
        label = labels(frame)
        chosen = next((i for i, (setting, _) in enumerate(groups) if names and label(setting) == names[0]), 0)
    base, base_values = groups.pop(chosen)
    said = _keys(base, [setting for setting, _ in groups], frame)
    said += _shared_hyper_parameters(base, [setting for setting, _ in groups], frame)
    configs = side_by_side(runs)
    said += (
        _repeated(frame, metric)
        + _fingerprints(runs, configs)
        + _sources(runs, configs)
        + _resumed(runs)
        + _versions(runs)
    )
    lacking = [
        (describe(setting), sorted(set(base_values.index) ^ set(values.index)))
        for setting, values in groups
        if len(values) and set(values.index) != set(base_values.index)
    ]
    if lacking and len(base_values):
        name, seeds = lacking[0]
        said.append(
            f"{len(lacking)} of {len(groups)} settings have not the seeds of {describe(base)} ({name}: "
            f"{', '.join(map(str, seeds))} in one of the two only); differences are over the seeds that both have."
        )
    unequal = unequal_cost(runs, frame) if cost else ""
    return said + ([unequal] if unequal else [])


def _keys(base: Mapping[str, Any], others: Sequence[Mapping[str, Any]], frame: pandas.DataFrame) -> list[str]:
    """A sentence for settings that differ from `base` in the algorithm and in other keys too."""
    outer = [key for key in keys_of(frame) if key not in ("name", "algorithm") and not key.startswith("algorithm.")]
    by_keys: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for setting in others:
        keys = tuple(key for key in outer if str(setting[key]) != str(base[key]))
        if keys and (setting["algorithm"] != base["algorithm"] or len(keys) > 1):
            by_keys.setdefault(keys, []).append(setting)
    said = []
    for keys, settings_ in by_keys.items():
        first = settings_[0]
        shown = ", ".join(f"{key} ({_text(first[key])} against {_text(base[key])})" for key in keys)
        also = " as well as in the algorithm" if any(s["algorithm"] != base["algorithm"] for s in settings_) else ""
        said.append(
            f"Not comparable: {len(settings_)} of {len(others)} settings differ from {describe(base)} in {shown}"
            f"{also}: "
            f"{_listed([describe(setting) for setting in settings_])}."
        )
    return said


def _repeated(frame: pandas.DataFrame, metric: str) -> list[str]:
    """A sentence on seeds of which several runs of one setting have finished with other results."""
    done = frame[(frame["status"] == "finished") & frame[metric].notna()]
    by_seed = [group for _, group in done.groupby([*keys_of(frame), "seed"], sort=False, dropna=False)]
    several = [group["folder"].tolist() for group in by_seed if group[metric].nunique() > 1]
    if not several:
        return []
    which = f"{_listed(several[0])}{' for example' if len(several) > 1 else ''}"
    return [f"Runs of one setting and seed have other values of {metric}, and of each seed the last counts: {which}."]


def _shared_hyper_parameters(
    base: Mapping[str, Any], others: Sequence[Mapping[str, Any]], frame: pandas.DataFrame
) -> list[str]:
    """A sentence on hyper-parameters, such as the learning rate, that two algorithms share and have different values
    of. Options with one name that each algorithm declares for itself, such as `beta`, are not shared."""
    inner = [key for key in keys_of(frame) if key.startswith("algorithm.")]
    values_of: dict[str, dict[str, None]] = {}
    for setting in others:
        if setting["algorithm"] != base["algorithm"]:
            for key in inner:
                differ = str(setting[key]) != str(base[key]) and not missing(setting[key]) and not missing(base[key])
                if differ and _is_shared(key, str(setting["algorithm"]), str(base["algorithm"])):
                    values_of.setdefault(key, {})[f"{as_written(setting['algorithm'])} {_text(setting[key])}"] = None
    if not values_of:
        return []
    shown = "; ".join(
        f"{key} ({as_written(base['algorithm'])} {_text(base[key])}, {_listed(list(values))})"
        for key, values in values_of.items()
    )
    return [f"Algorithms differ in hyper-parameters that both have: {shown}."]


def _is_shared(key: str, first: str, second: str) -> bool:
    """Whether an option of two algorithms is one of FedAvg's, or one class declares it for both."""
    option = key.removeprefix("algorithm.").partition(".")[0]
    homes = [_declares(name, option) for name in ("fedavg", first, second)]
    return homes[0] != "" or (homes[1] != "" and homes[1] == homes[2])


@cache
def _declares(algorithm: str, option: str) -> str:
    """The most general class that declares an option of one of flray's algorithms; "" for one of the user's, whose
    module is not imported."""
    from flray.config.declared import declared_only

    if algorithm not in ALGORITHMS.own_paths():
        return ""
    with declared_only():
        kinds = [kind for kind in ALGORITHMS.get(algorithm).__mro__ if option in inspect.get_annotations(kind)]
    return f"{kinds[-1].__module__}:{kinds[-1].__qualname__}" if kinds else ""


def _fingerprints(runs: Sequence[Run], configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Sentences on runs with one seed and one data configuration, but different data or client shares."""
    seen: dict[tuple[str, str], dict[str, str]] = {}
    for run, config in zip(runs, configs, strict=True):
        data_config = {key: value for key, value in config.items() if key == "seed" or key.startswith(_DATA_SECTIONS)}
        place = json.dumps(data_config, sort_keys=True, default=str)
        for name, value in (_noted(run).get("fingerprints") or {}).items():
            if name in _DATA and value is not None:
                seen.setdefault((name, place), {}).setdefault(json.dumps(value), run.place)
    said = {}
    for (name, _), fingerprints in seen.items():
        if len(fingerprints) > 1:
            first, second = list(fingerprints.values())[:2]
            said[name] = (
                f"Not comparable: the {_DATA[name]} of {first} and {second} differ, though seed and configuration are "
                "the same (fingerprints in environment.json)."
            )
    return list(said.values())


def _sources(runs: Sequence[Run], configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sentence on runs of one setting whose modules of the user's differ. A setting has names alone, so runs of two
    sources are one mean, and of one seed the last counts. Another one on settings that name the same network, source
    or partition of the user's, which was changed between their runs."""
    seen: dict[str, dict[str, str]] = {}
    shared: dict[tuple[str, str, str], dict[tuple[str, str], str]] = {}  # (key, name, module): (source, setting): run
    kept = ("name", "algorithm.name")
    for run, config in zip(runs, configs, strict=True):
        setting = {key: value for key, value in config.items() if key in kept or not ignored(key)}
        named, helpers = _own_modules(config, _noted(run).get("fingerprints") or {})
        modules = helpers | {name: source for own in named.values() for name, source in own.items()}
        place = json.dumps(setting, sort_keys=True, default=str)
        seen.setdefault(place, {}).setdefault(json.dumps(modules, sort_keys=True), run.place)
        for (key, name), own in named.items():
            for module, source in (own | helpers).items():
                shared.setdefault((key, name, module), {}).setdefault((source, place), run.place)
    said = []
    for first, second, *_ in [[*places.values()] for places in seen.values() if len(places) > 1][:1]:
        said.append(
            f"Not comparable: {first} and {second} are of one setting and ran other sources of a module; both are in "
            "one mean, and of one seed the last counts (fingerprints in environment.json)."
        )
    changed: dict[str, str] = {}
    for (key, name, module), places in shared.items():
        for (one, first), (other, second) in combinations(places.items(), 2):
            if one[0] != other[0] and one[1] != other[1]:
                changed.setdefault(
                    module,
                    f"Not comparable: {key.removesuffix('.name')} {name} is not the same in {first} and {second}, "
                    f"whose sources of {module} differ (fingerprints in environment.json).",
                )
    return said + list(changed.values())


def _own_modules(
    config: Mapping[str, Any], fingerprints: Mapping[str, Any]
) -> tuple[dict[tuple[str, str], dict[str, str]], dict[str, str]]:
    """((key, name) of each object of the user's that a configuration names -> the sources that may define it; the
    sources that these import). A module that is imported and of which nothing is named is left out."""
    of_modules = {name: str(value) for name, value in fingerprints.items() if name.startswith("modules.")}
    known = {name.removeprefix("modules."): value for name, value in of_modules.items()}
    known.pop("__main__", None)  # of a script in which other lines may have changed
    imports, named = _list(config.get("imports")), dict[tuple[str, str], dict[str, str]]()
    for key, name in _own_names(config):
        module = name if name.startswith(MAIN) else name.partition(":")[0]
        own = [module] if ":" in name else imports  # one of them has registered the name
        named[key, name] = {module: known[module] for module in own if module in known}
    apart = {*imports, *chain.from_iterable(named.values())}
    helpers = {module: source for module, source in known.items() if module not in apart and ":" not in module}
    return named, helpers if named or not imports else {}


def _own_names(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(key, name) of the objects in a configuration that are neither flray's own nor of a library. A source without an
    import path may be a folder, and the fingerprint of the data tells of both."""
    for section, (table, field) in {"model": (MODELS, "name"), **SECTIONS}.items():
        key, own = f"{section}.{field}", table.own_paths()
        entries = _list(config.get(section)) or [{field: config.get(key)}]
        for name in (entry.get(field) if isinstance(entry, Mapping) else entry for entry in entries):
            if not isinstance(name, str) or name in own or name.partition(":")[0] in LIBRARIES:
                continue
            if field != "source" or ":" in name:
                yield key, name


def _list(value: Any) -> list[Any]:
    """A list of `settings`, which has it as JSON; []: it is none."""
    return json.loads(value) if isinstance(value, str) and value.startswith("[") else []


def _resumed(runs: Sequence[Run]) -> list[str]:
    """A sentence on each run that a resume continued with other data, weights or modules; of the configuration its
    status in the table tells."""
    said = []
    for run in runs:
        names = [name for name in run.accepted if name in FINGERPRINTS or name.startswith("modules.")]
        if names:
            said.append(
                f"A resume continued {run.place} with other {' and '.join(names)} than it began with, which --accept "
                "let pass (environment.json)."
            )
    return said


def _versions(runs: Sequence[Run]) -> list[str]:
    """Sentences on versions of packages, and kinds of processor or GPU, that differ between runs."""
    said = []
    counted: list[Counter[str]] = []
    for key, name, what in _MACHINE:
        found = Counter(str(value) for run in runs if (value := (_noted(run).get(key) or {}).get(name)) is not None)
        if len(found) > 1 and found not in counted:  # server and clients as a rule are of one kind
            counted.append(found)
            listed = ", ".join(f"{value} ({count} runs)" for value, count in found.items())
            said.append(f"Runs of several {what}: {listed}; their bits need not agree.")
    return said


def _noted(run: Run) -> Mapping[str, Any]:
    """`environment.json`; {} if it is missing or damaged (`Run.environment` warns)."""
    try:
        return read_checksummed(run.folder / "environment.json")
    except (OSError, ValueError):
        return {}


def _text(value: Any) -> str:
    return "none" if missing(value) else f"{value:.6g}" if isinstance(value, float) else str(value)


def _listed(names: Sequence[str], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return "; ".join(names[:most]) + more

"""From a YAML file and overrides to a sweep.

sweep = load_sweep("configs/sweeps/fedsol_rho.yaml", ["trials=40", "space.algorithm.rho=auto", "rounds=10"])
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from flray.algorithms import ALGORITHMS
from flray.config.experiment import Experiment
from flray.config.grid import dotted
from flray.config.loader import self_contained
from flray.config.overrides import pairs, scalar
from flray.config.read import read_yaml
from flray.config.resolve import TABLES
from flray.core.schema.errors import ConfigError, unknown
from flray.core.schema.hp import hyperparameters
from flray.core.schema.plain import Unquoted, plain, written as plain_line
from flray.core.schema.section import expand_shorthand, one_line, section_of
from flray.tuning.config import Sweep
from flray.tuning.domain import show, written
from flray.tuning.space import Parameter

KEYS = tuple(info.alias or name for name, info in Sweep.model_fields.items())
# sections of the experiment that an override may set
THEIRS = (*Experiment.model_fields, "preset", *TABLES)


def load_sweep(
    source: str | Path | Mapping[str, Any],
    overrides: Iterable[str] | Mapping[str, Any] = (),
    imports: Sequence[str] = (),
) -> Sweep:
    """The sweep of a YAML file (or mapping) and overrides: `trials=40`, `scheduler.grace=2`, `space.algorithm.rho=auto`
    are the sweep's, other keys are the experiment's (`rounds=10`, `preset=small`; `experiment.seed=3` if both have the
    key). Commas make no grid. `space.algorithm=[...]` drops the file's entries for algorithms that it leaves out. An
    override of a key that the space sets is an error: no trial would have it.

    The file that the experiment `extends` (relative to the sweep's file), its preset, `auto` and all defaults are
    written out: the result reads no other file. Raises `ConfigError`.
    """
    if dataclasses.is_dataclass(source) and not isinstance(source, type):
        source = plain(source, "")
    raw: dict[str, Any] = (
        dict(source) if isinstance(source, Mapping) else {"name": Path(source).stem, **read_yaml(Path(source))}
    )
    folder = Path() if isinstance(source, Mapping) else Path(source).parent
    experiment = raw.pop("experiment", None)
    if not isinstance(experiment, Mapping | Experiment):
        where = "the sweep" if isinstance(source, Mapping) else str(source)
        raise ConfigError(
            f"{where} has no section `experiment`: write what every trial runs, e.g. experiment: {{extends: "
            f"../quickstart.yaml}}"
        )
    raw = _jsonable(plain(raw, ""))
    given = pairs(overrides)
    if not isinstance(overrides, Mapping):
        given = {key: _one_value(key, text) for key, text in given.items()}
    given = {key: plain(value, f"override {key}") for key, value in given.items()}
    theirs: dict[str, Any] = {}
    for key, value in given.items():
        section, _, inner = key.partition(".")
        if key == "experiment":
            raise ConfigError(f"override experiment={show(value)}: write experiment.KEY=value, or another sweep file")
        if section == "experiment":
            theirs[inner] = value
        elif section not in KEYS:
            if section not in THEIRS:
                raise unknown("key", section, [*KEYS, *THEIRS], f"override {key}")
            theirs[key] = value
        else:
            _assign(raw, section, inner, value)
    for key in raw:
        if key not in KEYS:
            raise unknown("key", str(key), KEYS, "the sweep; keys of the experiment stand below `experiment`")
    started = experiment if isinstance(experiment, Experiment) else copy.deepcopy(dict(experiment))
    if "extends" in theirs and isinstance(started, dict):  # as written on the command line: from the working directory
        started["extends"] = Path.cwd() / str(theirs.pop("extends"))
    values = _jsonable(self_contained(started, theirs, imports, folder))
    if "space.algorithm" in given:
        raw["space"] = narrowed(raw["space"])
    with one_line("", Sweep):
        sweep = Sweep(**raw, experiment=values)
    for key, value in given.items():
        _check_own(key, value, sweep, raw["space"])
    for key, value in theirs.items():
        _check_decided(key, value, sweep, raw["space"])
    return sweep.model_copy(update={"space": sweep.search_space.dump()})


def _jsonable(value: Any) -> Any:
    """As `to_jsonable_python`; an unquoted number stays one."""
    if isinstance(value, Mapping):
        return {str(key): _jsonable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(inner) for inner in value]
    return value if isinstance(value, Unquoted) else to_jsonable_python(value)


def _one_value(key: str, text: str) -> Any:
    """The YAML value of an override's text. Raises `ConfigError` for `space.KEY=a,b`, and for numbers with commas."""
    value = scalar(key, text)
    if not isinstance(value, str) or "," not in value or "#" in value or text.strip().startswith(("'", '"')):
        return value
    several, section = scalar(key, f"[{text}]"), key.partition(".")[0]
    searched = key.removeprefix("experiment.").removeprefix("space.")
    numbers = all(isinstance(one, int | float) for one in several) and (section not in KEYS or section == "experiment")
    if key.startswith("space.") or numbers:
        raise ConfigError(
            f"override {key}={text}: commas make no grid in a sweep; to search these values, write "
            f"'space.{searched}={plain_line(several)}'"
        )
    return value


def _assign(raw: dict[str, Any], section: str, inner: str, value: Any) -> None:
    """`section=value`, or `section.inner=value`; the keys of `space` have dots themselves."""
    if not inner:
        raw[section] = value
        return
    default = Sweep.model_fields[section].default if section == "objective" else None  # a further one
    current = expand_shorthand(raw.get(section, default), section_of(Sweep, (section,)))
    if current is not None and not isinstance(current, Mapping):
        raise ConfigError(f"override {section}.{inner}: {section} is {show(current)}, a value, not a section")
    raw[section] = {**(current or {}), inner: value}


def _check_own(key: str, value: Any, sweep: Sweep, written: Mapping[str, Any]) -> None:
    """Raises `ConfigError` for `space.algorithm.FIELD` where each algorithm has a `NAME.FIELD`, which goes over it."""
    option = key.removeprefix("space.")
    if not key.startswith("space.algorithm."):
        return
    own = [f"{name}.{option.partition('.')[2]}" for name in _readers(option, sweep)]
    if own and all(name in written for name in own):
        again = " ".join(f"space.{name}={show(value)}" for name in own)
        raise ConfigError(f"override {key}={show(value)} changes nothing: each algorithm has its own; write {again}")


def _check_decided(key: str, value: Any, sweep: Sweep, written: Mapping[str, Any]) -> None:
    """Raises `ConfigError` for an override of the experiment that changes no trial, because the space sets its key."""
    space = sweep.search_space
    for option, given in dotted(value, key).items():  # of a section those that it gives
        table, _, inside = option.partition(".")
        of, _, field = inside.partition(".")
        if table in TABLES and field:  # `algorithms.fedprox.mu`
            option = f"{table.removesuffix('s')}.{field}"
        readers = [name for name in _readers(option, sweep) if table != "algorithms" or name == of]
        setters = [[p.name for p in space.parameters[name] if option in _set_by(p)] for name in readers]
        names = list(dict.fromkeys(itertools.chain(*setters)))
        if option in ("algorithm", "algorithm.name") and "algorithm" in written:
            names, option = ["algorithm"], "algorithm"
            given = given if isinstance(written["algorithm"], str) else [given]
        elif not all(setters) or not names:
            continue
        again = " ".join(f"space.{name}={show(given)}" for name in ([option] if option in written else names))
        what = "" if option == key else f": {option}={show(given)}"  # one key of a section
        raise ConfigError(f"override {key}={show(value)}{what} changes nothing: the space sets {option}; write {again}")


def _readers(option: str, sweep: Sweep) -> list[str]:
    """The algorithms of the sweep that have an option `algorithm.FIELD`; of any other key all of them."""
    section, _, field = option.partition(".")
    return [
        name
        for name in sweep.search_space.algorithms
        if section != "algorithm" or any(field == hp.name for hp in hyperparameters(ALGORITHMS.get(name)))
    ]


def _set_by(parameter: Parameter) -> set[str]:
    """The dotted keys that every value of a parameter sets: a `cohort` of 10 sets `cohort.size` and
    `cohort.fraction`."""
    key, section = parameter.key, section_of(Experiment, parameter.key.split("."))
    return {key} | set.intersection(
        *(set(dotted(expand_shorthand(v, section), key)) for v in parameter.domain.probes())
    )


def narrowed(space: Mapping[str, Any]) -> Mapping[str, Any]:
    """`space` without the entries of algorithms that its `algorithm` leaves out."""
    if not isinstance(space, Mapping) or "algorithm" not in space:
        return space  # `resolve` reports the error
    form = space["algorithm"]
    names = [form] if isinstance(form, str) else [str(name) for name in written("algorithm", form).probes()]
    kinds = [ALGORITHMS.get(name) for name in names]
    fields = {field for kind in kinds for field in (*(hp.name for hp in hyperparameters(kind)), *kind.renamed)}

    def left(key: str) -> bool:
        section, _, field = key.partition(".")
        if section == "algorithm":
            return not field or field in fields
        return section in names or section not in ALGORITHMS.names()

    return {key: form for key, form in space.items() if left(key)}

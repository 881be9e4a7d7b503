"""The search space of a sweep: what the algorithms declare with `hp`, narrowed by the sweep, and any other key of an
experiment.

space = resolve({"algorithm.rho": "auto", "partition.alpha": [0.1, 0.3]}, experiment)
space.suggest(trial)  # {"algorithm.rho": 1.2, "partition.alpha": 0.1}: overrides for load_config
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from flray.aggregations import AGGREGATIONS
from flray.algorithms import ALGORITHMS
from flray.config.experiment import Experiment
from flray.config.loader import with_values
from flray.core.schema.errors import ConfigError, unknown
from flray.core.schema.hp import Hyperparameter, hyperparameters
from flray.models.model_config import model_options
from flray.tuning.domain import Choice, Domain, Fixed, Range, check_within, show, written
from flray.uplink.chain import option_of

if TYPE_CHECKING:
    from optuna.trial import BaseTrial

# keys that would make trials incomparable, or that change no run
NOT_SEARCHED = {
    "seed": "a seed is not tuned; scheduler.seeds and final.seeds say how many each configuration gets",
    "evaluate.every": "it changes no training, and trials are compared after the same rounds; set it in the experiment",
    "until": "trials are compared after the same time; set it in the experiment",
    "evaluate.validation": "every trial is judged on the same held-out share; set it in the experiment",
    **dict.fromkeys(("name", "imports", "address", "storage"), "it changes no run; set it in the experiment"),
}


class Parameter(NamedTuple):
    """A parameter: its `name` in the study, the `key` of the experiment that it sets, and its values."""

    name: str
    key: str
    domain: Domain


class Space(NamedTuple):
    """The parameters of each algorithm. `conditional`: the algorithm is a parameter itself, and those of each algorithm
    are named `ALGORITHM.FIELD`; otherwise `algorithm.FIELD`."""

    conditional: bool
    parameters: dict[str, tuple[Parameter, ...]]

    @property
    def algorithms(self) -> tuple[str, ...]:
        return tuple(self.parameters)

    def names(self, algorithm: str | None = None) -> tuple[str, ...]:
        """Names of the searched parameters of one algorithm, or of all (`algorithm` among them in a conditional
        space)."""
        if algorithm is not None:
            return tuple(p.name for p in self._of(algorithm) if not isinstance(p.domain, Fixed))
        every = itertools.chain.from_iterable(map(self.names, self.algorithms))
        return tuple(dict.fromkeys([*(["algorithm"] if self.conditional else []), *every]))

    def suggest(self, trial: BaseTrial, algorithm: str | None = None) -> dict[str, Any]:
        """Overrides for `load_config` from an Optuna trial; `algorithm`: that one, without asking the trial."""
        if algorithm is None:
            algorithm = (
                trial.suggest_categorical("algorithm", self.algorithms) if self.conditional else self.algorithms[0]
            )
        values = {
            p.name: p.domain.suggest(trial, p.name) for p in self._of(algorithm) if not isinstance(p.domain, Fixed)
        }
        return self.overrides(values, algorithm)

    def overrides(self, params: Mapping[str, Any], algorithm: str | None = None) -> dict[str, Any]:
        """The overrides of a trial from its `params` in the study (`algorithm` among them, or given).

        Raises `ConfigError` if they do not belong to this space: a missing or additional name, a value outside.
        """
        params = dict(params)
        if self.conditional:
            algorithm = params.pop("algorithm", algorithm)
            if algorithm is None:
                raise ConfigError(
                    f"trial: its algorithm is missing; this sweep chooses among {', '.join(self.algorithms)}"
                )
        algorithm = algorithm or self.algorithms[0]
        names = self.names(algorithm)
        for name in params:
            if name not in names:
                raise unknown("parameter", name, names, "a trial; is it of another sweep?")
        keys = {"algorithm": algorithm} if self.conditional else {}
        for name, key, domain in self._of(algorithm):
            if name in names and name not in params:
                raise ConfigError(f"trial: it has no parameter {name}; is it of another sweep?")
            keys[key] = domain.value(name, params.get(name))
        return keys

    def check_enqueued(self, params: Mapping[str, Any], algorithm: str | None = None) -> None:
        """Raises `ConfigError` for values of some parameters that no trial of this space has. A constant, and the
        algorithm, may be among them."""
        algorithms = self.algorithms if algorithm is None else (algorithm,)
        of = {p.name: p.domain for name in algorithms for p in self._of(name)} | {"algorithm": Choice(algorithms)}
        for name, value in params.items():
            if name not in of:
                raise unknown("parameter", name, self.names(algorithm), "a trial that was enqueued")
            domain = of[name]
            if isinstance(domain, Fixed):
                domain = Choice((domain.constant,))
            try:
                domain.value(name, value)
            except ConfigError:
                values = ", ".join(map(repr, domain.labels)) if isinstance(domain, Choice) else str(domain)
                raise ConfigError(f"it was enqueued with {name}={value!r}; the space has {values}") from None

    def example(self, algorithm: str | None = None) -> dict[str, Any]:
        """Overrides of one trial: the first value, or the lower end, of every parameter."""
        algorithm = algorithm or self.algorithms[0]
        head = {"algorithm": algorithm} if self.conditional else {}
        return head | {p.key: p.domain.probes()[0] for p in self._of(algorithm)}

    def size(self, algorithm: str | None = None) -> int | None:
        """The number of configurations, of one algorithm or of all; None: without end, as a range of floats has."""
        sizes = [[p.domain.size() for p in self._of(name)] for name in ([algorithm] if algorithm else self.algorithms)]
        finite = [[size for size in each if size is not None] for each in sizes]
        return sum(map(math.prod, finite)) if finite == sizes else None

    def contains(self, params: Mapping[str, Any], algorithm: str | None = None) -> bool:
        """Whether a trial with these `params` is of this space."""
        try:
            self.overrides(params, algorithm)
        except ConfigError:
            return False
        return True

    def mutations(self, algorithm: str | None = None) -> dict[str, list[Any] | tuple[Any, Any, bool]]:
        """The algorithm's numeric parameters, which can change during a run: by name a list of values, or (low, high,
        whether on a log scale); integers if the field is one."""
        draws = {
            p.name: p.domain.numbers()
            for p in self._of(algorithm or self.algorithms[0])
            if p.key.startswith("algorithm.")
        }
        return {name: numbers for name, numbers in draws.items() if numbers is not None}

    def dump(self) -> dict[str, Any]:
        """Plain, resolved values: `resolve(space.dump(), experiment)` is this space."""
        values: dict[str, Any] = {"algorithm": {"choice": list(self.algorithms)}} if self.conditional else {}
        return values | {p.name: p.domain.dump() for p in itertools.chain.from_iterable(self.parameters.values())}

    def _of(self, algorithm: str) -> tuple[Parameter, ...]:
        if algorithm not in self.parameters:
            raise unknown("algorithm", algorithm, self.algorithms, "this sweep")
        return self.parameters[algorithm]


def resolve(space: Mapping[str, Any], experiment: Mapping[str, Any] | Experiment) -> Space:
    """Resolves a sweep's section `space` for its `experiment`.

    `auto` takes the algorithm's declaration. A list or `{choice: [...]}` are values, `{log: [lo, hi]}` and `{linear:
    [lo, hi]}` are ranges (of integers if the field is one; one without a type is what its default is, and without that
    what both ends are), anything else is a constant. A choice of algorithms adds
    what each declares in its own class; then `algorithm.FIELD` is for all that have it, `NAME.FIELD` for one. A
    declaration may be narrowed, not widened. Every value, and every two options together, must make a valid experiment.
    Raises `ConfigError`.
    """
    if not isinstance(space, Mapping):
        raise ConfigError(f"space: {show(space)} is not a mapping; write for example space: {{algorithm.lr: auto}}")
    values = experiment.dump() if isinstance(experiment, Experiment) else experiment
    forms = {str(key): form for key, form in space.items()}
    chosen = forms.pop("algorithm", None)
    names, conditional = _algorithms(chosen, values)
    _check_keys(forms, names, conditional)
    parameters = {}
    for name in names:
        drafts = _drafts(forms, name, conditional)
        head = {"algorithm": name} if chosen is not None else {}
        constant = [] if conditional or not head else [Parameter("algorithm", "algorithm", Fixed(name))]
        parameters[name] = (*constant, *_checked(drafts, name, values, head))
    resolved = Space(conditional, parameters)
    if not resolved.names():
        raise ConfigError("space: nothing to search; write for example space: {algorithm.lr: auto}")
    return resolved


def _algorithms(form: Any, values: Mapping[str, Any]) -> tuple[list[str], bool]:
    """The algorithms of the sweep, and whether it chooses among them."""
    if form is None or isinstance(form, str):
        section = values.get("algorithm") if form is None else form
        name = section.get("name") if isinstance(section, Mapping) else section
        if name is None:
            raise ConfigError(
                "experiment.algorithm: missing; name one, or let the sweep choose: space: {algorithm: [fedavg, "
                "fedprox]}"
            )
        ALGORITHMS.get(name)
        return [name], False
    domain = written("algorithm", form)
    if not isinstance(domain, Choice):
        raise ConfigError(f"space.algorithm: {show(form)}; write one name, or a list of names")
    for name in domain.values:
        ALGORITHMS.get(name if isinstance(name, str) else show(name))
    return list(domain.checked("algorithm", domain.values).values), True


def _check_keys(forms: Iterable[str], names: Sequence[str], conditional: bool) -> None:
    """Raises `ConfigError` unless every key belongs to the experiment or to an algorithm of the sweep."""
    fields = {name: [hp.name for hp in hyperparameters(ALGORITHMS.get(name))] for name in names}
    renamed = {name: ALGORITHMS.get(name).renamed for name in names}
    for key in forms:
        section, _, field = key.partition(".")
        for prefix, why in NOT_SEARCHED.items():
            if key == prefix or key.startswith(f"{prefix}."):
                raise ConfigError(f"space.{key}: {why}")
            if prefix.startswith(f"{key}."):
                raise ConfigError(f"space.{key}: it has {prefix}, and {why}; write the keys that are searched")
        if section == "uplink" and field.endswith(".name"):
            raise ConfigError(f"space.{key}: an entry goes by its name; write uplink: [[{{name: ...}}], ...]")
        for new in {old.get(field) for name, old in renamed.items() if section in ("algorithm", name)} - {None}:
            raise ConfigError(f"space.{key}: this key has a new name; write {section}.{new}")
        if section == "algorithm":
            if not any(field in own for own in fields.values()):
                raise unknown(
                    "parameter", field, set(itertools.chain(*fields.values())), f"space.{key}, of {', '.join(names)}"
                )
        elif conditional and section in fields:
            if field not in fields[section]:
                raise unknown("parameter", field, fields[section], f"space.{key}")
        elif section not in Experiment.model_fields:
            if section not in ALGORITHMS.names():
                raise unknown(
                    "key", section, [*Experiment.model_fields, *(names if conditional else [])], f"space.{key}"
                )
            if conditional:
                raise ConfigError(
                    f"space.{key}: {section} is not an algorithm of this sweep; add it to space.algorithm"
                )
            raise ConfigError(f"space.{key}: this sweep does not choose among algorithms; write algorithm.{field}")


class Draft(NamedTuple):
    """A parameter before its values are checked: also `where` it is written, and the algorithm's declaration."""

    where: str
    name: str
    key: str
    domain: Domain
    declared: Hyperparameter | None


def _own_fields(algorithm: str, kind: type[BaseModel]) -> set[str]:
    """The names that an algorithm's own class declares, and the rule of aggregation of its name, if it has that."""
    own = set(vars(kind).get("__annotations__", {}))
    rule = AGGREGATIONS.get(algorithm) if algorithm in AGGREGATIONS.names() else None
    return own | set(vars(rule).get("__annotations__", {})) if rule in kind.__mro__ else own


def _drafts(forms: Mapping[str, Any], algorithm: str, conditional: bool) -> list[Draft]:
    """The searched parameters of one algorithm: its fields, then the other keys."""
    kind = ALGORITHMS.get(algorithm)
    declared = {f"algorithm.{hp.name}": hp for hp in hyperparameters(kind)}
    # FedAvg's are those that all share
    own = set() if kind is ALGORITHMS.get("fedavg") or not conditional else _own_fields(algorithm, kind)
    forms_of: dict[str, tuple[str, Any]] = {}
    for key, hp in declared.items():
        alone = f"{algorithm}.{hp.name}"
        for where in (alone, key) if conditional else (key,):
            if where in forms:
                forms_of[key] = (where, forms[where])
                break
        else:
            if hp.name.partition(".")[0] in own and hp.space is not None:
                forms_of[key] = (alone, "auto")
    forms_of |= {
        key: (key, form)
        for key, form in forms.items()
        if key.partition(".")[0] in Experiment.model_fields and key not in forms_of
    }
    drafts = []
    for key, (where, form) in forms_of.items():
        field = declared.get(key)
        if field is None and key.startswith("algorithm."):
            continue  # other algorithms of the choice have it
        name = f"{algorithm}.{field.name}" if conditional and field is not None else key
        drafts.append(
            Draft(where, name, key, _declared(where, name, field) if form == "auto" else written(where, form), field)
        )
    return drafts


def _declared(where: str, name: str, hp: Hyperparameter | None) -> Domain:
    if hp is None or hp.space is None:
        what = f"auto, but no search space is declared for {name}"
        raise ConfigError(f"space.{where}: {what}; write {name}: [VALUE, ...], or a range: {{linear: [LOW, HIGH]}}")
    return written(where, {hp.space.kind: list(hp.space.values)})


def _checked(
    drafts: Sequence[Draft], algorithm: str, values: Mapping[str, Any], head: Mapping[str, Any]
) -> list[Parameter]:
    """The parameters, after each value and every two options have made a valid experiment."""
    first = {**head, **{draft.key: draft.domain.probes()[0] for draft in drafts}}
    try:
        experiment = with_values(values, first)
    except ConfigError as error:
        raise ConfigError(
            f"space.{error}" if str(error).startswith(tuple(draft.key for draft in drafts)) else str(error)
        ) from None
    parameters = []
    for draft in drafts:
        read = []
        for value in draft.domain.probes():
            try:
                read.append(_read(with_values(values, {**first, draft.key: value}), draft.key, value))
            except ConfigError as error:
                raise ConfigError(f"space.{draft.where}: {str(error).removeprefix(f'{draft.key}: ')}") from None
        if isinstance(draft.domain, Range) and _is_float(draft, experiment):
            read = [float(v) if isinstance(v, int) and not isinstance(v, bool) else v for v in read]
        domain = draft.domain.checked(draft.where, read)
        if draft.declared is not None and draft.declared.space is not None:
            check_within(draft.where, domain, draft.declared.space, algorithm)
        parameters.append(Parameter(draft.name, draft.key, domain))
    options = [p for p in parameters if isinstance(p.domain, Choice) and p.domain.numbers() is None]
    for one, other in itertools.combinations(options, 2):
        for a, b in itertools.product(one.domain.probes(), other.domain.probes()):
            try:
                with_values(values, {**first, one.key: a, other.key: b})
            except ConfigError as error:
                raise ConfigError(f"space: {one.name}={show(a)} with {other.name}={show(b)}: {error}") from None
    return parameters


def _is_float(draft: Draft, experiment: Experiment) -> bool:
    """Whether the default of an option is a float: then so is one without a type, as a network of one's own has."""
    section, _, option = draft.key.partition(".")
    options = model_options(experiment.model.name) if section == "model" and option else []
    declared = draft.declared or next((hp for hp in options if hp.name == option), None)
    return declared is not None and isinstance(declared.default, float)


def _read(experiment: Any, key: str, value: Any) -> Any:
    """`value` as the experiment reads it: `"1e-4"` and `1` are numbers of a float field; a section does not change."""
    section, _, option = key.partition(".")
    if section == "uplink":  # a list, whose entries keys name
        return to_jsonable_python(option_of(experiment.uplink, key) if option else value)
    if option == "name":  # which a section, or one that is left out, does not have
        return value
    for part in key.split("."):
        experiment = experiment[part] if isinstance(experiment, Mapping) else getattr(experiment, part)
    plain_keys = to_jsonable_python(experiment)
    return to_jsonable_python(value) if value is None or isinstance(plain_keys, Mapping) else plain_keys

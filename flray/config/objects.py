"""Objects of Python in a configuration: a class or a function is recorded by its import path, one that a module
registers by its name and that module. What has neither is refused.

flray.run(config, model=net.BNNet)                            # model: net:BNNet
flray.run(config, model={"name": net.BNNet, "width": 8})      # the same with an option
flray.run(config, model=functools.partial(net.BNNet, width=8))
flray.run(config, partition=mine.halves)                      # partition: mine:halves
flray.run(config, algorithm=mine.MyAlgorithm)                 # if mine.py registers it: algorithm: my, imports: [mine]
flray.run(config, algorithm=FedProx(mu=0.1))                  # algorithm: {name: fedprox, mu: 0.1}

What is recorded is found again by every process, by `flray resume DIR` and by `flray run DIR/config.yaml`. What a
script or a notebook defines (`__main__:Name`), a lambda and what a function defines go to the
run's processes by value.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Mapping
from itertools import chain
from typing import Any

from pydantic import BaseModel

from flray.aggregations import AGGREGATIONS
from flray.algorithms import ALGORITHMS
from flray.config.tracking import TRACKERS
from flray.core.schema.errors import ConfigError, headline, kind_of, shown, warn
from flray.core.schema.registry import BY_VALUE, GIVEN, IMPORT_PATH, MAIN, Registry, attribute, module_name
from flray.core.schema.section import by_alias
from flray.data.sources import SOURCES
from flray.metrics.probes import PROBES
from flray.models import MODELS
from flray.models.libraries import LIBRARIES
from flray.scenario import DRIFTS, PARTITIONS
from flray.uplink.chain import UPLINKS

GIVEN_BY = {  # package of an object in Python -> the function that makes the section `data` of it
    "torch": "from_torch(train, test)", "torchvision": "from_torch(train, test)",
    "datasets": "from_hf(train, test)", "flwr_datasets": "from_flwr(data)",
    "pandas": "from_hf(datasets.Dataset.from_pandas(frame))", "pyarrow": "from_hf(datasets.Dataset(table))",
    "sklearn": "from_arrays((data.data, data.target))",
}  # fmt: skip
SECTIONS = {
    "diagnostics": (PROBES, "name"), "track": (TRACKERS, "name"),
    "algorithm": (ALGORITHMS, "name"), "aggregation": (AGGREGATIONS, "name"), "partition": (PARTITIONS, "name"),
    "drift": (DRIFTS, "name"), "uplink": (UPLINKS, "name"), "data": (SOURCES, "source"), "proxy": (SOURCES, "source"),
}  # fmt: skip
ARRAYS = ("ndarray", "Tensor")
OF_FRAMES = ("DataFrame", "Series")  # in a pair they are features and labels
OF_DATA = ("train", "x", "X", "data", "images")  # what people call the samples in a dictionary


def without_objects(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a configuration, or of overrides by key, with names in place of classes and functions.

    Raises `ConfigError` for an object that no other process could make, and for data sets and arrays of Python that
    stand where a section `data` belongs; it says what to write.
    """
    _refuse_data(values)
    named = dict(values)
    for key, (table, field) in SECTIONS.items():
        for place in (key, f"{key}.{field}"):
            if place in values:
                named[place], modules = _named(place, table, field, values[place])
                if modules:
                    given = named.get("imports") or []
                    named["imports"] = [*([given] if isinstance(given, str) else given), *modules]
    for key in values.keys() & {"model", "model.name"}:
        value = values[key]
        if key == "model" and isinstance(value, list | tuple):  # a grid
            named[key] = [without_objects({key: one})[key] for one in value]
        elif isinstance(value, Mapping) and "name" in value and not isinstance(value["name"], str):
            own = _network("model.name", value["name"])
            named[key] = {**own, **{option: given for option, given in value.items() if option != "name"}}
        elif _is_object(value):
            own = _network(key, value)
            named |= {key: own["name"]} if key == "model.name" and len(own) == 1 else {"model": own}
            if key == "model.name" and len(own) > 1:
                raise ConfigError(f"model.name: {shown(value)} has options; give it as model")
    return named


@functools.cache
def _warn_once(text: str) -> None:
    """A warning that runs in a loop do not repeat: each run lifts the interpreter's own limit to one."""
    warn(text)


def import_path(key: str, value: Any) -> str:
    """`"module:attribute"` of a class or a function, or the name of a callable that has none (`GIVEN`).

    Raises `ConfigError` for one whose module has no file, or has another object of that name.
    """
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    bound = inspect.ismethod(value) and not inspect.isclass(value.__self__)
    if not isinstance(module, str) or not isinstance(name, str) or "<l" in name or bound:  # <lambda>, <locals>
        return _by_value(key, value)
    module = module_name(module)
    move = f"put it into a module, such as own.py, and write {key}=own.{name.rpartition('.')[2]}"
    found = attribute(sys.modules.get(module), name)
    if module == "__main__" and found is None:  # a Ray worker got it by value: the script is another process's
        return _by_value(key, value)
    if found != value:
        raise ConfigError(f"{key}: {module} has another {name}, or none (a module loaded again?); import it anew")
    if module == "__main__":
        _warn_once(f"{key}: {name} is defined in a script or a notebook; a resume needs it defined there again; {move}")
        return f"{MAIN}{name}"
    try:
        known = importlib.util.find_spec(module) is not None
    except (ValueError, ImportError):  # a module made by hand has no `__spec__`
        known = False
    if not known:
        raise ConfigError(f"{key}: no file defines the module {module} of {name}; {move}")
    return f"{module}:{name}"


def _by_value(key: str, value: Any) -> str:
    """The name in `GIVEN` of a callable that no import finds: with a hash of all that travels with it, so the same one
    has it again. A class that is defined anew has another. Warns that no other process resumes the run.

    Raises `ConfigError` for what holds something that no other process can have.
    """
    inner = value.func if isinstance(value, functools.partial) else value
    written = getattr(inner, "__qualname__", type(inner).__qualname__)
    what = written if inner is value else f"a partial of {written}"
    move = f"put a class or a function into a module, such as own.py, and write {key}=own.NAME"
    try:
        content = _content(value)
    except Exception as error:  # of the user's own objects
        raise ConfigError(f"{key}: {what} cannot go to another process ({headline(error)}); {move}") from error
    short = re.sub(r"\W", "_", written.rpartition(".")[2].strip("<>"))
    name = f"{BY_VALUE}{short}.x{content}"
    GIVEN.setdefault(name, value)
    warn(f"{key}: {what} has no import path, so no other process can resume the run; for that, {move}")
    return name


def _content(value: Any) -> str:
    """Twelve digits of the hash of all that travels with a callable."""
    import cloudpickle

    return hashlib.sha256(cloudpickle.dumps(value)).hexdigest()[:12]


def check_given(text: str) -> None:
    """Raises `ConfigError` for a callable named in the text of a configuration that has other contents than when it was
    given, because it reads what has changed."""
    for name, own, content in re.findall(rf"({re.escape(BY_VALUE)}(\w+)\.x([0-9a-f]{{12}}))", text):
        value = GIVEN.get(name)
        if isinstance(value, type) and issubclass(value, BaseModel):
            continue  # pydantic completes its class when it is used
        if value is not None and _content(value) != content:
            raise ConfigError(
                f"{own}: what it reads has changed since it was given, in a closure or a global; set it back, or give "
                "it to a new run"
            )


def _is_object(value: Any) -> bool:
    """Whether a value is of no kind that a configuration has."""
    return callable(value) or inspect.ismodule(value)


def _network(key: str, value: Any) -> dict[str, Any]:
    """The section `model` of a network's class or function, with the options that a `functools.partial` binds."""
    if isinstance(value, functools.partial):
        inside = _network(key, value.func)
        try:
            bound = inspect.signature(value.func).bind_partial(*value.args)
        except TypeError as error:
            raise ConfigError(f"{key}: {shown(value)}: {error}") from None
        return {**inside, **bound.arguments, **value.keywords}
    if not isinstance(value, type) and any(kind.__name__ == "Module" for kind in type(value).__mro__):
        kind = type(value).__name__
        write = f"give the class, model={kind}, or with options model={{'name': {kind}, 'width': 8}}"
        if type(value).__module__.startswith("torch."):
            write = f"write def net(input_shape, num_classes): return {kind}(...), and give model=net"
        raise ConfigError(f"{key}: a {kind} that is built already; every process builds its own from the seed: {write}")
    if not inspect.isclass(value) and not inspect.isfunction(value):
        raise ConfigError(f"{key}: {shown(value)} is {kind_of(value)}; give a class of torch.nn.Module, or a function")
    module, name = value.__module__ or "", value.__name__
    library = module.partition(".")[0]
    if inspect.isfunction(value) and library in LIBRARIES:
        return {"name": f"{library}:{name}"}  # built for the data's classes and channels
    known = MODELS.name_of(value) if module.startswith("flray.") else None
    return {"name": known or import_path(key, value)}


def _named(key: str, table: Registry, field: str, value: Any) -> tuple[Any, list[str]]:
    """A section, or a list of them, with the name of a class or a function in place of it, and the modules to import.

    What a table has goes by its name there, other objects by their import path; a section that is made already, such
    as `FedAvg(lr=0.1)`, by the values that it was given. Raises `ConfigError` for a partition's arrays.
    """
    if isinstance(value, list | tuple) and len(value) > 0:
        if key.startswith("partition") and hasattr(value[0], "dtype"):
            raise ConfigError(
                f"{key}: sample numbers, no name of a partition; in a module of yours write "
                "PARTITIONS.add('mine', function), and here partition='mine', imports=['my_module']"
            )
        names, modules = zip(*(_named(key, table, field, one) for one in value), strict=True)
        return list(names), list(chain.from_iterable(modules))
    if isinstance(value, Mapping) and field in value:
        name, more = _named(f"{key}.{field}", table, field, value[field])
        return {**value, field: name}, more
    if isinstance(value, BaseModel) and not key.endswith(f".{field}"):
        name, more = _named(key, table, field, type(value))
        return {field: name, **value.model_dump(exclude_unset=True, by_alias=by_alias(value), round_trip=True)}, more
    if not callable(value):
        return value, []
    known = table.name_of(value)
    if known is None or IMPORT_PATH.fullmatch(known):
        return import_path(key, value), []
    module = module_name(value.__module__)
    if module == "__main__" or module.startswith("flray."):
        return known, []
    import_path(key, value)  # an error if no other process finds it
    return known, [module]


def _refuse_data(values: Mapping[str, Any]) -> None:
    for key in values.keys() & {"data", "proxy", "data.source", "proxy.source"}:
        value, section = values[key], key.partition(".")[0]
        inside = [value[name] for name in ("source", *OF_DATA) if name in value] if isinstance(value, Mapping) else []
        for given in (value, *inside):
            if (call := _given_by(given)) is not None:
                raise ConfigError(
                    f"{key}: {type(given).__name__} is an object, no section; write {section}=flray.data.{call}"
                )


def _given_by(value: Any) -> str | None:
    """The call for an object: by its package and its base classes' packages, so nothing is imported."""
    first = value
    while isinstance(first, tuple | list) and first:
        first = first[0]
    arrays = ARRAYS if first is value else (*ARRAYS, *OF_FRAMES)
    if any(kind.__name__ in arrays for kind in type(first).__mro__):
        return "from_arrays((x, y), (test_x, test_y))"
    packages = [kind.__module__.partition(".")[0] for kind in type(first).__mro__]
    if "torch" in packages and type(first).__name__ == "DataLoader":
        return "from_torch(loader.dataset)"
    return next((GIVEN_BY[package] for package in packages if package in GIVEN_BY), None)

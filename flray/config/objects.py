"""Objects of Python in a configuration: a network's class is recorded by its import path, what a module registers by
its name and that module, others are refused.

flray.run(config, model=net.BNNet)                            # model: net:BNNet
flray.run(config, model={"name": net.BNNet, "width": 8})      # the same with an option
flray.run(config, model=functools.partial(net.BNNet, width=8))
flray.run(config, algorithm=mine.MyAlgorithm, partition=mine.halves)  # which mine.py registers: imports: [mine]

What is recorded is found again by every process, by `flray resume DIR` and by `flray run DIR/config.yaml`.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import sys
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from flray.aggregations import AGGREGATIONS
from flray.algorithms import ALGORITHMS
from flray.core.schema.errors import ConfigError, kind_of, shown
from flray.core.schema.registry import attribute
from flray.models import MODELS
from flray.models.libraries import LIBRARIES
from flray.scenario import DRIFTS, PARTITIONS

GIVEN_BY = {  # package of an object in Python -> the function that makes the section `data` of it
    "torch": "from_torch(train, test)", "torchvision": "from_torch(train, test)",
    "datasets": "from_hf(train, test)", "flwr_datasets": "from_flwr(data)",
    "pandas": "from_hf(datasets.Dataset.from_pandas(frame))", "pyarrow": "from_hf(datasets.Dataset(table))",
    "sklearn": "from_arrays((data.data, data.target))",
}  # fmt: skip
TABLES = {"algorithm": ALGORITHMS, "aggregation": AGGREGATIONS, "partition": PARTITIONS, "drift": DRIFTS}
ARRAYS = ("ndarray", "Tensor")


def without_objects(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a configuration, or of overrides by key, with the networks' classes as import paths.

    Raises `ConfigError` for an object that no other process could make, and for data sets and arrays of Python that
    stand where a section `data` belongs; it says what to write.
    """
    _refuse_data(values)
    named = dict(values)
    for key in TABLES:
        value = values.get(key)
        if isinstance(value, list | tuple) and any(map(callable, value)):  # a grid
            for place, one in enumerate(value):
                found = _registered(key, one, named.get("imports"))
                named |= {**found, key: [*named[key][:place], found.get(key, one), *named[key][place + 1 :]]}
        elif isinstance(value, Mapping) and callable(value.get("name")):
            found = _registered(key, value["name"], named.get("imports"))
            named |= {**found, key: {**value, "name": found[key]}}
        else:
            named |= _registered(key, value, named.get("imports"))
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


def import_path(key: str, value: Any) -> str:
    """`"module:attribute"` of a class or a function. Raises `ConfigError` if another process could not import it."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str):
        raise ConfigError(f"{key}: {kind_of(value)} is no class and no function; write {key}=my_module.Name")
    if module == "__main__":
        spec = getattr(sys.modules["__main__"], "__spec__", None)  # of `python -m package.script`
        script = getattr(spec, "name", module)
        module = module if script.endswith("__main__") else script
    move = f"put it into a module, such as own.py, and write {key}=own.{name.rpartition('.')[2]}"
    if "<lambda>" in name:
        raise ConfigError(f"{key}: a lambda has no name that another process could import; write a function or a class")
    if "<locals>" in name:
        raise ConfigError(f"{key}: {name} is defined inside a function, where no other process finds it; {move}")
    if module == "__main__":
        raise ConfigError(
            f"{key}: {name} is defined in __main__ (a script, a notebook), which no process imports; {move}"
        )
    loaded = sys.modules.get(module)
    if attribute(loaded, name) != value:
        raise ConfigError(f"{key}: {module} has another {name}, or none (a module loaded again?); import it anew")
    try:
        known = importlib.util.find_spec(module) is not None
    except (ValueError, ImportError):  # a module made by hand has no `__spec__`
        known = False
    if not known:
        raise ConfigError(f"{key}: no file defines the module {module} of {name}; {move}")
    return f"{module}:{name}"


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
        raise ConfigError(
            f"{key}: a {kind} that is built already; every process builds its own from the seed: give the class, "
            f"model={kind}, or with options model={{'name': {kind}, 'width': 8}}"
        )
    if not inspect.isclass(value) and not inspect.isroutine(value):
        raise ConfigError(f"{key}: {shown(value)} is {kind_of(value)}; give a class of torch.nn.Module, or a function")
    module, name = value.__module__ or "", value.__name__
    library = module.partition(".")[0]
    if inspect.isfunction(value) and library in LIBRARIES:
        return {"name": f"{library}:{name}"}  # built for the data's classes and channels
    known = MODELS.name_of(value) if module.startswith("flray.") else None
    return {"name": known or import_path(key, value)}


def _registered(key: str, value: Any, imports: Any) -> dict[str, Any]:
    """A class or a function that stands in its table as its name there, and its module among the `imports`; of another
    value nothing. Raises `ConfigError` for one that is in no table, and for a partition's arrays."""
    arrays = isinstance(value, list | tuple) and len(value) > 0 and hasattr(value[0], "dtype")
    if isinstance(value, BaseModel) and TABLES[key].name_of(type(value)) is not None:
        kind = type(value).__name__
        raise ConfigError(f"{key}: a {kind} that is made already; give the class, {key}={{'name': {kind}, ...}}")
    if not callable(value) and not arrays:
        return {}
    if not arrays and (known := TABLES[key].name_of(value)) is not None:
        module = value.__module__
        if module == "__main__" or module.startswith("flray."):
            return {key: known}
        import_path(key, value)  # an error if no other process finds it
        others = [imports] if isinstance(imports, str) else list(imports or [])
        return {key: known, "imports": [*others, module]}
    table = f"{key.upper()}S"
    name = "function" if arrays else getattr(value, "__name__", "function")
    what = "sample numbers, no name of a partition" if arrays else f"{shown(value)}, no name"
    raise ConfigError(
        f"{key}: {what}; in a module of yours write {table}.add('mine', {name}), and "
        f"here {key}='mine', imports=['my_module']"
    )


def _refuse_data(values: Mapping[str, Any]) -> None:
    for key in values.keys() & {"data", "proxy", "data.source", "proxy.source"}:
        value, section = values[key], key.partition(".")[0]
        inside = [value[name] for name in ("source", "train") if name in value] if isinstance(value, Mapping) else []
        for given in (value, *inside):
            if (call := _given_by(given)) is not None:
                raise ConfigError(
                    f"{key}: {type(given).__name__} is an object, no section; write {section}=flray.data.{call}"
                )
            if callable(given):
                raise ConfigError(
                    f"{key}: {shown(given)} is an object, no section; register it in a module: SOURCES.add('mine', "
                    f"...), and write {section}='mine', imports=['my_module']"
                )


def _given_by(value: Any) -> str | None:
    """The call for an object: by its package and its base classes' packages, so nothing is imported."""
    first = value
    while isinstance(first, tuple | list) and first:
        first = first[0]
    if any(kind.__name__ in ARRAYS for kind in type(first).__mro__):
        return "from_arrays((x, y), (test_x, test_y))"
    packages = [kind.__module__.partition(".")[0] for kind in type(value).__mro__]
    if "torch" in packages and type(value).__name__ == "DataLoader":
        return "from_torch(loader.dataset)"
    return next((GIVEN_BY[package] for package in packages if package in GIVEN_BY), None)

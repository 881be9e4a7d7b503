"""What a script or a notebook defines (module `__main__`), for processes that cannot import it.

A class or a function of `__main__` that an experiment names goes to them by value, with what it reads there; so does
a callable that was given itself and that no import finds (`GIVEN`).
"""

from __future__ import annotations

import base64
import sys
from typing import Any

from ray import cloudpickle

from flray.config.experiment import Experiment
from flray.core.schema.errors import ConfigError
from flray.core.schema.plain import words as texts
from flray.core.schema.registry import GIVEN, MAIN, SPAWNED, Registry


def dumped(experiment: Experiment) -> str:
    """The objects of `__main__` in the tables and among the names of the configuration, as text, and the import paths
    of names there that modules register which it does not import; "": there are none.

    What no other process can have (it holds a lock, an open file) is left out; `ConfigError` if the configuration names
    it.
    """
    if (spawned := sys.modules.get(SPAWNED)) is not None:  # which no other process can import
        cloudpickle.register_pickle_by_value(spawned)
    words = set(texts(experiment.dump()))
    main = vars(sys.modules["__main__"])
    given = {word: GIVEN[word] for word in sorted(words) if word in GIVEN}
    paths = sorted(word.removeprefix(MAIN).partition(".")[0] for word in words - given.keys() if word.startswith(MAIN))
    named = {path: main[path] for path in paths if path in main}
    entries = [
        (table.kind, name, target)
        for table in Registry.tables
        for name, target in table.of_main()
        if name in words or _can_be_sent(target)
    ]
    for table in Registry.tables:
        entries += [(table.kind, *entry) for entry in table.own_entries(words, experiment.imports)]
    if not entries and not named and not given:
        return ""
    try:
        return base64.b64encode(cloudpickle.dumps((entries, named, given))).decode()
    except Exception as error:  # of the user's own objects
        names = ", ".join(dict.fromkeys([*(name for _, name, _ in entries), *named, *given]))
        raise ConfigError(
            f"{names}: given itself, and cannot go to another process ({type(error).__name__}: {error}); move it "
            "into a module"
        ) from error


def adopt(text: str) -> None:
    """Make the objects of :func:`dumped` those of this process's tables and of its `__main__`."""
    if text:
        entries, named, given = cloudpickle.loads(base64.b64decode(text))
        for kind, name, target in entries:
            for table in Registry.tables:
                if table.kind == kind:
                    table.replace(name, target)
        vars(sys.modules["__main__"]).update(named)
        GIVEN.update(given)


def _can_be_sent(target: Any) -> bool:
    try:
        cloudpickle.dumps(target)
    except Exception:  # of the user's own objects
        return False
    return True

"""Classes and functions given in Python, by name."""

from __future__ import annotations

import importlib.machinery
import sys
import types

import pytest

from flray.config import objects


def test_a_function_of_a_script_that_was_started_by_its_modules_name_is_the_scripts(monkeypatch):
    """`python -m package.script`: the script is `__main__`, and no module of its own name is loaded."""
    main = types.ModuleType("__main__")
    main.__spec__ = importlib.machinery.ModuleSpec("package.script", None)
    exec("def own(labels, num_classes, config, draws, group): ...", vars(main))
    monkeypatch.setitem(sys.modules, "__main__", main)
    objects._warn_once.cache_clear()
    with pytest.warns(UserWarning, match="own is defined in a script or a notebook"):
        assert objects.import_path("partition", main.own) == "__main__:own"

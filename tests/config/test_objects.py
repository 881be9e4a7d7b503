"""Classes and functions given in Python, by name."""

import importlib.machinery
import sys
import types

import numpy as np
import pandas as pd
import pytest
import torch
from pydantic import BaseModel, Field
from torch.utils.data import TensorDataset

from flray.algorithms.fedavg import FedAvg
from flray.config import objects
from flray.core.schema.errors import ConfigError
from flray.core.schema.registry import GIVEN


def test_a_function_of_a_script_that_was_started_by_its_modules_name_is_the_scripts(monkeypatch):
    """`python -m package.script`: the script is `__main__`, and no module of its own name is loaded."""
    main = types.ModuleType("__main__")
    main.__spec__ = importlib.machinery.ModuleSpec("package.script", None)
    exec("def own(labels, num_classes, config, draws, group): ...", vars(main))
    monkeypatch.setitem(sys.modules, "__main__", main)
    objects._warn_once.cache_clear()
    with pytest.warns(UserWarning, match="own is defined in a script or a notebook"):
        assert objects.import_path("partition", main.own) == "__main__:own"


def test_a_class_of_a_script_that_a_ray_task_got_goes_on_by_value(monkeypatch):
    """The `__main__` of a Ray worker is Ray's own; what has another object of that name there is refused."""
    worker = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", worker)
    own = type("Net", (), {"__module__": "__main__", "__qualname__": "Net"})
    with pytest.warns(UserWarning, match="no other process can resume"):
        name = objects.import_path("model", own)
    assert name.startswith("__main__:by_value.Net.x") and GIVEN.pop(name) is own
    worker.Net = object
    with pytest.raises(ConfigError, match="has another Net"):
        objects.import_path("model", own)


@pytest.mark.parametrize(
    ("data", "call"),
    [
        (pd.DataFrame({"a": [0.5], "label": [0]}), "from_hf(datasets.Dataset.from_pandas(frame))"),
        ((pd.DataFrame({"a": [0.5]}), pd.Series([0])), "from_arrays((x, y), (test_x, test_y))"),
        (((pd.DataFrame({"a": [0.5]}), np.zeros(1)), None), "from_arrays((x, y), (test_x, test_y))"),
        ((TensorDataset(torch.zeros(1)), TensorDataset(torch.zeros(1))), "from_torch(train, test)"),
    ],
)
def test_an_object_in_the_place_of_data_is_refused_with_the_call_for_it(data, call):
    with pytest.raises(ConfigError) as caught:
        objects.without_objects({"data": data})
    assert str(caught.value).endswith(f"is an object, no section; write data=flray.data.{call}")


class Written(BaseModel):
    """Its field is written by a key that does not read it."""

    tau: float = Field(1.0, serialization_alias="t")


class OfWritten(FedAvg):
    part: Written = Written()


def test_a_section_that_is_made_already_is_written_by_the_keys_that_read_it():
    made = objects.without_objects({"algorithm": OfWritten(part={"tau": 2})})
    assert made["algorithm"]["part"] == {"tau": 2.0}

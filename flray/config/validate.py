"""Step 3 of 3, validate: the values of one experiment become an `Experiment`, checked and complete."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flray.config.experiment import Experiment
from flray.config.keys import places_of
from flray.core.schema.errors import ConfigError
from flray.core.schema.section import one_line


def validate(values: Mapping[str, Any]) -> Experiment:
    """Returns the experiment. Raises `ConfigError` in one line: the key, the problem, the nearest valid key."""
    for key in values:
        places = [] if key in Experiment.model_fields else places_of(key, values)
        if places:  # `hidden=64`
            raise ConfigError(f"{key}: this key belongs in a section; write {' or '.join(places)}")
    with one_line("", Experiment):
        return Experiment.model_validate(values)

"""The names of the tables of diagnostics, with those that a user's class has."""

import pytest

from flray.core.schema.registry import BY_VALUE
from flray.metrics.probes import table_names


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (["conflict", "my.probe"], ["conflict", "my.probe"]),  # registered: as they are
        (["own:Norm", f"{BY_VALUE}Other.x0123456789ab"], ["Norm", "Other"]),
        (["__main__:Mine", "a.b:Outer.Inner"], ["Mine", "Inner"]),
        (["a:Norm", "b:Norm"], ["a:Norm", "b:Norm"]),  # both, or rows of two would be in one table
        (["own:conflict", "conflict"], ["own:conflict", "conflict"]),
    ],
)
def test_a_class_has_its_own_name_unless_two_have_it(given: list[str], names: list[str]) -> None:
    assert table_names(given) == names

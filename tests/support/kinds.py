"""Which rows of the table of contracts are tried by default; the whole matrix is there with `-m slow`."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest

# one row of every kind: what costs most is tried with them
KINDS = ("fedavg", "scaffold", "fedproj", "fedsol", "fedprotip", "mfcl", "fedscr", "fedmemo", "own")
CORE = ("fedavg", "fedproj", "fedsol", "fedprotip", "fedmemo")
# whose steps are recorded as the tests' table has them
RECORDED = {
    "fedavg", "fedprox", "scaffold", "fedsol", "fedproj", "fedsam", "moon", "fedntd", "fedprotip", "fedmemo", "fot",
    "ewc",
}  # fmt: skip
# those that travel between processes
STATES = ("scaffold", "fedproj", "own")


def by_default(names: Collection[str], cases: Iterable[Any]) -> list[Any]:
    """The cases, which are a row's name or begin with it; those of other rows than `names` are slow tests."""

    def case(values: Any) -> Any:
        several = values if isinstance(values, tuple) else (values,)
        return values if several[0] in names else pytest.param(*several, marks=pytest.mark.slow)

    return [case(values) for values in cases]

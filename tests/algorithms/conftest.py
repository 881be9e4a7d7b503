"""What the tests of several algorithms need."""

import pytest

from flray.data import SOURCES
from tests.support.lines import lines


@pytest.fixture(scope="module")
def lines_source() -> None:
    """The data source `test_lines`."""
    SOURCES.add("test_lines", lines)

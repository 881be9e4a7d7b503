"""The devices that contracts run on."""

import pytest

from tests.support.devices import using

DEVICES = ["cpu", pytest.param("strict", marks=pytest.mark.slow), pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(scope="module", params=DEVICES)
def device(request):
    """The CPU; among the slow tests a second device without hardware; with `-m gpu` a GPU."""
    with using(request.param) as found:
        yield found

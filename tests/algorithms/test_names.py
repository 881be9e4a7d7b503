"""An algorithm's name in tables and figures is the one that its description begins with."""

import sys

import pytest

from flray.algorithms import ALGORITHMS, as_written, built_in


@pytest.mark.parametrize("name", built_in())
def test_a_description_begins_with_the_name_as_papers_write_it(name):
    about = sys.modules[ALGORITHMS.get(name).__module__].__doc__
    assert about.startswith((as_written(name), "FedOpt (")), "the four of FedOpt share one description"
    assert "".join(filter(str.isalnum, as_written(name))).lower() == name


def test_a_users_own_algorithm_keeps_its_name():
    assert as_written("my_own") == "my_own" and as_written("") == ""

"""A method of an algorithm that ends its process, in real actors: the run ends with one line."""

import re

import pytest

import flray
from flray.core.schema.errors import ResourceError
from tests.support.misbehaving import experiment

CLIENT = r"a client actor died 4 times at the same work, clients \[[\d, ]+\] in task 0, round {} \("
SERVER = r"the server actor died \(.*\), 4 times; "


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "what", "round", "words"),
    [
        ("messages", "leaves", 1, CLIENT.format(2)),
        ("messages", "crashes", 0, CLIENT.format(1)),
        ("own_work", "look leaves", 0, CLIENT.format(1)),
        ("messages", "aggregate leaves", 1, SERVER),
        ("messages", "step leaves", 0, SERVER),  # the server counts the operations of a step
    ],
)
def test_a_method_that_ends_its_process_ends_the_run_in_one_line(ray_cluster, tmp_path, name, what, round, words):
    resources = {"executor": "calls", "client_actors": 2, "server": {"threads": 1}}
    with pytest.raises(ResourceError) as error:
        flray.run(experiment(name, what, round, resources=resources), out=tmp_path / "run")
    line = str(error.value)
    assert "\n" not in line and re.match(words, line), line
    assert (tmp_path / "run" / "STATUS").read_text().startswith(f"failed: {line.partition(', 4 times')[0]}")


@pytest.mark.slow
def test_init_server_that_ends_its_process_ends_the_run_in_one_line(ray_cluster, tmp_path):
    resources = {"executor": "calls", "client_actors": 2, "server": {"threads": 1}}
    with pytest.raises(ResourceError, match=r"the server actor died \(.*\) as it started; if memory ran out"):
        flray.run(experiment("messages", "init_server leaves", resources=resources), out=tmp_path / "run")

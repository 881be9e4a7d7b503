"""A method of an algorithm that ends its process: one line that names it, of real actors.

Each of them ended with "the server actor died, 4 times; if memory ran out ..." after 109 s, or never said the method.
"""

from __future__ import annotations

import re
import time

import pytest

import flray
from flray.core.schema.errors import AlgorithmError, ClientError
from tests.support.misbehaving import experiment

CLIENT = r"client \d failed in task 0, round {round}, exchange {exchange}, seed 3"
ENDED = r"ended its process, twice \({how}"


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["calls", "graph"])
@pytest.mark.parametrize(
    ("name", "what", "round", "method", "where", "how"),
    [
        ("messages", "leaves", 1, "Messages.end", CLIENT, "without a signal"),
        ("messages", "crashes", 0, "Messages.end", CLIENT, "SIGSEGV"),
        ("messages", "step leaves", 0, "Messages.step", f"{CLIENT}, as the server counted", "without a signal"),
        ("messages", "gradient crashes", 0, "Messages.gradient", f"{CLIENT}, as the server counted", "SIGSEGV"),
        ("first_step", "begin leaves", 0, "FirstStep.begin", f"{CLIENT}, as the server counted", "without a signal"),
        ("own_work", "look leaves", 0, "Work.look", CLIENT, "without a signal"),
        ("messages", "aggregate leaves", 1, "Messages.aggregate", "", "without a signal"),
    ],
)
def test_a_method_that_ends_its_process_is_named(
    ray_cluster, tmp_path, name, what, round, method, where, how, executor
):
    began, run = time.monotonic(), tmp_path / "run"
    resources = {"executor": executor, "client_actors": 2, "server": {"threads": 1}}
    with pytest.raises(ClientError if where else AlgorithmError) as error:
        flray.run(experiment(name, what, round, resources=resources), out=run)
    print(f"{time.monotonic() - began:.1f} s: {error.value}")
    line = str(error.value).splitlines()[0]
    where = where.format(round=round + 1, exchange=int(name == "own_work"))
    assert re.match(where, line) and f"{method} (misbehaving.py, line " in line, line
    assert re.search(ENDED.format(how=how), line) and "look for os._exit" in line, line
    # the server counts in the first round, before there is a checkpoint
    unsaved = "; and no checkpoint could be written: the server died" if where.endswith("counted") else ""
    assert (run / "STATUS").read_text() == f"failed: {line}{unsaved}\n"


@pytest.mark.slow
def test_init_server_that_ends_its_process_is_named(ray_cluster, tmp_path):
    resources = {"executor": "calls", "client_actors": 2, "server": {"threads": 1}}
    with pytest.raises(AlgorithmError, match=r"Messages\.init_server \(misbehaving.py, line \d+\) of the server half"):
        flray.run(experiment("messages", "init_server leaves", resources=resources), out=tmp_path / "run")

"""Traces of local training by torch's profiler: what is in them, where they lie, and that they change no bit."""

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest

import flray
from flray.engine.trace import ProfileWarning
from tests.support.stopped import model
from tests.support.tasks import BASE

CONFIG = {**BASE, "cohort": 2, "rounds": 2, "tasks": {"num_tasks": 2}}


def operations(path: Path) -> Counter[str]:
    """How often each operation of torch stands in a trace, as Perfetto reads it."""
    trace = json.loads(gzip.decompress(path.read_bytes()))
    return Counter(event["name"] for event in trace["traceEvents"] if event.get("cat") == "cpu_op")


def test_a_traced_run_has_the_bits_of_another_and_the_trace_every_local_step(tmp_path: Path) -> None:
    """A local step has one cross-entropy, so its operation stands in a trace as often as the client took steps."""
    plain = flray.run(CONFIG, out=tmp_path / "plain", progress=False)
    traced = flray.run({**CONFIG, "profile": {"rounds": [1, 4]}}, out=tmp_path / "traced", progress=False)
    first = traced.clients.query("position == 0 and exchange == 0 and phase == 'round'").set_index("done")
    names = {done: f"round-{done:06d}-client-{first.client[done]}.pt.trace.json.gz" for done in (1, 4)}
    assert {path.name for path in (tmp_path / "traced" / "profile").iterdir()} == set(names.values())
    for done, name in names.items():
        steps = operations(tmp_path / "traced" / "profile" / name)["aten::cross_entropy_loss"]
        assert steps == first.num_steps[done] > 0
    assert model(plain) == model(traced)
    assert not (tmp_path / "plain" / "profile").exists()


def test_named_clients_are_traced_where_they_take_part_and_a_round_without_them_is_named(tmp_path: Path) -> None:
    config = {**CONFIG, "profile": {"rounds": [1, 2, 3, 4], "clients": [0]}}
    with pytest.warns(ProfileWarning) as said:
        run = flray.run(config, out=tmp_path / "run", progress=False)
    took_part = set(run.clients.query("client == 0 and phase == 'round'").done)
    assert 0 < len(took_part) < 4
    files = {path.name for path in (tmp_path / "run" / "profile").iterdir()}
    assert files == {f"round-{done:06d}-client-0.pt.trace.json.gz" for done in took_part}
    named = {int(str(warning.message).split()[2]) for warning in said if warning.category is ProfileWarning}
    assert named == {1, 2, 3, 4} - took_part

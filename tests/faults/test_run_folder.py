"""A campaign against what lies in a run folder: every file damaged in every way, then everything that reads a run.

What may come of it is an error in one line, a warning that names the damage, or the same bits as those of the run that
nobody touched. By default every file is damaged in one way, drawn with a seed; the whole product, and resumes, are
slow.
"""

import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest

import flray
from flray.contracts.played import flatten
from flray.core.messages.packed import Packed
from flray.core.protocol.seeding import rng
from flray.core.schema.errors import FlrayError
from flray.engine.replay import Replay
from flray.results import compare
from flray.rundir import checkpoint
from tests.support.faults import interrupted
from tests.support.runs import last_state, model, on_actors as config

ROUNDS = 5
# what is in the folder of `own` (client states in files, a task's end) after `ROUNDS` rounds, and after three of them
TABLES = tuple(f"{name}/part-0000.parquet" for name in ("rounds", "clients", "tests"))
NOTES = (
    "STATUS",
    "config.yaml",
    "environment.json",
    *(f"partition/partition{name}" for name in (".json", "_indices.npy", "_offsets.npy")),
)
PARTS = (*checkpoint.FILES, "meta.json")


def saved(*names: str) -> tuple[str, ...]:
    return tuple(f"checkpoints/{name}/{part}" for name in names for part in PARTS)


INTERRUPTED = (*NOTES, *TABLES, "state", *saved("round-000002", "round-000003"))
ENDED = saved("round-000002", "round-000004", "round-000005", "round-000005-task-end")
FINISHED = (*NOTES, *TABLES, "state", *ENDED, "tasks/part-0000.parquet", "model.safetensors")
FACTS = ("rounds", "clients", "tests", "tasks", "personal", "environment", "status")
WAYS = ("truncated", "emptied", "bit flipped", "deleted", "folder", "garbage")


def some(files: tuple[str, ...]) -> list[tuple[str, str]]:
    """Every file, each damaged in one way."""
    return [(name, WAYS[int(rng(0, "way", name).integers(len(WAYS)))]) for name in files]


def all_of(files: tuple[str, ...]) -> list[tuple[str, str]]:
    return [(name, way) for name in files for way in WAYS]


def damage(folder: Path, name: str, way: str) -> None:
    """`state`: the newest client state."""
    path = (
        sorted((folder / "client_state").glob("*/*"), key=lambda p: p.name[-18:])[-1]
        if name == "state"
        else folder / name
    )
    content, draws = bytearray(path.read_bytes()), rng(0, "damage", name, way)
    path.unlink()
    if way == "truncated":
        path.write_bytes(content[: int(draws.integers(len(content)))])
    elif way == "emptied":
        path.write_bytes(b"")
    elif way == "bit flipped":
        content[int(draws.integers(len(content)))] ^= 1 << int(draws.integers(8))
        path.write_bytes(content)
    elif way == "folder":
        path.mkdir()
    elif way == "garbage":
        path.write_bytes(draws.bytes(len(content)))


@pytest.fixture(scope="module")
def settings():
    return config("own", rounds=ROUNDS, resources={"store": "files"})


@pytest.fixture(scope="module")
def whole(ray_cluster, settings, tmp_path_factory):
    return flray.run(settings, out=tmp_path_factory.mktemp("whole") / "run").folder


@pytest.fixture(scope="module")
def stopped(ray_cluster, settings, tmp_path_factory):
    folder = tmp_path_factory.mktemp("stopped") / "run"
    with interrupted("before", 3), pytest.raises(KeyboardInterrupt):
        flray.run(settings, out=folder)
    return folder


def reads(folder):
    """What a reader may ask of a run, by name."""
    run = flray.load
    return {
        **{name: lambda name=name: getattr(run(folder), name) for name in FACTS},
        "configuration": lambda: run(folder).experiment.dump(),
        "table": lambda: compare([folder]),
        "figures": lambda: repr(run(folder)),
        "checkpoint": lambda: checkpoint.latest(folder),
        "replay": lambda: flatten(Replay(folder).goto(3).state),
    }


def plain(value):
    """To be compared: values with their bits, without the folder's name."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, checkpoint.Snapshot):
        return plain(value._asdict())
    if isinstance(value, Packed):
        return plain({"structure": value.structure, **value.arrays})
    if hasattr(value, "to_dict"):
        return repr(value.drop(columns="folder", errors="ignore").to_dict())
    return (str(value.dtype), value.shape, value.tobytes()) if isinstance(value, np.ndarray) else value


def outcome(ask):
    """(what came back, what was told): an error or a warning is told."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            found = plain(ask())
        except FlrayError as error:
            found = None
            text = str(error)
            assert text and "\n" not in text, text
            return None, text
    lines = [str(warning.message) for warning in told if issubclass(warning.category, UserWarning)]
    assert not any("\n" in line for line in lines)
    return found, "; ".join(lines)


def assert_readers_are_told(original, folder):
    for (name, ask), there in zip(reads(folder).items(), reads(original).values(), strict=True):
        expected, _ = outcome(there)
        if name == "figures":
            expected = expected.replace(str(original), str(folder))
        found, told = outcome(ask)
        if told or (name == "status" and found.startswith("unknown: ")):
            continue
        if name in ("table", "figures") and found != expected:  # the damage is in the status
            assert any(word in found for word in ("unknown: ", "damaged", "incomplete: ", "edited: ", "lost: ")), found
            continue
        assert found == expected, f"{name} is another now, and nobody said so"


@pytest.mark.parametrize(
    ("name", "way"),
    [*some(FINISHED)[::3], *(pytest.param(*each, marks=pytest.mark.slow) for each in all_of(FINISHED))],
)
def test_who_reads_a_damaged_run_is_told(whole, tmp_path, name, way):
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    damage(folder, name, way)
    assert_readers_are_told(whole, folder)


def test_the_campaign_names_what_a_run_writes(whole, stopped):
    """Otherwise a new kind of file would be left out."""
    for folder, names in ((whole, FINISHED), (stopped, INTERRUPTED)):
        kinds = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
        kinds = {"state" if kind.startswith("client_state/") else kind for kind in kinds}
        left = {kind for kind in kinds - set(names) if not kind.startswith("tensorboard/")}
        assert left == {"partition/table.csv"}, "a report's picture: tests/results/test_readable.py damages it"
        assert set(names) <= kinds


def test_every_file_has_the_users_umask(whole):
    """Also what safetensors writes, which is 0600 otherwise."""
    (whole.parent / "plain").touch()
    expected = (whole.parent / "plain").stat().st_mode
    assert {
        path.name: oct(path.stat().st_mode)
        for path in whole.rglob("*")
        if path.is_file() and path.stat().st_mode != expected
    } == {}


def assert_resumes_or_says_why_not(original, whole, folder, name, way):
    """An error in one line, or the bits of the run that nobody stopped; then its tables are whole, or their gaps are
    told of."""
    shutil.copytree(original, folder)
    damage(folder, name, way)
    run, told = outcome(lambda: flray.resume(folder, progress=False))
    if run is None:
        assert told
        return
    assert model(folder) == model(whole) and last_state(folder) == last_state(whole)
    assert run.status == "finished"
    for table in ("rounds", "clients", "tasks"):
        if not run.missing(table):
            steady = [column for column in getattr(run, table) if not column.startswith("time/")]
            assert plain(getattr(run, table)[steady]) == plain(getattr(flray.load(whole), table)[steady])


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "way"), all_of(INTERRUPTED))
def test_a_damaged_run_resumes_to_the_same_bits_or_says_why_not(ray_cluster, stopped, whole, tmp_path, name, way):
    assert_resumes_or_says_why_not(stopped, whole, tmp_path / "run", name, way)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "way"), some(FINISHED))
def test_a_damaged_finished_run_resumes_to_the_same_bits_or_says_why_not(ray_cluster, whole, tmp_path, name, way):
    assert_resumes_or_says_why_not(whole, whole, tmp_path / "run", name, way)

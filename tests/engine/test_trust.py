"""A run folder with real actors: replaced, taken over, deleted, edited; nothing is lost and nothing is passed over."""

import shutil

import numpy as np
import pytest
import yaml

import flray
from flray.contracts.played import executor_of
from flray.core.schema.errors import CheckpointError, ClientError, ConfigError, DataError, ResourceError
from flray.files import read_checksummed, with_checksum
from flray.results import compare
from flray.results.essentials import essentials
from flray.rundir import checkpoint
from flray.rundir.lock import FolderLock, FolderLostError
from flray.running import play
from tests.support.faults import interrupted
from tests.support.folders import content as contents
from tests.support.messages import facts
from tests.support.runs import cohort, config, model


@pytest.fixture(scope="module")
def three_rounds(tmp_path_factory):
    return flray.run(config(rounds=3), out=tmp_path_factory.mktemp("finished") / "run").folder


@pytest.fixture
def finished(three_rounds, tmp_path):
    """A finished run of three rounds that this test may damage, and the bytes of all its files."""
    folder = shutil.copytree(three_rounds, tmp_path / "run")
    return folder, contents(folder)


# replacing ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"model": {"name": "tests.contracts.networks:NormNet", "weights": "/nope.safetensors"}}, ConfigError),
        ({"resources": {"client_actors": 2, "client": {"num_gpus": 1}}}, ResourceError),
        # only the server actor can see this one
        ({"algorithm": {"name": "fedproj", "round0": "ce_labels"}}, ConfigError),
        ({"algorithm": {"name": "faulty", "at": f"0/0/{cohort(0)[0]}"}}, ClientError),  # in the first round
        ({"data": {"source": "no_such_set"}}, DataError),
    ],
)
def test_a_replacement_that_fails_costs_the_old_run_nothing(ray_cluster, finished, wrong, error):
    folder, before = finished
    with pytest.raises(error):
        flray.run(config(**wrong), out=folder, overwrite=True)
    assert contents(folder) == before
    assert flray.resume(folder).status == "finished"


def test_a_replacement_that_is_interrupted_in_its_first_round_leaves_the_old_run(finished):
    folder, before = finished
    with interrupted("before", 0), pytest.raises(KeyboardInterrupt):
        flray.run(config(rounds=2), out=folder, overwrite=True)
    assert contents(folder) == before and not folder.with_name("run.new").exists()


def test_a_replacement_takes_the_place_after_its_first_round(finished):
    folder, before = finished
    rows = play(config(rounds=5), folder, overwrite=True)
    next(rows)
    assert not folder.with_name("run.new").exists() and (folder / "config.yaml").read_bytes() != before["config.yaml"]
    rows.close()
    assert flray.load(folder).status.startswith("paused after round 1")
    whole = flray.run(config(rounds=5), out=folder.with_name("whole"))
    assert model(flray.resume(folder).folder) == model(whole.folder)


def test_a_driver_whose_folder_was_deleted_stops_with_an_error(tmp_path):
    rows = play(config(rounds=4, checkpoint={"every": 1}), tmp_path / "run")
    next(rows)
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(FolderLostError, match=facts(tmp_path / "run")):
        list(rows)
    assert not (tmp_path / "run").exists()


def test_the_server_actor_looks_at_the_lock_as_well(tmp_path):
    lock = FolderLock.acquire(tmp_path)
    executor = executor_of(config(), tmp_path, lock=lock.owner.id)
    executor.store.save(2)
    lock.release()
    for write in (lambda: executor.store.save(2), executor.store.save_model):
        with pytest.raises(FolderLostError):
            write()
    assert [p.name for p in checkpoint.checkpoints(tmp_path)] == ["round-000000"] and not (
        tmp_path / "model.safetensors"
    ).exists()


# the same experiment --------------------------------------------------------------------------
def edit(folder, change):
    path = folder / "config.yaml"
    values = yaml.safe_load(path.read_text())
    change(values)
    path.write_text(yaml.safe_dump(values, sort_keys=False))


EDITS = {
    "algorithm.lr": lambda values: values["algorithm"].update(lr=0.1),
    "seed": lambda values: values.update(seed=4),
    "cohort.size": lambda values: values["cohort"].update(size=2),
    "partition.alpha": lambda values: values["partition"].update(alpha=2.0),
}


@pytest.mark.parametrize("key", EDITS)
def test_an_edited_configuration_is_named_and_refused(finished, key):
    folder, _ = finished
    edit(folder, EDITS[key])
    before = contents(folder)
    with pytest.raises(ConfigError, match=facts(f"{key} is ", "config.yaml", f"--accept {key}")):
        flray.resume(folder, rounds=5)
    assert contents(folder) == before


def test_a_change_that_is_accepted_by_name_stays_on_record(finished):
    folder, _ = finished
    edit(folder, EDITS["algorithm.lr"])
    run = flray.resume(folder, rounds=4, accept=["algorithm.lr"])
    assert run.status == "finished" and len(run.rounds) == 4
    expected = [{"what": "algorithm.lr", "was": 0.05, "is": 0.1, "done": 3}]
    assert run.environment["accepted"] == expected
    why = "algorithm.lr was 0.05 until a resume and is 0.1 since"
    assert compare([run])["status"].tolist() == [f"edited: {why}"] and essentials(run)["damaged"] == why
    again = flray.resume(folder, rounds=5)  # it is the run's own now
    assert again.environment["accepted"] == expected and again.environment["experiment"]["algorithm"]["lr"] == 0.1


def test_fewer_rounds_than_are_done_are_refused(finished):
    folder, before = finished
    with pytest.raises(ConfigError, match=facts("rounds is 2", folder, "give 3 or more")):
        flray.resume(folder, rounds=2)
    assert contents(folder) == before


@pytest.mark.parametrize("damage", ["{", None])
def test_a_lost_record_is_told_of(finished, damage):
    folder, _ = finished
    path = folder / "environment.json"
    path.unlink() if damage is None else path.write_text(damage)
    with pytest.raises(CheckpointError, match=facts(path, "--accept environment")):
        flray.resume(folder, rounds=4)
    run = flray.resume(folder, rounds=4, accept=["environment"])
    assert [entry["what"] for entry in run.environment["accepted"]] == ["environment"]


@pytest.mark.parametrize(
    ("name", "error", "says"),
    [
        # as with another version of the network's code, or of torch's initialisation
        ("initial_weights", ConfigError, "the initial weights changed"),
        ("data", DataError, "the data changed"),
    ],
)
def test_what_a_run_began_with_is_compared_and_can_be_accepted(finished, name, error, says):
    folder, _ = finished
    record = read_checksummed(folder / "environment.json")
    record["fingerprints"][name] = "another"
    (folder / "environment.json").write_text(with_checksum(record))
    with pytest.raises(error, match=facts(says, f"--accept {name}")):
        flray.resume(folder, rounds=4)
    assert flray.resume(folder, rounds=4, accept=[name]).environment["accepted"][0]["was"] == "another"


@pytest.mark.parametrize("damaged", [False, True])
def test_public_data_that_a_resume_accepts_have_no_validation_sample(tmp_path, damaged):
    """Also where the resume makes a damaged partition again, with its validation samples."""

    def write(name, rows, seed):
        (tmp_path / name).mkdir(exist_ok=True)
        for part, size, draws in (("train", rows, seed), ("test", 20, seed + 1)):
            x = np.random.default_rng(draws).normal(size=(size, 4)).astype("f4")
            np.save(tmp_path / name / f"{part}_x.npy", x)
            np.save(tmp_path / name / f"{part}_y.npy", np.arange(size) % 2)

    write("private", 80, 0)
    write("public", 40, 2)
    here = {"root": str(tmp_path)}
    own = {"data": {"source": "private", **here}, "proxy": {"source": "public", **here}, "algorithm": "feddf",
           "partition": {"name": "iid", "clients": 2}, "cohort": {"size": 2}, "model": "mlp", "rounds": 1,
           "evaluate": {"validation": 0.2}, "resources": {"executor": "local"}}  # fmt: skip
    run = flray.run(own, out=tmp_path / "run", progress=False)
    if damaged:
        (run.folder / "partition" / "partition.json").unlink()
    write("public", 80, 0)
    with pytest.raises(DataError, match="proxy 'public' has 16 of 16 validation samples of 'private'"):
        flray.resume(run.folder, rounds=2, accept=["proxy"], progress=False)
    write("public", 40, 4)
    again = flray.resume(run.folder, rounds=2, accept=["proxy"], progress=False)
    assert [entry["what"] for entry in again.environment["accepted"]] == ["proxy"]

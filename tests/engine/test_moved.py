"""A server whose run took another's place: on a shared disk nothing is removed, on its own disk the old run is."""

import pytest

from flray.contracts.played import executor_of
from flray.rundir import checkpoint
from flray.rundir.lock import NAME, FolderLock
from tests.support.tasks import experiment

FILES = {"executor": "local", "server": {"threads": 1}, "store": "files"}


def executor(folder, lock=None):
    scaffold = experiment(algorithm={"name": "scaffold", "local_epochs": 1}, resources=FILES)
    return executor_of(scaffold, folder, lock)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("seen", [True, False])
def test_a_stale_name_on_a_shared_disk_costs_the_new_run_nothing(tmp_path, seen):
    """NFS may show the old name after a rename, and may have hidden the lock (`seen`) when the server began.

    Here an empty folder stands for the stale name.
    """
    target, aside = tmp_path / "run", tmp_path / "run.new"
    aside.mkdir()
    lock = FolderLock.acquire(aside)
    if not seen:
        (aside / NAME).rename(tmp_path / "unseen")
    mine = executor(aside, lock.owner.id)
    if not seen:
        (tmp_path / "unseen").rename(aside / NAME)
    mine.store.save(2)
    aside.rename(target)
    lock.folder = target
    aside.mkdir()
    mine.store.folder_renamed(target)
    assert mine.store.folder == target and [path.name for path in checkpoint.checkpoints(target)] == ["round-000000"]
    lock.release()


def test_on_a_disk_of_its_own_the_old_run_makes_room_and_nothing_else_does(tmp_path):
    target, aside = tmp_path / "run", tmp_path / "run.new"
    (target / "checkpoints" / "round-000099").mkdir(parents=True)
    (target / "thesis.txt").write_text("precious")
    mine = executor(aside, "the driver's, on another machine")
    mine.store.save(2)
    mine.store.folder_renamed(target)
    assert [path.name for path in checkpoint.checkpoints(target)] == ["round-000000"]
    assert (target / "thesis.txt").read_text() == "precious" and not aside.exists()
    assert mine.store.save(2).done == 0 and names(target / "checkpoints") == ["round-000000"]

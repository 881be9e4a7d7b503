"""Folders of the driver's environment in its processes: on its own node, and on another one."""

import os

import pytest

from flray.core.schema.errors import DataError
from flray.engine.ray import places
from flray.engine.ray.places import FOLDERS, SWITCHES, Places


@pytest.fixture
def process(monkeypatch):
    """A worker process on the node `here`, with none of the variables; what it adopts is forgotten afterwards."""
    for name in (*FOLDERS, *SWITCHES):
        monkeypatch.setenv(name, "")  # so that the test's end restores it, whatever is set meanwhile
        del os.environ[name]
    monkeypatch.setattr(places, "this_node", lambda: "here")
    monkeypatch.setattr(places, "_adopted", set())


def test_on_the_drivers_node_the_variables_are_the_drivers_own_run_after_run(process):
    """A process outlives a run: also what the next driver does not set, and what Ray began with."""
    os.environ.update(FLRAY_DATA="/stale", HF_HOME="/stale")
    Places("here", {"FLRAY_DATA": "/data", "HF_HUB_OFFLINE": "1"}).adopt()
    assert os.environ["FLRAY_DATA"] == "/data" and os.environ["HF_HUB_OFFLINE"] == "1"
    assert "HF_HOME" not in os.environ
    Places("here", {"FLRAY_DATA": "/other"}).adopt()
    assert os.environ["FLRAY_DATA"] == "/other" and "HF_HUB_OFFLINE" not in os.environ


def test_another_node_keeps_its_own_and_takes_what_it_lacks(process, tmp_path):
    """A cache that the node does not have is not made there; FLRAY_DATA is set, so that the error names it."""
    os.environ["HF_HOME"] = "/scratch"
    sent = {"FLRAY_DATA": "/nowhere", "HF_HOME": "/home", "HF_DATASETS_CACHE": "/nowhere", "TORCH_HOME": str(tmp_path)}
    Places("there", sent).adopt()
    assert os.environ["HF_HOME"] == "/scratch" and os.environ["FLRAY_DATA"] == "/nowhere"
    assert "HF_DATASETS_CACHE" not in os.environ and os.environ["TORCH_HOME"] == str(tmp_path)
    Places("there", {}).adopt()
    assert os.environ["HF_HOME"] == "/scratch" and "FLRAY_DATA" not in os.environ


def test_an_error_of_the_data_on_another_node_names_process_node_and_the_drivers_folder(process, monkeypatch):
    import ray

    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "10.0.0.7")
    sent = {"FLRAY_DATA": "/data"}
    with (
        pytest.raises(DataError, match=r"^a client actor on node 10\.0\.0\.7, .*not found.*FLRAY_DATA=/data"),
        Places("there", sent).named_in_errors("a client actor"),
    ):
        raise DataError("data set 'x' not found")
    with pytest.raises(DataError, match=r"^as it is$"), Places("here", sent).named_in_errors("a client actor"):
        raise DataError("as it is")

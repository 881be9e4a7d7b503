"""Server halves that read every client's own model: how many of them are in the server's memory at once."""

import weakref

import pytest

from flray.contracts.played import Local
from flray.core.messages import Streamed
from tests.contracts.table import experiment


@pytest.mark.parametrize("name", ["feddf", "fedproj", "fedet"])
def test_a_server_half_has_two_of_five_client_models_at_most(name, tmp_path, monkeypatch):
    """One as parameters and statistics; the model that the network was bound to before keeps its memory until the next
    is bound."""
    made, most, read = [], [], Streamed.__getitem__

    def counted(self, place):
        value = read(self, place)
        made.append(weakref.ref(value))
        most.append(sum(ref() is not None for ref in made))
        return value

    monkeypatch.setattr(Streamed, "__getitem__", counted)
    local = Local(experiment(name, cohort={"size": 5}), tmp_path)
    local.play(2)
    assert len(made) >= 2 * 2 * 5 * 2, "w and b of five clients, for the mean and for the ensemble, in two rounds"
    assert max(most) == 2

"""The probe of latent forgetting in runs of any algorithm: what it reports, and that training does not notice it."""

import itertools

import numpy as np
import pytest

import flray
from flray.config.loader import load_config
from flray.core.schema.errors import ConfigError
from flray.ops.detect import Detector
from flray.rundir import checkpoint
from tests.support.faults import interrupted
from tests.support.latent import CONFIG, PROBE
from tests.support.outcome import contents, records


def run(out, **changes):
    return flray.run(load_config({**CONFIG, **changes})[0], out=out, progress=False)


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    return run(tmp_path_factory.mktemp("watched") / "run")


def test_rows_are_the_detector_on_the_moves_of_the_stored_models(ran):
    """The variances once more, from the checkpoints of every round."""
    models = [
        checkpoint.read(ran.folder / "checkpoints" / f"round-{r:06d}").server.message().w.astype(np.float64)
        for r in range(1, 10)
    ]
    used = models[0] != 0  # the gaps between tensors of the flat vector
    known = [np.var((after - before)[used]) for before, after in itertools.pairwise(models)]
    table = ran.diagnostics["latent_forgetting"]
    np.testing.assert_allclose(table["wv"][1:], known, rtol=1e-9)
    options = {key: value for key, value in PROBE.items() if key != "name"}
    assert table["alarm"].tolist() == Detector(**options).alarms(table["wv"])
    assert len(table) == 9 and table["alarm"].any() and table["threshold"].notna().any()
    np.testing.assert_allclose(table["smoothed"][1:], (table["wv"][1:].to_numpy() + table["wv"][:-1].to_numpy()) / 2)


def test_it_changes_no_bit_and_resumes_exactly(ran, tmp_path):
    assert contents(run(tmp_path / "without", diagnostics=[])) == contents(ran)
    with interrupted("before", 5), pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run")
    again = flray.resume(tmp_path / "run", progress=False)
    assert contents(again) == contents(ran)
    assert records(again.diagnostics["latent_forgetting"]) == records(ran.diagnostics["latent_forgetting"])


@pytest.mark.parametrize("name", ["feddf", "scaffold"])
def test_other_algorithms_are_watched_at_their_clients_aggregate(ran, tmp_path, name):
    """FedDF's first aggregate is FedAvg's, before its server distils; so is that of SCAFFOLD's first round."""
    of_scaffold = {"name": name, "lr": 0.1, "batch_size": 16, "local_epochs": 1}
    found = run(tmp_path / "run", rounds=1, algorithm=of_scaffold).diagnostics["latent_forgetting"]
    assert found["wv"][0] == pytest.approx(ran.diagnostics["latent_forgetting"]["wv"][0], rel=1e-6)


def test_layers_of_the_signal(ran, tmp_path):
    found = {
        layers: run(tmp_path / layers, rounds=1, diagnostics=[{**PROBE, "layers": layers, "last": 1}])
        for layers in ("last", "head")
    }
    wv = {name: r.diagnostics["latent_forgetting"]["wv"][0] for name, r in found.items()}
    assert len({*wv.values(), ran.diagnostics["latent_forgetting"]["wv"][0]}) == 3
    with pytest.raises(ConfigError, match=r"diagnostics\.latent_forgetting\.W"):
        load_config({**CONFIG, "diagnostics": [{"name": "latent_forgetting", "W": 4}]})

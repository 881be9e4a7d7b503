"""Cells side by side on a real Ray: the bits of a run alone, what is kept, what is gone on with, and what failed."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pandas
import pytest

from flray.config.experiment import Experiment
from flray.config.grid import labels
from flray.config.loader import load_config
from flray.core.schema.errors import CheckpointError, ConfigError, FlrayError
from flray.rundir.reader import Run
from flray.running import play, simulate
from flray.tuning.ablate import check_networks, run_cells, run_grid
from flray.tuning.comparison import axes, plan_ablation, reference_cell
from tests.support.iris_sweep import EXPERIMENT


def cells(*overrides: str) -> list[Experiment]:
    """With a test set, as in any grid."""
    return load_config({**EXPERIMENT, "rounds": 2, "evaluate": {"clients": False}}, list(overrides))


def model(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def stamps(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in sorted(folder.rglob("*")) if path.is_file()}


class Grid:
    """Cells of three seeds: the first was there, the second was begun. What they were before, and the table."""

    def __init__(self, root: Path) -> None:
        self.cells, self.root = cells("seed=0..2"), root / "grid"
        self.folders = [self.root / label for label in labels(self.cells)]
        self.alone = [root / "alone" / str(place) for place in range(3)]
        local = cells("seed=0..2", "resources.executor=local")
        for experiment, folder in zip(local, self.alone, strict=True):
            simulate(experiment, folder)
        shutil.copytree(self.alone[0], self.folders[0])
        rounds = play(local[1], self.folders[1])
        next(rounds)
        rounds.close()
        self.before, self.begun = stamps(self.folders[0]), Run(self.folders[1]).status
        self.checkpoint = stamps(self.folders[1] / "checkpoints")
        self.table: pandas.DataFrame = run_grid(self.cells, self.root, progress=False)


@pytest.fixture(scope="module")
def grid(ray_cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Grid:
    return Grid(tmp_path_factory.mktemp("ablate"))


def test_cells_side_by_side_have_the_bits_of_runs_alone(grid: Grid) -> None:
    assert [model(folder) for folder in grid.folders] == [model(folder) for folder in grid.alone]
    for folder, alone in zip(grid.folders, grid.alone, strict=True):
        found, expected = Run(folder).rounds, Run(alone).rounds
        columns = [name for name in expected if not name.startswith("time/")]
        pandas.testing.assert_frame_equal(found[columns], expected[columns])
    assert len({model(folder) for folder in grid.alone}) == 3
    assert sorted(path.name for path in grid.root.iterdir()) == sorted(folder.name for folder in grid.folders)


def test_the_table_has_a_row_for_each_cell(grid: Grid) -> None:
    assert grid.table[["seed", "done", "status"]].values.tolist() == [[seed, 2, "finished"] for seed in range(3)]
    assert grid.table["test/acc"].tolist() == [Run(folder).rounds["test/acc"].iloc[-1] for folder in grid.alone]


def test_a_finished_cell_is_kept_and_one_that_was_begun_goes_on(grid: Grid) -> None:
    assert stamps(grid.folders[0]) == grid.before
    assert grid.begun.startswith("paused after round 1")
    after = stamps(grid.folders[1] / "checkpoints")
    assert grid.checkpoint and all(after.get(path) == stamp for path, stamp in grid.checkpoint.items()), (
        "it began again"
    )


def test_the_same_call_again_runs_nothing(grid: Grid) -> None:
    before = stamps(grid.root)
    pandas.testing.assert_frame_equal(run_grid(grid.cells, grid.root, progress=False), grid.table)
    assert stamps(grid.root) == before


@pytest.mark.slow
def test_grids_of_two_threads_take_turns_on_ray(grid: Grid, tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as threads:
        roots = [tmp_path / name for name in "ab"]
        list(threads.map(lambda root: run_grid(grid.cells[:2], root, progress=False), roots))
    for root in roots:
        assert [model(root / label) for label in labels(grid.cells[:2])] == [model(one) for one in grid.alone[:2]]


@pytest.mark.slow
def test_a_cell_that_fails_leaves_the_others_alone(
    grid: Grid, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its error is one line, when all are done; `overwrite` runs every cell again.

    Cells of other resources take their turn.
    """
    two = [
        *cells("algorithm.lr=1e30", "on_nonfinite=fail", "resources.client_actors=2"),
        *cells("seed=1"),
    ]
    folders = [tmp_path / "bad", tmp_path / "good"]
    shutil.copytree(grid.folders[0], folders[1])  # another experiment, which --overwrite replaces
    with pytest.raises(FlrayError, match=r"^1 of 2 cells failed; the first: client \d failed in .*train/loss is nan"):
        run_cells(two, folders, overwrite=True, label="pair")
    assert Run(folders[0]).status.startswith("failed: client")
    assert model(folders[1]) == model(grid.alone[1])
    lines = [line for line in capsys.readouterr().err.splitlines() if "  trial " in line]
    assert lines[0].startswith("pair  trial bad  failed: client") and lines[1] == "pair  trial good  finished"


# what is compared --------------------------------------------------------------------------------
def test_axes_are_the_keys_with_several_values() -> None:
    assert axes(
        ["algorithm.rho=0,0.5", "seed=0..4", "rounds=3", "algorithm.perturb=head,all", "partition.clients=2..4"]
    ) == [*("algorithm.rho", "algorithm.perturb", "partition.clients")]
    assert axes(["model.hidden=[6,6]", "seed=1"]) == []  # one value


def test_the_reference_is_the_configuration_itself(tmp_path: Path) -> None:
    """Whatever its seed; where it is none of the cells, the first of them."""
    found = cells("algorithm.rho=0.5,1.5,2", "seed=3,4")
    own = cells()[0]
    assert own.algorithm.rho == 1.5 and own.seed == 0
    assert reference_cell(own, found, tmp_path) == tmp_path / labels(found)[2]
    assert labels(found)[2] == "fedsol-seed3-rho1.5"
    assert reference_cell(cells("algorithm.rho=0.7")[0], found, tmp_path) == tmp_path / labels(found)[0]


@pytest.mark.parametrize(
    ("overrides", "first"),
    [
        (
            ("devices={speed: {name: lognormal, sigma: 1}}", "coordination=buffered", "coordination.size=2,3"),
            "fedsol-size2",
        ),
        (("devices.speed.name=lognormal", "devices.speed.sigma=0.5,1"), "fedsol-sigma0.5"),
    ],
)
def test_the_reference_is_the_first_cell_where_the_rest_is_no_configuration(
    tmp_path: Path, overrides: tuple[str, ...], first: str
) -> None:
    plan = plan_ablation(EXPERIMENT, overrides, (), tmp_path, None, "test/acc")
    assert plan.against == str(tmp_path / first) and len(plan.cells) == 2


def test_a_finished_cell_of_a_module_that_changed_is_not_taken_for_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cells of two sources in one comparison would be means over two methods."""
    source = "from torch import nn\n\ndef net(num_classes) -> nn.Module:\n    return nn.Linear(4, num_classes)\n"
    module = tmp_path / "changing_net.py"
    module.write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    words = ("model=changing_net:net", "resources.executor=local", "algorithm=fedavg", "seed=0,1")
    for cell, label in zip(cells(*words), labels(cells(*words)), strict=True):
        simulate(cell, tmp_path / "grid" / label)
    before = stamps(tmp_path / "grid")
    run_grid(cells(*words), tmp_path / "grid", progress=False)
    assert stamps(tmp_path / "grid") == before
    module.write_text(source.replace("4, num_classes", "4, num_classes, bias=False"))
    with pytest.raises(CheckpointError, match=r"fedavg-seed0.*source of module changing_net changed.*--overwrite"):
        run_grid(cells(*words[:3], "seed=0,1,2"), tmp_path / "grid", progress=False)


def test_a_network_that_lacks_what_an_algorithm_reads_is_found_before_the_first_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "from torch import nn\n\ndef net(num_classes) -> nn.Module:\n    return nn.Linear(4, num_classes)\n"
    (tmp_path / "plain_net.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    words = ("model=plain_net:net", "resources.executor=local", "seed=0,1")
    check_networks(cells(*words, "algorithm=fedavg,fedprox"))
    wanted = r"^algorithm moon: model Linear declares no features\(x\).*add features\(self, x\) to it, with head\(feat"
    with pytest.raises(ConfigError, match=wanted):
        run_grid(cells(*words, "algorithm=fedavg,moon"), tmp_path / "grid", progress=False)
    assert not (tmp_path / "grid").exists()
    with pytest.raises(ConfigError, match=r"^algorithm fedbabu: model Linear declares no `head`"):
        check_networks(cells(*words, "algorithm=fedavg,fedbabu"))

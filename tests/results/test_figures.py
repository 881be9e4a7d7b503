"""Figures from tiny real runs: what is drawn is what the runs recorded."""

from pathlib import Path
from types import ModuleType

import matplotlib.image
import numpy as np
import pandas
import pytest
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

import flray
from flray.config.loader import load_config
from flray.core.schema.errors import ConfigError
from flray.engine.replay import Replay
from flray.results import compare
from flray.results.ablation_figures import ablation, ablation_cells
from flray.results.client_figures import clients
from flray.results.colours import colour_of
from flray.results.figures import axis_label, blank, few_log_ticks, legend, save
from flray.results.learning import curves, draw, learning_curves
from flray.results.loss_surface import landscape
from flray.results.regions import _panels, _samples, decision_regions, most_unlike
from flray.rundir.reader import Run, load
from tests.support.commands import invoke
from tests.support.tables import changed, config, folder, put

PILOT = Path(__file__).parents[2] / "configs" / "fedproj" / "pilot_iris.yaml"
SHORT = (
    "rounds=3",
    "algorithm.lr=0.02",
    "algorithm.batch_size=25",
    "algorithm.local_epochs=2",
    "resources.client_actors=2",
)


@pytest.fixture(scope="module")
def pilots(ray_cluster: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    root = tmp_path_factory.mktemp("pilots")
    cells = load_config(PILOT, [*SHORT, "algorithm=fedavg,fedproj", "seed=0,1"])
    return [flray.run(cell, out=root / str(i)) for i, cell in enumerate(cells)]


@pytest.mark.slow
def test_pilot_is_the_papers(pilots: list[Run]) -> None:
    """FedProj Figure 1: 50/0/0, 0/40/10, 0/10/40 in data set order; 2-16-16-3 has 2*16+16 + 16*16+16 + 16*3+3 = 371
    parameters."""
    cells = load_config(PILOT, ["algorithm=fedavg,feddf,fedproj", "seed=0,1,2,3,4"])
    assert len(cells) == 15
    assert {cell.rounds for cell in cells} == {20}
    replay = Replay(pilots[0].folder)
    assert [replay.scenario.partitions[0].client(k).tolist() for k in range(3)] == [
        list(range(50)), list(range(50, 90)) + list(range(100, 110)), list(range(90, 100)) + list(range(110, 150))
    ]  # fmt: skip
    assert len(replay.runtime.dataset.test.y) == 150
    assert pilots[0].environment["actors"]["parameters"] == 371


@pytest.mark.slow
def test_panels_are_the_recorded_models(pilots: list[Run]) -> None:
    """Train is test here, so the global panel's accuracy is `test/acc`, and a local one's on its own samples
    `client/acc_after`."""
    run = pilots[2]  # fedproj
    replay = Replay(run.folder)
    for number in (3, 1):
        before, *panels = _panels(replay, number, ("after", "local", "before"), None)
        x, y = _samples(replay)
        assert [panel.title for panel in panels] == ["client 0", "client 1", "client 2", "after"]
        if number > 1:
            assert (before.predict(x) == y).mean() == pytest.approx(run.rounds["test/acc"][number - 2])
        assert (panels[3].predict(x) == y).mean() == pytest.approx(run.rounds["test/acc"][number - 1])
        rows = run.clients[run.clients["round"] == number].set_index("client")
        for client, panel in enumerate(panels[:3]):
            right = (panel.predict(x) == y)[panel.own].mean()
            assert right == pytest.approx(rows["client/acc_after"][client]), (number, client)


def test_decision_regions_png(pilots: list[Run], tmp_path: Path) -> None:
    path = save(decision_regions([pilots[0].folder, pilots[2]], rounds=(1, 3)), tmp_path / "new" / "regions.png")
    image = matplotlib.image.imread(path)
    assert image.shape[0] > 500 and image.shape[1] > 1500  # 2 rows, 8 columns at 150 dpi
    assert len(np.unique((image[..., :3] * 255).astype(int) @ [1, 256, 65536])) > 50  # colours
    assert path.stat().st_size > 30_000


@pytest.mark.slow
def test_a_strip_of_global_models_and_a_film(pilots: list[Run], tmp_path: Path) -> None:
    """A panel a round in the order of rounds; a film has a frame a round, and its last one once more for a while."""
    from PIL import Image

    strip = decision_regions(pilots[:1], rounds=(3, 1), models=("after",))
    assert [block.get_suptitle() for block in strip.subfigs] == ["round 1", "round 3"]
    found = [f"{100 * pilots[0].rounds['test/acc'][number - 1]:.1f} %" for number in (1, 3)]
    assert [axis.get_title() for axis in strip.axes] == [f"global\n{accuracy}" for accuracy in found]
    out = tmp_path / "film.gif"
    command = ["figure", "regions", str(pilots[2].folder), "--out", str(out), "--models", "before,local,after"]
    result = invoke(*command)
    assert result.exit_code == 0, result.output
    assert (result.stdout, result.stderr) == (f"{out}\n", "") and list(tmp_path.iterdir()) == [out]
    with Image.open(out) as image:
        durations = []
        for frame in range(image.n_frames):
            image.seek(frame)
            durations.append(image.info["duration"])
        assert image.is_animated and image.n_frames == 3 and durations == [1000, 1000, 3000]


def test_clients_that_differ_are_chosen() -> None:
    """Of four clients three have one class each, and client 1 nearly the same as client 0."""
    counts = {0: [50, 0, 0], 1: [49, 1, 0], 2: [0, 30, 0], 5: [0, 1, 9]}
    found = most_unlike({client: np.array(own) for client, own in counts.items()}, 3)
    assert found == [0, 2, 5] and most_unlike({7: np.array([0, 0])}, 3) == [7]


def test_decision_regions_says_what_is_wrong(pilots: list[Run], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has 3 rounds and round 20 was asked for"):
        decision_regions([pilots[0]], rounds=(20,))
    with pytest.raises(ConfigError, match=r"client 7 is not in the cohort"):
        decision_regions([pilots[0]], rounds=(1,), clients=[7])
    wide = flray.run(load_config(PILOT, [*SHORT, "algorithm=fedavg", "data.pca=null"])[0], out=tmp_path / "wide")
    with pytest.raises(ConfigError, match=r"4 features \(data set 'iris'\).*data\.pca=2"):
        decision_regions([wide], rounds=(1,))
    with pytest.raises(ConfigError, match="no run folder"):
        decision_regions([])
    with pytest.raises(ConfigError, match=r"models middle: choose of before, local, after"):
        decision_regions(pilots[:1], models=("middle",))
    with pytest.raises(ConfigError, match=r"3 axes given, and 4 are drawn \(a panel for each run, round and model"):
        decision_regions(pilots[:1], rounds=(1,), axes=list(Figure().subplots(1, 3)))


def test_the_loss_around_a_model_is_its_test_loss_at_the_cross(pilots: list[Run], tmp_path: Path) -> None:
    """Train is test here; the last round's model is the final one."""
    runs = [pilots[0], pilots[2]]
    figure = landscape(runs, points=3, span=0.5)
    losses = [axis.collections[0].get_array().reshape(3, 3) for axis in figure.axes[:2]]
    for loss, run in zip(losses, runs, strict=True):
        assert loss[1, 1] == pytest.approx(run.rounds["test/loss"].iloc[-1], rel=1e-5)
    titles = [axis.get_title(loc="left") for axis in figure.axes[:2]]
    assert titles[0].startswith("FedAvg\n$\\lambda_1$ = ")
    assert all(float(title.rpartition("= ")[2]) > 1 for title in titles)  # lambda_1 / lambda_5
    assert figure.axes[2].get_ylabel() == "loss on 150 test samples"
    again = landscape(runs, 3, points=3, span=0.5)
    np.testing.assert_allclose([axis.collections[0].get_array().reshape(3, 3) for axis in again.axes[:2]], losses, 1e-5)
    out = tmp_path / "loss.png"
    command = ["figure", "landscape", runs[0].folder, "--span", "0.5", "--out", out, "--points", "5"]
    assert invoke(*command, "--directions", "random").exit_code == 0 and out.stat().st_size > 10_000
    assert [path.name for path in tmp_path.iterdir()] == ["loss.png"]
    for wrong, words in (("--points=2", "at least 3 points"), ("--directions=up", "unknown directions 'up'")):
        assert words in str(invoke("figure", "landscape", runs[0].folder, wrong).exception)


def test_curves_png(pilots: list[Run], tmp_path: Path) -> None:
    path = save(curves([run.folder for run in pilots]), tmp_path / "curves.png")
    assert matplotlib.image.imread(path).shape == (660, 1080, 4)
    with pytest.raises(ConfigError, match=r"unknown metric 'test/ac'.*did you mean 'test/acc'"):
        curves(pilots, "test/ac")
    with pytest.raises(ConfigError, match=r"cannot write the figure"):
        save(curves(pilots), tmp_path / "curves.tex-that-is-not")


def test_bands_by_hand(tmp_path: Path) -> None:
    """Two seeds: mean +- tan(0.475 pi) |a - b| / 2, on the rounds that both have tested; an accuracy ends at 0 and
    1."""
    runs = [
        load(folder(tmp_path / "a", config(seed=0), [0.2, None, 0.60, 0.8])),
        load(folder(tmp_path / "b", config(seed=1), [0.4, 0.5, 0.61], "running")),
        load(folder(tmp_path / "c", config("fedsol"), [0.1])),
    ]
    found = learning_curves(runs, "test/acc")
    assert list(found) == ["FedAvg", "FedSOL"]
    curve = found["FedAvg"]
    assert curve.rounds.tolist() == curve.x.tolist() == [1, 3]
    assert curve.seeds.tolist() == [[0.2, 0.6], [0.4, 0.61]]
    assert curve.mean == pytest.approx([0.3, 0.605])
    assert (curve.low[0], curve.high[0]) == (0, 1)
    assert curve.high[1] - curve.mean[1] == pytest.approx(12.706204736 * 0.005)
    assert found["FedSOL"].mean.tolist() == [0.1] and np.isnan(found["FedSOL"].low).all()
    with pytest.raises(ConfigError, match="no round in which all seeds"):
        pandas.DataFrame({"done": [9], "test/acc": [0.5]}).to_parquet(tmp_path / "b" / "rounds" / "part-0000.parquet")
        learning_curves([runs[0], load(tmp_path / "b")], "test/acc")


def test_a_seed_that_failed_or_diverged_ends_no_line_of_the_others(tmp_path: Path) -> None:
    """The mean is that of the finished seeds, and the title counts the others. A seed that goes on does end it."""

    def title() -> str:
        found = learning_curves([load(tmp_path / name) for name in "abcd"], "test/acc")
        drawn = draw(found, "test/acc", "rounds").axes[0].get_title(loc="left").replace("\n", " ")
        assert found["FedAvg"].rounds.tolist() == [*range(1, rounds + 1)]
        return drawn.replace("  ", " ")

    folder(tmp_path / "a", config(seed=0), [0.2, 0.4, 0.6])
    folder(tmp_path / "b", config(seed=1), [0.4, 0.5, 0.8])
    folder(tmp_path / "c", config(seed=2), [0.1], "failed: disk is full")
    folder(tmp_path / "d", config(seed=3), [0.1, 0.1], "diverged: chance level")
    rounds = 3
    assert title() == "mean over 2 seeds; thin lines: single seeds; left out: 1 failed, 1 diverged"
    (tmp_path / "d" / "STATUS").write_text("interrupted after round 2\n")
    rounds = 2
    assert title() == (
        "mean over 3 seeds; thin lines: single seeds; left out: 1 failed; to the last round that all seeds have: "
        "FedAvg (2)"
    )
    for name in "ab":  # none has finished
        (tmp_path / name / "STATUS").write_text("failed: disk is full\n")
    rounds = 1
    assert title().startswith("mean over 4 seeds; thin lines: single seeds; to the last round")


def test_an_axis_has_its_unit() -> None:
    """Cross-entropy is in nats; a training loss may have other terms."""
    assert axis_label("test/acc") == "test accuracy (%)" and axis_label("test/loss") == "test loss (nats)"
    assert axis_label("val/loss") == "validation loss (nats)" and axis_label("train/loss") == "training loss"


def test_curves_over_bytes_and_time_by_hand(tmp_path: Path) -> None:
    """250 bytes and 0.5 s a round (`folder`); a round that was not tested counts as well, and the mean lies at the mean
    of the seeds' x."""
    runs = [load(folder(tmp_path / name, config(seed=seed), [0.2, None, 0.6])) for seed, name in enumerate("ab")]
    changed(tmp_path / "b", **{"time/round_s": [0.5, 1.5, 1.0]})
    assert learning_curves(runs, "test/acc", "bytes")["FedAvg"].x.tolist() == [250, 750]
    time = learning_curves([load(tmp_path / "a"), load(tmp_path / "b")], "test/acc", "seconds")["FedAvg"]
    assert time.seeds_x.tolist() == [[0.5, 1.5], [0.5, 3.0]] and time.x.tolist() == [0.5, 2.25]
    with pytest.raises(ConfigError, match=r"has no column 'client_steps' in rounds/"):
        learning_curves(runs, "test/acc", "steps")
    changed(tmp_path / "b", client_flops=[2e9, 3e9, 4e9])
    assert learning_curves([load(tmp_path / "b")], "test/acc", "flops")["FedAvg"].x.tolist() == [2e9, 9e9]
    changed(tmp_path / "b", client_flops=[None, 3e9, 4e9])
    with pytest.raises(ConfigError, match="has no client_flops in round 1; take the axis rounds"):
        learning_curves([load(tmp_path / "b")], "test/acc", "flops")
    result = invoke("figure", "curves", tmp_path, "--x", "byte")
    assert str(result.exception) == "unknown axis 'byte' (did you mean 'bytes'?)"


@pytest.mark.parametrize(
    ("seeds", "words"), [(1, "one seed"), (4, "thin lines: single seeds"), (5, "cut off at 0 and 100 %")]
)
def test_few_seeds_are_thin_lines_and_shares_end_at_100(tmp_path: Path, seeds: int, words: str) -> None:
    """Read off the axes that are drawn: a band from 5 seeds on, below that a line for each seed beside the mean."""
    runs = [load(folder(tmp_path / str(s), config(seed=s), [0.9, 0.99, 0.1 + 0.2 * s])) for s in range(seeds)]
    (axis,) = draw(learning_curves(runs, "test/acc"), "test/acc", "rounds").axes
    assert words in axis.get_title(loc="left").replace("\n", " ")
    assert len(axis.collections) == (seeds >= 5)
    assert len(axis.lines) == 1 + (seeds if 1 < seeds < 5 else 0)
    assert axis.get_ylim()[0] >= 0 and axis.get_ylim()[1] <= 100


def test_bytes_sent_up_are_a_logarithmic_axis_without_the_initial_model(tmp_path: Path) -> None:
    curve = learning_curves([load(folder(tmp_path / "a", config(), [0.5, 0.6, 0.7]))], "test/acc", "up")["FedAvg"]
    assert curve.rounds.tolist() == [1, 2, 3] and curve.x[0] > 0
    np.testing.assert_allclose(curve.x, curve.x[0] * np.arange(1, 4))
    (axis,) = draw({"fedavg": curve}, "test/acc", "up").axes
    assert axis.get_xscale() == "log" and axis.get_xlabel().startswith("sent up (")


def test_a_legend_below_is_no_wider_than_its_figure() -> None:
    """As one panel of cosines: two methods and two kinds of line need 4.6 inches in one row."""
    figure = blank(4.0, 4.0)
    legend(figure.subplots(), ["FedAvg", "FedSOL"], {"local gradient": "--", "step taken": "-"}, below=True)
    (drawn,) = figure.legends
    assert drawn.get_window_extent().width <= figure.bbox.width
    assert len(drawn.get_texts()) == 4


def test_labels_of_a_short_logarithmic_axis_are_apart() -> None:
    """Matplotlib writes 3 x 10^-2, 4 x 10^-2 and 6 x 10^-2 there, one over the other."""
    figure = blank(6.4, 4.8)
    axis = figure.subplots()
    axis.set_xscale("log")
    axis.set_xlim(0.025, 0.16)
    few_log_ticks(axis.xaxis)
    figure.canvas.draw()
    shown = [tick.get_text() for tick in axis.get_xticklabels(which="both") if 0.025 <= tick.get_position()[0] <= 0.16]
    assert [text for text in shown if text] == ["0.05", "0.1"]


def test_a_single_round_is_a_whole_number(tmp_path: Path) -> None:
    figure = draw(learning_curves([load(folder(tmp_path / "a", config(), [0.5]))], "test/acc"), "test/acc", "rounds")
    figure.draw_without_rendering()
    low, high = figure.axes[0].get_xlim()
    assert [tick for tick in figure.axes[0].get_xticks() if low <= tick <= high] == [1]


def test_many_names_stand_below_the_lines(tmp_path: Path) -> None:
    runs = [load(folder(tmp_path / str(n), config(lr=0.1 + n), [0.5, 0.6])) for n in range(7)]
    few, many = (draw(learning_curves(runs[:count], "test/acc"), "test/acc", "rounds") for count in (6, 7))
    assert len(few.axes[0].get_legend().get_texts()) == 6 and not few.legends
    assert len(many.legends[0].get_texts()) == 7 and many.axes[0].get_legend() is None


def test_parts_of_an_uplink_are_named_by_what_differs(tmp_path: Path) -> None:
    """A list in full would be wider than the figure, which then has no room for its axes."""
    chains = [
        [{"name": "clip", "norm": norm, "adaptive": None}, {"name": "gaussian", "noise": 0.8}] for norm in (0.5, 2.0)
    ]
    runs = [folder(tmp_path / str(n), config(uplink=chain), [0.5, 0.6]) for n, chain in enumerate([*chains, []])]
    names = ["clip norm=0.5 + gaussian", "clip norm=2 + gaussian", "none"]
    shown = curves(runs).legends[0].get_texts()
    assert [text.get_text() for text in shown] == [f"FedAvg, uplink={name}" for name in names]
    ticks = ablation(compare(runs)).axes[0].get_xticklabels()
    assert [tick.get_text() for tick in ticks] == names
    alike = [[{"name": "clip", "norm": 1 + n * 1e-9}] for n in (1, 2)]  # six digits do not tell them apart
    runs = [folder(tmp_path / f"alike{n}", config(uplink=chain), [0.5]) for n, chain in enumerate(alike)]
    assert len(curves(runs).legends[0].get_texts()) == 2


def test_clients_are_points_in_a_box_for_all_seeds(tmp_path: Path) -> None:
    accuracies = {"finetune_epochs": [0, 0, 5, 5], "test/acc": [0.2, 0.4, 0.9, None]}
    tables = {"done": [1] * 4, "client": [0, 1, 0, 1], **accuracies}
    runs = [folder(tmp_path / name, config(seed=seed), [0.5]) for seed, name in enumerate("ab")]
    for run in runs:
        put(run, "personal", tables)
    (axis,) = clients(runs).axes
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["FedAvg"]
    points = axis.collections
    assert [to_hex(of.get_facecolor()[0]).upper() for of in points] == [colour_of("FedAvg")] * 2
    assert [of.get_offsets()[:, 1].tolist() for of in points] == [[20, 40, 20, 40], [90, 90]]
    assert "clients of 2 seeds" in axis.get_title(loc="left")
    with pytest.raises(ConfigError, match=r"no personalised test.*finetune_epochs"):
        clients([folder(tmp_path / "none", config(), [0.5])])


def test_ablation_cells_and_png(tmp_path: Path) -> None:
    """Two keys: rates 0, 0.01 and 1 of two algorithms over seeds; a key of numbers is the axis, the algorithm a
    line."""
    runs = []
    for algorithm in ("fedavg", "fedsol"):
        for lr, seeds in ((0.01, (0.5, 0.7)), (1.0, (0.2, 0.4)), (0.0, (0.1,))):
            for seed, accuracy in enumerate(seeds):
                runs.append(folder(tmp_path / f"{algorithm}{lr}-{seed}", config(algorithm, seed, lr), [accuracy]))
    runs.append(folder(tmp_path / "bad", config("fedsol", 1, 0.0), [0.1], "diverged in round 1: client 0"))
    frame = compare(runs)
    key, cells, lost = ablation_cells(frame, None, "test/acc")
    assert (key, lost) == ("algorithm.lr", "1 runs diverged")
    assert cells["FedSOL"] == cells["FedAvg"] == {0.01: [0.5, 0.7], 1.0: [0.2, 0.4], 0.0: [0.1]}
    by_algorithm = ablation_cells(frame, "algorithm", "test/acc")[1]
    assert by_algorithm["lr=0.01"] == {"fedavg": [0.5, 0.7], "fedsol": [0.5, 0.7]}
    lines = {line.get_label(): line for line in ablation(frame, "lr").axes[0].lines}
    for name in ("FedAvg", "FedSOL"):
        np.testing.assert_allclose(lines[name].get_xydata(), [[0, 10], [0.01, 60], [1, 30]])
        assert lines[name].get_color() == colour_of(name)
    (axis,) = ablation(frame, "algorithm").axes
    assert [tick.get_text() for tick in axis.get_xticklabels()] == ["FedAvg", "FedSOL"]
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["lr=0.01", "lr=1", "lr=0"]
    result = invoke("figure", "ablation", tmp_path, "--axis", "lr", "--out", tmp_path / "cli.png")
    assert result.exit_code == 0, result.output
    assert matplotlib.image.imread(tmp_path / "cli.png").shape == (660, 960, 4)
    with pytest.raises(ConfigError, match="differ in nothing but the seed"):
        ablation(compare(runs[:2]))
    with pytest.raises(ConfigError, match=r"unknown key 'rho'"):
        ablation(frame, "rho")
    with pytest.raises(ConfigError, match=r"no finished run has 'test/acc'"):
        ablation(compare([folder(tmp_path / f"x{lr}", config(lr=lr), [0.1], "running") for lr in (2.0, 3.0)]))


def test_two_keys_are_a_heat_map(tmp_path: Path) -> None:
    """Rates across, rho up: means over seeds in per cent, grey where nothing finished, a frame around the best."""
    runs = []
    for lr, rho, accuracies in ((0.1, 1, (0.2, 0.4)), (0.1, 2, (0.5,)), (0.2, 1, (0.6,))):
        for seed, accuracy in enumerate(accuracies):
            own = config("fedsol", seed) | {"algorithm": {"name": "fedsol", "rho": rho, "lr": lr}}
            runs.append(folder(tmp_path / f"{lr}{rho}{seed}", own, [accuracy]))
    figure = ablation(compare(runs), "lr, rho")
    plot = figure.axes[0]
    np.testing.assert_allclose(np.ma.filled(plot.images[0].get_array(), np.nan), [[30, 60], [50, np.nan]])
    assert [text.get_text() for text in plot.texts] == ["30.0", "60.0", "50.0"]
    assert (plot.get_xlabel(), plot.get_ylabel()) == ("lr", "rho")
    assert plot.patches[0].get_xy() == (0.5, -0.5)
    assert plot.get_title(loc="left") == "mean over 1 to 2 seeds; framed: the best"  # single seeds are not drawn
    folder(
        tmp_path / "gone", config("fedsol") | {"algorithm": {"name": "fedsol", "rho": 2, "lr": 0.2}}, [], "failed: x"
    )
    (plot, _) = ablation(compare([*runs, tmp_path / "gone"]), "lr, rho").axes
    assert plot.get_title(loc="left") == "mean over 1 to 2 seeds; 1 runs unfinished; framed: the best"
    other = config("fedsol") | {"rounds": 7, "algorithm": {"name": "fedsol", "rho": 2, "lr": 0.2}}
    runs.append(folder(tmp_path / "other", other, [0.5]))
    with pytest.raises(ConfigError, match="the runs differ in rounds as well"):
        ablation(compare(runs), "lr,rho")
    with pytest.raises(ConfigError, match="3 keys"):
        ablation(compare(runs), "lr,rho,rounds")


def test_an_axis_is_as_wide_as_the_interval_of_a_mean(tmp_path: Path) -> None:
    """Three seeds, 0.5 +- 0.01: half the interval is t(0.975, 2) 0.01 / sqrt(3) = 0.0248; two settings lie in it."""
    runs = [
        folder(
            tmp_path / f"{lr}{rho}{seed}", config("fedsol", seed) | {"algorithm": {"name": "fedsol", **own}}, [accuracy]
        )
        for lr, rho, shift in ((0.1, 1, 0.0), (0.2, 2, 0.001))
        for own in [{"lr": lr, "rho": rho}]
        for seed, accuracy in enumerate((0.49 + shift, 0.5 + shift, 0.51 + shift))
    ]
    width = 2 * 4.302652729 * 1 / 3**0.5  # in per cent
    frame = compare(runs)
    low, high = ablation(frame.drop(columns="algorithm.rho"), "lr").axes[0].get_ylim()
    assert high - low >= width * (1 - 1e-6) and low < 50.05 < high
    low, high = ablation(frame, "lr,rho").axes[0].images[0].get_clim()
    assert high - low == pytest.approx(width) and (low + high) / 2 == pytest.approx(50.05)
    low, high = draw(learning_curves(list(map(load, runs)), "test/acc"), "test/acc", "rounds").axes[0].get_ylim()
    assert high - low >= width * (1 - 1e-6)


def test_algorithms_beside_each_other_have_their_colours(tmp_path: Path) -> None:
    """A key that one algorithm alone has is not what the picture is about."""
    runs = [folder(tmp_path / "a", config("fedavg"), [0.5])]
    for name, own in (("fedsol", {"rho": 2.0}), ("fedprox", {"mu": 0.1})):
        runs.append(folder(tmp_path / name, config() | {"algorithm": {"name": name, **own}}, [0.6]))
    key, cells, _ = ablation_cells(compare(runs), None, "test/acc")
    assert (key, cells) == ("algorithm", {"": {"fedavg": [0.5], "fedsol": [0.6], "fedprox": [0.6]}})
    (axis,) = ablation(compare(runs)).axes
    assert [tick.get_text() for tick in axis.get_xticklabels()] == ["FedAvg", "FedSOL", "FedProx"]
    points = [found for found in axis.collections if isinstance(found, PathCollection)]
    found = [to_hex(of.get_facecolor()[0]).upper() for of in points]
    assert found == [colour_of(name) for name in ("FedAvg", "FedSOL", "FedProx")]


def test_a_setting_without_the_key_is_a_level(tmp_path: Path) -> None:
    runs = [
        folder(tmp_path / f"{rho}", config() | {"algorithm": {"name": "fedsol", "rho": rho}}, [rho / 10])
        for rho in (1, 2)
    ]
    runs.append(folder(tmp_path / "base", config() | {"algorithm": {"name": "fedavg"}}, [0.05]))
    key, cells, lost = ablation_cells(compare(runs), "rho", "test/acc")
    assert (key, lost) == ("algorithm.rho", "")
    assert cells == {"FedSOL": {1: [0.1], 2: [0.2]}, "FedAvg": {None: [0.05]}}
    assert len(ablation(compare(runs), "rho").axes[0].lines) == 2


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_the_same_figure_has_the_same_bytes(tmp_path, suffix, monkeypatch):
    written = []
    for number in range(2):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", str(number))
        figure = blank(2, 2)
        figure.subplots().plot([1, 2], [3, 4])
        written.append(save(figure, tmp_path / f"{number}.{suffix}").read_bytes())
    assert written[0] == written[1]

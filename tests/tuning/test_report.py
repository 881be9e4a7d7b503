"""Reports of sweeps: real Optuna studies in sweep folders, run folders by the recorder; nothing is trained."""

import math
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.image
import numpy as np
import optuna
import pandas
import pytest
import yaml
from hypothesis import given, strategies as st
from matplotlib import pyplot
from optuna.trial import Trial, TrialState
from rich.console import Console

from flray.core.schema.errors import CheckpointError
from flray.tuning import sweep_figures as figures
from flray.tuning.report import (
    MADE,
    final_table,
    render_front,
    render_trials,
    trials_lead,
    write_final_table,
    write_report,
    write_table,
)
from flray.tuning.results import SweepResult
from flray.tuning.sweep_figures import (
    _importance,
    _parts,
    curves_figure,
    history_figure,
    pareto_figure,
)
from flray.tuning.trials import front, open_sweep, pareto, table_of, trials_table
from tests.support.commands import succeeded
from tests.support.sweep_folders import FakeSweep
from tests.support.tables import config, folder

ACC = {"val/acc": "max"}
BOTH = {"val/acc": "max", "comm/bytes": "min"}


@pytest.fixture
def single(tmp_path: Path) -> FakeSweep:
    """One objective, every state: trials 0 and 1 finished, 2 pruned in round 1, 3 diverged, 4 failed, 5 running, 6
    waiting."""
    sweep = FakeSweep(tmp_path / "s", ACC)
    study = sweep.study()
    sweep.trial(study, {"algorithm.rho": 1.5}, {"val/acc": [0.5, 0.8]})
    sweep.trial(study, {"algorithm.rho": 0.5}, {"val/acc": [0.6, 0.9]}, seeds=3)
    sweep.trial(study, {"algorithm.rho": 9.0}, {"val/acc": [0.95]}, TrialState.PRUNED)
    sweep.trial(
        study,
        {"algorithm.rho": 8.0},
        {"val/acc": [0.1]},
        TrialState.PRUNED,
        status="diverged in round 2: update.w is not finite",
    )
    sweep.trial(study, {"algorithm.rho": 7.0}, {}, TrialState.FAIL, status="failed: client 3: boom")
    sweep.trial(study, {"algorithm.rho": 6.0}, {"val/acc": [0.3, 0.4, 0.41]}, None)
    study.enqueue_trial({"algorithm.rho": 2.0})
    return sweep


# the table ---------------------------------------------------------------------------------------
def test_numbers_that_population_based_training_changed_are_the_last_ones(tmp_path: Path) -> None:
    sweep = FakeSweep(tmp_path / "s", ACC)
    study = sweep.study()

    def changing(last: float) -> Any:
        def suggest(trial: Any) -> None:
            trial.suggest_float("algorithm.lr", 0, 1)
            trial.set_user_attr("values", {"algorithm.lr": last})

        return suggest

    for last in (0.02, 0.1):
        sweep.trial(study, changing(last), {"val/acc": [0.5, last]})
    assert trials_table(sweep.root)["algorithm.lr"].tolist() == [0.02, 0.1]
    with pytest.raises(figures.Skip, match="population-based training"):
        figures._varied(study)


def test_the_algorithm_is_that_of_the_space_where_it_has_one(tmp_path: Path) -> None:
    sweep = FakeSweep(tmp_path / "s", ACC)
    stored = sweep.root / "sweep.yaml"
    content = yaml.safe_load(stored.read_text())
    stored.write_text(yaml.safe_dump(content | {"space": {"algorithm": "fedprox", "algorithm.mu": "auto"}}))
    sweep.trial(sweep.study(), {"algorithm.mu": 1.0}, {"val/acc": [0.5]})
    assert trials_table(sweep.root)["algorithm"].tolist() == ["fedprox"]


def test_one_row_a_trial(single: FakeSweep) -> None:
    frame = trials_table(single.root)
    columns = "trial algorithm algorithm.rho state round val/acc seeds client_steps seconds folder"
    assert list(frame) == columns.split()
    assert frame["state"].tolist() == ["finished", "finished", "pruned", "diverged", "failed", "running", "waiting"]
    assert frame["algorithm.rho"].tolist()[:6] == [1.5, 0.5, 9.0, 8.0, 7.0, 6.0]
    assert frame["val/acc"].tolist()[:4] == [0.8, 0.9, 0.95, 0.1]  # a pruned trial has the value that it was judged by
    assert frame["val/acc"][5] == 0.41 and frame["val/acc"][[4, 6]].isna().all()
    assert frame["round"].tolist()[:6] == [2, 2, 1, 1, 0, 3]  # of the running one: its last report
    assert frame["seeds"].tolist()[:2] == [1, 3] and frame["seconds"][1] == 3.0 and frame["client_steps"][1] == 200
    assert (frame["algorithm"] == "fedsol").all()
    assert all((single.root / name / "rounds").is_dir() for name in frame["folder"].dropna()[:4])


def test_parquet_is_the_table_with_its_dtypes(single: FakeSweep) -> None:
    path = write_table(single.root)
    assert path == single.root / "sweep.parquet"
    pandas.testing.assert_frame_equal(pandas.read_parquet(path), trials_table(single.root))
    assert [p.name for p in single.root.iterdir() if p.name.endswith(".tmp")] == []


def test_dtypes_do_not_depend_on_what_is_filled(single: FakeSweep, tmp_path: Path) -> None:
    """A sweep whose only trial has just begun has the columns of a full one, empty."""
    fresh = FakeSweep(tmp_path / "fresh", ACC)
    fresh.study().ask({"algorithm.rho": optuna.distributions.FloatDistribution(0, 10)})
    frame = pandas.read_parquet(write_table(fresh.root))
    assert frame[["round", "val/acc", "seeds", "client_steps", "seconds", "folder"]].isna().all(axis=None)
    pandas.testing.assert_series_equal(frame.dtypes, trials_table(single.root).dtypes)


def test_dtypes_of_parameters(tmp_path: Path) -> None:
    sweep = FakeSweep(tmp_path / "s", ACC)
    study = sweep.study()

    def suggest(trial: Trial) -> None:
        trial.suggest_int("rounds", 1, 5)
        trial.suggest_categorical("algorithm.nesterov", [False, True])
        trial.suggest_categorical("partition.alpha", [0.1, 1])
        trial.suggest_categorical("algorithm.perturb", ["head", "all"])
        trial.suggest_categorical("model.hidden", ["[64]", "[64, 64]", None])

    for _ in range(6):
        sweep.trial(study, suggest, {"val/acc": [0.5]})
    frame = pandas.read_parquet(write_table(sweep.root))
    kinds = {
        "rounds": "Int64",
        "algorithm.nesterov": "boolean",
        "partition.alpha": "Float64",
        "algorithm.perturb": "string",
    }
    assert {name: frame[name].dtype.name.replace("float64", "Float64") for name in kinds} == kinds
    assert set(frame["model.hidden"]) == {"[64]", "[64, 64]", "null"}  # a choice of nothing is a value, as JSON
    assert [trial.params["partition.alpha"] for trial in study.trials] == frame["partition.alpha"].tolist()


def test_conditional_space_and_an_algorithm_each(tmp_path: Path) -> None:
    sweep = FakeSweep(tmp_path / "cond", ACC)
    study = sweep.study()

    def suggest(trial: Trial) -> None:
        if trial.suggest_categorical("algorithm", ["fedavg", "fedprox"]) == "fedprox":
            trial.suggest_float("fedprox.mu", 0.1, 1)

    for _ in range(8):
        sweep.trial(study, suggest, {"val/acc": [0.5]})
    frame = trials_table(sweep.root)
    assert list(frame)[:3] == ["trial", "algorithm", "fedprox.mu"] and frame["algorithm"].nunique() == 2
    assert (frame["fedprox.mu"].notna() == (frame["algorithm"] == "fedprox")).all()

    each = FakeSweep(tmp_path / "each", ACC)
    for name in ("fedprox", "fedavg"):
        each.trial(each.study(name), {f"{name}.lr": 0.1}, {"val/acc": [0.5]})
    frame = trials_table(each.root)
    assert list(frame)[:5] == ["trial", "study", "algorithm", "fedavg.lr", "fedprox.lr"]
    assert frame["study"].tolist() == frame["algorithm"].tolist() == ["fedavg", "fedprox"]
    assert frame["folder"].tolist() == ["trials/fedavg-0000", "trials/fedprox-0000"]


def test_other_sweeps_of_a_database_are_left_alone(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'studies.db'}"
    for number, name in enumerate(("demo", "demo2", "demo/fedavg")):
        sweep = FakeSweep(tmp_path / str(number), ACC, name.partition("/")[0], url)
        sweep.trial(sweep.study(name.partition("/")[2]), {"x": float(number)}, {"val/acc": [0.5]})
    frame = trials_table(tmp_path / "0")
    assert frame["study"].tolist() == ["", "fedavg"] and frame["x"].tolist() == [0.0, 2.0]
    assert trials_table(tmp_path / "1")["x"].tolist() == [1.0]


def test_a_folder_that_holds_no_sweep(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"is not a sweep folder: it has no sweep\.yaml"):
        trials_table(tmp_path)
    (tmp_path / "sweep.yaml").write_text("name: x\n")
    with pytest.raises(CheckpointError, match="it is not a complete sweep"):
        write_report(tmp_path)
    (tmp_path / "sweep.yaml").write_text("name: x\nobjective: {val/acc: max}\n")
    with pytest.raises(CheckpointError, match=r"has no study\.journal: its sweep did not begin"):
        write_report(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["sweep.yaml"]


# the Pareto front --------------------------------------------------------------------------------
VALUE = st.sampled_from([0.0, 1.0, 2.0, 3.0, math.nan])
ROW = st.tuples(VALUE, VALUE, VALUE, st.sampled_from(["finished"] * 4 + ["pruned", "running"]))


@given(st.lists(ROW, max_size=9), st.lists(st.sampled_from(["max", "min"]), min_size=3, max_size=3), st.integers(1, 3))
def test_pareto_by_its_definition(rows: list[tuple[Any, ...]], directions: list[str], count: int) -> None:
    """A finished trial with all values is on the front unless one of its kind is no worse anywhere and not equal."""
    objectives = dict(zip(["a", "b", "c"][:count], directions, strict=False))
    frame = pandas.DataFrame(rows, columns=["a", "b", "c", "state"], index=range(10, 10 + len(rows)))
    good = [[v if d == "max" else -v for v, d in zip(row, objectives.values(), strict=False)] for row in rows]
    counts = [row[3] == "finished" and not any(map(math.isnan, own)) for row, own in zip(rows, good, strict=True)]
    expected = [
        counted
        and not any(
            there and other != own and all(o >= v for o, v in zip(other, own, strict=True))
            for other, there in zip(good, counts, strict=True)
        )
        for own, counted in zip(good, counts, strict=True)
    ]
    found = pareto(frame, objectives)
    assert found.tolist() == expected and found.dtype == bool and found.index.equals(frame.index)


def test_front_is_sorted_and_equal_trials_share_it() -> None:
    frame = pandas.DataFrame(
        {
            "val/acc": [0.5, 0.9, 0.7, 0.7, 0.6, 0.99],
            "comm/bytes": [1.0, 9, 4, 4, 5, 1],
            "state": ["finished"] * 5 + ["pruned"],
        }
    )
    assert front(frame, BOTH).index.tolist() == [1, 2, 3, 0]
    assert front(frame, ACC).index.tolist() == [1]
    assert pareto(frame[["val/acc", "comm/bytes"]], BOTH).tolist() == [False] * 5 + [True]  # without states: all count


# the terminal ------------------------------------------------------------------------------------
def shown(table: Any) -> str:
    console = Console(width=100)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def test_best_trials_on_the_terminal(single: FakeSweep) -> None:
    table = render_trials(trials_table(single.root), ACC, top=5)  # type: ignore[arg-type]
    text = shown(table)
    assert (
        "best 2 by val/acc (max) of 7 trials: 2 finished, 1 pruned, 1 diverged, 1 failed, 1 running, 1 waiting"
        in " ".join(text.split())
    )
    assert [list(map(str, column.cells)) for column in table.columns[:3]] == [
        ["1", "0"],
        ["rho=0.5", "rho=1.5"],
        ["90.00", "80.00"],
    ]
    assert "fedsol" not in text.lower() and "seeds" in text  # one algorithm, two numbers of seeds
    nothing = render_trials(trials_table(single.root).iloc[4:], ACC)  # type: ignore[arg-type]
    assert nothing.row_count == 0 and "best 0" in shown(nothing)


def test_front_on_the_terminal(tmp_path: Path) -> None:
    sweep = FakeSweep(tmp_path / "s", BOTH)
    study = sweep.study()
    for acc, size in ((0.5, 1e6), (0.9, 9e6), (0.4, 2e6)):
        sweep.trial(study, {"algorithm.rho": acc}, {"val/acc": [acc]}, values=[acc, size])
    table = render_front(trials_table(sweep.root), BOTH)  # type: ignore[arg-type]
    columns = [list(map(str, column.cells)) for column in table.columns[2:4]]
    assert columns == [["90.00", "50.00"], ["9 MB", "1 MB"]]
    assert "Pareto front of val/acc max, comm/bytes min: 2 of 3 finished trials" in " ".join(shown(table).split())


# figures -----------------------------------------------------------------------------------------
@pytest.mark.slow
def test_figures_of_a_sweep(tmp_path: Path) -> None:
    sweep = FakeSweep(tmp_path / "s", ACC)
    study = sweep.study()

    def suggest(trial: Trial) -> None:
        trial.suggest_float("algorithm.rho", 0.05, 5, log=True)
        trial.suggest_categorical("algorithm.perturb", ["head", "all"])

    for number in range(9):
        sweep.trial(study, suggest, {"val/acc": [0.1 * number, 0.1]})

    def settings() -> tuple[Any, ...]:
        verbosity = optuna.logging.get_verbosity()
        return matplotlib.get_backend(), dict(matplotlib.rcParams), pyplot.get_fignums(), verbosity

    before = settings()
    report = write_report(sweep.root)
    assert [path.stem for path in report.figures] == ["history", "importance", "slice", "curves"]
    assert report.skipped == ()
    assert sorted(sweep.root.glob("figures/*")) == sorted(report.figures)
    for path in report.figures:
        image = matplotlib.image.imread(path)[..., :3]
        assert min(image.shape[:2]) > 300 and len(np.unique((image * 255).astype(int) @ [1, 256, 65536])) > 20, (
            path.name
        )
    assert before == settings()
    assert len(pandas.read_parquet(report.table)) == 9


def test_the_history_shows_every_trial(single: FakeSweep) -> None:
    """Finished trials at their value with the best so far; the others at their last one, or at the lower edge where
    they have none."""
    sweep, frame = open_sweep(single.root), trials_table(single.root)
    (axis,) = history_figure(sweep, frame, "val/acc").axes
    drawn = np.concatenate([points.get_offsets() for points in axis.collections])
    (best,) = axis.lines
    labels = {text.get_text() for text in axis.get_legend().get_texts()}
    assert sorted(drawn[:, 0]) == frame["trial"].tolist()
    height = dict(map(tuple, drawn))
    known = frame.dropna(subset="val/acc")
    assert len(known) < len(frame) and all(
        height[number] == value for number, value in zip(known["trial"], known["val/acc"], strict=True)
    )
    assert labels == {"best so far", *(f"{count} {state}" for state, count in frame["state"].value_counts().items())}
    assert best.get_ydata()[-1] == frame.loc[frame["state"] == "finished", "val/acc"].max()


def test_the_history_of_an_algorithm_without_a_finished_trial_is_beside_that_of_another(tmp_path: Path) -> None:
    sweep = FakeSweep(tmp_path / "each", ACC)
    sweep.trial(sweep.study("fedavg"), {"fedavg.lr": 0.1}, {"val/acc": [0.5]})
    sweep.trial(sweep.study("fedprox"), {"fedprox.lr": 0.1}, {"val/acc": [0.4]}, None)
    assert "history" in {part.title.partition(": ")[2] for part in trials_lead(sweep.root).sections}
    one, other = history_figure(open_sweep(sweep.root), trials_table(sweep.root), "val/acc").axes
    assert len(one.lines) == 1 and not other.lines and len(other.collections) == 1


@pytest.mark.filterwarnings("error::optuna.exceptions.ExperimentalWarning")
def test_what_cannot_be_drawn_has_a_reason(single: FakeSweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = write_report(single.root)
    assert [path.name for path in report.figures] == ["history.png", "slice.png", "curves.png"]
    assert report.skipped == ("importance.png: 2 finished trials, and fewer than 8 say nothing about importance",)
    empty = FakeSweep(tmp_path / "empty", BOTH)
    empty.study()
    report = write_report(empty.root)
    assert report.figures == () and len(pandas.read_parquet(report.table)) == 0
    assert "history-val_acc.png: no trial has finished" in report.skipped
    assert "pareto.png: no trial has finished with a value for every objective" in report.skipped
    assert "slice-val_acc.png: 0 finished trials" in report.skipped
    assert "curves.png: no run folder has a column val/acc in its rounds" in report.skipped
    monkeypatch.setattr(figures, "curves_figure", lambda *_: 1 / 0)
    assert "curves.png: ZeroDivisionError: division by zero" in write_report(single.root).skipped


def test_a_figure_for_each_objective_and_algorithm(tmp_path: Path) -> None:
    sweep = FakeSweep(tmp_path / "s", BOTH)
    study = sweep.study()

    def suggest(trial: Trial) -> None:
        name = trial.suggest_categorical("algorithm", ["fedavg", "fedprox"])
        trial.suggest_float(f"{name}.lr", 0.1, 1)

    for number in range(8):
        sweep.trial(study, suggest, {"val/acc": [0.1 * number]}, values=[0.1 * number, 1e6 * number])
    names = {path.name for path in write_report(sweep.root).figures}
    assert names == {
        *(f"slice-{a}-{o}.png" for a in ("fedavg", "fedprox") for o in ("val_acc", "comm_bytes")),
        *(f"{name}.png" for name in ["history-val_acc", "history-comm_bytes", "pareto", "curves"]),
    }
    opened = open_sweep(sweep.root)
    parts = _parts(opened)
    assert {name: {p for t in part.trials for p in t.params} - {"algorithm"} for name, part in parts.items()} == {
        "fedavg": {"fedavg.lr"},
        "fedprox": {"fedprox.lr"},
    }
    axis = pareto_figure(opened, table_of(opened)).axes[0]
    # accuracy and bytes rise together: all trials are on the front, ringed
    assert sorted(axis.collections[-1].get_offsets()[:, 0]) == pytest.approx([0.1 * number for number in range(8)])


def test_a_value_outside_of_its_range_keeps_no_figure_back(tmp_path: Path) -> None:
    """A trial that was enqueued in Optuna, and for which the driver was killed."""
    sweep = FakeSweep(tmp_path / "s", ACC)
    study = sweep.study()
    study.enqueue_trial({"x": 50.0})
    with pytest.warns(UserWarning, match="out of range"):
        study.ask({"x": optuna.distributions.FloatDistribution(0, 10)})
    for x in range(2):
        sweep.trial(study, {"x": x}, {"val/acc": [x / 2]})
    (copy,) = _parts(open_sweep(sweep.root)).values()
    assert [trial.params for trial in copy.trials] == [{"x": 0.0}, {"x": 1.0}]


@pytest.mark.parametrize("objectives", [ACC, BOTH], ids=["one", "two"])
def test_importance_is_for_good_values(tmp_path: Path, objectives: dict[str, str]) -> None:
    """High accuracy needs x near 10, low accuracy comes from y near 0.

    Optuna's evaluator, given a target, looks for what makes it low.
    """
    sweep = FakeSweep(tmp_path / "s", objectives)
    study = sweep.study()
    generator = np.random.default_rng(0)
    for x, y in generator.uniform(0, 10, (120, 2)):
        study.enqueue_trial({"x": x, "y": y})
        trial = study.ask({name: optuna.distributions.FloatDistribution(0, 10) for name in "xy"})
        study.tell(trial, [x**4 - (1e5 if y < 1 else 0), y][: len(objectives)])
    opened = open_sweep(sweep.root)
    axis = _importance(opened, _parts(opened)[""], "", 0).axes[0]
    widths = {
        label.get_text(): bar.get_width() for label, bar in zip(axis.get_yticklabels(), axis.patches, strict=True)
    }
    assert widths["x"] > 0.9
    shares = [f"{bar.get_width():.2f}" if bar.get_width() >= 0.01 else "<0.01" for bar in axis.patches]
    assert [text.get_text() for text in axis.texts] == shares


def test_curves_of_all_trials(single: FakeSweep) -> None:
    (single.root / "trials" / "0003" / "rounds" / "part-0000.parquet").write_bytes(b"torn")
    sweep = open_sweep(single.root)
    axis = curves_figure(sweep, table_of(sweep)).axes[0]
    lines = [
        (line.get_ydata().tolist(), line.get_linestyle(), line.get_color())
        for line in axis.lines
        if line.get_marker() == "None"
    ]
    best, pruned, running = "#0072B2", "#9aa1a9", "#E69F00"
    assert lines == [
        ([0.5, 0.8], "-", "#56B4E9"),
        *[([0.6, 0.9], style, best) for style in ("-", "--", "--")],  # its three seeds
        ([0.95], "-", pruned),
        ([0.3, 0.4, 0.41], "-", running),
    ]
    (cross,) = [line for line in axis.lines if line.get_marker() == "x"]
    assert (cross.get_xdata()[0], cross.get_ydata()[0], cross.get_color()) == (1, 0.95, pruned)
    legend = [text.get_text() for text in axis.get_legend().get_texts()]
    assert legend == ["1 pruned", "1 running", "2 finished", "best: trial 1, FedSOL, rho=0.5"]


def test_figure_sweep_command(single: FakeSweep) -> None:
    result = succeeded("figure", "sweep", single.root)
    assert (
        str(single.root / "figures" / "curves.png") in result.output
        and "left out: importance.png: 2 finished" in result.output
    )


# the final table ---------------------------------------------------------------------------------
def test_final_table(tmp_path: Path) -> None:
    """Fresh seeds 100 to 102: FedSOL is 0.2, 0.4 and 0.3 better than FedAvg; two of eight sign assignments are as
    extreme."""
    with pytest.raises(CheckpointError, match="holds no runs: the sweep did not get to its final runs"):
        final_table(tmp_path)
    accuracies = {"ditto": [0.2, 0.2, 0.2], "fedavg": [0.4, 0.5, 0.45], "fedsol": [0.6, 0.9, 0.75]}
    for name, values in accuracies.items():
        for seed, value in enumerate(values):
            folder(tmp_path / "final" / f"{name}-seed{100 + seed}", config(name, 100 + seed), [value])
    runs, over = final_table(tmp_path)
    assert not (tmp_path / "final.csv").exists()
    write_final_table(tmp_path)
    assert len(runs) == 9
    assert over["algorithm"].tolist() == ["fedavg", "ditto", "fedsol"]  # FedAvg is the reference where it is one
    assert over["diff"].tolist()[1:] == pytest.approx([-0.25, 0.3])
    assert over["p_wilcoxon"].tolist()[1:] == [0.25, 0.25]
    pandas.testing.assert_frame_equal(pandas.read_csv(tmp_path / "final.csv"), runs, check_dtype=False)
    text = (tmp_path / "final.md").read_text()
    assert "Against FedAvg, on the same seeds" in text and "+30.00" in text
    assert final_table(tmp_path, "ditto")[1]["algorithm"].tolist()[0] == "ditto"


def test_final_table_of_one_setting(tmp_path: Path) -> None:
    for seed in (7, 8):
        folder(tmp_path / "final" / "best" / f"seed{seed}", config(seed=seed), [0.4 + seed / 10])
    _, over = final_table(tmp_path)
    write_final_table(tmp_path)
    assert "diff" not in over and over["mean"].tolist() == pytest.approx([1.15])
    assert "Against" not in (tmp_path / "final.md").read_text()


def test_the_final_table_is_of_the_sweeps_own_runs(single: FakeSweep) -> None:
    """A damaged run and another one that a user has put beside them stay out; so does a name without a run."""
    final = single.root / "final"
    for name, value in {"best-seed7": 0.5, "best-seed8": 0.7, "mine": 0.1, "damaged": 0.1}.items():
        folder(final / name, config(seed=int(name[-1]) if name[-1].isdigit() else 9), [value])
    (final / "damaged" / "config.yaml").write_text("rounds: [")
    (final / MADE).write_text("best-seed8\nbest-seed7\nbest-seed9\n")
    runs, over = final_table(single.root)
    assert runs["test/acc"].tolist() == [0.5, 0.7] and over["mean"].tolist() == pytest.approx([0.6])
    assert [run.folder.name for run in SweepResult(single.root).final] == ["best-seed7", "best-seed8"]


def test_a_figure_that_its_library_cannot_draw_leaves_the_others_in_a_report(
    single: FakeSweep, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(figures, "curves_figure", lambda *_: 1 / 0)
    titles = {part.title.partition(": ")[2] for part in trials_lead(single.root).sections}
    assert titles == {"best trials", "history", "slice"}
    assert caplog.messages == [f"left out: the figure curves of {single.root}: ZeroDivisionError: division by zero"]


def test_what_a_report_says_of_the_trials(single: FakeSweep) -> None:
    lead = trials_lead(single.root, drawn=False)
    assert lead.answers[0].startswith("Sweep ") and "7 trials" in lead.answers[0] and "2 finished" in lead.answers[0]
    assert lead.answers[1] == "The highest val/acc (held-out data) is that of trial 1: rho=0.5, 90.00 %."
    (section,) = lead.sections
    assert section.table is not None and section.table["trial"].tolist() == [1, 0]
    drawn = trials_lead(single.root)
    assert {part.title.partition(": ")[2] for part in drawn.sections} == {"best trials", "history", "slice", "curves"}
    assert all("<svg" in part.picture and "#555555" not in part.picture for part in drawn.sections[1:])

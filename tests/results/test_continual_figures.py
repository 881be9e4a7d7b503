"""Figures of tasks and of drift: what stands on the axes is what the folders, written by hand, hold."""

import math

import numpy as np
import pytest

from flray.core.schema.errors import ConfigError
from flray.results import accuracy_by_task, accuracy_through_drift, predicted_tasks
from flray.results.alarms import alarms
from flray.results.continual_figures import by_class, class_accuracies, task_matrices
from flray.rundir.by_task import class_counts
from flray.rundir.reader import Run
from tests.support.commands import invoke
from tests.support.continual_runs import drift, tasks, watched
from tests.support.messages import facts
from tests.support.tables import changed, put

THREE = [[80, 10, 20], [90, 70, 40], [50, 60, 100]]
SIGNAL = {"smoothed": 1e-4, "reference": 2e-4, "threshold": 7e-5, "alarm": False}
WINDOW = [[50, 50], [80, 80], [90, 90], [20, 100], [0, 100], [70, 90], [90, 90]]


def texts(axis):
    return [text.get_text() for text in axis.texts]


def test_a_matrix_beside_the_curve(tmp_path):
    """One setting shows each of its modes; cells above the diagonal are blank; the curve is .8 .8 .7 in per cent."""
    figure = accuracy_by_task([tasks(tmp_path / "a", THREE)])
    panels, curve = figure.axes[:3], figure.axes[-1]
    assert [axis.get_title(loc="left").splitlines()[0] for axis in panels] == ["global", "aware", "tip"]
    assert panels[0].get_title(loc="left").splitlines()[1] == "ACC@global 70.0 %, FT 16.7 %"
    assert texts(panels[0]) == ["80", "90", "70", "50", "60", "100"]
    shown = np.ma.filled(panels[0].images[0].get_array(), np.nan)
    np.testing.assert_allclose(shown, np.where(np.tri(3, dtype=bool), THREE, np.nan))
    assert [line.get_label() for line in curve.lines] == ["global", "aware", "tip"]
    np.testing.assert_allclose(curve.lines[0].get_xydata(), [[0, 80], [1, 80], [2, 70]])
    assert "%" in curve.get_ylabel()
    matrices = figure.axes[:-1]
    assert {(axis.get_xlabel(), axis.get_ylabel()) for axis in matrices if axis.axison} == {
        ("tested on task (0 is the first)", "after task")
    }
    assert [tick.get_text() for tick in matrices[0].get_xticklabels()] == ["0", "1", "2"]
    assert curve.get_xlabel() == "after task (0 is the first)"


def test_settings_beside_each_other_in_their_first_mode_or_in_those_that_are_named(tmp_path):
    """Over seeds ACC and FT are means of the seeds' own numbers, not those of the mean matrix."""
    up, down = [[80, 0], [90, 50]], [[80, 0], [70, 50]]
    runs = [
        tasks(tmp_path / "a", up),
        tasks(tmp_path / "b", down, seed=1),
        tasks(tmp_path / "c", up, algorithm="fedprox"),
    ]
    figure = accuracy_by_task(runs)
    assert [axis.get_title(loc="left") for axis in figure.axes[:2]] == [
        "FedAvg\nACC@global 65.0 %, FT 0.0 %",
        "FedProx\nACC@global 70.0 %, FT -5.0 %",
    ]
    assert list(task_matrices([Run(run) for run in runs], "tip, aware")) == [
        "FedAvg, tip", "FedAvg, aware", "FedProx, tip", "FedProx, aware"
    ]  # fmt: skip
    assert list(task_matrices([Run(runs[0])], "aware")) == ["aware"]
    with pytest.raises(ConfigError, match="no inference mode 'none'"):
        accuracy_by_task(runs, "none")


def test_predicted_against_true_tasks(tmp_path):
    """After the last task: what is right stands on the diagonal, the rest of each row in column 0; over two seeds the
    mean. Only the mode `tip` predicts tasks."""
    other = [[80, 10, 20], [90, 70, 40], [70, 40, 60]]
    runs = [tasks(tmp_path / "a", THREE), tasks(tmp_path / "b", other, seed=1)]
    (axis,) = predicted_tasks(runs).axes
    shown = np.ma.filled(axis.images[0].get_array(), np.nan)
    np.testing.assert_allclose(shown, [[100, 0, 0], [50, 50, 0], [20, 0, 80]])
    # seed 0: 100, 60, 100; seed 1: 100, 40, 60
    assert axis.get_title(loc="left") == "tip\nright task, mean over tasks: 76.7 %"
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("predicted task (0 is the first)", "true task")
    with pytest.raises(ConfigError, match=facts("global", "tip")):
        predicted_tasks(runs, "global")


def test_tasks_that_not_all_seeds_have_ended_are_left_out(tmp_path):
    runs = [tasks(tmp_path / "a", THREE), tasks(tmp_path / "b", THREE, seed=1, ended=2)]
    assert {matrix.shape for matrix in task_matrices([Run(run) for run in runs], "global")["global"][1]} == {(2, 3)}


def test_a_seed_that_failed_takes_no_task_of_the_others(tmp_path):
    runs = [tasks(tmp_path / "a", THREE), tasks(tmp_path / "b", THREE, seed=1, ended=2)]
    (runs[1] / "STATUS").write_text("failed: disk is full\n")
    figure = accuracy_by_task(runs)
    assert texts(figure.axes[0]) == ["80", "90", "70", "50", "60", "100"]
    assert figure.axes[-1].get_title(loc="left") == "one seed each; left out: 1 failed"
    (axis, *_) = predicted_tasks(runs).axes
    assert axis.images[0].get_array().shape == (3, 3) and axis.get_xlabel().endswith("; left out: 1 failed")


def test_a_drift_of_a_seed_that_failed_ends_no_line_of_the_others(tmp_path):
    runs = [drift(tmp_path / str(n), WINDOW[: 7 - 4 * n], 3, 5, seed=n) for n in range(2)]
    (runs[1] / "STATUS").write_text("failed: disk is full\n")
    curve = accuracy_through_drift(runs).axes[0]
    assert max(curve.lines[0].get_xdata()) == 6
    assert "one seed; left out: 1 failed" in curve.get_title(loc="left")
    places = by_class([Run(run) for run in runs]).axes
    assert places[0].collections[0].get_array().shape == (2, 7) and "left out: 1 failed" in places[0].get_xlabel()


def test_many_tasks_have_a_colour_bar_and_no_numbers(tmp_path):
    figure = accuracy_by_task([tasks(tmp_path / "a", np.full((11, 11), 50))], "global")
    assert len(figure.axes) == 3 and texts(figure.axes[0]) == []
    assert "accuracy (%)" in [axis.get_ylabel() for axis in figure.axes]


def bars(axis):
    """(round, row) of each alarm."""
    inside = [bar for bar in axis.containers for bar in bar]
    return [(bar.get_x() + 0.5, round(bar.get_y() + 0.35)) for bar in inside]


def names(axis):
    return [tick.get_text() for tick in axis.get_yticklabels()]


def test_a_drift_has_its_window_its_alarms_and_its_classes(tmp_path):
    """Class 0 is missing in rounds 3 and 4; the alarm is on in rounds 4 and 5."""
    curve, wv, on = accuracy_through_drift([watched(drift(tmp_path / "a", WINDOW, 3, 5), {4, 5})]).axes
    for line, style, class_ in zip(curve.lines, ("-", "--"), (0, 1), strict=True):
        np.testing.assert_allclose(line.get_xydata()[:, 1], np.array(WINDOW)[:, class_])
        assert line.get_linestyle() == style
    words = [text.get_text() for text in curve.get_legend().get_texts()]
    assert words == ["FedAvg", "missing classes (0)", "other classes"]
    for axis in (curve, wv, on):
        window = axis.patches[0]
        assert (window.get_x(), window.get_x() + window.get_width()) == (2.5, 4.5)
    assert wv.get_yscale() == "log" and len(wv.lines) == 4
    assert bars(on) == [(4, 0), (5, 0)] and names(on) == ["FedAvg (diagnostic)"] and on.get_xlabel() == "round"


def test_many_missing_classes_are_cut_in_the_legend_and_decades_of_variance_have_one_label(tmp_path):
    run = watched(drift(tmp_path / "a", WINDOW, 3, 5), {4})
    text = (run / "config.yaml").read_text()
    even = "".join(f"\n  - {number}" for number in range(0, 20, 2))
    (run / "config.yaml").write_text(text.replace("classes:\n  - 0", f"classes:{even}"))
    put(run, "diagnostics/latent_forgetting", [SIGNAL | {"done": done, "wv": 10.0**-done} for done in range(1, 5)])
    curve, wv, _ = accuracy_through_drift([run]).axes
    words = [text.get_text() for text in curve.get_legend().get_texts()]
    assert "missing classes (0, 2, 4, 6, 8, 10, ...)" in words
    assert {math.log10(tick) % 1 for tick in wv.get_yticks()} == {0}


def test_the_classes_of_a_drift_have_its_window_and_the_missing_ones_are_bold(tmp_path):
    classes, bar = by_class([Run(drift(tmp_path / "a", WINDOW, 3, 5))]).axes
    np.testing.assert_allclose(classes.collections[0].get_array(), np.array(WINDOW).T)
    assert [tick.get_fontweight() for tick in classes.get_yticklabels()] == ["bold", "normal"]
    assert {line.get_xdata()[0] for line in classes.lines} == {2.5, 4.5}
    assert all(spine.get_visible() for spine in classes.spines.values())
    assert classes.get_xlabel() == "round; dashed: the drift; bold: its classes" and "%" in bar.get_ylabel()


def test_settings_that_miss_other_classes_are_drawn_with_their_own(tmp_path):
    """Class 0 here and class 1 there."""
    other = drift(tmp_path / "b", WINDOW, 3, 5, algorithm="fedprox")
    text = (other / "config.yaml").read_text()
    assert text.count("classes:\n  - 0") == 1
    (other / "config.yaml").write_text(text.replace("classes:\n  - 0", "classes:\n  - 1"))
    (curve,) = accuracy_through_drift([drift(tmp_path / "a", WINDOW, 3, 5), other]).axes
    drawn = sorted(tuple(line.get_ydata()) for line in curve.lines if line.get_linestyle() == "-")
    np.testing.assert_allclose(drawn, sorted(map(tuple, np.array(WINDOW).T)))
    words = [label.get_text() for label in curve.get_legend().get_texts()]
    assert words == ["FedAvg, classes=[0]", "FedProx, classes=[1]", "missing classes", "other classes"]


def test_a_setting_that_does_not_drift_is_drawn_beside_one_that_does(tmp_path):
    """Its accuracy is that of the classes that the other one misses; its alarms are those of its own detector."""
    steady = drift(tmp_path / "b", [[90, 80]] * 7, 3, 5, algorithm="fedprox")
    text = (steady / "config.yaml").read_text()
    (steady / "config.yaml").write_text(text[: text.index("drift:")] + "drift: null\n")
    changed(steady, **{"memo/alarm": [0, 0, 0, 1, 0, None]})
    assert alarms(Run(steady))["fedmemo"].tolist() == [4]
    curve, on = accuracy_through_drift([drift(tmp_path / "a", WINDOW, 3, 5), steady]).axes
    assert {tuple(line.get_ydata()) for line in curve.lines if line.get_ydata()[0] > 50} == {(90,) * 7, (80,) * 7}
    assert bars(on) == [(4, 0)] and names(on) == ["FedProx"]
    with pytest.raises(ConfigError, match="has no drift"):
        accuracy_through_drift([steady])


def test_alarms_of_some_seeds_are_paler(tmp_path):
    runs = [
        watched(drift(tmp_path / str(n), WINDOW, 3, 5, seed=n), {4, 5}.difference({4} if n else {})) for n in (0, 1)
    ]
    on = accuracy_through_drift(runs).axes[-1]
    assert [bar.get_facecolor()[3] for bar in on.containers[0]] == [0.5, 1.0]


def test_both_detectors_are_drawn_and_named(tmp_path):
    """FedMemo's own alarms beside the diagnostic's; only the diagnostic's were drawn."""
    run = watched(drift(tmp_path / "a", WINDOW, 3, 5, algorithm="fedmemo"), {5})
    own = {"memo/alarm": [0, 0, 1, 1, 0, 0], "memo/wv": 2e-4, "memo/smoothed": 1e-4, "memo/threshold": 1.5e-4}
    changed(run, **own)
    _, signal, on = accuracy_through_drift([run]).axes
    assert bars(on) == [(3, 0), (4, 0), (5, 1)] and names(on) == ["FedMemo", "FedMemo (diagnostic)"]
    told = " ".join(signal.get_title(loc="left").split())
    assert "dashed: threshold of FedMemo, alarm below it" in told
    assert "dash-dotted: threshold of the diagnostic, alarm below it" in told
    dashed = [(line.get_linestyle(), line.get_linewidth()) for line in signal.lines if line.get_linestyle() != ":"]
    # WV once, FedMemo's mean and threshold, then those of the diagnostic, whose mean is dashed like its threshold
    assert dashed == [("-", 0.7), ("-", 2), ("--", 1), ("-.", 2), ("-.", 1)]
    thresholds = [line.get_ydata()[0] for line in signal.lines if line.get_linestyle() in ("--", "-.")]
    assert thresholds[::2] == pytest.approx([1.5e-4, 7e-5])


def test_a_statistic_of_another_scale_is_not_drawn_over_the_variance(tmp_path):
    """FedMemo's detector `classes` compares log odds: its alarms are marked, of its signal WV alone is drawn."""
    run = watched(drift(tmp_path / "a", WINDOW, 3, 5, algorithm="fedmemo"), {5})
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(text.replace("name: fedmemo", "name: fedmemo\n  detector: {method: classes}"))
    own = {"memo/alarm": [0, 0, 1, 1, 0, 0], "memo/wv": 2e-4, "memo/smoothed": 40.0, "memo/threshold": 6.2}
    changed(run, **own)
    _, signal, on = accuracy_through_drift([run]).axes
    assert max(line.get_ydata().max() for line in signal.lines) == pytest.approx(2e-4)
    told = " ".join(signal.get_title(loc="left").split())
    assert "threshold of the diagnostic, alarm below it" in told and "FedMemo" not in told
    assert names(on) == ["FedMemo", "FedMemo (diagnostic)"]


def test_a_window_to_the_end_ends_with_the_run(tmp_path):
    (curve,) = accuracy_through_drift([drift(tmp_path / "a", WINDOW[:5], 3, None)]).axes
    window = curve.patches[0]
    assert window.get_x() + window.get_width() == 4.5


def test_classes_over_seeds_are_those_of_the_rounds_that_all_have(tmp_path):
    counts = [class_counts(Run(drift(tmp_path / str(n), WINDOW[: n + 2], 3, 5, seed=n)).tests) for n in range(2)]
    done, shares = class_accuracies(counts)
    assert done.tolist() == [0, 1]
    np.testing.assert_allclose(shares, np.array(WINDOW[:2]) / 100)


def test_the_commands_draw_them(tmp_path):
    tasks(tmp_path / "t", THREE)
    drift(tmp_path / "d", WINDOW, 3, 5)
    for kind, folder in (("tasks", "t"), ("drift", "d")):
        found = invoke("figure", kind, tmp_path / folder, "--out", tmp_path / f"{kind}.png")
        assert found.exit_code == 0 and (tmp_path / f"{kind}.png").stat().st_size > 20_000
    wrong = invoke("figure", "drift", tmp_path / "d", "--mode", "none", "--out", tmp_path / "x")
    assert "no inference mode 'none'; choose one of global" in str(wrong.exception)

"""Every figure is returned, drawn without pyplot, and drawn into the axes of a caller's own figure just as well."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from matplotlib.figure import Figure

from flray import results
from flray.core.schema.errors import ConfigError
from flray.results import continual_figures, diagnosis_figures, ranks
from flray.results.client_figures import drift_figure, partition_figure
from flray.results.diagnosis_figures import conflict_over, losses_along
from flray.rundir.reader import Run
from flray.scenario import Partition, Scenario
from tests.support.continual_runs import drift, tasks, watched
from tests.support.tables import config, folder, put

THREE = [[80, 10, 20], [90, 70, 40], [50, 60, 100]]
WINDOW = [[50, 50], [80, 80], [20, 100], [70, 90], [90, 90]]


def curves(path: Path, **given: Any) -> Figure:
    return results.curves(
        [folder(path / "a", config(), [0.5, 0.6]), folder(path / "b", config(seed=1), [0.4])], **given
    )


def ablation(path: Path, **given: Any) -> Figure:
    return results.ablation(
        results.compare([folder(path / f"{lr}", config(lr=lr), [lr]) for lr in (0.1, 0.2)]), **given
    )


def clients(path: Path, **given: Any) -> Figure:
    run = folder(path / "a", config(), [0.5])
    put(run, "personal", {"done": [1, 1], "client": [0, 1], "finetune_epochs": [0, 0], "test/acc": [0.2, 0.4]})
    return results.clients([run], **given)


def by_task(path: Path, **given: Any) -> Figure:
    return results.accuracy_by_task([tasks(path / "a", THREE)], "global", **given)


def predicted(path: Path, **given: Any) -> Figure:
    return results.predicted_tasks([tasks(path / "a", THREE)], **given)


def through_drift(path: Path, **given: Any) -> Figure:
    return results.accuracy_through_drift([watched(drift(path / "a", WINDOW, 2, 3), {2})], **given)


def by_class(path: Path, **given: Any) -> Figure:
    return continual_figures.by_class([Run(drift(path / "a", WINDOW, 2, 3))], **given)


def local_training(path: Path, **given: Any) -> Figure:
    run = folder(path / "a", config(), [0.5])
    shares = {f"{part}_{when}": [0.5, 0.6] for part in ("acc", "in", "out") for when in ("before", "after")}
    put(run, "diagnostics/local_forgetting", {"done": [1, 2], "place": "end", **shares})
    return diagnosis_figures.local_forgetting([run], **given)


def opposed(path: Path) -> list[Path]:
    """Two runs that differ in lr, 0.1 and 0.2, with two local steps each of the diagnostic `conflict`."""
    runs = []
    for lr in (0.1, 0.2):
        runs.append(folder(path / f"{lr}", config(lr=lr, diagnostics=["conflict"]), [0.5]))
        rows = {"done": 1, "place": "step", "step": [2, 12], "cos_proximal": [-lr, -3 * lr], "move_proximal": [lr, lr]}
        put(runs[-1], "diagnostics/conflict", {**rows, "loss_proximal": [1.0, 1.0 + lr]})
    return runs


def along(path: Path, **given: Any) -> Figure:
    return losses_along(opposed(path), **given)


def over_a_key(path: Path, **given: Any) -> Figure:
    return conflict_over(opposed(path), "lr", **given)


def diagram(path: Path, **given: Any) -> Figure:
    scores = pandas.DataFrame({"fedavg": [0.1, 0.2, 0.3], "fedprox": [0.2, 0.3, 0.4], "fedsol": [0.3, 0.4, 0.2]})
    return ranks.diagram(ranks.of_scores(scores), **given)


def partition(path: Path, **given: Any) -> Figure:
    part = Partition(np.array([0, 1, 2, 3]), np.array([0, 3, 4]))
    return partition_figure(Scenario.ordinary(part, 3), np.array([1, 1, 0, 2]), ["a", "b", "c"], **given)


def drifting(path: Path, **given: Any) -> Figure:
    rows = [(done, 0, client, c, 4 - done * c, 4) for done in (1, 2) for client in (0, 1) for c in (0, 1)]
    names = ["round", "task", "client", "class", "kept", "of"]
    return drift_figure(pandas.DataFrame(rows, columns=names), 3, ["a", "b"], **given)


@pytest.mark.parametrize(
    ("draw", "count"),
    [
        (curves, None), (ablation, None), (clients, None), (diagram, None), (by_task, 2), (predicted, 1),
        (through_drift, 3), (by_class, 1), (along, 1), (over_a_key, 1), (local_training, 2),
        (partition, 2), (drifting, 2),
    ],
)  # fmt: skip
def test_a_figure_is_returned_and_takes_axes(draw: Callable[..., Figure], count: int | None, tmp_path: Path) -> None:
    """A new figure shows itself in a notebook; into given axes the same things are drawn; a wrong number is said."""
    from matplotlib import pyplot

    new = draw(tmp_path / "new")
    assert new._repr_png_().startswith(b"\x89PNG") and not pyplot.get_fignums()  # type: ignore[attr-defined]
    own = Figure(layout="constrained")
    axes = own.subplots(max(count or 1, 1) + 1, 1)
    given = {"axis": axes[0]} if count is None else {"axes": axes[:-1]}
    assert draw(tmp_path / "own", **given) is own
    own.canvas.draw()
    drawn = [axis for axis in own.axes if axis is not axes[-1]]
    assert not axes[-1].has_data() and len(drawn) == len(new.axes)
    for mine, theirs in zip(drawn, new.axes, strict=True):
        assert [kind.get_label() for kind in mine.lines] == [kind.get_label() for kind in theirs.lines]
        for one, other in zip(mine.lines, theirs.lines, strict=True):
            np.testing.assert_array_equal(one.get_xydata(), other.get_xydata())
        assert len(mine.collections) == len(theirs.collections) and len(mine.images) == len(theirs.images)
        assert (mine.get_xlabel(), mine.get_ylabel()) == (theirs.get_xlabel(), theirs.get_ylabel())
    if count is not None:
        with pytest.raises(ConfigError, match=f"{count + 1} axes given, and {count} are drawn"):
            draw(tmp_path / "wrong", axes=axes)


def test_conflicts_over_a_key_are_means_over_the_local_steps(tmp_path: Path) -> None:
    """Of lr 0.1 the cosines -0.1 and -0.3, of 0.2 the cosines -0.2 and -0.6; the losses of 0.2 are 1 and 1.2."""
    (panel,) = over_a_key(tmp_path / "key").axes
    local, taken = (line.get_xydata() for line in panel.lines[1:])
    np.testing.assert_allclose(local, [[0.1, -0.2], [0.2, -0.4]])
    np.testing.assert_allclose(taken, [[0.1, 0.1], [0.2, 0.2]])
    (panel,) = along(tmp_path / "steps").axes
    np.testing.assert_allclose(panel.lines[1].get_xydata(), [[2, 1.0], [12, 1.2]])


def test_the_bubbles_of_a_partition_are_its_samples(tmp_path: Path) -> None:
    """Client 0 holds two samples of class b and one of a, client 1 one of c: areas 2 : 1 : 1."""
    bars, grid = partition(tmp_path).axes
    assert [bar.get_height() for bar in bars.patches] == [3, 1]
    (bubbles,) = grid.collections
    assert bubbles.get_offsets().tolist() == [[0, 0], [0, 1], [1, 2]]
    assert bubbles.get_sizes() / bubbles.get_sizes()[0] == pytest.approx([1, 2, 1])


def test_the_cells_of_a_drift_are_shares_of_the_cohort(tmp_path: Path) -> None:
    """Of class a all is left, of b 3 of 4 in round 1, 2 of 4 in round 2; in round 3 there is no drift."""
    _, grid, _ = drifting(tmp_path).axes
    np.testing.assert_allclose(grid.images[0].get_array(), [[1, 1, 1], [0.75, 0.5, 1]])

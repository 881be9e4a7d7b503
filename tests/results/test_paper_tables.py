"""Tables to paste: digits that the interval leaves, booktabs, escapes; figures in a paper's width."""

import itertools
from pathlib import Path

import pandas
import pytest
from PIL import Image

from flray.core.schema.errors import ConfigError
from flray.results import compare, curves
from flray.results.figures import blank, fit, save_styled
from flray.results.paper_tables import latex_table, paper_table, with_interval
from flray.results.rendering import to_markdown
from tests.support.continual_runs import tasks
from tests.support.tables import by_seed, config, folder, put


@pytest.mark.parametrize(
    ("mean", "half", "text"),
    [
        (93.694, 3.55, "94 ± 4"),
        (93.694, 1.44, "93.7 ± 1.4"),
        (93.694, 2.6, "94 ± 3"),
        (0.04321, 0.00031, "0.0432 ± 0.0003"),
        (54.32, 81.7, "54 ± 82"),
        (97.21, float("nan"), "97.21"),
        (float("nan"), float("nan"), "-"),
        (50.0, 0.0, "50 ± 0"),
        (10.000000000000002, 4e-15, "10 ± 0"),  # three times 0.1: a mean of floats is not exact
        (-0.04, 3.0, "0 ± 3"),
        (1155123.0, 0.0, "1155123 ± 0"),
        (1155123.0, float("nan"), "1155123"),
        (0.00002345678, float("nan"), "0.00002346"),
    ],
)
def test_as_many_digits_as_the_interval_leaves(mean: float, half: float, text: str) -> None:
    assert with_interval(mean, half) == text


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    """Per algorithm three seeds 2 points apart: half the interval is t(0.975, 2) 2 / sqrt(3) = 4.97 points."""
    return by_seed(tmp_path, fedavg=[0.5, 0.52, 0.54], fed_own=[0.5, 0.52, 0.54])


def test_latex_has_booktabs_and_escapes(runs: list[Path]) -> None:
    text = latex_table(paper_table(compare(runs)))
    assert r"fed\_own & 3 & $52 \pm 5$ \\" in text and r"test acc \%" in text
    assert [text.count(rule) for rule in (r"\toprule", r"\midrule", r"\bottomrule", r"\begin{tabular}{lrr}")] == [1] * 4


def test_characters_of_latex_are_letters_in_it() -> None:
    """`\\\\` before a row's `[` would take it for an argument; OT1, the default encoding, has no `|` and no `<`."""
    table = pandas.DataFrame({"name": ["[a|b]"], "n": ["3"]})
    table.attrs["caption"] = "a|b<c"
    text = latex_table(table)
    assert r"{[}a\textbar{}b] & 3 \\" in text and r"\caption{a\textbar{}b\textless{}c}" in text


def test_per_cent_of_one_seed_have_two_decimals(tmp_path: Path) -> None:
    """A column of them ends at one place: 0.5, 0.05 and 0 are 50.00, 5.00 and 0.00 %."""
    alone = [folder(tmp_path / f"{acc}", config(lr=0.6 - acc), [acc]) for acc in (0.5, 0.05, 0.0)]
    table = paper_table(compare(alone))
    assert table["test acc %"].tolist() == ["50.00", "5.00", "0.00"]


def test_two_seeds_have_no_interval(runs: list[Path]) -> None:
    """Their mean has the two decimals of per cent: (50 + 52) / 2."""
    table = paper_table(compare([runs[0], runs[1]]))
    assert table["test acc %"].tolist() == ["51.00"]
    assert table.attrs["caption"] == "mean over n seeds; two seeds have no interval"


def test_markdown_has_the_same_cells(runs: list[Path]) -> None:
    lines = to_markdown(paper_table(compare(runs))).splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert cells[0] == ["algorithm", "n", "test acc %"] and cells[2] == ["FedAvg", "3", "52 ± 5"]
    assert "interval of the mean over n seeds" in lines[-1]


def test_over_tasks_there_are_modes_and_forgetting(tmp_path: Path) -> None:
    """Task 0 falls from 80 to 70 of 100, task 1 is new: FT is the mean of 10 and 0."""
    table = paper_table(compare([tasks(tmp_path / "a", [[80, 0], [70, 50]])]))
    assert list(table)[:4] == ["algorithm", "mode", "n", "ACC %"] and table["ACC %"].iloc[0] == "60.00"
    assert table["FT %"].iloc[0] == "5.00" and table.attrs["caption"] == "one seed each"


def test_a_cell_of_fewer_seeds_says_of_how_many(tmp_path: Path) -> None:
    """One of three seeds did not count the predicted tasks; in the others all samples of task 0 and half of task 1 were
    sent to their own task."""
    runs = [tasks(tmp_path / str(seed), [[80, 0], [70, 50]], seed=seed) for seed in range(3)]
    put(runs[2], "tests", pandas.read_parquet(runs[2] / "tests").drop(columns="predicted_tasks"))
    table = paper_table(compare(runs))
    assert table.iloc[-1][["mode", "n", "right task %"]].tolist() == ["tip", "3", "75.00 (2 seeds)"]


def test_a_setting_without_tasks_has_its_accuracy_beside_those_with_tasks(tmp_path: Path) -> None:
    """The joint bound: its last test, 90 %, in the place of ACC, and the caption says so."""
    joint = folder(tmp_path / "joint", config("centralized"), [0.4, 0.9])
    table = paper_table(compare([tasks(tmp_path / "a", [[80, 0], [70, 50]]), joint]))
    last = table.iloc[-1]
    assert last[["algorithm", "mode", "n", "ACC %", "FT %"]].tolist() == ["Centralized", "-", "1", "90.00", "-"]
    assert (table["algorithm"] == "Centralized").sum() == 1 and table["ACC %"].iloc[0] == "60.00"
    assert "Centralized" in table.attrs["caption"] and "has no tasks, its ACC is test/acc" in table.attrs["caption"]


def test_a_paper_s_column_and_its_three_files(runs: list[Path], tmp_path: Path) -> None:
    more = [folder(tmp_path / f"x{lr}", config(lr=lr), [0.1, 0.2, 0.3]) for lr in (0.1, 0.2)]
    figure = curves(more)
    paths = save_styled(figure, tmp_path / "out" / "fig.png", "paper")
    assert [path.name for path in paths] == ["fig.pdf", "fig.svg", "fig.png"]
    assert Image.open(paths[2]).width == round(3.35 * 300)
    assert b"/FontFile2" in paths[0].read_bytes()  # TrueType, not Type 3
    sizes = {text.get_fontsize() for text in [*figure.axes[0].get_xticklabels(), figure.axes[0].xaxis.label]}
    assert sizes == {6.5, 8.0}


def test_a_map_with_a_colour_bar_has_the_width_of_the_text() -> None:
    """In a column the bar and its letters would leave the map no room."""
    figure = blank(8, 4)
    axis = figure.subplots()
    figure.colorbar(axis.imshow([[0.0, 1.0]]), ax=axis)
    fit(figure, "paper")
    assert figure.get_size_inches()[0] == pytest.approx(6.9)


def test_panels_of_a_slide_are_high_enough_for_its_letters_and_no_two_numbers_touch() -> None:
    """Three maps at 12.5 inches would be 3.5 high, of which titles and labels take three."""
    figure = blank(10, 3.5)
    axes = figure.subplots(1, 3)
    for axis in axes:
        axis.imshow([[0.0, 1.0]], extent=(-1, 1, -1, 1))
        axis.set(xlabel="along the sharpest direction", title="two lines\nof a title")
    fit(figure, "talk")
    figure.draw_without_rendering()
    assert figure.get_size_inches().tolist() == [12.5, 5.5]
    for axis in axes:
        boxes = [label.get_window_extent() for label in axis.get_xticklabels()]
        assert axis.bbox.height > figure.bbox.height / 3
        assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes))


def test_panels_that_would_be_too_narrow_are_refused() -> None:
    figure = blank(20, 2)
    figure.subplots(1, 12)
    with pytest.raises(ConfigError, match="12 panels"):
        fit(figure, "paper")
    with pytest.raises(ConfigError, match="talk"):
        fit(figure, "tolk")


def test_names_are_headed_by_their_sections_and_a_key_that_is_missing_is_a_dash(tmp_path: Path) -> None:
    """partition.name and model.name differ, algorithm.mu is FedProx's alone."""
    given = [
        ({"partition": {"name": "iid"}, "model": {"name": "mlp"}}, "fedavg", {}),
        ({"partition": {"name": "dirichlet"}, "model": {"name": "lenet"}}, "fedprox", {"mu": 0.1}),
        ({"partition": {"name": "dirichlet"}, "model": {"name": "lenet"}}, "fedprox", {"mu": 0.2}),
    ]
    runs = []
    for number, (sections, name, more) in enumerate(given):
        content = config(name) | sections
        content["algorithm"] = content["algorithm"] | more
        runs.append(folder(tmp_path / str(number), content, [0.5]))
    table = paper_table(compare(runs))
    assert table["partition"].tolist() == ["iid", "dirichlet", "dirichlet"]
    assert table["model"].tolist() == ["mlp", "lenet", "lenet"] and table["mu"].tolist() == ["-", "0.1", "0.2"]


def test_a_key_that_others_do_not_have_stays_a_whole_number(tmp_path: Path) -> None:
    """personal_epochs is Ditto's alone; pandas makes 5 and a missing value to 5.0 and NaN."""
    given = [("fedavg", {}), ("ditto", {"personal_epochs": 1}), ("ditto", {"personal_epochs": 5})]
    runs = []
    for number, (name, more) in enumerate(given):
        content = config(name)
        content["algorithm"] = content["algorithm"] | more
        runs.append(folder(tmp_path / str(number), content, [0.5]))
    assert paper_table(compare(runs))["personal_epochs"].tolist() == ["-", "1", "5"]


def test_a_metric_has_its_unit(runs: list[Path]) -> None:
    table = compare(runs)
    assert "time (s)" in paper_table(table, "time/s") and "sent (bytes)" in paper_table(table, "comm/bytes")
    table["ACC@task_aware"] = 0.5
    assert paper_table(table, "ACC@task_aware")["ACC@task_aware %"].tolist() == ["50 ± 0"] * 2


def test_a_negative_number_has_a_minus_and_no_recovery_is_a_word(runs: list[Path]) -> None:
    table = compare(runs[:1])
    table["BWT"], table["drift/recovered_after"] = -0.125, float("inf")
    assert r"& $-12.50$ \\" in latex_table(paper_table(table, "BWT"))
    shown = paper_table(table, "drift/recovered_after")
    assert (
        shown.iloc[0, -1] == "never" and "(never), and so is the mean: FedAvg on 1 of 1 seeds" in shown.attrs["caption"]
    )


def test_the_caption_counts_the_seeds_that_diverged(runs: list[Path], tmp_path: Path) -> None:
    lost = folder(tmp_path / "lost", config("fedavg", 3), [0.1], "diverged in round 1: NaN in the update")
    caption = paper_table(compare([*runs, lost])).attrs["caption"]
    assert "FedAvg: mean of 3 of 4 seeds; 1 diverged" in caption


def test_a_point_in_a_figures_name_is_no_suffix(tmp_path: Path) -> None:
    figure = blank(4, 3)
    figure.subplots().plot([1, 2])
    names = [path.name for out in ("fig_a0.1", "fig_a0.5.png") for path in save_styled(figure, tmp_path / out, "paper")]
    assert len(set(names)) == 6 and "fig_a0.1.pdf" in names and "fig_a0.5.svg" in names

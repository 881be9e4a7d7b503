"""The papers' tables as data: every command loads, every row finds its number, every number has a row."""

import shlex
from collections import Counter
from pathlib import Path

import pytest

from flray.cli.draw import FIGURES
from flray.config.loader import load_config
from flray.reference.papers import SCALES, chosen, papers, read_csv, settings_of, tables, with_methods
from flray.reference.plan import PlannedRun, another, commands, configs_folder, experiments_of, missing, plan, slug

KEYS = [key for key, (_, table) in tables().items() if table.cells]
# empty in the paper: no task-aware number of Fed+SCR, and FedProTIP with its prediction is not task-aware
NONE = {
    ("fedprotip/table4", "Fed+SCR"), ("fedprotip/table5", "FedProTIP"), ("fedprotip/table6", "FedProTIP"),
    ("fedprotip/table13", "FedProTIP"),
    # NIID-Bench's README prints no cell of three classes
    *(("niid_bench/table3", method) for method in ("FedAvg", "FedProx", "SCAFFOLD", "FedNova")),
}  # fmt: skip
# numbers that no cell has: task prediction before the last task; the means over the tasks, which are Table 4
UNUSED = {"fedprotip/table7": 51, "fedmemo/table9": 6}


@pytest.mark.parametrize("key", KEYS)
def test_every_cell_has_a_command_for_each_row_and_scale(key):
    """A line has as many rows as its grid has experiments, and each row is the algorithm that the order says."""
    for setting in settings_of(key):
        for cell_run in setting.runs:
            for scale in SCALES:
                if not setting.why_not(cell_run.line, scale):
                    (experiment,) = experiments_of(setting, cell_run, scale, 1, configs_folder())
                    assert experiment.seed == 0


@pytest.mark.parametrize("key", KEYS)
def test_every_row_finds_its_number_and_every_number_has_a_row(key):
    used: Counter[int] = Counter()
    entries = {}
    for setting in settings_of(key):
        entries |= {id(entry): entry for entry in read_csv(setting.table.csv)}
        for cell_run in setting.runs:
            for row in cell_run.rows:
                for measure in setting.measures(cell_run.line):
                    printed = setting.printed(row, measure, cell_run.line)
                    if row.measure not in (None, measure.name):
                        continue
                    assert printed is not None or (key, row.shown) in NONE
                    where = {**setting.table.where, **setting.cell.where, **row.where, **measure.where}
                    used.update(n for n, e in entries.items() if all(e[k] == value for k, value in where.items()))
    of_table = [number for number, e in entries.items() if all(e[k] == v for k, v in setting.table.where.items())]
    assert len([number for number in of_table if number not in used]) == UNUSED.get(key, 0)


def test_a_row_of_a_grid_is_the_experiment_at_its_place():
    (setting,) = chosen("fedsol/table5", [])
    names = {}
    for cell_run in setting.runs:
        (experiment,) = experiments_of(setting, cell_run, "full", 1, configs_folder())
        names[cell_run.rows[0].shown] = (experiment.algorithm.perturb, experiment.algorithm.rho)
    assert names["body, 1.5"] == ("body", 1.5) and names["head, 0.5"] == ("head", 0.5) and names["rho 0"][1] == 0
    (setting,) = chosen("fedsol/table2", ["CIFAR-10, LDA 0.1"])
    cell_run = with_methods(setting, ["fedsol"])[0]
    assert [e.seed for e in experiments_of(setting, cell_run, "small", 3, configs_folder())] == [0, 1, 2]
    assert setting.printed(cell_run.rows[0], setting.table.measures[0], cell_run.line).mean == 64.13


def test_one_run_is_two_rows_in_two_inference_modes():
    setting = chosen("fedprotip/table1", ["CIFAR-100, Dirichlet 0.5"])[0]
    (cell_run,) = with_methods(setting, ["FedProTIP"])
    assert [(row.shown, row.mode) for row in cell_run.rows] == [("FedProTIP (-t)", None), ("FedProTIP", "tip_batch")]


def test_the_memory_loss_of_fedproj_is_three_rows_of_one_run():
    """C.4 prints L_mem 0.069 and 0.013 nats, here times 1,000, and r -0.718, here times 100."""
    setting = chosen("fedproj/c.4", ["CIFAR-10, beta 0.3"])[0]
    (cell_run,) = setting.runs
    loss, correlation = setting.table.measures
    printed = [
        [setting.printed(row, measure, cell_run.line) for row in cell_run.rows] for measure in (loss, correlation)
    ]
    means = [[None if each is None else each.mean for each in row] for row in printed]
    assert means == [[pytest.approx(69), pytest.approx(13), None], [None, None, pytest.approx(-71.8)]]


def test_a_cell_is_named_by_its_parts():
    def names(*asked):
        return [setting.name for setting in chosen("fedsol/table2", asked)]

    assert names("CIFAR-10,lda 0.1") == ["CIFAR-10, LDA 0.1"]
    assert names("mnist", "LDA 0.3") == ["MNIST, sharding", "MNIST, LDA", "CIFAR-10, LDA 0.3"]
    assert names("MNIST, LDA", "MNIST") == ["MNIST, LDA", "MNIST, sharding"]  # each once
    assert len(names()) == 18


@pytest.mark.parametrize(
    ("key", "cell", "methods", "told"),
    [
        ("fedsol/table2", "MNIST, LDA", ["FedAvg", "FedSOL"], ["algorithm=fedavg,fedsol"]),
        ("fedsol/table5", "CIFAR-10, LDA 0.1", ["all, 0.5", "all, 1.5", "head, 0.5", "head, 1.5"],
         ["algorithm.perturb=all,head algorithm.rho=0.5,1.5"]),
        ("fedsol/table5", "CIFAR-10, LDA 0.1", ["all, 0.5", "head, 1.5"],
         ["algorithm.perturb=all algorithm.rho=0.5", "algorithm.perturb=head algorithm.rho=1.5"]),
    ],
)  # fmt: skip
def test_the_commands_of_some_rows_run_these_and_no_others(key, cell, methods, told, tmp_path):
    """What the user changed is in them, what only says where it runs is not."""
    (setting,), home, extra = chosen(key, [cell]), configs_folder(), ["rounds=3", f"data.root={tmp_path}"]
    runs = [
        PlannedRun(setting, cell_run, experiment, tmp_path)
        for cell_run in with_methods(setting, methods)
        for experiment in experiments_of(setting, cell_run, "small", 2, home, tuple(extra))
    ]
    found = commands(runs, "small", extra)
    assert [words in command for words, command in zip(told, found, strict=True)] == [True] * len(told)
    loaded = []
    for command in found:
        flray, run, config, *words = shlex.split(command)
        assert (flray, run) == ("flray", "run") and "rounds=3" in words
        loaded += load_config(home.parent / config, [*words, f"data.root={tmp_path}"])
    assert loaded == [run.experiment for run in runs]


def test_what_is_missing_is_said(tmp_path):
    """Of CIFAR-100 in FedProj's Table 1 only the methods with public data lack ImageNet-100."""
    (tmp_path / "cifar100").mkdir()
    (tmp_path / "cifar100" / "train.parquet").touch()
    settings = chosen("fedproj/table1", ["CIFAR-100, beta 0.3"])
    found = plan(settings, "full", 1, tmp_path, configs_folder(), (), [f"data.root={tmp_path}"])
    assert [run.rows[0].shown for run in found.runs] == ["FedAvg", "FedProx", "FedNova", "FedDyn", "MOON", "FedRCL"]
    assert {why for *_, why in found.skipped} == {f"the data set imagenet100 is not below {tmp_path}"}
    assert len({run.folder for run in found.runs}) == 6
    assert len(plan(settings_of("fedproj/figure1"), "full", 2, tmp_path, configs_folder()).runs) == 6  # needs no file
    vit = chosen("fedprotip/table6", [])
    (experiment,) = experiments_of(vit[0], vit[0].runs[0], "full", 1, configs_folder(), (f"data.root={tmp_path}",))
    assert missing(experiment).startswith("the weights vit_base_patch16_224")
    assert plan(vit, "small", 1, tmp_path, configs_folder()).skipped[0][2] == "the small preset has another network"


def test_only_some_overrides_leave_it_the_papers_experiment():
    setting, iris = settings_of("fedsol/table2")[0], settings_of("fedproj/figure1")[0]
    assert another(setting, "full", ["data.root=x", "resources.client_actors=2"]) == ""
    assert another(setting, "full", ["rounds=3"]) == "changed by rounds=3"
    assert another(setting, "small", ["rounds=3"]) == "another scale, changed by rounds=3"
    assert another(iris, "small", []) == ""  # it takes seconds: the same at both


def test_folders_and_names_of_the_papers():
    assert slug("CIFAR-10, LDA 0.1") == "cifar-10-lda-0.1"
    assert set(papers()) == {"fedsol", "fedproj", "fedprotip", "fedmemo", "niid_bench"}
    for key in KEYS:
        names = [slug(f"{s.name}-{cell_run.rows[0].shown}") for s in settings_of(key) for cell_run in s.runs]
        assert len(set(names)) == len(names), key


def test_the_site_has_the_commands_below_the_marks_of_a_page(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "docs"))
    from paper_commands import MARK, filled

    marked = {found[1] for page in configs_folder().glob("*/README.md") for found in MARK.finditer(page.read_text())}
    assert {key.partition("/")[0] for key in marked} == {*papers()}
    page = (configs_folder() / "fedsol" / "README.md").read_text()
    (command,) = [line for line in filled(page).splitlines() if line.endswith("# CIFAR-10, LDA 0.1, FedAvg")]
    assert command.startswith("flray run configs/fedsol/cifar10_lda01.yaml algorithm=fedavg seed=0..2  ")
    assert "<!-- commands" not in filled(page)


@pytest.mark.parametrize(
    ("paper", "figure"), [(name, figure) for name, paper in papers().items() for figure in paper.figures]
)
def test_every_figure_has_commands_or_a_reason(paper, figure):
    """Its runs load, and it is drawn from the folders that its own runs write."""
    entry = papers()[paper].figures[figure]
    assert bool(entry.commands) != bool(entry.why_not)
    written = set()
    for command in entry.commands:
        flray, verb, what, *words = shlex.split(command.replace("papers reproduce", "reproduce"))
        assert (flray, verb) in {("flray", "run"), ("flray", "figure"), ("flray", "reproduce")}
        out = words.index("--out")
        if verb == "run":
            assert load_config(configs_folder().parent / what, words[:out])
        elif verb == "reproduce":
            assert what in tables()
        else:
            assert what in FIGURES
            folders = [word for word in words if word.startswith("runs/")]
            assert folders and {Path(*Path(folder).parts[:2]) for folder in folders} <= written
        written |= {Path(words[out + 1])} if verb != "figure" else set()


@pytest.mark.parametrize(
    ("key", "version", "file", "feddf"),
    [("fedproj/table1", "journal version", "000", 63.92), ("fedproj/table1-preprint", "preprint", "001", 61.32)],
)
def test_each_version_of_fedproj_has_its_own_numbers(key, version, file, feddf):
    """fedproj_000 is the journal version and fedproj_001 the preprint; FedDF on CIFAR-10, beta 0.3, is one of five
    numbers that differ."""
    setting = chosen(key, ["CIFAR-10, beta 0.3"])[0]
    assert version in setting.table.title and setting.table.csv == f"fedproj_{file}_table1_cv.csv"
    assert {entry["source_table"] for entry in read_csv(setting.table.csv)} == {f"FedProj ({version}) Table 1"}
    (cell_run,) = with_methods(setting, ["FedDF"])
    assert setting.printed(cell_run.rows[0], setting.table.measures[0], cell_run.line).mean == feddf

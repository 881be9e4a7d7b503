"""The site: every page is written, its commands and keys are flray's, its examples run, its columns are those of runs.

Slow tests, which `.ci/run` runs beside `python docs/build.py`, which also follows every link."""

import html
import re
import runpy
import sys
from pathlib import Path

import pandas
import pytest
import yaml
from typer.main import get_command

import flray
from flray.algorithms import built_in
from flray.cli import app
from flray.cli.catalog import KINDS
from flray.config.experiment import Experiment
from flray.config.keys import keys_of
from flray.config.loader import load_config
from flray.tuning.config import Sweep
from flray.tuning.sweep_file import load_sweep
from tests.support.pages import blocks, commands, overrides

ROOT = Path(__file__).parents[1]
QUICKSTART = ROOT / "configs" / "quickstart.yaml"
OWN = sorted((ROOT / "docs" / "pages").rglob("*.md"))
NAMES = [str(page.relative_to(ROOT / "docs" / "pages")) for page in OWN]
FAST = ["resources.executor=local", "rounds=1", "partition.clients=4", "cohort.size=3", "algorithm.local_epochs=1"]


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def build():
    """The modules of docs/."""
    sys.path.insert(0, str(ROOT / "docs"))
    import build

    yield build
    sys.path.remove(str(ROOT / "docs"))


@pytest.fixture(scope="module")
def pages(build, tmp_path_factory):
    """The site's pages as Markdown, without the notebooks."""
    folder = tmp_path_factory.mktemp("site")
    build.write(folder, notebooks=False)
    return folder


def test_every_page_is_in_the_nav_and_the_nav_names_pages(build, pages):
    pytest.importorskip("pymdownx", reason='the site is built with pip install -e ".[docs]"')

    def places(nav):
        for item in nav:
            value = next(iter(item.values())) if isinstance(item, dict) else item
            yield from places(value) if isinstance(value, list) else [value]

    written = {path.relative_to(pages).as_posix() for path in pages.rglob("*.md")}
    named = list(places(build.configuration(pages)["nav"]))
    assert set(named) == written and len(named) == len(written)


def test_the_reference_has_every_key_command_and_algorithm(pages):
    for file, model in (("experiment", Experiment), ("sweep", Sweep)):
        text = (pages / "reference" / f"{file}.md").read_text()
        keys = [key.name for key in keys_of(model) if not key.name.startswith("proxy.")]  # those of data
        assert [key for key in keys if f"| `{key}` |" not in text] == []
    text = (pages / "reference" / "commands.md").read_text()
    known = dict(get_command(app).commands)
    papers = {f"papers {name}": command for name, command in known.pop("papers").commands.items()}
    assert papers.keys() == {"papers reproduce", "papers evidence"}
    for name, command in {**known, **papers}.items():
        if command.hidden:
            continue
        assert f"## {name}\n" in text
        options = [", ".join([*p.opts, *p.secondary_opts]) for p in command.params if p.opts[0][0] == "-"]
        assert all(f"`{option}`" in text for option in options)
    assert {path.stem for path in (pages / "reference" / "algorithms").glob("*.md")} == {"index", *built_in()}


def test_the_reference_has_a_page_of_every_kind_of_flray_list(pages):
    elsewhere = {"algorithms": "algorithms/index", "fits": None, "metrics": "columns", "config": "experiment"}
    for kind in KINDS:
        page = elsewhere.get(kind, kind)
        assert page is None or (pages / "reference" / f"{page}.md").is_file(), kind


def test_the_table_by_setting_has_every_algorithm(pages):
    text = (pages / "how-to" / "methods.md").read_text()
    assert [name for name in built_in() if text.count(f"| [{name}](") != 1] == []


def test_python_has_every_public_module(pages):
    text = "\n".join(path.read_text() for path in (pages / "reference" / "python").glob("*.md"))
    for path in (ROOT / "flray").rglob("*.py"):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if path.stem[0] != "_" and not {"init", "private"} & set(path.parts):
            assert f"::: {name}\n" in text


def test_findings_have_the_numbers_of_the_stored_runs(pages):
    """The mean of the paired differences in points, from the table itself; no directive is left."""
    runs = pandas.read_parquet(ROOT / "flray" / "reference" / "runs" / "evidence.parquet")
    own = runs[runs["setting"] == "fedmemo_cifar10"].set_index(["run", "seed"])["test/acc_mean10"]
    difference = 100 * (own["fedmemo algorithm.trigger=scheduled algorithm.r0=1"] - own["fedprox"]).mean()
    page = (pages / "explanation" / "findings.md").read_text()
    line = "FedMemo with step 2 in every round is more accurate than FedProx (five classes gone). **Order holds.**"
    assert f"* {line} {difference:+.1f} (" in page and "{{" not in page


def test_columns_of_a_run_are_on_their_page(build, tmp_path):
    """ER's too, which stores samples. A metric that several tables have is described in rounds/."""
    words = ["algorithm=er", "tasks.num_tasks=2", "evaluate.finetune_epochs=[0]", "diagnostics=[divergence]"]
    flray.run(QUICKSTART, *FAST, *words, out=tmp_path / "run", progress=False)
    known = build.generated.columns_by_table()
    for table in known:
        columns = pandas.read_parquet(tmp_path / "run" / table).columns
        names = {re.sub(r"(comm/(?:up|down)_bytes)/.*", r"\1/FIELD", re.sub(r"/ft\d+/", "/ftE/", c)) for c in columns}
        assert len(names) > 5 and names <= known[table].keys() | (known["rounds"].keys() if table != "tests" else set())


@pytest.mark.parametrize("page", OWN, ids=NAMES)
def test_commands_of_a_page_are_flrays(page):
    """Verbs and options; overrides load on the configuration that a command names."""
    known = dict(get_command(app).commands)
    known = known | {f"papers {name}": command for name, command in known["papers"].commands.items()}
    for _, verb, *words in commands(page):
        if verb == "papers":
            verb, *words = f"papers {words[0]}", *words[1:]
        assert verb in known, f"flray {verb}"
        options = {name for p in known[verb].params for name in (*p.opts, *p.secondary_opts)} | {"--help"}
        assert [word for word in words if word.startswith("--") and word not in options] == [], f"flray {verb} {words}"
        config = next((word for word in words if re.match(r"configs/|quickstart\.yaml$", word)), None)
        config = "configs/quickstart.yaml" if config == "quickstart.yaml" else config
        if config is None or "--import" in words or verb in ("figure", "compare", "report"):
            continue
        if verb == "sweep":
            assert load_sweep(ROOT / config, overrides(words))
        elif verb != "synthesize":
            assert load_config(ROOT / config, overrides(words))


def files(page: Path) -> dict[str, str]:
    """The blocks `# name.py` of a page: complete files of a user's folder."""
    found = {re.match(r"# (\w+)\.py\n", text): text for text in blocks(page.read_text(), "python")}
    return {said[1]: text for said, text in found.items() if said}


def scripts(page: Path) -> dict[str, str]:
    """Files that no command of the page imports; tests of their own run the tutorials and the page of other code."""
    named = {word for words in commands(page) for word in words}
    own = page.parent.name == "tutorials" or page.stem == "compare_code"
    return {} if own else {name: text for name, text in files(page).items() if name not in named}


@pytest.mark.parametrize("text", [text for page in OWN for text in scripts(page).values()])
def test_a_script_of_a_page_runs(text, tmp_path, monkeypatch):
    """What commands import runs in test_how_to.py."""
    (tmp_path / "quickstart.yaml").write_text(QUICKSTART.read_text())
    (tmp_path / "script.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    runpy.run_path("script.py")


@pytest.mark.parametrize("page", OWN, ids=NAMES)
def test_yaml_of_a_page_is_a_part_of_an_experiment(page):
    """On top of the quickstart; a block that begins with `# sweep` is a sweep's, one with `# not flray's` neither."""
    for text in blocks(page.read_text(), "yaml"):
        if text.startswith("# not flray's"):
            continue
        values = yaml.safe_load(text)
        if text.startswith("# sweep"):
            assert load_sweep(values | {"experiment": values.get("experiment") or str(QUICKSTART)})
        else:
            assert load_config({"extends": str(QUICKSTART)} | values)


def test_a_cell_shows_its_signs_and_not_the_escapes_of_markdown(build):
    markdown = pytest.importorskip("markdown", reason='the site is built with pip install -e ".[docs]"')
    text = ">= 0 <= 1, hf:<id>, v <- a_b * c_d | [x]"
    page = build.generated.table(("bounds",), [[build.generated.cell(text)]])
    shown = re.search("<td>(.*)</td>", markdown.markdown(page, extensions=["tables"]))
    assert html.unescape(shown[1]) == text

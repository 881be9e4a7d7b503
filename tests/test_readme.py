"""What the README shows works: its FedProx runs from outside the package, and mu = 0 is FedAvg; what every README
points to is there."""

import re
import shutil
from pathlib import Path

import pytest
import yaml
from safetensors.numpy import load_file
from typer.main import get_command

import flray
from flray.algorithms import ALGORITHMS
from flray.cli import app
from flray.config.loader import load_config
from tests.support.pages import commands, overrides
from tests.support.processes import python

ROOT = Path(__file__).parent.parent
TOPS = ("*", "docs/*", "configs/**/*", "flray/**/*", "tuning/**/*")
PAGES = [page for top in TOPS for page in sorted(ROOT.glob(f"{top}.md"))]
FAST = ["rounds=2", "partition.clients=4", "cohort.size=4", "algorithm.local_epochs=1", "evaluate.clients=false"]


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M)


def anchors(page: Path) -> set[str]:
    """The headings of a page as GitHub makes links of them."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_what_a_readme_points_to_is_there(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        name, _, anchor = target.partition("#")
        if "://" not in target:
            there = (page.parent / name) if name else page
            assert there.exists(), f"{page}: {target}"
            assert not anchor or anchor in anchors(there), f"{page}: {target}"


def test_the_readme_is_short_and_names_every_command():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 120 and max(map(len, text.splitlines())) <= 120
    shown = [name for name, command in get_command(app).commands.items() if not command.hidden]
    assert [name for name in shown if f"flray {name}" not in text] == []
    for picture in re.findall(r"!\[[^]]*\]\(([^)]+)\)", text):
        assert (ROOT / picture).stat().st_size < 100_000


def test_the_readme_of_a_package_has_no_relative_link(tmp_path):
    """A package page shows the text of METADATA: there a link that is relative to the checkout is broken."""
    for name in ("README.md", "LICENSE", "pyproject.toml", "setup.py"):
        shutil.copy(ROOT / name, tmp_path)
    for name in ("flray", "tuning", "configs", "notebooks"):
        (tmp_path / name).mkdir()
    shutil.copy(ROOT / "flray" / "__init__.py", tmp_path / "flray")  # the version
    make = "from setuptools import build_meta; print(build_meta.prepare_metadata_for_build_wheel('.'))"
    text = (tmp_path / python("-c", make, cwd=tmp_path).stdout.split()[-1] / "METADATA").read_text()
    assert f"\nVersion: {flray.__version__}\n" in text
    assert "Description-Content-Type: text/markdown" in text and "# flray" in text
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    assert targets and all(target.startswith("https://") for target in targets)
    assert "FedProj (`configs/fedproj/README.md`)" in text and "`configs/quickstart_curves.png`" in text


def test_the_citation_and_the_newest_section_of_the_changes_have_this_version():
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == flray.__version__
    newest = re.findall(r"^## (\d\S*)", (ROOT / "CHANGELOG.md").read_text(), re.M)[0]
    assert newest == flray.__version__


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_commands_that_a_readme_shows_are_commands_of_what_is_there(page):
    """Those on a configuration of flray load, as far as they need no data set; the papers' have tests of their own."""
    known = get_command(app).commands
    for _, verb, *words in commands(page):
        assert verb in known or verb.startswith("-") or verb == "VERB", f"{page}: flray {verb}"
        if verb != "run" or not words[0].startswith("configs/") or "--import" in words:
            continue
        assert load_config(ROOT / words[0], overrides(words)), f"{page}: {words}"


def example() -> str:
    (code,) = re.findall(r"```python\n(# fedprox_example.py\n.*?)```", (ROOT / "README.md").read_text(), re.S)
    return code


def test_fedprox_of_the_readme(ray_cluster, tmp_path, monkeypatch):
    code = example()
    assert len([line for line in code.splitlines() if line.strip()]) < 20
    (tmp_path / "fedprox_example.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    models = {}
    try:
        for name, more in {
            "fedavg": ["algorithm=fedavg"],
            "mu0": ["algorithm=fedprox-example", "algorithm.mu=0"],
            "mu1": ["algorithm=fedprox-example", "algorithm.mu=1"],
        }.items():
            imports = ["fedprox_example"] if "mu" in name else []
            flray.run(ROOT / "configs" / "quickstart.yaml", *FAST, *more, out=tmp_path / name, imports=imports)
            models[name] = load_file(tmp_path / name / "model.safetensors")
    finally:
        ALGORITHMS._table.pop("fedprox-example", None)  # of this test alone: another one completes names in the shell
    assert all((models["fedavg"][key] == models["mu0"][key]).all() for key in models["fedavg"])
    assert any((models["fedavg"][key] != models["mu1"][key]).any() for key in models["fedavg"])

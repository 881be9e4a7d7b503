"""The commands of the how-to pages and of the explanations, as they are printed, in a folder that has what a page asks
for. Runs have fewer rounds and one process; a command that cannot run here says why in `NOT_HERE`."""

import glob
import importlib.util
import re
import shutil
from pathlib import Path

import pandas
import pytest

from tests.support.commands import succeeded
from tests.support.pages import blocks, commands

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "pages"
GUIDE = ROOT / "flray" / "algorithms" / "README.md"
FOUND = sorted(page for part in ("how-to", "explanation") for page in (PAGES / part).glob("*.md") if commands(page))
NOT_HERE = {  # a word of the command: why it is not run
    "CONFIG": "a configuration of the reader's own",
    "s3://bucket/exp/RUNNAME": "a bucket of the reader's own",
    "--follow": "it goes on until it is stopped",
    "data=cifar10": "minutes, and CIFAR-10",
    "data=mnist": "2,000 rounds, and MNIST",
    "pretrain": "minutes, and CIFAR-10",
    "configs/pretrain/resnet8_cifar10.yaml": "minutes, and CIFAR-10",
}
PACKAGES = {"mlflow": "mlflow", "wandb": "wandb"}  # a word of the command: the package that it needs
FOUR = ["partition.clients=4", "cohort.size=3"]
# what earlier commands of the reader left: folder -> the run that stands in for it
BEFORE = {
    "runs/grid": ["algorithm=fedavg,fedsol", "seed=0,1"],
    "runs/quickstart/fedavg-seed0": ["algorithm=fedavg"],
    "runs/c10": ["algorithm=fedavg"],
}
HERE = {"resources.executor": "local", "algorithm.local_epochs": "1"}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def test_every_page_with_commands_is_found():
    assert len(FOUND) > 12 and PAGES / "how-to" / "data.md" in FOUND


@pytest.mark.parametrize("page", FOUND, ids=[page.stem for page in FOUND])
def test_commands_of_a_page_run_as_printed(page, tmp_path, monkeypatch, ray_cluster):
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    text = page.read_text()
    for code in blocks(text + GUIDE.read_text(), "python"):  # which some pages show parts of
        if name := re.match(r"# (\w+)\.py\n", code):
            Path(f"{name[1]}.py").write_text(code)
    for folder, words in BEFORE.items():
        if (f"{folder} " in text or f"{folder}\n" in text) and f"--out {folder}" not in text:
            typed(["run", "configs/quickstart.yaml", *words, *FOUR, "rounds=2", "--out", folder])
    for _, *words in commands(page):
        if NOT_HERE.keys() & {*words}:
            continue
        for word, package in PACKAGES.items():
            if any(word in each for each in words) and importlib.util.find_spec(package) is None:
                pytest.skip(f"{page.name} needs {package}")
        typed([*words, *(smaller(words) if words[0] == "run" else [])])
    if page.stem == "diagnostic":
        assert pandas.read_parquet("runs/sparse/diagnostics/sparsity")["share"].between(0, 1).all()


def smaller(words: list[str]) -> list[str]:
    """Overrides of a run for keys that the command does not set: a round of few clients, over tasks and drifts too."""
    given = {word.partition("=")[0] for word in words}
    return [f"{key}={value}" for key, value in {**HERE, "rounds": "2"}.items() if key not in given]


def typed(words: list[str]) -> None:
    """As in a shell, which expands `runs/*`."""
    words = [each for word in words for each in sorted(glob.glob(word)) or [word]]
    succeeded(*words)

"""The package from what people have: a zip of the repository as GitHub makes it, which has no symbolic links, a source
distribution, a checkout. Each has the same files, and its commands find what comes with flray."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
OFFLINE = ("--no-deps", "--no-build-isolation", "--no-index")
# of the checkout -> in the package
INSIDE = {f"{top}/": f"flray/{top}/" for top in ("tuning", "configs", "notebooks")} | {"flray/": "flray/"}
KINDS = (".py", ".yaml", ".md", ".csv", ".ipynb", ".parquet", ".typed", ".j2")


def run(command, **options):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def tracked():
    if not (ROOT / ".git").exists():
        pytest.skip("needs a checkout of git")
    return run(["git", "-C", ROOT, "ls-files"]).splitlines()


def unpacked(tmp_path):
    """The last commit as GitHub's "Download ZIP" gives it, by Python's zipfile: a link becomes a file with its path."""
    tracked()
    run(["git", "-C", ROOT, "archive", "--format=zip", "-o", tmp_path / "flray.zip", "HEAD"])
    with zipfile.ZipFile(tmp_path / "flray.zip") as archive:
        archive.extractall(tmp_path / "from zip")
    return tmp_path / "from zip"


def contents(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name}


def test_no_file_is_a_symbolic_link():
    """A clone on a file system without links, and every zip, has a text file in place of one."""
    tracked()
    lines = run(["git", "-C", ROOT, "ls-files", "--stage"]).splitlines()
    assert [line for line in lines if line.startswith("120000")] == []


def test_a_wheel_from_a_zip_has_every_file(tmp_path):
    """Every tracked file of the kinds that flray reads is in it, by the place that `INSIDE` gives."""
    source = unpacked(tmp_path)
    run([*PIP, "wheel", *OFFLINE, "-w", tmp_path / "wheel", source])
    files = contents(next((tmp_path / "wheel").glob("*.whl")))
    committed = run(["git", "-C", ROOT, "ls-tree", "-r", "--name-only", "HEAD"]).splitlines()
    wanted = {
        inside + name.removeprefix(top)
        for name in committed
        for top, inside in INSIDE.items()
        if name.startswith(top) and name.endswith(KINDS)
    }
    assert set(files) == wanted


@pytest.mark.slow
def test_a_wheel_from_an_sdist_has_the_same_files_and_works(tmp_path):
    """The zip's wheel and that of the source distribution agree byte for byte; installed alone, in a folder that has no
    `configs`, it lists, writes its first files and plans a sweep and a paper's runs."""
    source = unpacked(tmp_path)
    run([*PIP, "wheel", *OFFLINE, "-w", tmp_path / "zip", source])
    sdist = "from setuptools import build_meta; print(build_meta.build_sdist('dist'))"
    name = run([sys.executable, "-c", sdist], cwd=source).splitlines()[-1]
    run([*PIP, "wheel", *OFFLINE, "-w", tmp_path / "sdist", source / "dist" / name])
    wheels = [next((tmp_path / kind).glob("*.whl")) for kind in ("zip", "sdist")]
    first, second = map(contents, wheels)
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == []
    works_alone(tmp_path, wheels[0])


def works_alone(tmp_path, wheel):
    site, empty = tmp_path / "site", tmp_path / "an empty folder"
    empty.mkdir()
    run([*PIP, "install", *OFFLINE, "--target", site, wheel])
    env = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"} | {"PYTHONPATH": str(site)}
    flray = [sys.executable, "-m", "flray"]
    place = "import flray.tuning.sweep_file as file; print(file.__file__)"
    assert run([sys.executable, "-c", place], cwd=empty, env=env).startswith(str(site))
    assert "fedsol" in run([*flray, "list", "algorithms"], cwd=empty, env=env)
    run([*flray, "init"], cwd=empty, env=env)
    run([*flray, "init", "papers", "--paper", "fedsol", "--notebooks"], cwd=empty, env=env)
    assert (empty / "quickstart.yaml").is_file() and (empty / "papers" / "notebooks" / "01_quickstart.ipynb").is_file()
    sweep = "papers/configs/sweeps/fedsol_rho.yaml"
    read = f"import pathlib, flray.tuning.sweep_file as file; print(file.load_sweep(pathlib.Path({sweep!r})))"
    assert "algorithm.rho" in run([sys.executable, "-c", read], cwd=empty, env=env)
    small = ["rounds=1", "resources.executor=local", "--out", "runs/a"]
    run([*flray, "run", "quickstart.yaml", *small], cwd=empty, env=env)
    assert (empty / "runs" / "a" / "model.safetensors").is_file()


@pytest.mark.parametrize("way", ["python path", "working folder"])
def test_a_checkout_that_is_not_installed_has_all_of_it(tmp_path, way):
    """`ray job submit --working-dir .` runs it so: `flray.tuning` and the configurations are found beside `flray/`."""
    code = "import flray.tuning.space as s, flray.shipped as f; print(s.__file__); print(f.shipped('configs'))"
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    if way == "python path":
        lines = run([sys.executable, "-c", code], cwd=tmp_path, env=env | {"PYTHONPATH": str(ROOT)}).splitlines()
    else:
        lines = run([sys.executable, "-c", code], cwd=ROOT, env=env).splitlines()
    assert [Path(line).resolve() for line in lines] == [ROOT / "tuning" / "space.py", ROOT / "configs"]

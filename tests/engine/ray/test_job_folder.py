"""What `ray job submit --working-dir` uploads, against the archive that Ray itself makes;
`flray doctor --working-dir`."""

import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flray.cli import app
from flray.core.schema.errors import ConfigError, ResourceError
from flray.engine.ray.job_folder import RAYIGNORE, working_dir
from flray.engine.ray.private.upload import KNOWS_RAYIGNORE, LIMIT
from tests.support.commands import QUICK
from tests.support.messages import facts

pytestmark = pytest.mark.skipif(not KNOWS_RAYIGNORE, reason="this Ray knows no .rayignore")
ROOT = Path(__file__).parents[3]


def test_what_would_be_uploaded_is_what_ray_packs(tmp_path):
    """Against the archive that Ray itself makes: nested ignore files, a negated pattern, folders, an unreadable
    name."""
    from ray._private.runtime_env.packaging import create_package

    (tmp_path / "big").mkdir()
    top = tmp_path / "top"
    for name, size in {
        "run.yaml": 10, "data/train.parquet": 5000, "src/a.py": 100, "src/cache/b.bin": 3000, "src/keep/c.bin": 70,
        "src/.gitignore": 0, ".git/objects/x": 900, "out/r/s/t.log": 800, "ünï.txt": 7,
    }.items():  # fmt: skip
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_bytes(b"x" * size)
    (top / ".gitignore").write_text("*.log\n!t.log\n/data/\n")
    (top / "src" / ".gitignore").write_text("*.bin\n!keep/*.bin\n")
    (top / ".rayignore").write_text("run.*\n")
    create_package(
        str(top), tmp_path / "ray.zip", include_gitignore=True, excludes=[".git", ".venv", "venv", "__pycache__"]
    )
    packed = {i.filename: i.file_size for i in zipfile.ZipFile(tmp_path / "ray.zip").infolist() if not i.is_dir()}
    found = working_dir(top)
    assert {"src/keep/c.bin", "out/r/s/t.log"} <= set(packed) and not {
        "run.yaml",
        "data/train.parquet",
        ".git/objects/x",
    } & set(packed)
    assert found.files == len(packed)
    assert found.bytes == pytest.approx((tmp_path / "ray.zip").stat().st_size, abs=200)
    assert found.largest[0] == ("out/r/s/t.log", 800)
    assert dict(found.largest)["src/"] == packed["src/a.py"] + packed["src/keep/c.bin"] + packed["src/.gitignore"]


def test_too_much_to_upload_is_one_line_that_names_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deep" / "er").mkdir(parents=True)
    for name, size in (("deep/er/features.bin", LIMIT), ("other.bin", 3_000_000)):
        with (tmp_path / name).open("wb") as file:
            file.truncate(size)  # sparse
    words = ["doctor", str(QUICK), "--working-dir", "."]
    result = CliRunner().invoke(app, words)
    assert isinstance(result.exception, ResourceError)
    text = str(result.exception)
    assert (
        "Ray uploads at most 105 MB" in text
        and "lines such as /deep/er/features.bin in .rayignore" in text
        and "\n" not in text
    )
    assert "deep/er/features.bin 105 MB, other.bin 3 MB" in text
    (tmp_path / ".rayignore").write_text("/deep/\n")
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0 and "2 files, 3 MB of at most 105 MB" in result.output
    assert "a new one here; RAY_AUTH_MODE=token" in " ".join(result.output.split())
    with pytest.raises(ConfigError, match=facts(tmp_path / "nowhere", "--working-dir")):
        working_dir(tmp_path / "nowhere")


def test_a_first_rayignore_is_written_and_an_own_one_stays(tmp_path):
    for name in (
        "train.py",
        "data/cifar.bin",
        "lib/data/readers.py",
        "runs/a/model.safetensors",
        "x.parquet",
        "see.ipynb",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    words = [
        "doctor",
        str(QUICK),
        "--working-dir",
        str(tmp_path),
        "--write-rayignore",
        "data.root=" + str(tmp_path / "data"),
    ]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert (tmp_path / ".rayignore").read_text() == RAYIGNORE
    assert working_dir(tmp_path).files == 3, "train.py, lib/data/readers.py and the .rayignore itself"
    assert "lies in the working directory" in " ".join(result.output.split())
    (tmp_path / ".rayignore").write_text("train.py\n")
    assert "exists, not changed" in CliRunner().invoke(app, words).output
    assert (tmp_path / ".rayignore").read_text() == "train.py\n"


def test_this_repository_is_small_enough_to_send_along():
    """The README's `--working-dir .`; its .rayignore is the one that flray writes."""
    assert (ROOT / ".rayignore").read_text() == RAYIGNORE
    upload = working_dir(ROOT)
    assert upload.bytes < LIMIT / 10
    assert not any(name.startswith(("runs/", ".git/")) for name, _ in upload.largest)
    assert working_dir(ROOT / "flray" / "data").files > 10, "`/data/` is the top folder's, not the package"

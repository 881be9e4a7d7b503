"""`flray pretrain`, which writes more than a run, killed at each step and given again, and commands under limits of the
system: of open files, of a file's size, of memory."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flray.files import PARTIAL, file_checksum, read_checksummed
from tests.faults.moments import Moment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
RECORDER = "flray.rundir.recorder:Recorder"


def command(home: Path, *words: str, before: str = "", moment: Moment | None = None) -> subprocess.CompletedProcess:
    """`flray WORDS` in a folder, with its own cache; `before`: shell words that set a limit."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "FLRAY_CACHE": str(home / "cache")}
    call = "-m flray"
    if moment is not None:
        call = '-c "$CODE"'
        die_at = f"command_until(Moment{tuple(moment)!r}, sys.argv[1:])"
        environment["CODE"] = f"from tests.faults.moments import *; {die_at}"
    shell = ["bash", "-c", f"{before} exec '{sys.executable}' {call} \"$@\"", "bash", *words]
    return subprocess.run(shell, cwd=home, env=environment, capture_output=True, text=True, timeout=600, check=False)


def leftovers(folder: Path) -> list[Path]:
    return [path for path in folder.rglob(".*") if PARTIAL.fullmatch(path.name)]


def said(done: subprocess.CompletedProcess) -> str:
    """The one line of an error."""
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert done.returncode == 2 and len(lines) == 1 and "Traceback" not in done.stderr, done.stderr[-3000:]
    return lines[0]


# pretrain -----------------------------------------------------------------------------------------
PRETRAIN = ("pretrain", str(ROOT / "configs" / "quickstart.yaml"), "name=mine", "rounds=2", "data.train_size=300",
            "resources.executor=local", "--out", "run")  # fmt: skip
OF_PRETRAIN = {
    "after the first round": Moment("after", f"{RECORDER}.round"),
    "the run has ended": Moment("before", "flray.cli.runs:store"),
    "the weights are read": Moment("after", "flray.models.weights:read_weights"),
    "the weights are copied, the card is not": Moment("before", "flray.cli.runs:with_checksum"),
    "both are written aside": Moment("before", "flray.files:exchange"),
    "both have replaced the former ones": Moment("after", "flray.files:exchange"),
}


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The weights of a pretraining that nobody disturbs."""
    home = tmp_path_factory.mktemp("pretrained")
    done = command(home, *PRETRAIN)
    assert done.returncode == 0, done.stderr
    return (home / "cache" / "weights" / "mine" / "model.safetensors").read_bytes()


@pytest.mark.parametrize("name", OF_PRETRAIN)
def test_a_killed_pretraining_leaves_weights_with_their_card_and_the_command_again_stores_them(
    tmp_path: Path, pretrained: bytes, name: str
) -> None:
    """The cache has other weights of this name before: those of one round."""
    first = [word.replace("rounds=2", "rounds=1").replace("run", "first") for word in PRETRAIN[2:]]
    assert command(tmp_path, *PRETRAIN[:2], *first).returncode == 0
    done = command(tmp_path, *PRETRAIN, moment=OF_PRETRAIN[name])
    assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]
    use = ("doctor", PRETRAIN[1], "model.weights=cache://mine", "resources.executor=local")
    assert command(tmp_path, *use).returncode == 0, "weights and card belong together at every moment"
    assert command(tmp_path, *PRETRAIN).returncode == 0
    home = tmp_path / "cache" / "weights" / "mine"
    assert (home / "model.safetensors").read_bytes() == pretrained
    assert read_checksummed(home / "card.json")["weights"] == file_checksum(home / "model.safetensors")
    assert not leftovers(tmp_path / "cache") and not leftovers(tmp_path / "run")


# limits -------------------------------------------------------------------------------------------
RUN = ("run", str(ROOT / "configs" / "quickstart.yaml"), "rounds=2", "proxy=null", "--out", "run")


def test_with_few_open_files_a_run_in_one_process_ends(tmp_path: Path) -> None:
    done = command(tmp_path, *RUN, "resources.executor=local", before="ulimit -n 128;")
    assert done.returncode == 0 and (tmp_path / "run" / "STATUS").read_text() == "finished\n", done.stderr[-3000:]


@pytest.mark.parametrize("kilobytes", [1, 16, 64])
def test_a_limit_of_a_files_size_is_one_line_and_a_run_without_it_ends(tmp_path: Path, kilobytes: int) -> None:
    """The data cache needs some 100 kB for the digits, the table of declared fields 300 kB."""
    limited = command(tmp_path, *RUN, "resources.executor=local", before=f"ulimit -f {kilobytes};")
    assert "(ulimit -f)" in said(limited) or "disk is full" in said(limited)
    words = ("resume", "run") if (tmp_path / "run" / "config.yaml").exists() else RUN
    done = command(tmp_path, *words, *(["resources.executor=local"] if words is RUN else []))
    assert done.returncode == 0 and (tmp_path / "run" / "STATUS").read_text() == "finished\n", done.stderr[-3000:]
    assert not leftovers(tmp_path)


def test_a_model_that_does_not_fit_the_memory_is_one_line(tmp_path: Path) -> None:
    """A layer of 5 GB of weights under a limit of 8 GB of addresses, of which torch takes some."""
    words = ("model=mlp", "model.hidden=[20000000]", "resources.executor=local")
    assert "5 GB" in said(command(tmp_path, *RUN, *words, before="ulimit -v 8000000;"))

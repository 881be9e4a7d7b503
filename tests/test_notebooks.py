"""Notebooks: what is committed was executed and is small; an interrupted cell leaves a run that goes on."""

import json
import queue
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

from flray.rundir.reader import Run

HERE = Path(__file__).parent.parent / "notebooks"
NOTEBOOKS = sorted(HERE.glob("*.ipynb"))
LARGEST = 300_000  # bytes
CONFIG = {
    "data": {"source": "digits"},
    "partition": {"name": "dirichlet", "clients": 10, "alpha": 0.5},
    "model": {"name": "mlp", "hidden": [16]},
    "algorithm": {"name": "fedavg", "local_epochs": 1},
    "checkpoint": {"every": 5},
    "rounds": 20_000,  # more than it gets to
}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_committed_as_it_was_executed(path: Path) -> None:
    cells = nbformat.read(path, 4).cells
    code = [cell for cell in cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert not [output for cell in code for output in cell.outputs if output.output_type == "error"]
    for cell in code:
        shell = re.findall(r"^!", cell.source, flags=re.M)  # a failed command raises nothing
        assert len(shell) <= cell.source.count("assert _exit_code == 0")
        drawn = [output for output in cell.outputs if "image/png" in output.get("data", {})]
        assert len(drawn) >= ("plt.subplots(" in cell.source), cell.source
    assert path.stat().st_size < LARGEST
    assert cells[0].cell_type == "markdown" and cells[0].source.startswith("# ")
    assert f"`{path.stem}`" in (HERE / "README.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["local", "auto"])
def test_an_interrupted_cell_leaves_a_run_that_goes_on(kernel: Any, tmp_path: Path, executor: str) -> None:
    config = {**CONFIG, "resources": {"executor": executor, "client_actors": 1}}
    ask(kernel, "import flray")
    run = f"flray.run({config!r}, out={str(tmp_path / 'run')!r})"
    shown = ask(kernel, run, until=r"round \d{2,} of")
    assert "KeyboardInterrupt" in shown and "<progress" in shown
    status = Run(tmp_path / "run").status
    assert status.startswith("interrupted after") and "resume" in status
    done = len(Run(tmp_path / "run").rounds)
    assert done >= 10
    # the same kernel goes on with it, and what comes out is what a run without a break gives
    ask(kernel, f"a = flray.resume({str(tmp_path / 'run')!r}, rounds={done + 5})")
    ask(kernel, f"b = flray.run({config | {'rounds': done + 5}!r}, out={str(tmp_path / 'whole')!r})")
    first, second = (Run(tmp_path / name).rounds for name in ("run", "whole"))
    assert first["test/acc"].tolist() == second["test/acc"].tolist() and len(first) == done + 5


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[Any]:
    """(manager, client) of a notebook's kernel."""
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(cwd=str(tmp_path))
    yield manager, client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def ask(kernel: Any, code: str, until: str | None = None, patience_s: float = 200.0) -> str:
    """Runs a cell and returns all that it shows; an error in it fails the test.

    With `until`, a pattern, the kernel is interrupted once the cell has shown that, and has to end with an error.
    """
    manager, client = kernel
    client.execute(code)
    shown, ends = "", time.monotonic() + patience_s
    while time.monotonic() < ends:
        try:
            message = client.get_iopub_msg(timeout=1)
        except queue.Empty:
            continue
        kind, content = message["msg_type"], message["content"]
        if kind == "status" and content["execution_state"] == "idle":
            break
        shown += json.dumps(content)
        if kind == "error":
            assert until == "", f"{code}: {content['ename']}: {content['evalue']}\n{shown}"
        if until and re.search(until, shown):
            manager.interrupt_kernel()
            until = ""
    else:
        raise AssertionError(f"{code} did not end in {patience_s} s; it has shown: {shown[-500:]}")
    assert until in (None, ""), f"{code} ended before it showed {until!r}"
    return shown

"""How long a command takes: the error for a typo, a list, the help, relative to the imports that it needs."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from flray.core.schema.errors import FlrayError

PLAIN = "import yaml, pydantic, typer, rich"
QUICKSTART = str(Path(__file__).parents[1] / "configs" / "quickstart.yaml")
COMMANDS = {  # row: arguments, exit code
    "flray --help / plain imports": (("--help",), 0),
    "flray list algorithms / plain imports": (("list", "algorithms"), 0),
    "flray run, wrong key / plain imports": (("run", QUICKSTART, "algorithm.lrr=0.1"), 2),
}


def costs(repeats: int) -> dict[str, tuple[float, str]]:
    """By row: (the command's time in units of `python -c "import yaml, pydantic, typer, rich"`, the seconds of both).

    The shortest of `repeats` x 3 interleaved calls each.
    """
    plain: list[float] = []
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(3 * repeats):
        plain.append(_seconds(("-c", PLAIN), 0))
        for name, (arguments, code) in COMMANDS.items():
            times[name].append(_seconds(("-m", "flray", *arguments), code))
    base = min(plain)
    return {name: (min(each) / base, f"{min(each):.2f} s / {base:.2f} s") for name, each in times.items()}


def _seconds(arguments: tuple[str, ...], code: int) -> float:
    started = time.perf_counter()
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
    if done.returncode != code:
        raise FlrayError(f"bench cli: {' '.join(arguments)} ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    return time.perf_counter() - started

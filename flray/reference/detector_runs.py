"""Detectors of vanished classes on the runs of `detectors.yaml`: the table of their scores, and the page of it.

The runs are planned and made like those of `evidence.yaml`. `collect` lets every detector read the signals of the
finished runs and writes a row for each run and detector. `markdown` needs nothing but that table.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from flray.core.schema.errors import CheckpointError
from flray.files import atomic_write
from flray.reference.evidence import HERE, Evidence, EvidenceSetting
from flray.reference.plan import slug
from flray.results.detectors import scored, summary
from flray.results.rendering import to_markdown
from flray.results.tables import settings
from flray.rundir.reader import Run, runs_below

if TYPE_CHECKING:
    import pandas

RUNS = HERE / "detectors.yaml"
TABLE = HERE / "runs" / "detectors.parquet"
KEYS = ("setting", "run", "seed", "detector")
STORED = (RUNS, TABLE, KEYS, "fedmemo/detectors.md")  # the page is below configs/
QUIET = ["begun", "begun_low", "begun_high", "quiet_rounds"]
DRIFT = ["f1", "f1_adjusted", "delay", "missed", "on_before", "named"]
INTRODUCTION = """# Detectors of vanished classes, with and without a drift

Written by `flray evidence --detectors` from `flray/reference/runs/detectors.parquet` and
`flray/reference/detectors.yaml` alone. `flray evidence --detectors --run runs/detectors` makes the runs, one after the
other, and continues; `flray evidence --detectors --collect runs/detectors` writes the table from what has finished.

Every detector reads the same recorded signals from the first round on; the first 30 rounds are its warm-up.
`README.md` in this folder says what the detectors do.

Without a drift: `begun` counts alarms that begin, per 1,000 rounds, with the 95 % interval of Clopper and Pearson over
`quiet_rounds`. The interval takes rounds as independent; alarms of one run are not.

With a drift: means over the seeds; `delay` in rounds is the median over the runs with an alarm that begins in the
window, `missed` counts runs without one, `on_before` those in which an alarm was on when the window began. `named`:
share of the window's rounds with an alarm in which the classes named are exactly the missing ones.
"""


def collect(root: Path, content: Evidence) -> pandas.DataFrame:
    """A row for each finished run below `root`, made by `flray evidence --detectors --run`, and each detector.

    Columns: `setting`, `run` (the grid of overrides), `seed`, `done` rounds, `git`, `torch`, and those of
    `results.detectors.scored`. Raises `CheckpointError` if no run has finished.
    """
    import pandas

    frames = [scored(run).assign(**_keys(name, grid, run)) for name, grid, run in _finished(root, content)]
    if not frames:
        raise CheckpointError(f"no finished run of {', '.join(content.settings)} is below {root}; start one first")
    table = pandas.concat(frames, ignore_index=True)
    return table[[*KEYS, *(column for column in table if column not in KEYS)]]


def _finished(root: Path, content: Evidence) -> Iterator[tuple[str, str, Run]]:
    for name, setting in content.settings.items():
        for grid in setting.runs:
            runs = [Run(folder) for folder in runs_below(root / name / slug(grid))]
            ended = [run for run in runs if run.status.startswith("finished")]
            yield from ((name, grid, run) for run in sorted(ended, key=_seed))


def _seed(run: Run) -> int:
    return int(settings(run)["seed"])


def _keys(name: str, grid: str, run: Run) -> dict[str, str | int]:
    environment = run.environment
    git = str((environment["git"] or {}).get("commit", ""))[:12]
    torch = environment["packages"]["torch"]
    return {"setting": name, "run": grid, "seed": _seed(run), "done": len(run.rounds), "git": git, "torch": torch}


def count(table: pandas.DataFrame) -> int:
    """The number of runs in the table."""
    return len(table[["setting", "run", "seed"]].drop_duplicates())


def write_page(page: Path, table: pandas.DataFrame, content: Evidence) -> Path:
    """Write the page. Returns its path."""
    page.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(page) as temporary:
        temporary.write_text(markdown(table, content), encoding="utf-8")
    return page


def markdown(table: pandas.DataFrame, content: Evidence) -> str:
    """The page: of each setting the rates of false alarms, then the scores of each drift."""
    return "\n".join([INTRODUCTION, *(_setting(name, each, table) for name, each in content.settings.items())])


def _setting(name: str, setting: EvidenceSetting, table: pandas.DataFrame) -> str:
    own = table[table["setting"] == name]
    parts = [f"## {name}\n", f"{setting.about}.\n"]
    for grid in setting.runs:
        rows = own[own["run"] == grid]
        seeds = rows["seed"].nunique()
        done = f"{seeds} of {setting.seeds} seeds" if seeds else f"not run, {setting.seeds} seeds planned"
        parts.append(f"`flray run configs/{setting.config} {grid}`: {done}.\n")
        if seeds:
            columns = DRIFT if rows["drift"].any() else QUIET
            parts.append(to_markdown(summary(rows)[columns].round(3).reset_index()))
    return "\n".join(parts)

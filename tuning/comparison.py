"""What an ablation compares: its axes, its reference, and the files that name them. Imports neither Ray nor torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flray.config.experiment import Experiment
from flray.config.grid import labels
from flray.config.loader import load_config
from flray.config.overrides import Overrides, axes_of, pairs
from flray.core.schema.errors import ConfigError
from flray.core.schema.plain import document
from flray.files import atomic_write, write_text, writing
from flray.results import paired
from flray.results.continual import is_column, is_continual
from flray.results.report_page import ABLATION
from flray.results.tables import flat, planned


class Ablation(NamedTuple):
    """The cells of an ablation, the folder of their run folders, the reference (a folder or a setting), and the keys
    that are varied."""

    cells: list[Experiment]
    root: Path
    against: str
    swept: list[str]

    @property
    def folders(self) -> list[Path]:
        return [self.root / label for label in labels(self.cells)]


def plan_ablation(
    config: str | Path,
    overrides: Overrides,
    imports: Sequence[str],
    out: Path | None,
    against: str | None,
    metric: str,
) -> Ablation:
    """The ablation of a configuration. Raises `ConfigError` in one line: nothing is varied, a bad key, metric or
    reference."""
    cells = load_config(config, overrides, imports)
    if len(cells) < 2:
        raise ConfigError(
            "ablate: give a key several values, e.g. algorithm.lr=0.01,0.1 seed=0..4; one experiment is flray run"
        )
    root = out or Path("runs") / f"{cells[0].name}-ablation"
    swept = axes(overrides)
    if against is None:
        fixed = {key: value for key, value in pairs(overrides).items() if key not in (*swept, "seed")}
        try:
            own = load_config(config, fixed, imports)[0]
        except ConfigError:  # it needs one of the keys that are varied
            own = cells[0]
        against = str(reference_cell(own, cells, root))
    check_comparison(cells, root, metric, against)
    return Ablation(cells, root, against, swept)


def check_comparison(cells: Sequence[Experiment], root: Path, metric: str, against: str) -> None:
    """Raises `ConfigError` if the cells will not have this metric, or if `against` names none or several of their
    settings."""
    optional = dict.fromkeys(f"personal/ft{epochs}/acc_mean" for cell in cells for epochs in cell.personal_epochs)
    if any(cell.evaluate.validation is not None for cell in cells):
        optional["val/acc"] = None
    if is_column(metric) and any(is_continual(flat(cell.dump())) for cell in cells):
        optional[metric] = None  # inference modes are known only after a run
    paired(planned(cells, [root / label for label in labels(cells)], list(optional)), against, metric)


def write_ablation(root: Path, frame: Any, against: str, metric: str, axes: Sequence[str]) -> None:
    """Writes `ablation.parquet`, the table of the cells, and `ablation.yaml`, the metric, axes and reference for
    `flray report ROOT`. The reference cell is named by its folder."""
    path = root / "ablation.parquet"
    with writing(path), atomic_write(path) as temporary:
        frame.to_parquet(temporary)
    cell = Path(against).name if Path(against).parent == root else against
    write_text(root / ABLATION, document({"against": cell, "metric": metric, "axes": list(axes)}))


def axes(overrides: Overrides) -> list[str]:
    """The keys with several values, without the seed."""
    return [key for key, values in axes_of(overrides).items() if key not in ("seed", "imports") and len(values) > 1]


def reference_cell(own: Experiment, cells: Sequence[Experiment], root: Path) -> Path:
    """The folder of the cell that is the configuration itself (`own`), with any seed; else the first cell."""
    bare = [cell.model_copy(update={"seed": own.seed}) for cell in cells]
    return root / labels(cells)[bare.index(own) if own in bare else 0]

"""Personalised accuracy over clients; and helpers for all figures: opening runs, names of settings, axes, saving."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flray.core.schema.errors import ConfigError
from flray.results.blank import one_axis
from flray.results.colours import colours_of, markers_of
from flray.results.intervals import interval_words, is_share
from flray.results.paired import as_text
from flray.results.tables import differing, settings
from flray.rundir.reader import Run, load

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# seeds from which an interval is drawn; below, the single seeds say more than 12.7 (two) or 4.3 (three) standard errors
FEW = 5


# clients -------------------------------------------------------------------------------------------
def clients(folders: Iterable[str | Path | Run], axis: Axes | None = None) -> Figure:
    """The personalised test: the clients' accuracies on their own test shares, a box and a point for each client, for
    each number of fine-tuning epochs and each setting. Over tasks it is the test at the end of the last one.

    The clients of all seeds are in one box: its middle half, its median, and whiskers from the 10th to the 90th
    percentile. Draws into `axis` if given. Raises `ConfigError` if a run has no personalised test.
    """
    import pandas
    from matplotlib.lines import Line2D

    runs_of = {label: list(seeds.values()) for label, seeds in by_setting(open_runs(folders)).items()}
    for run in (run for seeds in runs_of.values() for run in seeds):
        if run.last_personal.empty:
            raise ConfigError(f"{run.folder} has no personalised test; run it with evaluate.finetune_epochs=[0,1,5]")
    tested = [pandas.concat([run.last_personal for run in seeds]) for seeds in runs_of.values()]
    colours = colours_of(runs_of)
    epochs = sorted({int(value) for rows in tested for value in rows["finetune_epochs"]})
    figure, axis = one_axis(axis, min(11.0, max(5.0, 1.6 + 0.75 * len(epochs) * len(runs_of))))
    width = 0.8 / len(runs_of)
    markers = markers_of(runs_of)
    for number, (rows, colour, marker) in enumerate(zip(tested, colours, markers, strict=True)):
        for place, count in enumerate(epochs):
            values = 100 * rows.loc[rows["finetune_epochs"] == count, "test/acc"].dropna().to_numpy(float)
            middle = place + (number - (len(runs_of) - 1) / 2) * width
            across = middle + width * np.linspace(-0.25, 0.25, len(values))
            axis.scatter(across, values, s=14, color=colour, marker=marker, alpha=0.6, lw=0, clip_on=False, zorder=3)
            axis.boxplot(
                values, positions=[middle], widths=0.75 * width, whis=(10, 90), showfliers=False, manage_ticks=False,
                patch_artist=True, boxprops={"facecolor": f"{colour}40", "edgecolor": colour},
                medianprops={"color": "black", "linewidth": 2}, whiskerprops={"color": colour},
                capprops={"color": colour},
            )  # fmt: skip
    axis.set_xticks(range(len(epochs)), [f"{count} epoch{'' if count == 1 else 's'}" for count in epochs])
    axis.set_xlabel("fine-tuning")
    axis.set_ylabel("accuracy on a client's own test share (%)")
    plain(axis)
    axis.grid(axis="x", visible=False)
    end_at_all(axis)
    most = max(map(len, runs_of.values()))
    seeds = f"clients of {most} seeds" if most > 1 else "clients"
    headline(axis, f"points: {seeds}; box: the middle half and the median; whiskers: 10th to 90th percentile")
    handles = [
        Line2D([], [], color=colour, marker=marker, linestyle="", markersize=8, label=label)
        for label, colour, marker in zip(runs_of, colours, markers, strict=True)
    ]
    axis.legend(handles=handles, framealpha=0.85, title="from left to right" if len(runs_of) > 1 else None)
    return figure


# shared --------------------------------------------------------------------------------------------
def open_runs(folders: Iterable[str | Path | Run]) -> list[Run]:
    if isinstance(folders, str | Path | Run):
        folders = [folders]
    runs = [folder if isinstance(folder, Run) else load(folder) for folder in folders]
    if not runs:
        raise ConfigError("no run folder given; name at least one")
    return runs


def names_of(runs: Sequence[Run], seeds: bool = True) -> list[str]:
    """A name for each run: the algorithm and the keys that distinguish it; the seed if `seeds` and the seeds differ."""
    configs = [settings(run) for run in runs]
    keys = differing(configs)
    several = seeds and len({config.get("seed") for config in configs}) > 1
    labels = []
    for config in configs:
        name = config.get("algorithm.name")
        # two algorithms differ in many keys of theirs: only keys that differ within an algorithm are in the name
        own = differing([other for other in configs if other.get("algorithm.name") == name])
        own_keys = [key for key in keys if key in config and (key in own or not key.startswith("algorithm."))]
        parts = [str(name), *(as_text(key, config[key]) for key in own_keys)]
        labels.append(", ".join([*parts, f"seed {config.get('seed')}"] if several else parts))
    return labels


def by_setting(runs: Sequence[Run]) -> dict[str, dict[Any, Run]]:
    """The runs by name without the seed, and by seed. Of two runs with one setting and seed the last one counts."""
    settings_of: dict[str, dict[Any, Run]] = {}
    for run, label in zip(runs, names_of(runs, seeds=False), strict=True):
        settings_of.setdefault(label, {})[settings(run).get("seed")] = run
    return settings_of


def spread_words(seeds: Sequence[int], metric: str, single: str, spread: str = "band") -> str:
    """A caption of the spread: the mean of how many `seeds` a setting, the name of single ones, and of the interval."""
    if max(seeds) == 1:
        return "one seed each"
    parts = [f"mean over {f'{min(seeds)} to ' * (min(seeds) < max(seeds))}{max(seeds)} seeds"]
    if max(seeds) >= FEW:
        parts.append(f"{spread}: {interval_words(metric)}")
    if single == "points" or any(1 < count < FEW for count in seeds):
        parts.append(f"{single}: single seeds")
    return "; ".join(parts)


_WORDS = {
    "test/acc": "test accuracy", "val/acc": "validation accuracy", "test/acc_macro": "test accuracy, mean over classes",
    "test/acc_best": "best test accuracy", "test/acc_mean10": "test accuracy, mean of the last 10",
    "test/acc_worst": "test accuracy of the worst class", "test/loss": "test loss", "val/loss": "validation loss",
    "train/loss": "training loss", "client/acc_mean": "clients' mean accuracy",
    "client/acc_p10": "clients' accuracy, 10th percentile", "client/acc_worst": "worst client's accuracy",
    "comm/bytes": "sent up and down (bytes)", "comm/up_bytes": "sent up (bytes)",
    "comm/down_bytes": "sent down (bytes)",
    "time/s": "time (s)", "time/round_s": "time of a round (s)", "client_steps": "local steps",
    "client_flops": "FLOPs of local steps",
}  # fmt: skip


def axis_label(metric: str) -> str:
    """The label of a metric on an axis: the field's words if `_WORDS` has them, and the unit."""
    name, _, mode = metric.partition("@")
    words = _WORDS.get(name, name) + (f", {mode}" if mode else "")
    return f"{words} (%)" if is_share(metric) else words


def headline(axis: Any, text: str) -> None:
    """Sets a small title at the left, wrapped for a figure of the usual width, or for its share of it beside others."""
    place = axis.get_subplotspec()
    columns = 1 if place is None else place.get_gridspec().ncols // len(place.colspan)
    axis.set_title(textwrap.fill(text, max(80 // columns, 30)), fontsize=9, loc="left")


def end_at_all(axis: Any, least: float = 0.0) -> None:
    """Cuts an axis of shares in per cent at 100 and at 0 (`least`: -100 for differences)."""
    low, high = axis.get_ylim()
    axis.set_ylim(max(low, least), min(high, 100))


def at_whole_numbers(side: Any) -> None:
    """Puts the ticks of one side of an axis (`axis.xaxis`) at whole numbers, also if there is only one."""
    from matplotlib.ticker import MaxNLocator

    side.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def plain(axis: Any) -> None:
    """Leaves two spines and a light grid."""
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(color="#e4e7eb", linewidth=0.6)
    axis.set_axisbelow(True)


def save(figure: Any, out: str | Path) -> Path:
    """Writes the figure at 150 dots an inch; the suffix gives the format. Raises `ConfigError` if that fails."""
    with writing(out) as path:
        figure.savefig(path, dpi=150)
    return path


@contextmanager
def writing(out: str | Path) -> Iterator[Path]:
    """The path of a figure that this block writes; its folder exists. Errors become `ConfigError`."""
    path = Path(out)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield path
    except (OSError, ValueError) as error:  # ValueError: a suffix that matplotlib cannot write
        raise ConfigError(f"cannot write the figure {path}: {getattr(error, 'strerror', None) or error}") from error

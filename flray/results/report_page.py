"""The content of a report on runs: which setting is best, by how much, how certain, at what cost, and what was
forgotten."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from flray.core.schema.errors import ConfigError, unknown
from flray.files import atomic_write
from flray.results import pictures
from flray.results.answers import at_what_cost, costs_of, labels, verdict, what_was_forgotten
from flray.results.by_mode import by_mode
from flray.results.comparable import caveats
from flray.results.essentials import about
from flray.results.fair import fairness
from flray.results.paired import baseline, paired
from flray.results.ranks import over_settings
from flray.results.readable import UnreadableRun, readable_runs, sound
from flray.results.report_formats import FORMATS, as_html, text_of
from flray.results.tables import compare, settings, summary
from flray.rundir.reader import Run
from flray.rundir.uri import is_uri

if TYPE_CHECKING:
    import pandas

ABLATION = "ablation.yaml"  # in the folder of an ablation: its reference, metric and axes
FEW = 6  # runs that have a column each in the table of differing keys


class PageSection(NamedTuple):
    """A section of the page: a table, a picture (SVG), or both."""

    title: str
    note: str = ""
    table: pandas.DataFrame | None = None
    picture: str = ""


class Lead(NamedTuple):
    """The first part of the page, such as the trials of a sweep: sentences, and sections."""

    answers: tuple[str, ...] = ()
    sections: tuple[PageSection, ...] = ()


@dataclass(frozen=True)
class ReportPage:
    """The content of the page; `frame`, `table`, `ranks`, `evenly`, `modes` and `costs` are DataFrames.

    `setting` is a line on what all runs share. `answers` are sentences; `caveats` are sentences on what is not
    comparable. `table` has a row for each setting over its seeds, with paired differences if there is a reference.
    `ranks` is empty without several settings, `modes` without tasks or a drift. `same` are the configuration's keys
    that all runs share, `changed` those that differ. `pictures` are (title, note, inline SVG).
    """

    title: str
    setting: str
    metric: str
    answers: tuple[str, ...]
    caveats: tuple[str, ...]
    lead: tuple[PageSection, ...]
    frame: pandas.DataFrame
    table: pandas.DataFrame
    ranks: pandas.DataFrame
    evenly: pandas.DataFrame
    modes: pandas.DataFrame
    costs: pandas.DataFrame
    same: Mapping[str, Any]
    changed: pandas.DataFrame
    pictures: tuple[pictures.Picture, ...]
    broken: tuple[UnreadableRun, ...]
    notes: tuple[str, ...]


def report(
    folders: Iterable[str | Path | Run],
    out: str | Path = "report.html",
    format: str = "html",
    metric: str | None = None,
    against: str | None = None,
) -> Path:
    """Writes one self-contained page about runs: `html` (light and dark, wide and narrow), `md` or `json`.

    `folders` are run folders or contain them: a grid, an ablation, a sweep. `metric` is a column of `compare`'s table;
    default: that of the ablation, `test/acc`, or `val/acc` if nothing was tested. `against` is a setting as `paired`
    reads it; default: the ablation's reference, or of a sweep's final runs `paired.baseline`. The page names folders
    that cannot be read, with the reason. Returns the path. Raises `ConfigError` if no run can be read, or none has the
    metric.
    """
    if format not in FORMATS:
        raise unknown("report format", format, FORMATS)
    return write(gather(folders, metric, against, drawn=format == "html"), out, format)


def write(page: ReportPage, out: str | Path, format: str, refresh: int = 0) -> Path:
    """Writes the page in one of `FORMATS`; a browser loads HTML again every `refresh` seconds. Raises `ConfigError` if
    that fails."""
    path = Path(out)
    text = as_html(page, refresh) if refresh and format == "html" else text_of(page, format)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write the report {path}: {error.strerror or error}") from error
    return path


def gather(
    folders: Iterable[str | Path | Run],
    metric: str | None = None,
    against: str | None = None,
    drawn: bool = True,
    lead: Lead | None = None,
) -> ReportPage:
    """The content of a report on these runs; without `drawn` there are no pictures. `lead` comes first."""
    folders, lead = list(folders), lead or Lead()
    looked = readable_runs(folders)
    runs, flawed = sound(looked.runs)
    broken = [*looked.broken, *flawed]
    if not runs:
        why = f": {broken[0]}" if broken else "; name at least one"
        raise ConfigError(f"report: no run folder that can be read{why}")
    frame = compare(runs)
    metric, against = _asked(folders, frame, metric, against)
    names = list(map(labels(frame), frame.to_dict("records")))
    table = summary(frame, metric) if against is None else paired(frame, against, metric)
    costs, modes = costs_of(runs, names), by_mode(frame)
    configs = [settings(run) for run in runs]
    same = {key: value for key, value in configs[0].items() if all(c.get(key) == value for c in configs)}
    said, ranked = over_settings(frame, metric)
    return ReportPage(
        title=", ".join(dict.fromkeys(str(name) for name in frame["name"])),
        setting=_setting(same),
        metric=metric,
        answers=(
            *lead.answers,
            *verdict(frame, metric),
            *said,
            *at_what_cost(costs, frame, metric),
            *what_was_forgotten(modes, frame),
        ),
        caveats=tuple(caveats(runs, frame, metric, against, cost=False)),
        lead=lead.sections,
        frame=frame,
        table=table,
        ranks=next(iter(ranked.values()), frame.iloc[:0]),
        evenly=fairness(frame),
        modes=modes,
        costs=costs,
        same=same,
        changed=_changed(configs, runs, same),
        pictures=pictures.of(runs, frame, metric) if drawn else (),
        broken=tuple(broken),
        notes=tuple(looked.notes),
    )


def _asked(
    folders: Sequence[str | Path | Run], frame: pandas.DataFrame, metric: str | None, against: str | None
) -> tuple[str, str | None]:
    """(metric, reference): the caller's, or those that the folder of an ablation or a sweep names."""
    places = [Path(f) for f in folders if not isinstance(f, Run) and not is_uri(f)]
    if len(folders) == 1 and places and (places[0] / ABLATION).exists():
        try:
            said = yaml.safe_load((places[0] / ABLATION).read_text(encoding="utf-8"))
            cell = places[0] / str(said["against"])
            metric, against = metric or said["metric"], against or (str(cell) if cell.is_dir() else said["against"])
        except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError) as error:
            what = " ".join(str(error).split())
            raise ConfigError(f"{places[0] / ABLATION} is damaged ({what}); give --metric and --against") from error
    if metric is None:
        untested = frame["test/acc"].isna().all() and "val/acc" in frame
        metric = "val/acc" if untested else "test/acc"
    if against is None and any((place / "sweep.yaml").exists() for place in places) and len(summary(frame, metric)) > 1:
        against = baseline(frame)
    return metric, against


def _setting(same: Mapping[str, Any]) -> str:
    """What all runs share, in a line."""
    rounds = f"{same['rounds']} rounds" if "rounds" in same else ""
    each = " a task" if rounds and same.get("tasks.num_tasks") else ""
    return "; ".join(part for part in (about(same), str(same.get("model.name") or ""), f"{rounds}{each}") if part)


def _changed(configs: Sequence[Mapping[str, Any]], runs: Sequence[Run], same: Mapping[str, Any]) -> pandas.DataFrame:
    """One row for each key that differs: its value in each of a few runs, or the number of runs with each value."""
    import pandas

    keys = [key for key in dict.fromkeys(key for config in configs for key in config) if key not in same]
    if len(runs) <= FEW:
        shown = {run.place: [config.get(key, "-") for key in keys] for run, config in zip(runs, configs, strict=True)}
        return pandas.DataFrame({"key": keys, **shown})
    values = [pandas.Series([str(config.get(key, "-")) for config in configs]).value_counts(sort=False) for key in keys]
    texts = ["; ".join(f"{value} ({count} runs)" for value, count in counts.items()) for counts in values]
    return pandas.DataFrame({"key": keys, "values": texts})

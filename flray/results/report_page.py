"""A report on runs: which setting is best, by how much, how certain, at what cost, and what was forgotten; as HTML,
Markdown and JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from flray.config.read import read_yaml
from flray.core.schema.errors import ConfigError, FlrayError, message_of, printable, unknown
from flray.core.schema.plain import jsonable
from flray.files import write_text, writing
from flray.results import pictures
from flray.results.answers import at_what_cost, costs_of, never, verdict, what_was_forgotten
from flray.results.by_mode import NOTE, NUMBERS, by_mode, fairness
from flray.results.comparable import caveats
from flray.results.essentials import about
from flray.results.intervals import MIN_PAIRS
from flray.results.paired import Reference, baseline, caption, find, labels, paired, written
from flray.results.ranks import over_settings
from flray.results.readable import UnreadableRun, readable_runs, sound
from flray.results.rendering import (
    caption_of,
    cells,
    filled,
    in_markdown,
    is_number,
    rows_for_json,
    shown_columns,
    spelled,
    spelled_numbers,
    to_markdown,
)
from flray.results.tables import compare, keys_of, settings, short_list, side_by_side, summary
from flray.rundir.folder import holds_sweep
from flray.rundir.reader import Run
from flray.rundir.uri import is_uri

if TYPE_CHECKING:
    import pandas

ABLATION = "ablation.yaml"  # in the folder of an ablation: its reference, metric and axes
FORMATS = ("html", "md", "json")
RANKS = "Mean ranks"  # title of a table, and of the picture that says the same
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
    """The content of the page.

    `setting` is a line on what all runs share; `caveats` are sentences on what is not comparable. `table` has a row for
    each setting over its seeds, with paired differences if there is a reference. `ranks` is empty without several
    settings, `modes` without tasks or a drift. `same` are the keys that all runs share, `changed` those that differ.
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
    against: Reference | None = None,
) -> Path:
    """Writes one self-contained page about runs: `html` (light and dark, wide and narrow), `md` or `json`.

    `folders` are run folders or contain them: a grid, an ablation, a sweep. `metric` is a column of `compare`'s table;
    default: that of the ablation, `test/acc`, or `val/acc` if nothing was tested. `against` is a setting as `paired`
    reads it; default: the ablation's reference, or of a sweep's final runs `paired.baseline`. The page names folders
    that cannot be read, with the reason. Returns the path. Raises `ConfigError` if no run can be read, or none has the
    metric.
    """
    form = form_of(out, format)
    return write(gather(folders, metric, against, drawn=form == "html"), out, form)


def form_of(out: str | Path | None, form: str | None = None) -> str:
    """The form of a report: `form`, else the ending of `out`, else html. Raises `ConfigError` if it is none of
    `FORMATS`."""
    form = form or (Path(out).suffix if out is not None else "").removeprefix(".") or "html"
    if form not in FORMATS:
        raise unknown("report format", form, FORMATS)
    return form


def write(page: ReportPage, out: str | Path, format: str, refresh: int = 0) -> Path:
    """Writes the page in one of `FORMATS`. Raises `ConfigError` if that fails."""
    path = Path(out)
    text = as_html(page, refresh) if format == "html" else {"md": as_markdown, "json": as_json}[format](page)
    with writing(path, kind=ConfigError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text, kind=ConfigError)
    return path


def gather(
    folders: Iterable[str | Path | Run],
    metric: str | None = None,
    against: Reference | None = None,
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
    metric, against, notes = _asked(folders, frame, metric, None if against is None else written(against))
    names = list(map(labels(frame), frame.to_dict("records")))
    table = summary(frame, metric) if against is None else paired(frame, against, metric, MIN_PAIRS)
    whole = frame.assign(setting=names)[frame["status"] == "finished"].drop_duplicates(["setting", "seed"], keep="last")
    costs = costs_of([runs[place] for place in whole.index], whole["setting"].tolist())
    modes = by_mode(frame)
    configs = side_by_side(runs)
    same = {key: value for key, value in configs[0].items() if all(c.get(key) == value for c in configs)}
    said, ranked = over_settings(frame, metric)
    return ReportPage(
        title=", ".join(dict.fromkeys(str(name) for name in frame["name"])),
        setting=_setting(same),
        metric=metric,
        answers=(
            *lead.answers,
            *verdict(frame, metric),
            *never(frame, metric),
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
        notes=(*looked.notes, *notes),
    )


def _asked(
    folders: Sequence[str | Path | Run],
    frame: pandas.DataFrame,
    metric: str | None,
    against: str | Mapping[str, Any] | None,
) -> tuple[str, str | Mapping[str, Any] | None, list[str]]:
    """(metric, reference, notes): the caller's, or those that the folder of an ablation or a sweep names."""
    notes: list[str] = []
    places = [Path(f) for f in folders if not isinstance(f, Run) and not is_uri(f)]
    if len(folders) == 1 and places and (places[0] / ABLATION).exists():
        try:
            said = read_yaml(places[0] / ABLATION)
            metric, reference = metric or said["metric"], said["against"]
        except (ConfigError, KeyError, TypeError) as error:
            what = f"{places[0] / ABLATION} is damaged ({message_of(error)})"
            raise ConfigError(f"{what}; give --metric and --against") from error
        if against is None:
            against, notes = _of_ablation(places[0] / str(reference), reference, frame)
    if metric is None:
        untested = frame["test/acc"].isna().all() and "val/acc" in frame
        metric = "val/acc" if untested else "test/acc"
    if against is None and any(map(holds_sweep, places)) and len(summary(frame, metric)) > 1:
        against = baseline(frame)
    return metric, against, notes


def _of_ablation(
    cell: Path, said: str | Mapping[str, Any], frame: pandas.DataFrame
) -> tuple[str | Mapping[str, Any] | None, list[str]]:
    """(the reference that an ablation names, a setting or the folder `cell` of one of its runs, as `paired` reads it;
    notes). The folder may be that of a run that is left out. None, with a note, where no run has the setting."""
    reference = said
    keys = keys_of(frame)
    try:
        if cell.is_dir():
            config = settings(Run(cell))
            config["algorithm"] = config["algorithm.name"]
            reference = {key: short_list(config.get(key)) for key in keys}
        find(frame[keys].drop_duplicates().to_dict("records"), frame, reference)
    except (FlrayError, KeyError) as error:
        return None, [f"no differences to the ablation's reference {said}: {message_of(error)}"]
    return reference, []


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


# formats ------------------------------------------------------------------------------------------
def as_json(page: ReportPage) -> str:
    """The numbers as one JSON object, without pictures; NaN becomes null, what never happens "never"."""
    names = {"frame": "runs", "table": "settings", "evenly": "clients_and_classes"}
    values = {each.name: getattr(page, each.name) for each in fields(page) if each.name != "pictures"}
    values |= {name: rows_for_json(value) for name, value in values.items() if hasattr(value, "to_dict")}
    values["lead"] = {section.title: rows_for_json(section.table) for section in page.lead if section.table is not None}
    values["broken"] = [broken._asdict() for broken in page.broken]
    return json.dumps(jsonable({names.get(name, name): value for name, value in values.items()}), indent=1)


def as_markdown(page: ReportPage) -> str:
    """The sentences and the tables; no pictures."""
    lead = [(part.title, part.table, part.note) for part in page.lead if part.table is not None]
    tables = [*lead, *_tables(page)]
    filters: dict[str, Callable[..., str]] = {"to_markdown": to_markdown, "plain": in_markdown}
    return printable(filled("flray.results", "report.md.j2", filters, page=page, tables=tables))


def as_html(page: ReportPage, refresh: int = 0) -> str:
    """One page in a single file. A browser loads it again every `refresh` seconds; 0: never."""
    drawn = {RANKS} if any(title == RANKS for title, *_ in page.pictures) else set()
    first, *others = (_part(title, note, table) for title, table, note in _tables(page) if title not in drawn)
    return filled(
        "flray.results",
        "report.html.j2",
        page=page,
        refresh=refresh,
        lead=[_part(*part) for part in page.lead],
        first=first,
        pictures=[_part(title, note, None, picture) for title, note, picture in page.pictures],
        tables=others,
        changed=_part("", "", page.changed),
        same={key: value for key, value in page.same.items() if value is not None},
    )


def _part(title: str, note: str, table: pandas.DataFrame | None, picture: str = "") -> dict[str, Any]:
    """A section for the template: the cells of its table as text, and which columns are numbers."""
    part: dict[str, Any] = {"title": title, "notes": [note] if note else [], "picture": picture, "rows": []}
    if table is None:
        return part
    heads, rows = cells(table)
    right = [is_number(table, column) for column in shown_columns(table)]
    below = caption_of(table)
    return part | {"heads": heads, "rows": rows, "right": right, "notes": [n for n in (note, below) if n]}


def _tables(page: ReportPage) -> Iterator[tuple[str, pandas.DataFrame, str]]:
    """(title, table, note) of the tables of the page; the table of settings is the first."""
    yield "Settings", page.table, caption(page.table) if "diff" in page.table else ""
    if len(page.ranks):
        yield RANKS, page.ranks, ""
    for title, table in spelled(page.modes).items():
        yield title, table, ""
    if len(page.evenly):
        yield "Clients and classes", spelled_numbers(page.evenly, NUMBERS, NOTE), ""
    if len(page.costs):
        yield "Cost", page.costs, "A whole run, mean over seeds; times are those of this machine."
    yield "Runs", page.frame, ""

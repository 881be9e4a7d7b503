"""What `flray list` shows: algorithms, models, data sources, partitions, diagnostics, metrics, trackers, with options,
defaults and bounds."""

from __future__ import annotations

import inspect
import json
import os
import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from flray.cli.output import markdown_rows
from flray.core.schema.errors import unknown
from flray.core.schema.hp import Hyperparameter, declared_keys, hyperparameters
from flray.core.schema.plain import ordered
from flray.metrics.names import METRICS

KINDS = {
    "algorithms": "key `algorithm`: methods, with their papers' options",
    "aggregations": "key `aggregation`: how the server makes the next model of the clients' models",
    "datasets": "key `data.source`",
    "models": "key `model`",
    "partitions": "key `partition`: how samples are split over clients",
    "drifts": "key `drift`: what vanishes from clients' data, and when",
    "uplinks": "key `uplink`: what happens to an update on its way: compression, clipping, noise, attacks",
    "diagnostics": "key `diagnostics`: what is measured beside training",
    "trackers": "key `track`: what gets a copy of a run's numbers while it goes on",
    "fits": "which rules of aggregation fit which algorithms",
    "metrics": "columns of a run's tables",
    "config": "every key of an experiment and of a sweep",
}


def catalog(kind: str) -> list[dict[str, Any]]:
    """One row per name of a kind. Raises `ConfigError` for an unknown kind."""
    if kind == "metrics":
        return [{"metric": name, "meaning": meaning} for name, meaning in METRICS.items()]
    if kind == "config":
        return _keys()
    if kind == "fits":
        return [_fits(name) for name in names_of(kind)]
    table = _table(kind)
    rows = _folders() if kind == "datasets" else []
    here = {row["name"] for row in rows}
    names = [name for name in table.names() if name not in here]
    rows += [{"name": name, "about": _summary(table.get(name), kind)} for name in names]
    if kind == "algorithms":
        from flray.algorithms import GROUPS, group_of

        places = {group: place for place, group in enumerate((*GROUPS, "your own"))}
        rows = [{**row, "group": group_of(row["name"]), "keeps": table.get(row["name"]).keeps} for row in rows]
        rows.sort(key=lambda row: places[row["group"]])
    return rows


def _fits(name: str) -> dict[str, Any]:
    """By rule of aggregation whether it fits an algorithm with its default options, and why no other does."""
    from flray.aggregations import AGGREGATIONS
    from flray.algorithms import ALGORITHMS

    algorithm = ALGORITHMS.get(name)()
    reasons = {rule: AGGREGATIONS.get(rule)().misfit(algorithm) for rule in AGGREGATIONS.names()}
    fitting: dict[str, Any] = {rule: not reason for rule, reason in reasons.items()}
    return {"algorithm": name, **fitting, "why no other": next(filter(None, reasons.values()), "")}


def beside(kind: str) -> str:
    """A sentence: where names of a kind that its list leaves out come from; "": it has all."""
    return "" if kind in ("metrics", "config") else f"Beside these names: {_table(kind).beside}."


def kinds() -> list[dict[str, Any]]:
    """The kinds that `flray list` knows, how many names each has, and where a configuration has them."""
    return [{"kind": kind, "names": len(names_of(kind)), "meaning": meaning} for kind, meaning in KINDS.items()]


def names_of(kind: str) -> list[str]:
    """The names of a kind. Imports no torch."""
    if kind == "metrics":
        return list(METRICS)
    if kind == "config":
        return list(dict.fromkeys(row["key"] for row in _keys()))
    folders = [row["name"] for row in _folders()] if kind == "datasets" else []
    return list(dict.fromkeys([*folders, *_table(kind).names()]))


def _folders() -> list[dict[str, Any]]:
    """Data sets that lie below FLRAY_DATA in the Parquet layout."""
    root = os.environ.get("FLRAY_DATA")
    if not root or not Path(root).is_dir():
        return []
    names = sorted(p.parent.name for p in Path(root).glob("*/train*.parquet"))
    return [{"name": name, "about": f"Parquet folder {root}/{name}"} for name in dict.fromkeys(names)]


INSIDE = {key: f"flray list {key}s NAME" for key in ("algorithm", "aggregation", "model", "drift", "uplink")}
INSIDE["proxy"] = "and every key of data"


def _keys() -> list[dict[str, Any]]:
    """Every key of an experiment, then every key of a sweep (`sweep: KEY`)."""
    from flray.config.experiment import Experiment
    from flray.config.keys import keys_of
    from flray.tuning.config import Sweep

    rows: list[dict[str, Any]] = []
    for file, model in (("experiment", Experiment), ("sweep", Sweep)):
        known: dict[str, Hyperparameter] = {}
        for key, declared, section in keys_of(model):
            top, _, rest = key.partition(".")
            if top == "proxy" and known.get(f"data.{rest}") == declared:  # proxy has the keys of data
                continue
            known[key] = declared
            more = f"{declared.doc}; {INSIDE[key]}".strip("; ") if key in INSIDE else declared.doc
            row = {"of": file, "key": key, **_row(declared), "meaning": more}
            rows.append({name: row[name] for name in ("of", "key", "type", "default", "bounds", "meaning")})
            rows[-1]["default"] = "" if section and not declared.required else row["default"]
    return rows


def _plain(value: Any) -> str:
    """A default as YAML writes it: of an Enum its value, of a dataclass a mapping."""
    value = to_jsonable_python(ordered(value), fallback=str)
    return json.dumps(value) if value is None or isinstance(value, bool | tuple | list | dict) else str(value)


def detail(kind: str, name: str) -> tuple[str, list[dict[str, Any]]]:
    """(text, options) of one name; raises `ConfigError` with the nearest name."""
    if kind == "metrics":
        if name not in METRICS:
            raise unknown("metric", name, METRICS)
        return METRICS[name], []
    if kind == "config":
        rows = [row for row in _keys() if f"{row['key']}.".startswith(f"{name}.")]
        if not rows:
            raise unknown("key", name, {row["key"] for row in _keys()})
        return "", rows
    if kind == "models":
        return _model(name)
    target = _table(kind).get(name)
    if kind == "algorithms":
        text = inspect.cleandoc(_file_doc(target))
        card = cards().get(name, "") if target.__module__.startswith("flray.") else ""
        return f"{text}\n\n{card}".strip(), list(map(_row, hyperparameters(target)))
    if kind == "fits":
        row = _fits(name)
        reason = row.pop("why no other")
        rules = [{"aggregation": rule, "fits": fits} for rule, fits in row.items() if rule != "algorithm"]
        return f"{row['algorithm']}: {reason or 'every rule fits'}", rules
    from flray.data import DataConfig
    from flray.scenario.partition_config import PartitionConfig

    keys = {"partitions": PartitionConfig, "datasets": DataConfig}.get(kind, target)
    texts = [_file_doc(target)] if kind in ("aggregations", "uplinks") else []
    texts = [inspect.getdoc(target) or "", *texts] if not any(texts) or _shares_file(target, kind) else texts
    return "\n\n".join(map(inspect.cleandoc, texts)), list(map(_row, declared_keys(keys)))


def _model(name: str) -> tuple[str, list[dict[str, Any]]]:
    """What a model is and its options, also of `timm:NAME` and of `module:Name`."""
    from flray.models import model_options
    from flray.models.model_config import model_target

    target: Any = model_target(name)
    text = inspect.getdoc(getattr(target, "func", target)) or ""  # of another library's network: a partial
    use = f"\n\n`flray run CONFIG model={name}`" if ":" in name else ""
    return f"{text}{use}", [_row(hp) for hp in model_options(name)]


def page() -> str:
    """Every algorithm of flray itself with its options as one Markdown page."""
    from flray.algorithms import built_in

    parts = ["# Algorithms\n"]
    for name in built_in():
        text, options = detail("algorithms", name)
        parts.append(f"## {name}\n\n{text}\n\n" + markdown_rows(options))
    return "\n".join(parts)


def cards() -> dict[str, str]:
    """The cards of flray's own algorithms by name, from `flray/algorithms/CARDS.md`; those of one file share one."""
    import flray.algorithms

    text = Path(flray.algorithms.__file__).with_name("CARDS.md").read_text()
    sections = (part.partition("\n") for part in text.split("\n## ")[1:])
    return {name: card.strip() for names, _, card in sections for name in names.split(", ")}


def _table(kind: str) -> Any:
    from flray.aggregations import AGGREGATIONS
    from flray.algorithms import ALGORITHMS
    from flray.config.tracking import TRACKERS
    from flray.data import SOURCES
    from flray.metrics.probes import PROBES
    from flray.models import MODELS
    from flray.scenario import DRIFTS, PARTITIONS
    from flray.uplink import UPLINKS

    tables = {
        "algorithms": ALGORITHMS, "fits": ALGORITHMS, "aggregations": AGGREGATIONS, "datasets": SOURCES,
        "models": MODELS, "partitions": PARTITIONS, "drifts": DRIFTS, "uplinks": UPLINKS, "diagnostics": PROBES,
        "trackers": TRACKERS,
    }  # fmt: skip
    if kind not in tables:
        raise unknown("kind", kind, [*tables, "metrics", "config"])
    return tables[kind]


def _summary(target: Any, kind: str) -> str:
    # what one is stands at the top of its file
    own = inspect.isclass(target) and issubclass(target, BaseModel) and not _shares_file(target, kind)
    text = (_file_doc(target) if own else inspect.getdoc(target)) or ""
    return " ".join(text.strip().split("\n\n")[0].split())


def _shares_file(target: Any, kind: str) -> bool:
    """Whether the file that defines it says of several what they have in common: drifts, trackers, attacks."""
    from flray.uplink.attack import Attack

    return kind in ("drifts", "trackers") or (kind == "uplinks" and issubclass(target, Attack))


def _file_doc(target: Any) -> str:
    """The docstring of the file that defines a class, also of a stand-in for it."""
    module = sys.modules.get(getattr(target, "__module__", ""))
    return getattr(target, "__about__", None) or (module and module.__doc__) or ""


def _row(hp: Hyperparameter) -> dict[str, Any]:
    space = f"{hp.space.kind} {', '.join(map(_plain, hp.space.values))}" if hp.space else None
    return {
        "option": hp.name,
        "type": hp.type,
        "default": "required" if hp.required else _plain(hp.default),
        "bounds": hp.bounds,
        "search": space,
        "meaning": hp.doc,
    }

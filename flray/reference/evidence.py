"""Claims of the papers, tried in settings in which they could fail: the table of the runs, and the test of each claim.

`evidence.yaml` has the settings (configurations below `configs/evidence/`) and the claims. `collect` summarises
finished runs into `runs/evidence.parquet`, a row each. `judge` needs nothing but that table. `detectors.yaml` has the
settings on which detectors of vanished classes read the signals: `runs/detectors.parquet`, a row a run and detector.
"""

from __future__ import annotations

import functools
import json
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas
import yaml
from pydantic import Field, ValidationError, model_validator

from flray.config.experiment import LENGTH, RESUMABLE, Experiment, algorithm_name
from flray.config.grid import dotted, labels
from flray.config.loader import load_config
from flray.core.schema.errors import CheckpointError, ConfigError, message_of, unknown
from flray.files import MANY, atomic_write, regular, writing
from flray.log import LOGGER
from flray.reference.papers import Strict, read_csv
from flray.reference.plan import configs_folder, slug
from flray.reference.verdict import (
    FAILS,
    HOLDS,
    INCOMPLETE,
    INCONCLUSIVE,
    LEVEL,
    detectable,
    paired_test,
)
from flray.results.intervals import interval, is_share, smaller_is_better
from flray.results.paired import holm
from flray.results.readable import UnreadableRun, readable_runs, sound, warn_left_out
from flray.results.tables import compare, settings
from flray.rundir.reader import Run, runs_below

HERE = Path(__file__).parent
CLAIMS, DETECTORS = HERE / "evidence.yaml", HERE / "detectors.yaml"
TABLE, SCORES = HERE / "runs" / "evidence.parquet", HERE / "runs" / "detectors.parquet"
NOT_RUN = "not run"
OTHER_WEIGHTS = "other weights"
RULE = "aggregation.name"
NOT_JUDGED = "not judged"
RUN = ("setting", "run", "seed")  # what a row is about
KEYS = (*RUN, "status", "done", "git", "weights", "torch", "client_flops")
SCORED = (*RUN, "detector")
ROWS = ("table", "scale", "command", "note")  # of the table of `flray papers reproduce`, `outcome.table_of`
WRITE = {KEYS: "evidence --collect RUNS", SCORED: "evidence --detectors --collect RUNS", ROWS: "reproduce --page PAGE"}
CONFIGURATION = "configuration"  # a column: the resolved configuration, JSON; older rows have none
ENDED = (("finished", "diverged"), ("finished",))  # runs that are collected; of detectors


# the content of evidence.yaml -------------------------------------------------------------------------
class Condition(Strict):
    """A condition under which a setting can judge: the mean of a run's metric, per cent, is `at_least` this."""

    run: str
    metric: str
    at_least: float
    note: str = ""


class EvidenceSetting(Strict):
    """A configuration, the grids of overrides that are run from it (each with all seeds), and their order.

    `learns` is the condition of all its claims, `forgets` that of those about forgetting. `short` ends the sentences of
    its claims; `where`: columns of the paper's CSV; `other`: why the numbers found there are of another experiment.
    """

    config: str  # below configs/
    about: str
    short: str = ""
    where: Mapping[str, str] = {}
    other: str = ""
    weights: tuple[str, ...] = ()  # words of `flray pretrain`: a file below configs/pretrain/, then overrides
    overrides: str = ""  # words of the command line that all its runs have
    learns: Condition | None = None
    forgets: Condition | None = None
    runs: tuple[str, ...] = Field(min_length=1)
    seeds: int = 5
    trend: bool = False  # its claims compare the same two runs from better and better starts, in their order

    def commands(self, name: str) -> list[str]:
        """The commands of the starting weights, and that of each grid; `name`: the setting's."""
        recipes = [recipe.split() for recipe in self.weights]
        start = ["flray", "run", f"configs/{self.config}", *shlex.split(self.overrides)]
        seeds = f"seed=0..{self.seeds - 1}"
        return [
            *(f"flray pretrain configs/pretrain/{file}.yaml {' '.join(words)}".strip() for file, *words in recipes),
            *(
                shlex.join([*start, *shlex.split(run), seeds, "--out", f"runs/evidence/{name}/{slug(run)}"])
                for run in self.runs
            ),
        ]

    def cells(self, run: str, configs: Path) -> list[Experiment]:
        """The experiments of one of the grids."""
        seeds = ",".join(map(str, range(self.seeds)))
        return load_config(configs / self.config, [*shlex.split(self.overrides), *shlex.split(run), f"seed={seeds}"])

    def with_numbers(self, text: str) -> str:
        """`text` with the number of `{tip_batch}`, the samples that share a prediction of FedProTIP."""
        if "{tip_batch}" not in text:
            return text
        algorithm: Any = _base(configs_folder() / self.config, self.overrides, "fedprotip").algorithm
        return text.replace("{tip_batch}", str(algorithm.tip_batch))


class Side(Strict):
    """One side of a claim: the run (its algorithm, then overrides), the column of `flray compare` that is read, and the
    columns of the paper's CSV that find its number."""

    run: str
    metric: str | None = None  # default: the claim's
    where: Mapping[str, str] = {}


class EvidenceClaim(Strict):
    """`better` is ahead of `worse` in `metric`. `csv` and `where` find the printed numbers; without them the paper
    prints none. `forgetting`: it is about forgetting, or about projections that prevent it. `ours`: one side is a
    variant that the paper has not."""

    claim: str
    paper: str
    setting: str
    metric: str
    better: Side
    worse: Side
    csv: str = ""
    where: Mapping[str, str] = {}
    times: float = 1.0  # printed numbers times this are per cent
    note: str = ""
    forgetting: bool = False
    ours: bool = False

    @property
    def lower(self) -> bool:
        """Whether a smaller value is ahead."""
        return smaller_is_better(self.metric)

    def column(self, side: Side) -> str:
        return side.metric or self.metric

    @property
    def printed(self) -> float | None:
        """The paper's difference in points, positive in the claim's direction; None if it prints none."""
        if not self.csv:
            return None
        numbers = [self._printed(side) for side in (self.better, self.worse)]
        return (numbers[1] - numbers[0]) if self.lower else (numbers[0] - numbers[1])

    def _printed(self, side: Side) -> float:
        where = {**self.where, **side.where}
        rows = [row for row in read_csv(self.csv) if all(row[key] == value for key, value in where.items())]
        if len(rows) != 1 or not rows[0]["mean"]:
            raise ConfigError(f"evidence.yaml: {self.csv} has {len(rows)} rows with {where}, one number is needed")
        return self.times * float(rows[0]["mean"])


class Ladder(Strict):
    """One of the claims, tried at several scales: the setting of each, from the smallest to the largest."""

    claim: str  # the sentence of the claim
    scales: Mapping[str, str] = Field(min_length=2)


class Sentence(Strict):
    """A sentence of the page's first screen: `{0}` is the difference of the first of its claims. It is so where each
    claim has the verdict that stands here."""

    text: str
    claims: Mapping[str, str] = Field(min_length=1)


class Evidence(Strict):
    """The file: the page's first lines, settings by name, claims in their order, and those tried at several scales.
    `detectors`: detectors are scored on the runs, there are no claims."""

    summary: tuple[Sentence, ...] = ()
    introduction: str = ""
    detectors: bool = False
    settings: Mapping[str, EvidenceSetting]
    claims: tuple[EvidenceClaim, ...]
    ladder: tuple[Ladder, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _in_each_setting(cls, values: Any) -> Any:
        """A claim with a list of settings becomes one of each, with the setting's words and columns of the CSV."""
        if not (isinstance(values, Mapping) and isinstance(values.get("settings"), Mapping) and "claims" in values):
            return values  # what is wrong is said by the fields
        claims: list[Any] = []
        for claim in values["claims"] or ():
            if not isinstance(claim, Mapping) or not {"setting", "claim"} <= claim.keys():
                claims.append(claim)
                continue
            for name in [claim["setting"]] if isinstance(claim["setting"], str) else claim["setting"]:
                setting = values["settings"].get(name) or {}
                short = f" ({setting['short']})" if setting.get("short") else ""
                sentence = f"{claim['claim'].removesuffix('.')}{short}."
                where = {**setting.get("where", {}), **claim.get("where", {})}
                claims.append({**claim, "setting": name, "claim": sentence, "where": where})
        return {**values, "claims": claims}


@functools.cache
def evidence(path: Path = CLAIMS) -> Evidence:
    """The settings and claims. Raises `ConfigError` for a file that is none, a claim in an unknown setting, and a
    metric that is no share: differences are in points."""
    try:
        content = Evidence.model_validate(yaml.safe_load(regular(path, MANY).read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror or error})") from error
    except (yaml.YAMLError, ValidationError) as error:
        raise ConfigError(f"{path} is no file of settings and claims: {message_of(error)}") from error
    for claim in content.claims:
        if claim.setting not in content.settings:
            raise unknown("setting", claim.setting, content.settings, path.name)
    for of, _, column in _read(content):
        if not is_share(column):
            raise ConfigError(
                f"{path.name}: {of}: metric {column} is no share, and differences are in points; write an accuracy or "
                "a forgetting, such as test/acc"
            )
    sentences = [claim.claim for claim in content.claims]
    summarised = (name for sentence in content.summary for name in sentence.claims)
    for named in (*(ladder.claim for ladder in content.ladder), *summarised):
        if named not in sentences:
            raise unknown("claim", named, sentences, path.name)
    for ladder in content.ladder:
        for setting in ladder.scales.values():
            if setting not in content.settings:
                raise unknown("setting", setting, content.settings, path.name)
    return content


def _read(content: Evidence) -> Iterator[tuple[str, str, str]]:
    """(setting, run, column) of each number that a claim or a condition reads."""
    scales = {ladder.claim: [*ladder.scales.values()] for ladder in content.ladder}
    for claim in content.claims:
        for name in dict.fromkeys([claim.setting, *scales.get(claim.claim, ())]):
            yield from ((name, side.run, claim.column(side)) for side in (claim.better, claim.worse))
    for name, setting in content.settings.items():
        yield from ((name, each.run, each.metric) for each in (setting.learns, setting.forgets) if each is not None)


def check_read(table: pandas.DataFrame, content: Evidence, configs: Path) -> None:
    """Raises `ConfigError` for a run without rows that no grid of its setting makes, and for a column that the table
    lacks though the run has rows."""
    made: dict[str, list[str]] = {}  # of a setting without rows of a run: its runs
    for name, run, column in dict.fromkeys(_read(content)):
        if len(_of(table, name, run)):
            if column not in table:
                raise unknown("metric", column, filter(is_share, map(str, table)), f"the table, in a claim of {name}")
            continue
        if name not in made:
            setting = content.settings[name].model_copy(update={"seeds": 1})
            cells = (cell for grid in setting.runs for cell in setting.cells(grid, configs))
            made[name] = [variant(cell, configs / setting.config, setting.overrides) for cell in cells]
        if _words(run) not in map(_words, made[name]):
            raise ConfigError(f"no grid of setting {name} has the run {run!r}; write one of: {'; '.join(made[name])}")


# runs -------------------------------------------------------------------------------------------------
def planned(
    root: Path, configs: Path, content: Evidence, only: Sequence[str] = ()
) -> Iterator[tuple[Experiment, Path]]:
    """(experiment, run folder) of every run in the order of the file: `ROOT/SETTING/GRID/LABEL`, as by the commands.

    `only`: these settings alone. Raises `ConfigError` for an unknown one.
    """
    for name in only:
        if name not in content.settings:
            raise unknown("setting", name, content.settings, "evidence.yaml")
    for name, setting in content.settings.items():
        for run in setting.runs if not only or name in only else ():
            cells = setting.cells(run, configs)
            for cell, label in zip(cells, labels(cells), strict=True):
                yield cell, root / name / slug(run) / label


def collect(root: Path, configs: Path, content: Evidence) -> pandas.DataFrame:
    """The table of the finished and diverged runs below `root`: a row for each setting, run (`variant`) and seed, with
    the columns `KEYS` and the numbers of `flray compare`.

    Of detectors: a row for each finished run and detector, `run` is the grid of overrides, the numbers are those of
    `results.detectors.scored`. A run that `flray compare` does not count is left out with a warning. Raises
    `CheckpointError` if no run has finished.
    """
    frames = []
    for name, setting in content.settings.items():
        states = ENDED[content.detectors]
        ended = [(run, grid) for grid in setting.runs for run in _ended(root / name / slug(grid), states)]
        if content.detectors:
            from flray.results.detectors import scored  # which imports torch

            frames += [scored(run).assign(**_noted(name, grid, run)) for run, grid in ended]
        elif ended:
            numbers = compare([run for run, _ in ended]).select_dtypes("number").drop(columns="seed", errors="ignore")
            keys = pandas.DataFrame([_keys(name, setting, run, configs) for run, _ in ended])
            frames.append(pandas.concat([keys, numbers.drop(columns=[*keys], errors="ignore")], axis=1))
    if not frames:
        raise CheckpointError(f"no finished run of {', '.join(content.settings)} is below {root}; start one first")
    table = pandas.concat(frames, ignore_index=True)
    first = [key for key in SCORED if key in table]
    table = table[[*first, *(column for column in table if column not in first)]]
    return table.sort_values([*RUN], kind="stable", ignore_index=True)


def _ended(folder: Path, states: tuple[str, ...]) -> list[Run]:
    """The runs below a folder whose status begins so and whose files are whole; a warning for each of the others."""
    looked = readable_runs(runs_below(folder))
    runs, flawed = sound(run for run in looked.runs if run.status.startswith(states))
    whole = []
    for run in runs:
        try:
            run.environment  # noqa: B018  (a file that is read when it is asked for)
        except CheckpointError as error:
            flawed.append(UnreadableRun(run.place, str(error)))
        else:
            whole.append(run)
    for each in (*looked.broken, *flawed):
        warn_left_out([each])
    return whole


def _noted(name: str, grid: str, run: Run) -> dict[str, Any]:
    environment = run.environment
    git = str((environment["git"] or {}).get("commit", ""))[:12]
    seed, torch = settings(run)["seed"], environment["packages"]["torch"]
    noted = {"setting": name, "run": grid, "seed": int(seed), "done": len(run.rounds), "git": git, "torch": torch}
    return noted | {CONFIGURATION: configuration(run.experiment)}


def _keys(name: str, setting: EvidenceSetting, run: Run, configs: Path) -> dict[str, Any]:
    return {
        **_noted(name, variant(run.experiment, configs / setting.config, setting.overrides), run),
        "status": run.status.partition(" ")[0],
        "weights": run.environment["fingerprints"].get("weights") or "",
        "client_flops": float(run.rounds["client_flops"].sum()) if "client_flops" in run.rounds else math.nan,
        **assumption(run.diagnostics.get("conflict")),
    }


def assumption(rows: pandas.DataFrame | None) -> dict[str, float]:
    """FedProj's Assumption 5.5 (kappa > 0) at the observed local steps of a run; empty without them.

    `kappa/looks`: how many steps; `kappa/fails`: the share with kappa <= 0; `kappa/rises_there`: of those, the share
    in which a step along the projected gradient raises the test loss to first order; `kappa/rises_elsewhere`: of the
    others.
    """
    if rows is None or "kappa" not in rows or not (seen := rows[rows["kappa"].notna()]).size:
        return {}
    fails, rises = seen["kappa"] <= 0, seen["descent_projected"] < 0
    return {
        "kappa/looks": float(len(seen)),
        "kappa/fails": float(fails.mean()),
        "kappa/rises_there": float(rises[fails].mean()),
        "kappa/rises_elsewhere": float(rises[~fails].mean()),
    }


def variant(experiment: Experiment, config: Path, overrides: str = "") -> str:
    """`fedavg algorithm.local_epochs=10`: the algorithm, then each key in which it differs from the configuration with
    `overrides`; of a rule of aggregation that it adds, its name and the options that are not the rule's defaults."""
    name = algorithm_name(experiment.algorithm)
    own, base = trained(experiment), trained(_base(config, overrides, name))
    rule = own.get(RULE)
    defaults = trained(_base(config, overrides, name, rule)) if rule and RULE not in base else base
    # a section that only one of them has is one word: tasks=None
    changed = [key for key in own if own[key] != base.get(key) and (own[key] != defaults.get(key) or key == RULE)]
    return " ".join([name, *(f"{key}={own[key]}" for key in changed)])


def trained(experiment: Experiment) -> dict[str, str]:
    """The keys of a configuration that can change a bit of training, but for the seed, with their values as text."""
    skipped = {"name", "seed", "diagnostics", *RESUMABLE} - set(LENGTH)
    return {k: str(value) for k, value in dotted(experiment.dump()).items() if k.partition(".")[0] not in skipped}


def configuration(experiment: Experiment) -> str:
    return json.dumps(trained(experiment), sort_keys=True)


def configurations(content: Evidence, configs: Path) -> dict[tuple[str, str], str]:
    """The present :func:`configuration` of each setting and run."""
    found = {}
    for name, setting in content.settings.items():
        for grid in setting.runs:
            for cell in setting.cells(grid, configs):
                run = grid if content.detectors else variant(cell, configs / setting.config, setting.overrides)
                found[name, run] = configuration(cell)
    return found


def differing(was: str, now: str) -> list[str]:
    """`rounds 5, now 9`: the keys that two configurations both have with another value."""
    old, new = json.loads(was), json.loads(now)
    return [f"{key} {old[key]}, now {new[key]}" for key in old if key in new and old[key] != new[key]]


@functools.cache
def _base(config: Path, overrides: str, algorithm: str, rule: str | None = None) -> Experiment:
    """The setting's experiment with an algorithm, a rule of aggregation if given, and no override of a run."""
    added = [f"aggregation={rule}"] if rule else []
    return load_config(config, [*shlex.split(overrides), f"algorithm={algorithm}", *added])[0]


def updated(old: pandas.DataFrame, new: pandas.DataFrame, present: Mapping[tuple[str, str], str]) -> pandas.DataFrame:
    """`new`, and the rows of `old` whose setting, run and seed it has not. A row of another configuration than the
    `present` one is left out, with a warning; without a noted or a present one, where its number of rounds is
    another."""
    names = [*RUN]
    kept = old[~pandas.MultiIndex.from_frame(old[names]).isin(pandas.MultiIndex.from_frame(new[names]))]
    rounds: dict[Any, int] = {}
    if "status" in new:  # the table of detectors has none
        rounds = new[new["status"] == "finished"].groupby(names[:2])["done"].max().to_dict()
    records = kept.to_dict("records")
    reasons = [_stale(row, present, rounds) for row in records]
    for row, why in zip(records, reasons, strict=True):
        if why:
            LOGGER.warning(f"left out: {row['setting']}, {row['run']}, seed {row['seed']}: {why}")
    kept = kept[np.array([not why for why in reasons], dtype=bool)]
    table = pandas.concat([kept.astype(object), new.astype(object)], ignore_index=True).infer_objects()
    return table.sort_values(names, kind="stable", ignore_index=True)


def _stale(row: Mapping[Any, Any], present: Mapping[tuple[str, str], str], rounds: Mapping[Any, int]) -> str:
    """Why a row is of another configuration: the keys that differ, or without both its rounds; "": it is not."""
    place, was = (row["setting"], row["run"]), row.get(CONFIGURATION)
    if isinstance(was, str) and place in present:
        return "; ".join(differing(was, present[place]))
    other = row.get("status") == "finished" and rounds.get(place, row["done"]) != row["done"]
    return f"{row['done']} rounds" if other else ""


def add_runs(root: Path, place: Path, keys: tuple[str, ...], configs: Path, content: Evidence) -> None:
    """Write the finished runs below `root` into the table `place`."""
    new = collect(root, configs, content)
    write_table(updated(read_table(place, keys), new, configurations(content, configs)), place)


def write_table(table: pandas.DataFrame, path: Path = TABLE) -> None:
    """Raises `ConfigError` if it cannot be written."""
    with writing(path, kind=ConfigError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as temporary:
            table.to_parquet(temporary, compression="zstd", index=False)


def read_table(path: Path = TABLE, keys: tuple[str, ...] = KEYS) -> pandas.DataFrame:
    """The table with at least the columns `keys`; empty if there is none yet. Raises `ConfigError` for a file that is
    no such table."""
    if not path.exists():
        return pandas.DataFrame(columns=[*keys])
    command = f"flray {WRITE[keys]}"
    try:
        table = pandas.read_parquet(regular(path))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is not a Parquet file ({error}); write it: {command}") from error
    if lacking := [key for key in keys if key not in table]:
        raise ConfigError(f"{path} has no column {lacking[0]}; write it again: {command}")
    return table


# claims -----------------------------------------------------------------------------------------------
class Tried(NamedTuple):
    """A claim and its test: points, positive in the claim's direction, over the seeds that both sides finished."""

    claim: EvidenceClaim
    printed: float | None
    better: Mapping[int, float]  # per cent, by seed
    worse: Mapping[int, float]
    diverged: int
    differences: tuple[float, ...]
    common: tuple[int, ...]  # the seed of each difference
    mean: float
    low: float  # 95 % t-interval
    high: float
    p: float  # of the paired t-test, two-sided
    holm: float  # after Holm's correction over the claims of the page
    verdict: str
    seen: float  # the smallest true difference that these seeds detect with 80 % probability
    hours: float  # of its runs

    @property
    def seeds(self) -> int:
        return len(self.differences)


def judge(table: pandas.DataFrame, content: Evidence) -> list[Tried]:
    """The test of every claim: paired t-test over seeds, two-sided, 5 %.

    Two runs are a pair if they have the same seed and start from the same weights: a recipe of `flray pretrain` gives
    other weights on another kind of processor, and all seeds would share that difference.

    `order holds` or `order does not hold` if it is significant, else `inconclusive`; `incomplete` with fewer seeds than
    the setting asks for, or where one diverged; `not judged` where a condition of the setting is not met; `not run`
    without two common seeds, `other weights` if they do not start from the same.
    """
    tried = [_try(claim, content.settings[claim.setting], table) for claim in content.claims]
    corrected = holm(np.array([each.p for each in tried], dtype=np.float64))
    return [each._replace(holm=float(p)) for each, p in zip(tried, corrected, strict=True)]


def _try(claim: EvidenceClaim, setting: EvidenceSetting, table: pandas.DataFrame) -> Tried:
    sides = [_of(table, claim.setting, side.run) for side in (claim.better, claim.worse)]
    values = [_values(rows, claim.column(side)) for rows, side in zip(sides, (claim.better, claim.worse), strict=True)]
    hours = sum(float(rows["time/s"].sum()) for rows in sides if "time/s" in rows) / 3600
    diverged = sum(int((rows["status"] == "diverged").sum()) for rows in sides)
    # the fingerprints of the starting weights; "": random ones, which the seed draws
    starts = [dict(zip(rows["seed"], rows["weights"].fillna(""), strict=True)) for rows in sides]
    seeds = sorted(s for s in values[0].keys() & values[1].keys() if starts[0].get(s) == starts[1].get(s))
    sign = -1.0 if claim.lower else 1.0
    pairs = [sign * np.array([value[seed] for seed in seeds], dtype=np.float64) for value in values]
    untested = dict.fromkeys(("mean", "low", "high", "p", "holm", "seen"), math.nan)
    nothing = Tried(
        claim, claim.printed, values[0], values[1], diverged, (), (), verdict=NOT_RUN, hours=hours, **untested
    )
    if len(seeds) < 2:
        return nothing if len(values[0].keys() & values[1].keys()) < 2 else nothing._replace(verdict=OTHER_WEIGHTS)
    tested = paired_test(*pairs)
    error, df, p = (float(value) for value in (tested.error, tested.df, tested.p))
    mean, _, low, high = interval(pairs[0] - pairs[1])
    verdict = INCONCLUSIVE
    if p < LEVEL:
        verdict = HOLDS if mean > 0 else FAILS
    if len(seeds) < setting.seeds or diverged:
        verdict = INCOMPLETE
    elif not all(met(table, claim.setting, condition) for condition in conditions(claim, setting)):
        verdict = NOT_JUDGED
    return nothing._replace(
        differences=tuple((pairs[0] - pairs[1]).tolist()), common=tuple(seeds), mean=mean, low=low, high=high, p=p,
        verdict=verdict, seen=detectable(error, df),
    )  # fmt: skip


def climbed(table: pandas.DataFrame, content: Evidence) -> list[dict[str, Tried]]:
    """Each claim of the ladder tried at each of its scales; p-values are not corrected."""
    by_sentence = {claim.claim: claim for claim in content.claims}
    return [
        {
            scale: _try(by_sentence[ladder.claim].model_copy(update={"setting": name}), content.settings[name], table)
            for scale, name in ladder.scales.items()
        }
        for ladder in content.ladder
    ]


def conditions(claim: EvidenceClaim, setting: EvidenceSetting) -> list[Condition]:
    """Under which the setting can judge the claim."""
    of_claim = (setting.learns, setting.forgets if claim.forgetting else None)
    return [condition for condition in of_claim if condition is not None]


def met(table: pandas.DataFrame, name: str, condition: Condition) -> bool:
    return mean_of(table, name, condition)[0] >= condition.at_least


def mean_of(table: pandas.DataFrame, name: str, condition: Condition) -> tuple[float, int]:
    """(the mean of the condition's metric in per cent, over how many seeds); NaN without a finished run."""
    values = list(_values(_of(table, name, condition.run), condition.metric).values())
    return (sum(values) / len(values) if values else math.nan), len(values)


def _of(table: pandas.DataFrame, setting: str, run: str) -> pandas.DataFrame:
    """The rows of one run of a setting; the order of its words does not count."""
    wanted = _words(run)
    same = [_words(text) == wanted for text in table["run"]]
    return table[(table["setting"] == setting) & np.array(same, dtype=bool)]


def _words(run: str) -> tuple[list[str], list[str]]:
    """Two texts of one run have the same: the algorithm, and the keys in any order."""
    words = run.split()
    return words[:1], sorted(words[1:])


def _values(rows: pandas.DataFrame, column: str) -> dict[int, float]:
    """Per cent by seed, of the runs that finished."""
    if column not in rows:
        return {}
    done = rows[(rows["status"] == "finished") & rows[column].notna()]
    return {int(seed): 100.0 * float(value) for seed, value in zip(done["seed"], done[column], strict=True)}

"""Settings compared with a reference setting on the same seeds: paired differences, intervals and tests."""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Callable, Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from flray.algorithms import as_written
from flray.config.overrides import scalar
from flray.core.schema.errors import ConfigError, unknown
from flray.core.schema.plain import numbers, read
from flray.results.intervals import bootstrap, effect, interval, is_share, lowest
from flray.results.rendering import digits_lost, exactly, in_short
from flray.results.tables import about, keys_of, over_seeds
from flray.rundir.reader import Run

if TYPE_CHECKING:
    import pandas

TESTS = ("p_t", "p_wilcoxon", "holm_t", "holm_wilcoxon")
# columns of `paired`
PAIRED = (
    "n", "diverged", "unfinished", "mean", "low", "high", "pairs", "diff", "diff_low", "diff_high", "boot_low",
    "boot_high", "effect", *TESTS,
)  # fmt: skip
STATISTICS = ("diff_low", "diff_high", "boot_low", "boot_high", "effect", "p_t", "p_wilcoxon")  # of `difference`
BASELINE = "fedavg"
DIGITS = 12  # differences that agree to so many decimals are the same: 0.9 - 0.8 and 0.5 - 0.4


def paired(
    frame: pandas.DataFrame, reference: str | Mapping[str, Any], metric: str = "test/acc", least: int = 2
) -> pandas.DataFrame:
    """`compare`'s table over seeds, with each setting's difference to a reference on the seeds that both finished.

    `reference` names one setting: a mapping (`{"algorithm": "fedavg"}`, `{"rho": 0}`), the same as text
    (`rho=0,algorithm=fedsol`), an algorithm (`fedsol`, or FedSOL as tables name it), or the folder of one of its runs.
    It is the first row, without a difference. Columns after the setting's keys: `n`, `diverged`, `unfinished`, `mean`,
    `low`, `high` as in `summary`; `pairs` (seeds);
    `diff`, `diff_low`, `diff_high`: the mean difference (setting - reference) and its 95 % t-interval;
    `boot_low`, `boot_high`: its 95 % bootstrap interval; `effect`: g_z of the differences (`intervals.effect`);
    `p_t`, `p_wilcoxon`: two-sided p of the paired t-test and of Wilcoxon's signed-rank test; `holm_t`, `holm_wilcoxon`:
    the same after Holm's correction over the settings. NaN for fewer than `least` pairs. Wilcoxon's p is exact up
    to 50 pairs (13 with ties or zeros) and at least 2 / 2^pairs: 0.0625 for five seeds, which no effect gets below.
    Differences that are all zero have p = 1; where all are the same other number the t-test has no error estimate and
    its p is NaN. Raises `ConfigError` when there is no such metric, or not exactly one such setting.
    """
    import pandas

    groups = list(over_seeds(frame, metric))
    chosen = find([setting for setting, *_ in groups], frame, reference)
    groups.insert(0, groups.pop(chosen))
    base = groups[0][1]
    rows: list[dict[str, Any]] = []
    for setting, values, diverged, unfinished in groups:
        mean, _, low, high = interval(values, share=is_share(metric), lowest=lowest(metric))
        pairs = len(values.index.intersection(base.index))
        numbers = (len(values), diverged, unfinished, mean, low, high, pairs)
        row = setting | dict(zip(PAIRED[: len(numbers)], numbers, strict=True))
        if rows:  # the first is the reference
            row |= difference(gaps(values, base), is_share(metric) and not lowest(metric), least)
        rows.append(row)
    table = pandas.DataFrame(rows, columns=[*keys_of(frame), *PAIRED])
    for name in ("t", "wilcoxon"):
        table[f"holm_{name}"] = holm(table[f"p_{name}"].to_numpy(float))
    table.attrs["reference"] = describe(groups[0][0])
    return about(table, metric)


def caption(table: pandas.DataFrame) -> str:
    """A caption for `paired`'s table: the reference, and the meaning of its effect and p."""
    return (
        f"Against {table.attrs['reference']}, on the same seeds: t-interval and bootstrap interval of the difference; "
        "g_z, its mean over the standard deviation of the differences, corrected for few pairs; p of the paired t-test "
        "and of Wilcoxon's, corrected by Holm"
    )


def gaps(values: pandas.Series, base: pandas.Series) -> np.ndarray:
    """`values` - `base` on the seeds that both have; NaN where both are infinite."""
    seeds = values.index.intersection(base.index)
    with np.errstate(invalid="ignore"):
        apart: np.ndarray = values.loc[seeds].to_numpy(float) - base.loc[seeds].to_numpy(float)
    return apart


def difference(values: np.ndarray, share: bool = False, least: int = 2) -> dict[str, float]:
    """Mean, intervals, effect and p-values of paired differences `[pairs]`; the t-interval of shares ends at -1 and 1.

    Fewer than `least` have a mean alone. All are NaN if one is not finite (a run that never recovered).
    """
    from scipy.stats import ttest_1samp, wilcoxon

    if not np.isfinite(values).all():
        return dict.fromkeys(("diff", *STATISTICS), math.nan)
    values = values.round(DIGITS)
    if len(values) < least:
        return {"diff": float(values.mean()) if len(values) else math.nan} | dict.fromkeys(STATISTICS, math.nan)
    mean, _, low, high = interval(values, share=share, lowest=-1.0)
    known = (mean, low, high, *bootstrap(values), effect(values), math.nan, math.nan)
    numbers = dict(zip(("diff", *STATISTICS), known, strict=True))
    if not values.any():
        return numbers | {"p_t": 1.0, "p_wilcoxon": 1.0}
    if np.ptp(values):
        numbers["p_t"] = float(ttest_1samp(values, 0.0).pvalue)
    return numbers | {"p_wilcoxon": float(wilcoxon(values).pvalue)}


def holm(p: np.ndarray) -> np.ndarray:
    """Holm's step-down correction of p-values `[..., m]` for their family-wise error, along the last axis.

    The i-th smallest times (m - i + 1), never below a smaller one's, at most 1. NaNs were not tested and do not count
    (Holm 1979, "A simple sequentially rejective multiple test procedure").
    """
    order = np.argsort(p, axis=-1)  # NaNs sort last
    tests = np.count_nonzero(~np.isnan(p), axis=-1, keepdims=True)
    steps = np.take_along_axis(p, order, axis=-1) * np.maximum(tests - np.arange(p.shape[-1]), 1)
    corrected = np.empty_like(p, dtype=np.float64)
    np.put_along_axis(corrected, order, np.minimum(np.maximum.accumulate(steps, axis=-1), 1), axis=-1)
    return corrected


def baseline(frame: pandas.DataFrame) -> str:
    """The default reference, as `paired` reads it: FedAvg, if exactly one setting is FedAvg, else the first setting."""
    settings = frame[keys_of(frame)].drop_duplicates()
    return BASELINE if (settings["algorithm"] == BASELINE).sum() == 1 else str(frame["folder"].iloc[0])


# naming a setting --------------------------------------------------------------------------------
# what names a setting: its text or keys and values, or the folder of one of its runs, which a Run has
Reference: TypeAlias = "str | Mapping[str, Any] | os.PathLike[str] | Run"
BETWEEN = re.compile(r",(?=[^,=\[\]]+=)")  # a comma before the next KEY=, none of those in a list


def written(reference: Reference) -> str | Mapping[str, Any]:
    """A reference as text, or as keys and values."""
    if isinstance(reference, str | Mapping):
        return reference
    return reference.place if isinstance(reference, Run) else os.fspath(reference)


def find(settings: Sequence[Mapping[Any, Any]], frame: pandas.DataFrame, reference: str | Mapping[str, Any]) -> int:
    """The position of the one setting that `reference` names: its text as tables and errors have it, or keys and
    values. Raises `ConfigError` if it names none or several."""
    label = labels(frame)
    written = [i for i, setting in enumerate(settings) if reference in _spellings(setting, label)]
    if len(written) == 1:
        return written[0]
    wanted = _wanted(frame, reference)
    matches = [
        i
        for i, setting in enumerate(settings)
        if all(_same(setting[key], value, text) for key, (value, text) in wanted.items())
    ]
    if len(matches) > 1:
        # 0.1 and the text "0.1": a value of the same type decides; the texts 1_0 and 10: the one that was written
        typed = [i for i in matches if all(type(settings[i][key]) is type(value) for key, (value, _) in wanted.items())]
        literal = [i for i in matches if all(str(settings[i][key]) == str(text) for key, (_, text) in wanted.items())]
        matches = next((alike for alike in (typed, literal) if len(alike) == 1), matches)
    if len(matches) != 1:
        several = [settings[i] for i in (matches or range(len(settings)))[:8]]
        texts = [selector(setting) for setting in several]
        listed = "; ".join(
            _selector_with_name(setting) if texts.count(text) > 1 else text
            for setting, text in zip(several, texts, strict=True)
        )
        problem = f"is {len(matches)} settings, say which" if matches else "is none of the settings"
        raise ConfigError(f"reference {reference!r} {problem}: {listed}")
    return matches[0]


def _spellings(setting: Mapping[Any, Any], label: Callable[[Mapping[Any, Any]], str]) -> list[str]:
    """A setting as tables and errors have it, with the algorithm as papers and as configurations write it."""
    texts = [describe(setting), label(setting)]
    name = str(setting["algorithm"])
    as_typed = [name + text.removeprefix(as_written(name)) for text in texts]
    return [*texts, *as_typed, selector(setting), _selector_with_name(setting)]


def _wanted(frame: pandas.DataFrame, reference: str | Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Keys of the table; the value that the reference has, and the same as it is written there."""
    if isinstance(reference, str):
        place = os.path.realpath(reference)
        folder = frame[[each == reference.rstrip("/") or os.path.realpath(each) == place for each in frame["folder"]]]
        if len(folder):
            row = folder.iloc[0]
            return {key: (row[key], row[key]) for key in keys_of(frame)}
        if "=" not in reference:
            written = {as_written(name): name for name in frame["algorithm"].dropna()}
            name = written.get(reference, reference)
            if name not in set(frame["algorithm"]):
                raise unknown(
                    "reference", reference, set(frame["algorithm"].dropna()), "the runs (or KEY=VALUE, or a run folder)"
                )
            return {"algorithm": (name, name)}
        try:
            pairs = (part.partition("=") for part in BETWEEN.split(reference))
            given = {key.strip(): (scalar(key, value), value.strip()) for key, _, value in pairs}
        except ConfigError as error:
            raise ConfigError(f"reference {reference!r}: write KEY=VALUE,KEY=VALUE, lists in brackets") from error
    else:
        given = {key: (value, value) for key, value in reference.items()}
    return {key_named(frame, key): value for key, value in given.items()}


def key_named(frame: pandas.DataFrame, name: str) -> str:
    """The key of a setting by its full name, by its last part (`rho`) if only one key ends so, or by its section
    (`aggregation` for `aggregation.name`). Raises `ConfigError` for a name of no key or of several keys."""
    keys = keys_of(frame)
    short = [key for key in keys if key.rpartition(".")[2] == name]
    short = [key for key in (f"{name}.name", f"{name}.source") if key in keys] or short
    if name not in keys and len(short) != 1:
        raise unknown("key", name, keys, "what differs between the runs")
    return name if name in keys else short[0]


def describe(setting: Mapping[Any, Any], exact: Container[str] = ()) -> str:
    """`FedSOL, rho=0.5`: the algorithm and the other keys of a setting that have a value; `exact` ones with all
    digits."""
    return _named(setting, [key for key in setting if key not in ("name", "algorithm")], exact)


def selector(setting: Mapping[Any, Any]) -> str:
    """`algorithm=fedsol,algorithm.rho=0.5`."""
    values = {key: value for key, value in setting.items() if key != "name" and not missing(value)}
    return ",".join(f"{key}={float(v)!r}" if isinstance(v, float) else f"{key}={v}" for key, v in values.items())


def _selector_with_name(setting: Mapping[Any, Any]) -> str:
    return f"name={setting['name']},{selector(setting)}"


def labels(frame: pandas.DataFrame, section: str = "") -> Callable[[Mapping[Any, Any]], str]:
    """A function that names a setting of `compare`'s table: the algorithm, and the keys that distinguish it, of a
    `section` alone if it is given; keys of the algorithm only if its own runs differ in them."""
    exact = digits_lost(frame, keys_of(frame))
    keys = [key for key in keys_of(frame) if key not in ("name", "algorithm") and key.startswith(section)]
    own = {name: {key for key in keys if rows[key].map(str).nunique() > 1} for name, rows in frame.groupby("algorithm")}

    def label(setting: Mapping[Any, Any]) -> str:
        mine = own.get(setting["algorithm"], ())  # none of a run without config.yaml
        return _named(setting, [key for key in keys if key in mine or not key.startswith("algorithm.")], exact)

    if section or "name" not in frame:
        return label
    named: dict[str, set[str]] = {}  # the experiments that have a label
    for row in frame.to_dict("records"):
        named.setdefault(label(row), set()).add(str(row["name"]))

    def with_name(setting: Mapping[Any, Any]) -> str:
        text = label(setting)
        return text if len(named.get(text, ())) < 2 else f"{text}, {as_text('name', setting['name'])}"

    return with_name


def _named(setting: Mapping[Any, Any], keys: Sequence[str], exact: Container[str]) -> str:
    values = [as_text(key, setting[key], exact) for key in keys if not missing(setting[key])]
    name = setting["algorithm"]
    return ", ".join(["-" if missing(name) else as_written(str(name)), *values])


def as_text(key: str, value: Any, exact: Container[str] = ()) -> str:
    """`rho=0.5`, `name=mine`: a key by its last part, and its value; `median` alone for `aggregation.name`. The value
    of one of the keys `exact` has all digits."""
    *sections, word = key.split(".")
    text = exactly(value) if key in exact else in_short(value)
    return text if sections and word in ("name", "source") else f"{word}={text}"


def missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _same(there: Any, wanted: Any, text: Any) -> bool:
    """Whether two values of a key are equal: 0, 0.0 and `0e0` (text to YAML) are, and a list and its text.

    `text` is what `wanted` was written as. `None` is a key that the setting does not have.
    """
    if isinstance(there, str) and there in (wanted, text):
        return True
    if missing(there) or missing(wanted):
        return missing(there) and missing(wanted)
    if isinstance(wanted, list | tuple):
        return bool(_list_of(there) == numbers(list(wanted)))
    there, wanted = numbers(there), numbers(wanted)
    if isinstance(there, str) and isinstance(wanted, str):
        return there == wanted
    try:
        return float(there) == float(wanted)
    except (TypeError, ValueError):
        return str(there) == str(wanted)


def _list_of(value: Any) -> Any:
    """The list that a table has as text; any other value as it is."""
    if isinstance(value, str) and value.startswith("["):
        with contextlib.suppress(ConfigError):
            return numbers(read(value, "a list"))
    return value

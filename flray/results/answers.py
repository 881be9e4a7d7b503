"""The sentences of a report: which setting has the best mean, whether by more than chance, at what cost, and what was
forgotten."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flray.metrics.names import OF_ALARMS
from flray.results.intervals import MIN_PAIRS, is_share, smaller_is_better, tie
from flray.results.paired import difference, gaps, holm, labels
from flray.results.rendering import shown_value
from flray.results.tables import keys_of, over_seeds
from flray.rundir.reader import Run

if TYPE_CHECKING:
    import pandas

LEVEL = 0.05  # of the tests that tell two settings apart, after Holm's correction
EQUAL = 1.1  # costs whose ratio is below this are called equal
COSTS = {  # columns of `rounds/`, summed over a run
    "client_steps": "local steps",
    "client_flops": "local FLOPs",
    "comm/up_bytes": "bytes up",
    "comm/down_bytes": "bytes down",
    "proxy_examples": "proxy samples",
    "time/client_s": "client time",
    "time/server_s": "server time",
}


def ranked(frame: pandas.DataFrame, metric: str) -> list[tuple[str, pandas.Series]]:
    """A list of (name of a setting, `metric` of its finished runs by seed), the best mean first."""
    label, sign = labels(frame), 1 if smaller_is_better(metric) else -1
    groups = [(label(setting), values) for setting, values, *_ in over_seeds(frame, metric) if len(values)]
    return sorted(groups, key=lambda group: sign * float(group[1].mean()))


def held_out(frame: pandas.DataFrame, metric: str) -> list[str]:
    """A sentence on runs that were tested on a validation split alone, where `test/acc` is asked for."""
    if metric != "test/acc" or frame["test/acc"].notna().any() or "val/acc" not in frame:
        return []
    return ["These runs have val/acc and no test/acc; give --metric val/acc."] * bool(frame["val/acc"].notna().any())


def without_value(frame: pandas.DataFrame, metric: str) -> str:
    """A sentence on the settings of which finished runs have no value of `metric`; "": all have one."""
    finished = frame[frame["status"] == "finished"]
    rows = finished[finished[metric].isna()]
    if rows.empty or held_out(frame, metric):
        return ""
    lacking, of = (Counter(map(labels(frame), some.to_dict("records"))) for some in (rows, finished))
    names = [name if count == of[name] else f"{name} ({count} of {of[name]})" for name, count in lacking.items()]
    base, _, mode = metric.partition("@")
    beside = [column for column in map(str, frame) if column.endswith(f"@{mode}")]
    none = mode and rows[beside].isna().all(axis=None)
    what = f": no such {'detector' if base in OF_ALARMS else 'mode'}" if none else ""
    return f"No {metric} in finished runs of {'; '.join(names)}{what}."


def never(frame: pandas.DataFrame, metric: str) -> list[str]:
    """A sentence on the settings with infinite values: seeds that never recover, or that no alarm noticed."""
    label = labels(frame)
    counts = {label(setting): values.map(math.isinf) for setting, values, *_ in over_seeds(frame, metric)}
    named = [
        f"{name} on {infinite.sum()} of {len(infinite)} seeds" for name, infinite in counts.items() if infinite.any()
    ]
    return [f"{metric} is infinite (never), and so is the mean: {'; '.join(named)}."] if named else []


def verdict(frame: pandas.DataFrame, metric: str) -> list[str]:
    """Sentences: the best setting and the settings that it differs from, or that no difference was found.

    The p-values of the best one are corrected by Holm over all pairs of settings.
    """
    groups = ranked(frame, metric)
    if not groups:
        if said := held_out(frame, metric):
            return said
        diverged = int(frame["status"].str.startswith("diverged").sum())
        lost = f"{diverged} of {len(frame)} diverged"
        if (frame["status"] == "finished").any():
            return [f"No finished run has a {metric}" + (f"; {lost}." if diverged else ".")]
        return [f"No run has finished with a {metric}" + (f": {lost}." if diverged else " yet.")]
    (first, best), rest = groups[0], groups[1:]
    left_out = survivors(frame, metric)
    of = f"mean of {len(best)} seeds" if len(best) > 1 else "one seed"
    mean = f"{metric} {_value(metric, best.mean())} ({left_out.get(first) or of})"
    if math.isinf(best.mean()):
        return [f"No setting has a finite mean of {metric}.", *_losses(left_out, "")]
    if not rest:
        return [f"{first}: {mean}.", *_losses(left_out, first)]
    differences = [_paired(best, values, metric) for _, values in rest]
    others = [_paired(one, two, metric) for (_, one), (_, two) in itertools.combinations(rest, 2)]
    # over all pairs: which setting is compared with the others was chosen by its mean
    corrected = holm(np.array([paired["p_t"] for paired in differences + others]))[: len(rest)]
    decided = [p < LEVEL or _counted(paired, metric) for paired, p in zip(differences, corrected, strict=True)]
    tested = not np.isnan(corrected).all()
    alike = [name for name, values in rest if tie(values.mean(), best.mean())]
    apart = {name: far for (name, _), far in zip(rest, decided, strict=True) if name not in alike}
    seeds = max(len(best.index.intersection(values.index)) for _, values in rest)
    sentences = [_headline([first, *alike], mean, metric, apart, tested, seeds)]
    side = "below" if smaller_is_better(metric) else "above"
    for (name, values), paired, p in zip(rest[:3], differences, corrected, strict=False):
        if name in alike:
            continue
        pairs = len(best.index.intersection(values.index))
        if pairs and math.isnan(paired["diff"]):
            sentences.append(f"The difference to {name} was not tested: it is infinite on a seed.")
        elif math.isnan(paired["diff_low"]):
            gap = _gap(metric, abs(best.mean() - values.mean()))
            sentences.append(f"{gap} {side} {name}, with too few shared seeds ({pairs}) to say whether that is chance.")
        elif math.isnan(p):  # nothing varies, so there is no test
            sentences.append(f"{_gap(metric, paired['diff'])} {side} {name} on each of {pairs} shared seeds.")
        else:
            span = _span(metric, paired["diff_low"], paired["diff_high"])
            outcome = "significant" if p < LEVEL else "not significant"
            sentences.append(
                f"{_gap(metric, paired['diff'])} {side} {name} on {pairs} shared seeds (95 % interval {span}, "
                f"Holm-corrected p {p:.2g}): {outcome}."
            )
    return sentences + _losses(left_out, first)


def _counted(paired: Mapping[str, float], metric: str) -> bool:
    """Whether the metric is a counted cost (bytes, steps) with the same difference on every seed, so that no test is
    needed."""
    constant = math.isnan(paired["p_t"]) and not math.isnan(paired["diff_low"]) and paired["diff"] > 0
    return constant and not is_share(metric) and not metric.endswith("/loss")


def _headline(first: Sequence[str], mean: str, metric: str, apart: Mapping[str, bool], tested: bool, seeds: int) -> str:
    """The settings `first` with the highest mean and those that they do not differ from, or that no difference was
    found. `seeds`: how many the best one shares with another setting at most."""
    end = "lowest" if smaller_is_better(metric) else "highest"
    level = [name for name, decided in apart.items() if not decided]
    names = " and ".join(filter(None, [", ".join(first[:-1]), first[-1]]))
    alike, it, does, has = ("", "it", "does", "has") if len(first) == 1 else (" alike", "they", "do", "share")
    if apart and not level:
        differs = "differs" if len(first) == 1 else "differ"
        return f"{names} {has} the {end} mean, {mean}; {it} {differs} from {_others(len(apart))}."
    if len(level) < len(apart):
        return f"{names} {has} the {end} mean, {mean}; {it} {does} not differ significantly from {', '.join(level)}."
    begin = "No difference found" if tested else _UNTESTED.get(seeds, "No difference was tested")
    return f"{begin}; the {end} mean is that of {names}{alike}: {mean}."


_UNTESTED = {1: "One seed cannot tell", 2: "Two seeds cannot tell"}


def _others(count: int) -> str:
    return "the other one" if count == 1 else f"all {count} others"


def survivors(frame: pandas.DataFrame, metric: str) -> dict[str, str]:
    """`mean of 2 of 3 seeds; 1 diverged`, for each setting whose mean leaves out seeds."""
    label, notes = labels(frame), {}
    lacking: dict[str, set[Any]] = {}  # the seeds of finished runs
    for row in frame[(frame["status"] == "finished") & frame[metric].isna()].to_dict("records"):
        lacking.setdefault(label(row), set()).add(row["seed"])
    for setting, values, diverged, unfinished in over_seeds(frame, metric):
        without = len(lacking.get(label(setting), set()) - {*values.index})
        counts = {"diverged": diverged, "unfinished": unfinished, f"without {metric}": without}
        left_out = [f"{count} {what}" for what, count in counts.items() if count]
        if left_out:
            of = len(values) + sum(counts.values())
            seeds = f"{len(values)} of {of} seeds" if of > 1 else "no seed"
            notes[label(setting)] = f"{'mean of ' if len(values) else ''}{seeds}; {', '.join(left_out)}"
    return notes


def _losses(left_out: Mapping[str, str], but: str) -> list[str]:
    """A sentence on the settings, except `but`, whose mean leaves out seeds."""
    rest = [f"{name}: {words}" for name, words in left_out.items() if name != but]
    return [f"Not over all seeds: {'; '.join(rest)}."] if rest else []


def at_what_cost(costs: pandas.DataFrame, frame: pandas.DataFrame, metric: str) -> list[str]:
    """A sentence: the settings cost the same, or how much more the best one costs than the second best."""
    took: dict[str, dict[str, float]] = costs.set_index("setting").to_dict("index")  # type: ignore[assignment]
    names = [name for name, _ in ranked(frame, metric)]
    if len(names) < 2:
        return []
    unequal = []
    for column, words in COSTS.items():
        ours, theirs = (took[name].get(column, 0.0) for name in names[:2])
        if column.startswith("time/") or not (ours or theirs):
            continue
        if not (ours and theirs):
            unequal.append(f"{ours:,.0f} {words} against {theirs:,.0f}")
        elif not 1 / EQUAL < ours / theirs < EQUAL:
            unequal.append(f"{ours / theirs:.2g} times the {words}")
    if not unequal:
        return [f"{names[0]} and {names[1]} cost the same steps and bytes (within {EQUAL - 1:.0%})."]
    return [f"A comparison at unequal cost: beside {names[1]}, {names[0]} took {', '.join(unequal)}."]


def unequal_cost(runs: Sequence[Run], frame: pandas.DataFrame) -> str:
    """A sentence on how far the settings of `compare`'s table differ in steps, FLOPs, bytes and proxy samples (mean
    over their finished runs); empty if they cost the same. `runs` are those of the table, in its order."""
    rows = frame.to_dict("records")
    done = [(run, row) for run, row in zip(runs, rows, strict=True) if row["status"] == "finished"]
    if not done:
        return ""
    label = labels(frame)
    costs = costs_of([run for run, _ in done], [label(row) for _, row in done]).set_index("setting")
    apart = []
    for column in [name for name in costs.columns if not name.startswith("time/")]:
        took: dict[str, float] = costs[column].to_dict()  # type: ignore[assignment]
        most, least = max(took, key=lambda name: took[name]), min(took, key=lambda name: took[name])
        if not took[least]:
            apart.append(f"{COSTS[column]} only in {', '.join(name for name in took if took[name])}")
        elif took[most] >= EQUAL * took[least]:
            apart.append(f"{COSTS[column]} up to {took[most] / took[least]:.2g} times ({most} against {least})")
    return f"A comparison at unequal cost: {'; '.join(apart)}." if apart else ""


def what_was_forgotten(modes: pandas.DataFrame, frame: pandas.DataFrame) -> list[str]:
    """Sentences on forgetting over tasks or through a drift, of each setting in its first inference mode."""
    sentences, label = [], labels(frame)
    for row in modes.drop_duplicates(keys_of(frame)).to_dict("records") if len(modes) else []:
        name = label(row)
        if not math.isnan(row.get("FT", math.nan)):
            sentences.append(
                f"{name} ({row['mode']}): {_value('ACC', row['ACC'])} over all tasks at the end, "
                f"forgetting {_value('FT', row['FT'])}."
            )
        if not math.isnan(row.get("drift/acc_end", math.nan)):
            sentences.append(
                f"{name} ({row['mode']}): {_value('ACC', row['drift/acc_before'])} before the data vanished, "
                f"{_value('ACC', row['drift/acc_end'])} at the end of the window, "
                f"{_value('ACC', row['drift/acc_final'])} at the end."
            )
    return sentences


def spent(run: Run) -> dict[str, float]:
    """The total costs of a run, `COSTS`: sums over its rounds and the ends of its tasks."""
    tables = run.rounds, run.tasks
    return {name: sum(float(table[name].sum()) for table in tables if name in table) for name in COSTS}


def costs_of(runs: Sequence[Run], names: Sequence[str]) -> pandas.DataFrame:
    """The costs of runs, one row a setting (the runs' `names`), mean over seeds; only those of `COSTS` that a run
    has."""
    import pandas

    if not runs:
        return pandas.DataFrame(columns=["setting"])
    rows = [{"setting": name, **spent(run)} for run, name in zip(runs, names, strict=True)]
    table = pandas.DataFrame(rows).groupby("setting", sort=False).mean().reset_index()
    return table[["setting", *(column for column in COSTS if table[column].any())]]


def _paired(best: pandas.Series, other: pandas.Series, metric: str) -> dict[str, float]:
    """Paired differences, above 0 where the best one is better."""
    better = gaps(best, other)
    return difference(-better if smaller_is_better(metric) else better, is_share(metric), MIN_PAIRS)


def _value(metric: str, value: float) -> str:
    return f"{shown_value(metric, value)} %" if is_share(metric) else shown_value(metric, value)


def _gap(metric: str, value: float) -> str:
    return f"{100 * value:+.2f} points" if is_share(metric) else f"{value:+.4g}"


def _span(metric: str, low: float, high: float) -> str:
    """`+0.40 to +0.52`, with as many digits as the two ends need to differ."""
    kind, least, scale = ("f", 2, 100) if is_share(metric) else ("g", 4, 1)
    formats = [f"+.{digits}{kind}" for digits in range(least, least + 8)]
    texts = [(format(scale * low, form), format(scale * high, form)) for form in formats]
    return " to ".join(next((pair for pair in texts if pair[0] != pair[1]), texts[0]))

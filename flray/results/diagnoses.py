"""The diagnostics of a run as tables, a row a round, and as a line for the terminal.

A probe records what one client or the server sees. Numbers that need both are computed here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from flray.core.schema.errors import ConfigError
from flray.metrics.probes import table_names
from flray.results.tables import settings
from flray.rundir.reader import Run

if TYPE_CHECKING:
    import pandas

STAGES = ("before", "after", "average", "global")  # a round's models: received, local ones, their aggregate, the next
DRIFTS = ("drift", "loss_after", "global_drift", "ensemble_drift")  # columns of `memory` compared with accuracy
AGAINST = ("proximal", "memory", "global")


def recovery(run: Run) -> pandas.DataFrame:
    """What local training forgets and aggregation recovers, a row a round (`local_forgetting`).

    `acc_STAGE`, `in_STAGE`, `out_STAGE` of the received model (`before`), the clients' local models (`after`), their
    aggregate (`average`) and the new global model (`global`), on the global test set; in and out of the classes that
    each client holds, means over the clients with test samples of those classes. `forgotten` is acc_before - acc_after,
    `won_back` is acc_average - acc_after. Raises `ConfigError` if the run has no such diagnostic.
    """
    import pandas

    from flray.metrics.local_forgetting import shares_in_and_out  # it imports torch

    clients, server = _parts(run, "local_forgetting")
    table_rows = []
    for done, rows in clients.groupby("done"):
        own = server[server["done"] == done]
        row = {"done": done} | {
            f"{what}_{stage}": rows[f"{what}_{stage}"].mean()
            for what in ("acc", "in", "out")
            for stage in ("before", "after")
        }
        for stage in ("average", "global") if len(own) else ():
            classes = np.asarray(own[f"class_{stage}"].iloc[0], np.float64)
            held = rows.loc[rows["acc_after"].notna(), "held"]
            parts = np.array([(math.nan, math.nan), *(shares_in_and_out(classes, counts) for counts in held)])
            row |= {f"acc_{stage}": own[f"acc_{stage}"].iloc[0]}
            means = np.ma.masked_invalid(parts).mean(axis=0).filled(np.nan)  # without NaN, as pandas' means above
            row |= dict(zip((f"in_{stage}", f"out_{stage}"), means, strict=True))
        table_rows.append(row)
    columns = [f"{what}_{stage}" for what in ("acc", "in", "out") for stage in STAGES]
    table = pandas.DataFrame(table_rows).reindex(columns=["done", *columns])
    return table.assign(
        forgotten=table["acc_before"] - table["acc_after"], won_back=table["acc_average"] - table["acc_after"]
    )


def divergence(run: Run) -> pandas.DataFrame:
    """Weight divergence, a row a round (`divergence`): `distance` and `relative`, means over clients; `between`, the
    root mean square of the distance of two clients, a pair with the weight p_j p_k (`metrics.divergence.between`);
    `moved`, how far their aggregate moved.

    `between` is NaN where the aggregate is not the mean of the local models: under an uplink, and in a round with
    updates of an age above 0 (`staleness_max`).
    """
    import pandas

    from flray.metrics.divergence import between  # it imports torch

    clients, server = _parts(run, "divergence")
    table_rows, encoded, rounds = [], _has_uplink(run), run.rounds
    stale = set(rounds.loc[rounds["staleness_max"] > 0, "done"]) if "staleness_max" in rounds else set()
    for done, rows in clients.groupby("done"):
        own = server.loc[server["done"] == done, "moved"] if len(server) else server
        server_distance = float(own.to_numpy()[0]) if len(own) else math.nan
        trained = rows[rows["distance"].notna()]  # a client that was skipped is not in the aggregate
        mean = math.nan if encoded or done in stale else server_distance
        apart = between(trained["distance"], trained["weight"], mean)
        means = trained[["distance", "relative"]].mean().to_dict()
        table_rows.append({"done": done, **means, "between": apart, "moved": server_distance})
    return pandas.DataFrame(table_rows)


def _has_uplink(run: Run) -> bool:
    return bool(settings(run).get("uplink", "[]") != "[]")


def memory(run: Run, metric: str = "test/acc") -> pandas.DataFrame:
    """Memory drift, a row a round (`memory`): means over clients, the server's values, and the round's `metric`.
    `flips_safe` is a sum, `tight` and `gap_least` are minima, `drift_most` is a maximum."""
    clients, server = _parts(run, "memory")
    means = ("loss_before", "loss_after", "drift", "flips", "gap", "safe", "safe_exact")
    how = {**dict.fromkeys(means, "mean"), "flips_safe": "sum", "tight": "min", "gap_least": "min", "drift_most": "max"}
    table = clients.groupby("done").agg({name: by for name, by in how.items() if name in clients})
    if len(server):
        table = table.join(server.set_index("done")[["global_drift", "global_flips", "ensemble_drift"]])
    if metric in run.rounds:
        table = table.join(run.rounds.set_index("done")[metric])
    return table.reset_index()


class Correlation(NamedTuple):
    """Pearson's `r` over `rounds` rounds, `p` of its two-sided test, and `changes`: r of the differences between
    rounds, without a common trend. The test assumes independent rounds, which they are not. NaN below three rounds
    or if a value never varies."""

    r: float
    p: float
    rounds: int
    changes: float


def correlations(run: Run, metric: str = "test/acc") -> dict[str, Correlation]:
    """The correlation of each of `DRIFTS` with the rounds' `metric`; {} if nothing was tested.

    FedProj C.4 prints that of `ensemble_drift`, over the whole public set.
    """
    from scipy.stats import pearsonr

    table, by_name = memory(run, metric), {}
    for name in DRIFTS if metric in table else ():
        pairs = table[[name, metric]].dropna() if name in table else table[:0]
        if not len(pairs):
            continue
        if len(pairs) < 3 or pairs.nunique().min() < 2:
            by_name[name] = Correlation(math.nan, math.nan, len(pairs), math.nan)
        else:
            r, p = pearsonr(pairs[name], pairs[metric])
            changes = pairs.diff().corr().to_numpy()[0, 1]
            by_name[name] = Correlation(float(r), float(p), len(pairs), float(changes))
    return by_name


def conflict(run: Run, over: str = "done") -> pandas.DataFrame:
    """Cosines along local training, a row a round, or with `over="step"` a row a local step (`conflict`).

    Means over the observed steps, `looks` in number, of `cos_KIND`, `move_KIND`, `loss_KIND`, `zeta`, `kappa`,
    `descent` and `descent_projected`. `share_KIND` is the share of steps whose local gradient opposes that kind of
    gradient; for `memory` it is the share that FedProj would project. `kappa_least` is the smallest kappa;
    `kappa_fails` is the share of steps with kappa <= 0, which FedProj's Assumption 5.5 excludes.
    """
    rows = rows_of(run, "conflict")
    kinds = [kind for kind in AGAINST if f"cos_{kind}" in rows]
    parts = [f"{what}_{kind}" for kind in kinds for what in ("cos", "move", "loss") if f"{what}_{kind}" in rows]
    parts += [name for name in ("zeta", "kappa", "descent", "descent_projected") if name in rows]
    shares = {f"share_{kind}": _above_0(-rows[f"cos_{kind}"]) for kind in kinds}
    if "kappa" in rows:
        shares["kappa_fails"] = 1 - _above_0(rows["kappa"])
    table = rows.assign(**shares).groupby(over)
    means = table[[*parts, *shares]].mean().assign(looks=table.size().astype(float))
    return (means.assign(kappa_least=table["kappa"].min()) if "kappa" in rows else means).reset_index()


def heterogeneity(run: Run) -> pandas.DataFrame:
    """zeta and descent of each round (`heterogeneity`): zeta^2 = sum_k p_k ||g_k - g||^2 and descent = sum_k p_k
    <g_k, g> / ||g||^2, with p_k scaled to sum 1 over the round's clients that have the number (a gradient of 0 has no
    cosine); the run's zeta is the largest."""
    rows = rows_of(run, "heterogeneity")
    values = rows[["zeta", "descent", "cosine"]].assign(zeta=rows["zeta"] ** 2)
    weights = values.notna().mul(rows["weight"], axis=0)
    shares = weights / weights.groupby(rows["done"]).transform("sum")
    table = (shares * values).groupby(rows["done"]).sum(min_count=1).reset_index()
    return table.assign(zeta=table["zeta"] ** 0.5)


def layers(run: Run) -> pandas.DataFrame:
    """Means over clients and rounds of `distance`, `relative` and `lambda_mean`, a row a layer, in the network's
    order."""
    rows = rows_of(run, "layers")
    return rows.groupby("layer", sort=False)[["distance", "relative", "lambda_mean"]].mean().reset_index()


def gradients(run: Run) -> pandas.DataFrame:
    """`wv`, and of the observed rounds `gradient_variance`, `cosine` and `fisher_trace` (FedMemo, section G;
    `latent_forgetting` with `gradients_every`), a row a round."""
    rows = rows_of(run, "latent_forgetting")
    return rows.reindex(columns=["done", "wv", "gradient_variance", "cosine", "fisher_trace"])


def propositions(run: Run) -> pandas.DataFrame:
    """Whether FedSOL's propositions hold over the observed steps, a row a round (`propositions`).

    Proposition 1: `curved` is the share with ghat' H ghat > 0, where FedSOL should protect L_p; `protects` is the share
    in which L_p rises less, or falls more, than by FedAvg's step; `error_1` is the median of |predicted - sol| / |sol -
    avg|, the part of the predicted difference that Eq. 11 misses. Proposition 2: `error_2` is the median of |sol -
    shifted| / |sol|, and `error_2_real` is that of the real changes.
    """
    rows = rows_of(run, "propositions")
    table = rows[["done"]].assign(
        steps=1.0,
        curved=_above_0(rows["prop1_curvature"]),
        protects=_above_0(rows["prop1_avg_real"] - rows["prop1_sol_real"]),
        error_1=(rows["prop1_predicted"] - rows["prop1_sol"]).abs() / (rows["prop1_sol"] - rows["prop1_avg"]).abs(),
        error_2=(rows["prop2_sol"] - rows["prop2_shifted"]).abs() / rows["prop2_sol"].abs(),
        error_2_real=(rows["prop2_sol_real"] - rows["prop2_shifted_real"]).abs() / rows["prop2_sol_real"].abs(),
    )
    medians = dict.fromkeys(("error_1", "error_2", "error_2_real"), "median")
    return table.groupby("done").agg({"steps": "sum", "curved": "mean", "protects": "mean", **medians}).reset_index()


def _above_0(values: pandas.Series) -> pandas.Series:
    """1 where a value is above 0, else 0; NaN where it is not known, for a mean without it."""
    return (values > 0).astype(float).where(values.notna())


def asked_for(run: Run) -> list[str]:
    """Names of the tables of the diagnostics in the run's configuration."""
    entries = json.loads(settings(run).get("diagnostics") or "[]")
    return table_names(entry if isinstance(entry, str) else str(entry.get("name")) for entry in entries)


def in_words(run: Run) -> dict[str, str]:
    """A line for each diagnostic of which the run has rows: means over the observed rounds."""
    having = [name for name in _SAYS if len(run.diagnostics.get(name, ()))]
    return {name.replace("_", " "): _SAYS[name](run) for name in having}


def _forgetting_words(run: Run) -> str:
    means = 100 * recovery(run).mean()
    if math.isnan(means["forgotten"]):
        return "unknown: no update was delivered that has an accuracy"
    words = f"local training {'loses' if means['forgotten'] >= 0 else 'gains'} {abs(means['forgotten']):.1f} points"
    words += f" ({means['acc_before']:.1f} to {means['acc_after']:.1f} %)"
    return words + (f", aggregation wins back {means['won_back']:.1f}" if not math.isnan(means["won_back"]) else "")


def _conflict_words(run: Run) -> str:
    means = conflict(run).mean()
    kinds = [kind for kind in AGAINST if f"cos_{kind}" in means]
    words = [
        f"{kind} cosine {means[f'cos_{kind}']:.2f}, negative in {100 * means[f'share_{kind}']:.0f} % of the steps"
        for kind in kinds
    ]
    rows = rows_of(run, "conflict")
    if "kappa" in rows and len(kappa := rows["kappa"].dropna()):
        fails = 100 * (kappa <= 0).mean()
        words.append(f"kappa {kappa.min():.2f} at least, not above 0 in {fails:.1f} % of the looks")
    return "; ".join(words)


def _memory_words(run: Run) -> str:
    table = memory(run)
    words = f"drift {table['drift'].mean():.3g}, {100 * table['flips'].mean():.0f} % of the answers flip"
    for name, correlation in correlations(run).items():
        if name in ("loss_after", "ensemble_drift") and not math.isnan(correlation.r):
            words += (
                f"; {name}: r {correlation.r:.2f} with test/acc (p {correlation.p:.2g}, {correlation.rounds} rounds)"
            )
            words += f", {correlation.changes:.2f} of their changes"
    return words


def _divergence_words(run: Run) -> str:
    means = divergence(run).mean()
    apart = "" if math.isnan(means["between"]) else f", {means['between']:.3g} between clients (weighted RMS)"
    if not apart and (_has_uplink(run) or "staleness_max" in run.rounds):
        apart = ", between clients unknown (the server has no mean of their models under an uplink, or of older ones)"
    return f"{means['distance']:.3g} from the global model ({100 * means['relative']:.0f} % of its norm){apart}"


def _heterogeneity_words(run: Run) -> str:
    table = heterogeneity(run)
    return f"zeta {table['zeta'].max():.3g} at most, descent of the global loss {table['descent'].min():.3g} at least"


def _proposition_words(run: Run) -> str:
    means = propositions(run).mean()
    return f"FedSOL's step protects L_p in {100 * means['protects']:.0f} % of {means['steps']:.0f} steps a round"


_SAYS: Mapping[str, Callable[[Run], str]] = {
    "local_forgetting": _forgetting_words,
    "conflict": _conflict_words,
    "memory": _memory_words,
    "divergence": _divergence_words,
    "heterogeneity": _heterogeneity_words,
    "propositions": _proposition_words,
}


def _parts(run: Run, name: str) -> tuple[pandas.DataFrame, pandas.DataFrame]:
    """(the clients' rows, the server's)."""
    rows = rows_of(run, name)
    return rows[rows["place"] != "finish"], rows[rows["place"] == "finish"]


def rows_of(run: Run, name: str) -> pandas.DataFrame:
    """The rows of a diagnostic; a client's numbers are NaN, and in no mean, where they are infinite, or at the end of
    an exchange whose update was skipped (`on_nonfinite`). Raises `ConfigError` if there are none."""
    rows = run.diagnostics.get(name)
    if rows is None or not len(rows):
        raise ConfigError(f"{run.place} has no rows of the diagnostic {name}; run it with diagnostics=[{name}]")
    numbers = rows.select_dtypes(np.floating)
    infinite = numbers.isin([np.inf, -np.inf]).mul(rows["place"] != "finish", axis=0)
    return rows.assign(**numbers.mask(infinite).mask(_skipped(run, rows)))


def _skipped(run: Run, rows: pandas.DataFrame) -> pandas.Series:
    """Which rows are of an update that was skipped: a model with NaN has accuracies too."""
    import pandas

    clients, at_end = run.clients, rows["place"] == "end"
    if "skipped" not in clients:
        return at_end & False
    keys = [key for key in ("done", "phase", "exchange", "client") if key in rows and key in clients]
    skipped = pandas.MultiIndex.from_frame(clients.loc[clients["skipped"].eq(True), keys])
    return at_end & pandas.MultiIndex.from_frame(rows[keys]).isin(skipped)

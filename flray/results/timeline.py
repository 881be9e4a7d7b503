"""A strip for each client on the virtual clock: when it worked, and what came of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from flray.core.schema.errors import ConfigError
from flray.results.axes import HOURS
from flray.results.figures import figure_of, headline, one_axis, plain
from flray.rundir.reader import Run

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_CLIENTS, MOST_BARS = 50, 1500
COLOURS = {
    "delivers": "#0072B2", "stops early": "#56B4E9", "late": "#D55E00", "leaves": "#CC79A7", "too old": "#E69F00"
}  # fmt: skip
"""Of what comes of a client's work (Okabe and Ito's colours), in the order of the legend."""


def worked(run: Run) -> pandas.DataFrame:
    """When the clients of a run worked: `round` (or server step), `client`, `began` and `until` in virtual seconds, and
    `fate`: delivers, stops early, late, leaves, too old.

    It is planned again from the run's folder, as `coordination` says. Raises `ConfigError` without `devices`.
    """
    import pandas

    from flray.engine.replay import Replay

    rounds = Replay(run.folder).deliveries(len(run.rounds))
    rows = [(number, *each) for number, work in enumerate(rounds, start=1) for each in work]
    return pandas.DataFrame(rows, columns=["round", "client", "began", "until", "fate"])


def timeline(run: Run, axis: Axes | None = None) -> Figure:
    """Draws :func:`worked` of the first rounds, a strip a client, the slowest at the bottom; a grey line ends a round.

    At most 50 clients, of all speeds, and 1,500 works. Draws into `axis` if given, without a legend."""
    table = worked(run)
    if table.empty:
        raise ConfigError(f"{run.place}: no round is done, so nobody has worked")
    last = int(table["round"].iloc[: MOST_BARS + 1].max())
    table = table[table["round"] <= max(last - (len(table) > MOST_BARS), 1)]
    last = int(table["round"].max())
    length = (table["until"] - table["began"]).groupby(table["client"]).median().sort_values(ascending=False)
    clients = length.index[np.linspace(0, len(length) - 1, min(len(length), MOST_CLIENTS)).round().astype(int)].tolist()
    place = {client: number for number, client in enumerate(clients)}
    ends = run.rounds.loc[run.rounds["done"] <= last, "time/virtual_s"].to_numpy(float)
    size, unit = next(unit for unit in HOURS if ends[-1] >= 2 * unit[0] or unit is HOURS[-1])

    plot_height = 1.6 + 0.16 * len(clients)
    figure, plot = one_axis(axis, height=plot_height)
    for fate, colour in COLOURS.items():
        rows = table[(table["fate"] == fate) & table["client"].isin(place)]
        if len(rows):
            at = rows["client"].map(place)
            width = (rows["until"] - rows["began"]) / size
            plot.barh(
                at, width, left=rows["began"] / size, height=0.7, color=colour, edgecolor="white", lw=0.4, label=fate
            )
    plot.vlines(ends / size, -0.6, len(clients) - 0.4, color="0.8", lw=0.6, zorder=0)
    step = max(1, len(clients) // 25)
    plot.set_yticks(range(0, len(clients), step), [str(client) for client in clients[::step]], fontsize=7)
    plot.set(xlabel=f"virtual time ({unit})", ylabel="client, the slowest below", xlim=(0, ends[-1] / size * 1.01))
    some = f"{len(clients)} of {len(length)} clients" if len(clients) < len(length) else f"{len(length)} clients"
    headline(plot, f"{some} in rounds 1 to {last} of {len(run.rounds)}")
    plain(plot)
    plot.grid(visible=False)
    if axis is None:
        figure_of(plot).legend(loc="outside lower center", ncols=5, frameon=False, fontsize=8)
    return figure

"""The layer that every figure is drawn with: axes, lines, cells and legends of one look; names of settings; files."""

from __future__ import annotations

import functools
import io
import itertools
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from flray.config.grid import differing_options
from flray.core.schema.errors import ConfigError, unknown
from flray.core.schema.plain import read
from flray.files import atomic_write, writing
from flray.results.colours import colours_of, markers_of
from flray.results.intervals import interval_words, is_share
from flray.results.paired import labels
from flray.results.rendering import in_short
from flray.results.tables import configured, settings
from flray.rundir.reader import Run, load

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Folders = Iterable[str | Path | Run]

# seeds from which an interval is drawn; below, the single seeds say more than 12.7 (two) or 4.3 (three) standard errors
FEW = 5
DPI = 150  # dots an inch
SOFT = " \n"  # where a title was wrapped for its width
GREY, SHADE, INK = "#8a94a3", "#8a94a340", "#5b6675"  # of no setting: lines, grounds, words; on light and dark pages


# axes ----------------------------------------------------------------------------------------------
def blank(width: float, height: float) -> Figure:
    """An empty figure of this size in inches, with a constrained layout; a notebook shows it without pyplot."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    figure._repr_png_ = functools.partial(_repr_png_, figure)
    return cast("Figure", figure)


def _repr_png_(figure: Figure) -> bytes:
    """A PNG with at most 256 colours: a third of the size, for notebooks under version control."""
    from PIL import Image

    drawn, small = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=100)
    picture = Image.open(drawn).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    picture.save(small, format="png", optimize=True)
    return small.getvalue()


def figure_of(axis: Axes) -> Figure:
    """The figure that contains an axis, also if the axis lies in a subfigure."""
    part: Any = axis.figure
    figure: Figure = part.figure
    return figure


def one_axis(axis: Axes | None, width: float = 7.2, height: float = 4.4) -> tuple[Figure, Any]:
    """(figure, axis): the caller's axis and its figure, or a new figure of this size in inches with one axis."""
    (drawn,) = grid_of(None if axis is None else [axis], 1, "one panel", (width, height))
    return figure_of(drawn), drawn


def given(axes: Axes | Iterable[Any], count: int, what: str) -> list[Any]:
    """The caller's axes as a flat list. Raises `ConfigError` unless there are `count`; `what` names the panels."""
    flat: list[Any] = np.array(axes, dtype=object).ravel().tolist()
    if len(flat) != count:
        raise ConfigError(f"{len(flat)} axes given, and {count} are drawn ({what}): give so many, or none")
    return flat


def grid_of(
    axes: Iterable[Any] | None, count: int, what: str, size: tuple[float, float], columns: int = 1, **look: Any
) -> list[Any]:
    """`count` axes with two spines and a light grid: the caller's, or those of a new figure of `size` inches with at
    most `columns` beside each other.

    `look` goes to `Figure.subplots`; `what` names the panels in an error.
    """
    if axes is not None:
        panels = given(axes, count, what)
    else:
        columns = min(columns, count)
        panels = blank(*size).subplots(-(-count // columns), columns, squeeze=False, **look).ravel().tolist()
    for axis in panels[count:]:
        axis.set_axis_off()
    for axis in panels[:count]:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(color="#e4e7eb", linewidth=0.6)
        axis.set_axisbelow(True)
    return panels[:count]


def facets(
    axes: Iterable[Any] | None, titles: Sequence[str], width: float = 9.6, height: float = 4.0, sharey: bool = False
) -> list[Any]:
    """The caller's axes, or those of a new figure side by side, with these titles."""
    panels = grid_of(axes, len(titles), "; ".join(titles), (width, height), len(titles), sharey=sharey)
    for panel, title in zip(panels, titles, strict=True):
        panel.set_title(title, fontsize=9, loc="left")
    return panels


# kinds ---------------------------------------------------------------------------------------------
def draw_lines(axis: Any, frame: pandas.DataFrame, styles: Mapping[str, str] | None = None) -> None:
    """Lines of a tidy frame: `setting` gives colour and marker, `style` (`styles` has line styles by its values) the
    dashes, `x` and `y` the points. Points without a `y` are left out."""
    names = list(dict.fromkeys(frame["setting"]))
    for name, colour, marker in zip(names, colours_of(names), markers_of(names), strict=True):
        for style, dashes in (styles or {"": "-"}).items():
            rows = frame[(frame["setting"] == name) & (frame.get("style", "") == style) & frame["y"].notna()]
            if len(rows):
                every = {"marker": marker, "markersize": 5, "markevery": max(1, len(rows) // 6)}
                axis.plot(rows["x"], rows["y"], color=colour, linestyle=dashes, linewidth=1.8, **every)


def draw_cells(
    axis: Any, values: Any, shown: str = "", shades: str = "viridis", limits: tuple[float, float] | None = (0, 100),
    bad: str = SHADE, **look: Any,
) -> Any:  # fmt: skip
    """A matrix `[rows, columns]` as coloured cells, NaN in the colour `bad`; with `shown` (a format such as `.0f`) each
    cell has its number. `look` goes to `imshow`. Returns the image, for a colour bar."""
    from matplotlib import colormaps

    low, high = limits or (None, None)
    image = axis.imshow(values, cmap=colormaps[shades].with_extremes(bad=bad), vmin=low, vmax=high, **look)
    for (row, column), value in np.ndenumerate(values) if shown else ():
        if np.isfinite(value):
            red, green, blue, _ = image.to_rgba(value)
            ink = "white" if 0.3 * red + 0.59 * green + 0.11 * blue < 0.55 else "#111111"
            axis.text(column, row, format(value, shown), ha="center", va="center", color=ink, fontsize=8)
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    axis.grid(visible=False)
    return image


def legend(panel: Any, labels: Iterable[str], styles: Mapping[str, str], below: bool) -> None:
    """A legend: colour and marker of a setting, a style for each kind of line; `below` the figure or in the panel."""
    from matplotlib.lines import Line2D

    labels = list(labels)
    looks = zip(labels, colours_of(labels), markers_of(labels), strict=True)
    handles = [Line2D([], [], color=c, linewidth=3, marker=m, markersize=6, label=name) for name, c, m in looks]
    handles += [Line2D([], [], color=INK, ls=style, label=name) for name, style in styles.items()]
    if below:
        figure, columns = figure_of(panel), min(4, len(handles))
        look: dict[str, Any] = {"loc": "outside lower center", "frameon": False, "fontsize": 8}
        _narrow(figure, figure.legend(handles=handles, ncols=columns, **look))
    else:
        panel.legend(handles=handles, frameon=False, fontsize=8)


# runs and words ------------------------------------------------------------------------------------
def open_runs(folders: Folders) -> list[Run]:
    if isinstance(folders, str | Path | Run):
        folders = [folders]
    runs = [folder if isinstance(folder, Run) else load(folder) for folder in folders]
    if not runs:
        raise ConfigError("no run folder given; name at least one")
    return runs


def names_of(runs: Sequence[Run], seeds: bool = True) -> list[str]:
    """A name for each run: the algorithm and the keys that distinguish it; the seed if `seeds` and the seeds differ."""
    frame = in_brief(configured(runs))
    label, several = labels(frame), seeds and frame["seed"].nunique() > 1
    return [label(row) + (f", seed {row['seed']}" if several else "") for row in frame.to_dict("records")]


def in_brief(frame: pandas.DataFrame) -> pandas.DataFrame:
    """The lists of parts of `uplink` as texts: names, and the options in which those of one name differ."""
    if "uplink" not in frame:
        return frame
    lists = [read(value, "uplink") if isinstance(value, str) else value for value in frame["uplink"]]
    differ = differing_options(lists)

    def part(values: Mapping[str, Any]) -> str:
        options = [f"{key}={in_short(one)}" for key, one in values.items() if (values.get("name"), key) in differ]
        return " ".join([str(values.get("name")), *options])

    brief = [" + ".join(map(part, one)) or "none" if isinstance(one, list) else one for one in lists]
    alike = len(set(map(str, brief))) < len(set(map(str, frame["uplink"])))  # numbers of more than six digits
    return frame if alike else frame.assign(uplink=brief)


def by_setting(runs: Sequence[Run]) -> dict[str, dict[Any, Run]]:
    """The runs by name without the seed, and by seed. Of two runs with one setting and seed the last finished one
    counts, as in tables."""
    settings_of: dict[str, dict[Any, Run]] = {}
    for run, label in zip(runs, names_of(runs, seeds=False), strict=True):
        of_seeds, seed = settings_of.setdefault(label, {}), settings(run).get("seed")
        if seed not in of_seeds or run.status == "finished" or of_seeds[seed].status != "finished":
            of_seeds[seed] = run
    return settings_of


def drawn_seeds(seeds: Mapping[Any, Run]) -> tuple[dict[Any, Run], Counter[str]]:
    """(the seeds of a setting that a mean is over, how many others `failed` or `diverged`).

    Where a seed has finished, those that failed or diverged are left out, as in tables: their rounds end early.
    """
    ends = {seed: run.status.partition(" ")[0].rstrip(":") for seed, run in seeds.items()}
    gone = [seed for seed, end in ends.items() if end in ("failed", "diverged") and "finished" in ends.values()]
    return {seed: run for seed, run in seeds.items() if seed not in gone}, Counter(ends[seed] for seed in gone)


def drawn_by_setting(runs: Sequence[Run]) -> tuple[dict[str, dict[Any, Run]], str]:
    """(`by_setting` with the `drawn_seeds` alone, `left_out_words` of the others)."""
    found = {label: drawn_seeds(seeds) for label, seeds in by_setting(runs).items()}
    return {label: seeds for label, (seeds, _) in found.items()}, left_out_words(gone for _, gone in found.values())


def left_out_words(counts: Iterable[Counter[str]]) -> str:
    """`; left out: 1 failed, 2 diverged` for the counts of `drawn_seeds`, added up; "": none."""
    total = sum(counts, Counter[str]())
    return "; left out: " * bool(total) + ", ".join(f"{count} {end}" for end, count in total.items())


def spread_words(seeds: Sequence[int], metric: str, single: str, spread: str = "band") -> str:
    """A caption of the spread: of how many `seeds` a setting, the names of single ones and of the interval."""
    if max(seeds) == 1:
        return "one seed" if len(seeds) == 1 else "one seed each"
    parts = [f"mean over {f'{min(seeds)} to ' * (min(seeds) < max(seeds))}{max(seeds)} seeds"]
    if spread and max(seeds) >= FEW:
        parts.append(f"{spread}: {interval_words(metric)}")
    if single == "points" or (single and any(1 < count < FEW for count in seeds)):
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
    """The label of a metric on an axis: its words and the unit."""
    unit = " (%)" if is_share(metric) else " (nats)" if metric in ("test/loss", "val/loss") else ""
    return f"{in_words(metric)}{unit}"


def in_words(metric: str) -> str:
    """The field's words for a metric, if `_WORDS` has them."""
    name, _, mode = metric.partition("@")
    return _WORDS.get(name, name) + (f", {mode}" if mode else "")


def headline(axis: Any, text: str) -> None:
    """Sets a small title at the left, wrapped for a figure of the usual width, or for its share of it beside others."""
    place = axis.get_subplotspec()
    columns = 1 if place is None else place.get_gridspec().ncols // len(place.colspan)
    axis.set_title(SOFT.join(textwrap.wrap(text, max(80 // columns, 30))), fontsize=9, loc="left")


def end_at_all(axis: Any, least: float = 0.0) -> None:
    """Cuts an axis of shares in per cent at 100 and at 0 (`least`: -100 for differences)."""
    low, high = axis.get_ylim()
    axis.set_ylim(max(low, least), min(high, 100))


def no_narrower(axis: Any, width: float) -> None:
    """Widens a y axis to `width`, that of an interval: else a difference within it fills the figure."""
    low, high = axis.get_ylim()
    lacking = max(0.0, width - (high - low)) / 2
    axis.set_ylim(low - lacking, high + lacking)


def at_whole_numbers(axis: Any, label: str) -> None:
    """Labels the x axis, and puts its ticks at whole numbers, also if there is only one."""
    from matplotlib.ticker import MaxNLocator

    axis.set_xlabel(label)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def few_log_ticks(side: Any) -> None:
    """Labels at 1, 2 and 5 of each decade of a logarithmic side of an axis (`axis.xaxis`) with its data, over two
    decades or more at powers of ten: Matplotlib's own labels overlap on a short one."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    low, high = side.get_view_interval()
    side.set_major_locator(LogLocator(subs=(1,) if high > 100 * low > 0 else (1, 2, 5)))
    side.set_major_formatter(StrMethodFormatter("{x:g}"))
    side.set_minor_formatter(NullFormatter())


# files ---------------------------------------------------------------------------------------------
def save(figure: Any, out: str | Path, dpi: int = DPI) -> Path:
    """Writes the figure; the suffix gives the format, and the same figure the same bytes. Raises `ConfigError` if that
    fails."""
    from matplotlib import rc_context

    out = Path(out)
    undated = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}}
    with drawing(out) as path, rc_context({"pdf.fonttype": 42, "svg.hashsalt": "flray"}):
        figure.savefig(path, dpi=dpi, metadata=undated.get(out.suffix.lower()))
    return out


@contextmanager
def drawing(out: str | Path) -> Iterator[Path]:
    """The path that this block writes to, beside `out`, which it then replaces. Errors become `ConfigError`."""
    path = Path(out)
    try:
        with writing(path, kind=ConfigError):
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(path) as temporary:
                yield temporary
    except ValueError as error:  # a suffix that matplotlib cannot write
        raise ConfigError(f"cannot write the figure {path}: {error}") from error


class PrintStyle(NamedTuple):
    """`column`, `text`: inches of a figure with one panel, and of one with several or a colour bar; `least`: the least
    height of the latter, of small panels (regions) of two rows; `letters`: the smallest and the largest size in points;
    `lines`: factor of line widths and markers."""

    column: float
    text: float
    least: float
    letters: tuple[float, float]
    lines: float


STYLES: Mapping[str, PrintStyle] = {
    "paper": PrintStyle(3.35, 6.9, 0.0, (6.5, 8.0), 0.6),  # columns of CVPR, NeurIPS, ICML: 3.25 to 3.5 and 5.5 to 7.2
    "talk": PrintStyle(10.0, 12.5, 5.5, (15.0, 18.0), 1.5),  # a slide of 13.3 by 7.5 inches
}
FORMATS = (".pdf", ".svg", ".png")  # of a figure in a style
NARROW = 0.8  # inches of a panel, below which its title has no room
FLATTER = 0.8  # of the height of a figure that is made wider than it was drawn


def save_styled(figure: Figure, out: str | Path, style: str) -> list[Path]:
    """Writes the figure in a style of `STYLES` as PDF (with TrueType letters), SVG and PNG, named as `out`. Raises
    `ConfigError`."""
    fit(figure, style)
    base = Path(out)
    stem = base.stem if base.suffix.lower() in FORMATS else base.name  # figure_a0.1 has no suffix
    return [save(figure, base.with_name(stem + suffix), 2 * DPI) for suffix in FORMATS]


def check_style(style: str | None) -> None:
    """Raises `ConfigError` for a style that is none of `STYLES`."""
    if style is not None and style not in STYLES:
        raise unknown("--style", style, STYLES)


def fit(figure: Figure, style: str) -> None:
    """Sets size, letters and lines of a figure for a style. Raises `ConfigError` for another style."""
    from matplotlib.collections import PathCollection
    from matplotlib.lines import Line2D
    from matplotlib.text import Text

    check_style(style)
    wanted = STYLES[style]
    places = [place for axis in figure.axes if (place := axis.get_subplotspec()) is not None]
    columns = max((place.get_gridspec().ncols for place in places), default=1) * len(figure.subfigs or (None,))
    rows = max((place.get_gridspec().nrows for place in places), default=1)
    barred = any(axis.get_label() == "<colorbar>" for axis in figure.axes)  # a map has no room beside its bar
    width = wanted.text if columns > 1 or rows > 1 or barred else wanted.column
    if width / columns < NARROW:
        raise ConfigError(
            f"--style {style}: {columns} panels beside each other are narrower than {NARROW} inches; draw fewer "
            "(regions: --rounds, --models)"
        )
    before, height = map(float, figure.get_size_inches())
    height *= width / before * (FLATTER if width > before else 1.0)
    if width == wanted.text:
        height = max(height, wanted.least * (rows / 2 if figure.subfigs else 1))
    figure.set_size_inches(width, height)
    smallest, largest = wanted.letters
    for text in figure.findobj(Text):
        text.set_fontsize(smallest if float(text.get_fontsize()) < 10 else largest)
    for line in figure.findobj(Line2D):
        line.set_linewidth(line.get_linewidth() * wanted.lines)
        line.set_markersize(line.get_markersize() * wanted.lines)
    for points in figure.findobj(PathCollection):
        points.set_sizes(np.asarray(points.get_sizes()) * wanted.lines**2)
    for axis in figure.axes:
        axis.tick_params(labelsize=smallest, length=3.5 * wanted.lines, width=0.8 * wanted.lines)
        for spine in axis.spines.values():
            spine.set_linewidth(spine.get_linewidth() * wanted.lines)
    figure.draw_without_rendering()  # places everything: the room that texts have
    for drawn in list(figure.legends):
        _narrow(figure, drawn)
    for axis in figure.axes:
        room = width / columns * 0.75 if columns > 1 else width * (0.97 - axis.get_position().x0)
        wrap_title(axis, max(12, int(room * 72 / (0.52 * smallest))), smallest)
        _thin(axis, smallest)
        _apart(axis)
        for side, length in ((axis.xaxis, axis.bbox.width), (axis.yaxis, axis.bbox.height)):
            letters = int(length / figure.dpi * 72 / (0.55 * largest))
            side.set_label_text(textwrap.fill(side.label.get_text(), max(letters, 12)))


def _narrow(figure: Figure, drawn: Any) -> None:
    """Gives a legend below a figure as few columns as its width needs."""
    texts, letters = [text.get_text() for text in drawn.get_texts()], drawn.get_texts()[0].get_fontsize()
    for columns in range(len(texts) - 1, 0, -1):
        if drawn.get_window_extent().width <= figure.bbox.width:
            return
        handles = drawn.legend_handles
        drawn.remove()
        look: dict[str, Any] = {"loc": "outside lower center", "frameon": False, "fontsize": letters}
        drawn = figure.legend(handles, texts, ncols=columns, **look)
        figure.draw_without_rendering()


def _thin(axis: Any, letters: float) -> None:
    """Leaves out labels of rows that are nearer than their letters are high."""
    from matplotlib.ticker import FixedLocator

    ticks, labels = axis.get_yticks(), axis.get_yticklabels()
    if not isinstance(axis.yaxis.get_major_locator(), FixedLocator) or len(ticks) < 2:
        return
    near = abs(np.diff(axis.transData.transform([(0, tick) for tick in ticks[:2]])[:, 1])[0]) * 72 / axis.figure.dpi
    step = max(1, int(np.ceil(1.2 * letters / near)))
    weights = [label.get_fontweight() for label in labels[::step]]
    axis.set_yticks(ticks[::step], [label.get_text() for label in labels[::step]])
    for label, weight in zip(axis.get_yticklabels(), weights, strict=True):
        label.set_fontweight(weight)


def _apart(axis: Any) -> None:
    """Leaves out numbers of an x axis while two of them touch."""
    from matplotlib.ticker import MaxNLocator

    locator = axis.xaxis.get_major_locator()
    for bins in (4, 3, 2) if isinstance(locator, MaxNLocator) else ():
        boxes = [label.get_window_extent() for label in axis.get_xticklabels() if label.get_text()]
        if all(right.x0 - left.x1 > 0.3 * left.height for left, right in itertools.pairwise(boxes)):
            return
        locator.set_params(nbins=bins)


def wrap_title(axis: Any, letters: int, size: float = 9.0) -> None:
    """Wraps each line of the title at the left anew after so many letters."""
    title = axis.get_title(loc="left").replace(SOFT, " ")
    lines = [SOFT.join(textwrap.wrap(line, letters)) for line in title.split("\n")]
    axis.set_title("\n".join(lines), loc="left", fontsize=size)

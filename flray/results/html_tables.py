"""Tables of results as HTML, for notebooks."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING

from flray.results.rendering import caption_of, cells, is_number, shown_columns, to_markdown

if TYPE_CHECKING:
    import pandas


class Table:
    """A table of `compare`, `summary`, `paired` or `spelled`, displayed as by `flray compare`: accuracies in per cent,
    bytes and seconds in units, without columns that are the same in all rows, and with a note on the intervals.

    `frame` is the table itself, in plain numbers.
    """

    def __init__(self, frame: pandas.DataFrame) -> None:
        self.frame = frame

    def _repr_html_(self) -> str:
        heads, body = cells(self.frame)
        right = [is_number(self.frame, column) for column in shown_columns(self.frame)]
        bold = [f"<b>{html.escape(head)}</b>" for head in heads]
        table = html_table([bold, *([html.escape(cell) for cell in row] for row in body)], right)
        note = caption_of(self.frame)
        lines = html.escape(note or "").replace("\n", "<br>")
        return table + (f"<p><small>{lines}</small></p>" if note else "")

    def __repr__(self) -> str:
        return to_markdown(self.frame)


def html_table(rows: Sequence[Sequence[str]], right: Sequence[bool] = ()) -> str:
    """An HTML table. The cells are HTML already; `right` marks the columns that are aligned at the right, as numbers
    are."""
    styles = [f' style="text-align: {"right" if number else "left"}"' for number in right]
    body = ""
    for row in rows:
        body += (
            "<tr>" + "".join(f"<td{styles[i] if styles else ''}>{cell}</td>" for i, cell in enumerate(row)) + "</tr>"
        )
    return f"<table>{body}</table>"

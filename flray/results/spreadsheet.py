"""CSV that is safe in a spreadsheet: no text is read as a formula."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # first characters of cells that spreadsheets compute (OWASP, CSV injection)


def csv(frame: pandas.DataFrame) -> str:
    """The table as CSV, without its index. A text that begins like a formula gets a leading `'`; numbers do not
    change."""
    named = frame.rename(columns=_plain)
    return named.map(_plain).to_csv(index=False)


def _plain(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value

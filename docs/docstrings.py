"""Docstrings of the Python pages as Markdown, for mkdocstrings: an extension of griffe."""

from __future__ import annotations

from typing import Any

import griffe
from rewriting import docstring


class AsMarkdown(griffe.Extension):
    """Rewrites every docstring that is loaded."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = docstring(obj.docstring.value)

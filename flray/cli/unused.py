"""An option that was given and changes nothing is an error, not a silence."""

from __future__ import annotations

from collections.abc import Iterable

import typer

from flray.core.schema.errors import FlrayError


def refuse_unused(ctx: typer.Context, used: Iterable[str], what: str) -> None:
    """Raises `FlrayError` where the command line has an option that `what` does not read.

    `used`: the parameters that it reads, by their names in the command's function.
    """
    options = {parameter.name: parameter.opts[0] for parameter in ctx.command.params if parameter.name not in used}
    for name, option in options.items():
        source = ctx.get_parameter_source(str(name))
        if source is not None and source.name == "COMMANDLINE":
            raise FlrayError(f"{option} changes nothing in {what}; leave it out (flray {ctx.command.name} --help)")

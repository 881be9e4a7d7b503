"""The command line: `flray VERB ...`; `flray --help` lists the verbs."""

from __future__ import annotations

import atexit
import contextlib
import errno
import functools
import inspect
import os
import sys
import threading
import warnings
from collections.abc import Callable
from difflib import get_close_matches
from typing import Annotated, Any, NoReturn, get_type_hints

import typer
from typer.core import TyperGroup

import flray
from flray.cli import begin, checking, comparing, draw, evidence, look, proxies, reproduce, runs, sweeps
from flray.cli.output import failed, flush, write
from flray.core.schema.errors import FlrayError
from flray.engine.early_fork import Interpreter
from flray.files import disk_problem
from flray.log import LOGGER, set_level
from flray.streams import is_terminal, open_standard_streams

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="no progress and no notes")]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="also the seconds of each stage, and the traceback of an error")
]


def verb(function: Callable[..., None]) -> Callable[..., None]:
    """The command of a function, with `-q` and `-v` besides its own options."""
    hints = get_type_hints(function, include_extras=True)
    parameters = inspect.signature(function).parameters
    own = [each.replace(annotation=hints[name]) for name, each in parameters.items() if name != "ctx"]
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=kind)
        for name, kind in (("ctx", typer.Context), ("quiet", Quiet), ("verbose", Verbose))
    ]

    @functools.wraps(function)
    def command(ctx: typer.Context, quiet: bool, verbose: bool, **options: Any) -> None:
        if quiet or verbose:
            set_level(quiet, verbose)
        if ctx.obj:  # of an earlier release's verb
            LOGGER.info(ctx.obj)
        function(**options, **({"ctx": ctx} if "ctx" in parameters else {}))

    signature: Any = inspect.Signature([*own, *more])
    command.__signature__ = signature  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in (*own, *more)}
    return command


def _version(given: bool) -> None:
    if given:
        write(f"flray {flray.__version__}")
        raise typer.Exit


VERBS = {  # of the first page of help, in the order of a first hour
    "init": "a quickstart to change, an algorithm of your own",
    "run": "an experiment, or a grid of them",
    "resume": "continue a run, to the same bits",
    "runs": "my runs, the newest first",
    "show": "the essentials of runs; --follow: as rounds arrive",
    "compare": "settings over seeds: means, differences, costs",
    "figure": "a picture of runs",
    "report": "one page about runs, to send to somebody",
    "ablate": "every combination of some keys, compared",
    "sweep": "search hyper-parameters, then compare the best",
    "doctor": "check a configuration before it runs",
    "list": "names with their options, defaults and bounds",
}
MORE = ("check", "papers", "replay", "pretrain", "synthesize", "bench")


# verbs of before: what is run instead, if anything, and its name
BEFORE = {
    "plan": ([], "flray doctor CONFIG --nodes 1,100"),
    "watch": (["show", "--follow"], "flray show RUN --follow"),
    "reproduce": (["papers", "reproduce"], "flray papers reproduce"),
    "evidence": (["papers", "evidence"], "flray papers evidence"),
}


class FirstPage(TyperGroup):
    """The command line with a help of one screen. A verb of an earlier release works, and a line names the new
    one."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        verb, *rest = args
        words, name = BEFORE.get(verb, ([verb], ""))
        if ctx.resilient_parsing:  # the shell asks how a line may go on
            return super().resolve_command(ctx, [*(words or [verb]), *rest])
        if not words:
            raise FlrayError(f"flray {verb} is a table of flray doctor now: {name}")
        if name:
            ctx.obj = f"note: flray {verb} is now {name}"  # logged after -q, which may stand behind the verb
            if {"-h", "--help"} & set(rest):  # which ends the command before
                LOGGER.info(ctx.obj)
        near = get_close_matches(verb, [*self.commands, *BEFORE], 1)
        if near and near[0] in BEFORE and not name:
            ctx.fail(f"No such command {verb!r}. Did you mean {BEFORE[near[0]][1]!r}?")
        return super().resolve_command(ctx, [*words, *rest])

    def format_help(self, ctx: Any, formatter: Any) -> None:
        rows = "".join(f"  {name:<9}{words}\n" for name, words in VERBS.items())
        formatter.write(
            f"Usage: flray VERB ...   (flray VERB --help: what it does, and its options)\n\n{rows}\n"
            f"More: {', '.join(MORE)}\n"
            "Options: -q no progress and no notes, -v seconds and tracebacks, --version,\n"
            "  --install-completion, --show-completion (of the shell)\n\n"
            "Start with: flray init && flray run quickstart.yaml\n"
        )


app = typer.Typer(
    cls=FirstPage,
    help="Federated learning that does not forget, on Ray.",
    no_args_is_help=True,
    # boxes of help and usage errors on a terminal alone
    rich_markup_mode="markdown" if is_terminal(sys.stdout) else None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
papers = typer.Typer(
    help="The papers: their tables (reproduce), their claims (evidence).",
    no_args_is_help=True,
    rich_markup_mode="markdown" if is_terminal(sys.stdout) else None,
)


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version")
    ] = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    set_level(quiet, verbose)


for command in (
    begin.init, runs.run, runs.pretrain, runs.resume, sweeps.sweep, sweeps.ablate, begin.runs, begin.show,
    look.doctor, look.replay, comparing.compare, draw.figure, look.report, look.bench, proxies.synthesize,
    checking.check,
):  # fmt: skip
    app.command()(verb(command))
app.command("list")(verb(look.list_))
for about_papers in (reproduce.reproduce, evidence.evidence):
    papers.command()(verb(about_papers))
app.add_typer(papers, name="papers")


# a full or broken disk and too many open files: no defect, wherever a library meets them
OF_THE_MACHINE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENFILE)


def main() -> None:
    """Entry point: a `FlrayError` is one line and exit code 2; Ctrl-C is 130, SIGTERM (a stopped job) 143, SIGHUP 129.

    `interrupts.interruptible` handles Ctrl-C in a command that trains; typer turns any other into the code 130.
    """
    origin = Interpreter()
    open_standard_streams()
    once = functools.cache(LOGGER.warning)  # data that are loaded at two places warn at both
    warnings.showwarning = lambda message, *_, **__: once(str(message))
    try:
        runs.own_process = origin
        code = app(standalone_mode=False)
        code = code if isinstance(code, int) else 0
    except FlrayError as error:
        LOGGER.debug("", exc_info=True)
        LOGGER.error(str(error))
        code = 2
    except Exception as error:
        if getattr(error, "errno", None) in OF_THE_MACHINE and (problem := disk_problem(error)) is not None:
            LOGGER.debug("", exc_info=True)
            LOGGER.error(f"{getattr(error, 'filename', None) or 'a file'}: {problem[0]}; {problem[1]}")
            _exit(2)
        exit_code = getattr(error, "exit_code", None)  # of typer's own errors
        if exit_code is None:
            raise
        code = int(exit_code)
        show = getattr(error, "show", None)
        if show is not None:
            show()
    _exit(code)


def _exit(code: int) -> NoReturn:
    """End this process without waiting for a Ray that it started: all results are on disk and on the terminal.

    Functions registered with `atexit` run. If a thread must be waited for, this is Python's own exit, which waits.
    """
    cluster = sys.modules.get("flray.engine.ray.cluster")
    waited_for = [
        thread for thread in threading.enumerate() if not thread.daemon and thread is not threading.current_thread()
    ]
    flush()
    code = code or 2 * failed()
    if not waited_for and cluster is not None and cluster.started():
        try:
            with cluster.none_left(), contextlib.suppress(Exception):
                cluster.close()
            atexit._run_exitfuncs()
            flush()
        finally:
            os._exit(code)
    sys.exit(code)

"""The command line: `flray init | run | pretrain | resume | sweep | ablate | runs | list | doctor | replay | figure |
compare | show | watch | report | reproduce | bench | synthesize`."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import warnings
from typing import NoReturn

import typer

from flray.cli import begin, draw, look, proxies, reproduce, runs, sweeps, watch
from flray.core.schema.errors import FlrayError

app = typer.Typer(
    help="Federated learning that does not forget, on Ray.\n\nStart with: flray init && flray run quickstart.yaml",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

for command in (
    begin.init, runs.run, runs.pretrain, runs.resume, sweeps.sweep, sweeps.ablate, begin.runs, begin.show, watch.watch,
    look.doctor, look.replay, look.compare, draw.figure, look.report, look.bench, reproduce.reproduce,
    proxies.synthesize,
):  # fmt: skip
    app.command()(command)
app.command("list")(look.list_)


def main() -> None:
    """Entry point: a `FlrayError` is one line and exit code 2; Ctrl-C is 130, SIGTERM (a stopped job) 143.

    A command says itself what Ctrl-C left (`show.interruptible`); typer turns one that came before into the code 130.
    """
    warnings.showwarning = lambda message, *_, **__: print(f"warning: {message}", file=sys.stderr)
    try:
        runs.whole_process = True
        code = app(standalone_mode=False)
        code = code if isinstance(code, int) else 0
    except FlrayError as error:
        print(f"error: {error}", file=sys.stderr)
        code = 2
    except Exception as error:
        exit_code = getattr(error, "exit_code", None)  # of typer's own errors
        if exit_code is None:
            raise
        code = int(exit_code)
        show = getattr(error, "show", None)
        if show is not None:
            show()
    _exit(code)


def _exit(code: int) -> NoReturn:
    """End this process without waiting for a Ray that it started: everything is on disk and on the terminal by now.

    What others have registered with `atexit` runs; for a thread that has to be waited for, Python's own exit waits.
    """
    cluster = sys.modules.get("flray.engine.ray.cluster")
    waited_for = [
        thread for thread in threading.enumerate() if not thread.daemon and thread is not threading.current_thread()
    ]
    with contextlib.suppress(OSError):  # nobody reads any more: Python says so as it exits
        sys.stdout.flush()
        if not waited_for and cluster is not None and cluster.started():
            try:
                # it may still be starting: the kernel ends what there is of it, with this process
                with contextlib.suppress(Exception):
                    cluster.close()
                atexit._run_exitfuncs()
                sys.stdout.flush()
            finally:
                os._exit(code)
    sys.exit(code)

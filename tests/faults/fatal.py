"""An algorithm under which the server actor is killed with SIGKILL at a named moment; its bits are those of `own`.

The server's own methods send the signal, or a client's while the server waits for it, so that the moment does not
depend on the machine's load. `log` gets one line a kill: after `deaths` of them nothing happens any more.
"""

from __future__ import annotations

import functools
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from flray.algorithms import ALGORITHMS
from flray.core.messages import Batch
from flray.core.protocol.clock import Clock
from flray.core.protocol.context import Context
from flray.core.protocol.samples import ClientData
from flray.core.schema.hp import hp
from flray.engine.server import Server
from flray.rundir import checkpoint
from flray.rundir.run_store import RunStore
from tests.contracts.own import Own

PATIENCE_S = 60.0  # until a killed process is gone


class Fatal(Own, frozen=True):
    """`own`, until its moment comes."""

    moment: str = hp("", doc="WHERE PHASE ROUND/EXCHANGE/HOP, from 0; or WHERE and a checkpoint's name")
    deaths: int = hp(1, doc="how often it happens")
    log: str = hp("", doc="a file with a line for each kill; beside it .pid, the server's process")

    def reached(self, where: str) -> None:
        """Kill the server if this is the moment."""
        log = Path(self.log)
        if where != self.moment or (log.exists() and len(log.read_text().splitlines()) >= self.deaths):
            return
        pid = int(log.with_suffix(".pid").read_text())
        with suppress(FileExistsError):  # two clients come here at once
            log.with_suffix(f".{pid}").touch(exist_ok=False)
            with log.open("a") as file:
                file.write(f"{where}\n")
            os.kill(pid, signal.SIGKILL)
        until = time.monotonic() + PATIENCE_S
        while _lives(pid) and time.monotonic() < until:
            time.sleep(0.01)

    def at(self, where: str, clock: Clock) -> None:
        self.reached(f"{where} {clock.phase} {clock.round}/{clock.exchange}/{clock.turn}")

    # what a client does while the server waits
    def gradient(self, ctx: Context, broadcast: Any, client: Any, local: Any, batch: Batch) -> tuple[Any, Any]:
        if _is("ray::ClientActor"):  # the server counts the operations of a step with this very method
            self.at("work", ctx.clock)
        return super().gradient(ctx, broadcast, client, local, batch)

    def check(self, ctx: Context, broadcast: Any, client: Any, data: ClientData) -> Any:
        self.at("work", ctx.clock)
        return super().check(ctx, broadcast, client, data)

    def extend(self, ctx: Context, broadcast: Any, client: Any, data: ClientData) -> Any:
        self.at("work", ctx.clock)
        return super().extend(ctx, broadcast, client, data)


def _is(name: str) -> bool:
    """Whether this process has this name, of which Linux keeps 15 letters."""
    return Path("/proc/self/comm").read_text().strip() == name[:15]


def _lives(pid: int) -> bool:
    """Whether the process is there, and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _around(home: Any, name: str, before: Callable[..., None], after: Callable[..., None] | None = None) -> None:
    original = getattr(home, name)

    @functools.wraps(original)  # the driver asks for a method by its name
    def wrapped(self: Any, *arguments: Any, **options: Any) -> Any:
        server, *others = (self, *arguments) if home is Server else arguments  # a store is given the server
        fatal = getattr(server, "algorithm", None)
        if not isinstance(fatal, Fatal) or not _is("ray::ServerActor"):
            return original(self, *arguments, **options)
        before(fatal, server, *others)
        found = original(self, *arguments, **options)
        if after is not None:
            after(fatal, server, *others)
        return found

    setattr(home, name, wrapped)


def _known(fatal: Fatal, server: Any, *_: Any) -> None:
    Path(fatal.log).with_suffix(".pid").write_text(str(os.getpid()))


def _saved(where: str) -> Callable[..., None]:
    def reached(fatal: Fatal, server: Any, *_: Any) -> None:
        global _writing
        _writing = (fatal, server._committed.position.name)
        fatal.reached(f"{where} {_writing[1]}")

    return reached


def _scattering(store: Any) -> None:
    """The first client state of a cohort is stored, the others are not."""
    original = store.scatter

    def scatter(clients: Any, states: Any, stamp: int) -> None:
        original(clients[:1], states[:1], stamp)
        if _finishing is not None:
            _finishing[0].at("scatter", _finishing[1])
        original(clients[1:], states[1:], stamp)

    store.scatter = scatter


def _finish(fatal: Fatal, server: Any, plan: Any, *_: Any) -> None:
    global _finishing
    _finishing = (fatal, plan.clock)
    if "scatter" not in vars(server.client_store):
        _scattering(server.client_store)
    fatal.at("finish", plan.clock)


_writing: tuple[Fatal, str] | None = None  # the checkpoint that is being written
_finishing: tuple[Fatal, Clock] | None = None  # the exchange that is being finished

_around(Server, "facts", _known)
_around(Server, "broadcast", lambda fatal, server, clock, *_: fatal.at("broadcast", clock))
_around(Server, "published", lambda fatal, server, clock, *_: fatal.at("published", clock))
_around(Server, "_finish", _finish, lambda fatal, server, plan, *_: fatal.at("finished", plan.clock))
_around(Server, "commit", lambda fatal, server, position, *_: fatal.reached(f"commit {position.name}"))
_around(RunStore, "save", _saved("save"), _saved("saved"))
_around(
    RunStore,
    "save_model",
    lambda fatal, server: fatal.reached("model"),
    lambda fatal, server: fatal.reached("model written"),
)

_sealed = checkpoint.with_checksum


def _sealing(values: Any) -> str:
    """Three files of a checkpoint are written, its `meta.json` is not."""
    if _writing is not None:
        _writing[0].reached(f"writing {_writing[1]}")
    return _sealed(values)


checkpoint.with_checksum = _sealing
ALGORITHMS.add("fatal", Fatal)

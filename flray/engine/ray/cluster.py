"""Connect to Ray, or start it. Imports Ray and nothing else that is slow, so that it can run while torch is imported.

A Ray that flray starts is for this process alone: every port of its processes is bound to loopback, and Ray's token
keeps the machine's other users out. What others shall reach is started by `ray start`, whose `RAY_AUTH_MODE` a driver
has to know. One port is not Ray's and cannot be bound to loopback: the rendezvous of torch.distributed, where several
workers train on all data in one place.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import ray as ray
from ray.exceptions import RpcError

from flray.core.protocol.seeding import undisturbed, with_turn
from flray.core.schema.errors import ResourceError, message_of
from flray.engine import forked
from flray.engine.ray import alive
from flray.engine.ray.auth import INSECURE, AuthenticationError, make_ready, refused, set_mode
from flray.engine.ray.this_node import connection_id, raylet_socket
from flray.engine.ray.versions import CHANGED, fall_back, warn_untested

# every process of a Ray that is started here imports it while other things are made ready
ACTORS = "flray.engine.ray.actors"
AHEAD = 8  # of those processes for client actors at most; more start when they are asked for
ANSWER_S = 5.0  # how long a cluster's head may take to accept a connection
PROBE_S = 30.0  # how long a Ray to which this process is connected already may take to answer
START_S = 600.0  # how long Ray may take to start or to be joined, on a machine under load


def connect(address: str | None, num_cpus: int, trials: int = 0, insecure: bool = False) -> None:
    """Join the cluster at `address`, or start one here with `num_cpus`; nothing to do when this process is connected.

    One that is started here has processes that import what the actors of a run need, and as many more as there are
    `trials` of a sweep. With `insecure` it starts also where this Ray has no token or does not keep to loopback.

    `address` is HOST:PORT, `auto` (the cluster of this job, or of the last `ray start` here) or None (`RAY_ADDRESS`,
    else a new one). A cluster that is joined keeps its own resources. Raises `ResourceError` in one line, within
    seconds.
    """
    before = signal.getsignal(signal.SIGTERM)
    with lock:
        _refuse_parents_ray()
        warn_untested()
        if ray.is_initialized() and alive.lost(connection_id()):
            close()
            ray.shutdown()  # one that another started
        _connect(address, num_cpus, trials, insecure)
        watch()
    if started():
        _exit_on_sigterm(before)


def watch() -> None:
    """Watch over the Ray to which this process is connected, from now on."""
    connection = connection_id()
    if not alive.watches(connection):
        gcs_address = str(ray.get_runtime_context().gcs_address)
        alive.watch(connection, gcs_address, raylet_socket(), own=bool(_ours["cpus"]))


def _connect(address: str | None, num_cpus: int, trials: int, insecure: bool) -> None:
    if ray.is_initialized():
        if not _ours["cpus"]:
            return _check_joined(address)
        if address is None and _ours["cpus"] >= num_cpus:
            return
        if using := [user.run for user in borrowers if user.connected()]:
            wanted = f"address={address}" if address is not None else f"{num_cpus} CPUs"
            raise ResourceError(
                f"{wanted}: run {using[0]} of this process is not finished, and uses the Ray here of {_ours['cpus']} "
                "CPUs, which would have to end; let that run end or close its iterator first"
            )
        close()  # started early, on a guess, or for a run before
    where = f"address={address}" if address else f"RAY_ADDRESS={os.environ.get('RAY_ADDRESS')}"
    blank = f"address={address!r} is blank: leave it out" if address else "RAY_ADDRESS is blank: unset it"
    address = address or os.environ.get("RAY_ADDRESS")
    if address and not address.strip():
        raise ResourceError(blank)
    set_mode(address)
    if address:
        with undisturbed():  # Ray draws names for its connections, in a thread beside a user's own split or source
            _join(address, where)
        return
    _ours["cpus"] = num_cpus
    try:
        make_ready(insecure)
        with undisturbed():
            _in_thread_of_its_own(lambda: _start(num_cpus, min(num_cpus, AHEAD) + 1 + trials))
        if not _is_loopback():
            _refuse_open(insecure)
    except BaseException:
        _ours["cpus"] = 0
        _ended.set()
        leave_forks()
        raise


def _check_joined(address: str | None) -> None:
    """Check the Ray to which somebody else has connected this process. Raises `ResourceError` in one line if it is not
    the one at `address`, does not answer, or is reached by a client."""
    from ray.util.client import ray as client

    if client.is_connected():
        raise ResourceError(
            "this process reaches Ray through a client (ray://...), and a run's driver is a process of the cluster; "
            "send the run there: ray job submit --address http://HEAD:8265 -- flray run ..."
        )
    if not alive.watches(connection_id()):
        _probe()
    here = str(ray.get_runtime_context().gcs_address)
    if address not in (None, "auto") and not _same_place(str(address), here):
        raise ResourceError(
            f"address={address}: this process is connected to the Ray at {here} already; leave address out, or call "
            "ray.shutdown() first"
        )


def _same_place(address: str, other: str) -> bool:
    """Whether two `HOST:PORT` are one; all of this machine's own addresses are (127.0.0.1 and that of its network)."""
    (host, _, port), (other_host, _, other_port) = address.rpartition(":"), other.rpartition(":")
    with contextlib.suppress(OSError):
        host, other_host = (socket.gethostbyname(name.strip("[]")) for name in (host, other_host))
    return port == other_port and (host == other_host or (_is_here(host) and _is_here(other_host)))


def _is_here(host: str) -> bool:
    """Whether an IPv4 address is one of this machine, which reaches itself from the address that it asks for. Nothing
    is sent."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as found:
        found.connect((host, 9))
        return host.startswith("127.") or found.getsockname()[0] == host
    return False


def _probe() -> None:
    """Ask Ray something. Raises `ResourceError` if it does not answer: a forked process cannot use the connection of
    its parent, and Ray would wait for ever."""
    thread = threading.Thread(target=ray.nodes, daemon=True, name="flray-probe")
    thread.start()
    thread.join(PROBE_S)
    if thread.is_alive():
        raise ResourceError(
            f"the Ray to which this process is connected did not answer for {PROBE_S:.0f} s: its head has died, or "
            f"this process was forked from the one that is connected; {AFTER_FORK}"
        )


AFTER_FORK = "use multiprocessing.get_context('spawn'), or resources.executor=local"


def _refuse_parents_ray() -> None:
    if _parent["pid"]:
        raise ResourceError(
            f"this process was forked from process {_parent['pid']}, whose connection to Ray does not survive a fork; "
            f"{AFTER_FORK}"
        )


def _in_thread_of_its_own(start: Callable[[], None]) -> None:
    """Start Ray's processes in a thread that lasts as long as they: they are tied to the thread that started them, and
    die with it."""
    global _ended
    _ended.set()  # of a Ray that the user has ended
    done, ended, errors = threading.Event(), threading.Event(), list[BaseException]()

    def body() -> None:
        try:
            start()
        except BaseException as error:
            errors.append(error)
            return
        finally:
            done.set()
        ended.wait()

    threading.Thread(target=with_turn(body), daemon=True, name="flray-ray").start()
    if not done.wait(START_S):
        errors.append(ResourceError(f"a new cluster here: Ray did not start within {START_S:.0f} s; try again"))
    _ended = ended
    if errors:
        ended.set()
        raise errors[0]


def _start(num_cpus: int, processes: int) -> None:
    """Start a Ray here: with few processes, of which so many are for actors, or as Ray starts itself."""
    here, plain = "a new cluster here", {"address": "local", "num_cpus": num_cpus, "include_dashboard": False}
    try:
        from flray.engine.ray.private import start

        with start.loopback(), start.few_processes(processes, forks()):
            _init(here, **plain, **start.preloading(ACTORS, max(processes, num_cpus)))
    except Exception as error:  # this Ray does not come up that way
        ray.shutdown()
        leave_forks()
        with _loopback():
            _init(here, **plain)
        fall_back("fast start", "Ray starts all of its processes", error)


def forks() -> tuple[str, str] | None:
    """(where the workers of the Ray that starts now ask for forks of one process, the module that these have imported);
    None: this machine has none."""
    leave_forks()
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # no place for a socket; a fork saves time and memory, and changes no result
            _forked.append(forked.prepared.pop() if forked.prepared else forked.Programs(forked.SHARED))
    return (_forked[0].path, ACTORS) if _forked else None


def leave_forks() -> None:
    """The parent of the workers of a Ray that has ended here ends."""
    while _forked:
        _forked.pop().close()


def _loopback() -> AbstractContextManager[None]:
    try:
        from flray.engine.ray.private import start

        return start.loopback()
    except CHANGED:
        return nullcontext()


def _refuse_open(insecure: bool) -> None:
    """Stop the Ray that this process has started, which other machines can reach, unless `insecure` allows it."""
    if insecure:
        fall_back("loopback", "other machines can reach this Ray (resources.insecure_ray)")
        return
    ray.shutdown()
    raise ResourceError(
        f"Ray {ray.__version__} that flray starts is not bound to loopback: other machines could reach it; {INSECURE}, "
        "or install a Ray that flray was tested with"
    )


def _is_loopback() -> bool:
    """Whether the Ray that this process started listens on loopback only, as far as its GCS and its node say."""
    hosts = [str(ray.get_runtime_context().gcs_address), *(f"{node['NodeManagerAddress']}:0" for node in ray.nodes())]
    return all(host.rpartition(":")[0].strip("[]") in ("127.0.0.1", "::1", "localhost") for host in hosts)


lock = threading.RLock()  # of the connection, and of who uses it
borrowers: list[Any] = []  # the `ActorPool`s of runs that are not finished, the oldest first
_ours = {"cpus": 0}  # CPUs of the cluster that this process started, or is starting; 0: there is none
_forked: list[forked.Programs] = []  # the parent of the workers of a Ray of this process
_ended = threading.Event()  # of the thread that started it
_parent = {"pid": 0}  # of a process that was forked from one that was connected
_parents: list[Any] = []  # what is the parent's: an actor's handle that ends here would end the actor


def _before_fork() -> None:
    _parent["fork"] = os.getpid() if ray.is_initialized() or _parent["pid"] else 0


def _after_fork() -> None:
    """A forked process is not connected, holds no lock of another thread, and ends no Ray of its parent's as it
    ends."""
    global lock, borrowers
    lock = threading.RLock()
    _parents.append(borrowers)
    borrowers = []
    _parent["pid"] = _parent.pop("fork", 0)
    if _parent["pid"]:
        atexit.unregister(ray.shutdown)
        if _ours["cpus"]:  # else what becomes of Ray here is the user's
            with contextlib.suppress(*CHANGED):
                from flray.engine.ray.private.connection import abandon

                abandon()
    _ours["cpus"] = 0
    alive.forget()


def leave_to_parent(owned: Any) -> None:  # Any: whatever refers to objects of Ray
    """Keep what belongs to the parent of a forked process for good."""
    _parents.append(owned)


os.register_at_fork(before=_before_fork, after_in_child=_after_fork)


def starts_here(address: str | None) -> bool:
    """Whether a run at `address` uses a Ray that this process has started, or will."""
    return bool(_ours["cpus"]) or not (address or os.environ.get("RAY_ADDRESS") or ray.is_initialized())


def _join(address: str, where: str) -> None:
    if "://" in address:
        raise ResourceError(
            f"{where}: a run's driver is a process of the cluster; give the head's HOST:PORT (6379 if `ray start "
            "--head` was not told otherwise), or send the run there: ray job submit --address http://HEAD:8265 -- "
            "flray run ..."
        )
    try:
        resolved = _answering(address)
    except AuthenticationError as error:
        raise refused(where, error) from error
    except (OSError, ValueError, RpcError) as error:
        raise ResourceError(
            f"{where}: no Ray cluster answers ({message_of(error)}); start one with `ray start --head`, or leave it out"
        ) from error
    _init(where, address=resolved)


def _answering(address: str) -> str:
    """The address of a head that accepts a connection now: Ray itself tries for minutes."""
    try:
        from flray.engine.ray.private.connection import answering

        return answering(address, ANSWER_S)
    except CHANGED:
        fall_back("a quick look at the cluster", "Ray may try for minutes where none answers")
    host, _, port = address.rpartition(":")
    if port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), ANSWER_S).close()
    return address


def _init(where: str, **options: Any) -> None:  # Any: options of `ray.init`
    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
        _silence()
        _exit_on_sigterm(before)
    except AuthenticationError as error:
        raise refused(where, error) from error
    except Exception as error:  # a bare one if a node does not come up in time
        hint = "; install the cluster's versions" if "Version mismatch" in str(error) else ""
        if sys.stdout is None or sys.stderr is None:  # a daemon's
            hint = "; Ray writes to stdout and stderr: open them (2>/dev/null), or resources.executor=local"
        if "timed out" in str(error):
            hint = "; the machine may be busy: try again, or a single run without Ray: resources.executor=local"
        raise ResourceError(f"{where}: cannot connect to Ray ({message_of(error)}){hint}") from error


def _silence() -> None:
    """No log of a dead process of Ray on the terminal."""
    try:
        from flray.engine.ray.private.connection import silence

        silence()
    except CHANGED:
        fall_back("silence", "Ray may print logs of its own")


def close() -> None:
    if _ours["cpus"]:
        _ours["cpus"] = 0
        alive.forget()
        ray.shutdown()
        leave_forks()
        _ended.set()


atexit.register(close)  # before Ray's own function, which waits half a second for the last lines of workers


def none_left() -> AbstractContextManager[None]:
    """A block that ends this process's Ray: after it no process of it lives, also of one that is not up yet."""
    try:
        from flray.engine.ray.private import start

        return start.none_left()
    except CHANGED:
        return nullcontext()


def started() -> bool:
    """Whether this process has started a cluster, or is about to."""
    return bool(_ours["cpus"])


class Background:
    """Work in a thread beside this one."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._error: BaseException | None = None
        self._done = threading.Event()

        def body() -> None:
            try:
                work()
            except BaseException as error:
                self._error = error
            self._done.set()

        threading.Thread(target=with_turn(body), daemon=True, name="flray-start").start()

    @property
    def ready(self) -> bool:
        """Whether :meth:`join` returns at once."""
        return self._done.is_set()

    def join(self) -> None:
        """Wait for the work, which connects this process; raises its error, and `ResourceError` if it takes too long.

        Until :func:`left` SIGTERM ends this process as Ctrl-C does: what is done is saved.
        """
        if not self._done.wait(START_S):
            raise ResourceError(f"Ray did not start, or the cluster did not answer, within {START_S:.0f} s; try again")
        if self._error is not None:
            raise self._error
        _exit_on_sigterm(signal.getsignal(signal.SIGTERM))


_sigterm: dict[str, Any] = {}  # `before`: the user's handler (Any: as `signal.getsignal` returns it); `set`: ours


def _exit_on_sigterm(before: Any) -> None:  # Any: what `signal.getsignal` returns
    """`SystemExit` where a stopped Ray job or a SLURM job out of time gets SIGTERM; `before`: the handler before Ray, a
    user's own stays.

    In another thread than the main one `ray.init` leaves SIGTERM to a handler that ends the process on the spot, and no
    handler can be set.
    """
    if threading.current_thread() is not threading.main_thread() or (_sigterm and before is _sigterm["set"]):
        return
    handler = (lambda number, _: sys.exit(128 + number)) if before in (signal.SIG_DFL, None) else before
    signal.signal(signal.SIGTERM, handler)
    if handler is not before:
        _sigterm.update(before=before, set=handler)


def left() -> None:
    """A run has ended. After the last one the handler of SIGTERM is the user's own again, and nobody watches over a Ray
    that is not flray's."""
    if not borrowers and not started():
        alive.forget()
    if threading.current_thread() is threading.main_thread() and not borrowers and _sigterm:
        if signal.getsignal(signal.SIGTERM) is _sigterm["set"]:
            signal.signal(signal.SIGTERM, _sigterm["before"] or signal.SIG_DFL)
        _sigterm.clear()


@contextlib.contextmanager
def own_handlers() -> Iterator[None]:
    """A block in which Ray Tune or Ray Train runs. Each leaves handlers of its own for SIGINT and SIGUSR1; after the
    block they are the caller's again."""
    kept: list[tuple[signal.Signals, Any, Any]] = []
    system = ctypes.CDLL(None)
    if threading.current_thread() is threading.main_thread():  # elsewhere they set none
        for number in (signal.SIGINT, signal.SIGUSR1):
            action = ctypes.create_string_buffer(1024)  # no system has a larger `struct sigaction`
            system.sigaction(number, None, action)
            kept.append((number, signal.getsignal(number), action))
    try:
        yield
    finally:
        for number, handler, action in kept:
            if handler is not None:
                signal.signal(number, handler)
            system.sigaction(number, action, None)  # `signal` does not know a handler of `faulthandler`

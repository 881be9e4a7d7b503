"""Ray's channels between the actors of a compiled graph, of a fixed size and without a core that waits.

What Ray 2.60's own do: who waits for a message polls without a pause, which takes a core for each actor that has
nothing to do; the size that is asked for is not heeded; a message that is larger than the buffer leaves the old one
allocated for good, and a reader of the new one that never hears that the graph is torn down. Here the writer rings at
the reader's socket, the size is kept to, and what is larger goes through the object store.
"""

from __future__ import annotations

import contextlib
import math
import select
import socket
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ray.dag import DAGContext
from ray.dag.compiled_dag_node import CompiledDAG
from ray.exceptions import RayChannelTimeoutError, RayTaskError
from ray.experimental.channel.shared_memory_channel import (
    BufferedSharedMemoryChannel,
    CompositeChannel,
    SharedMemoryType,
)

from flray.engine.ray import Actor, Ref
from flray.engine.ray.cluster import ray

HEADER = 4096  # of a buffer: for what a message has around its bytes
LOOK_S = 0.1  # between two looks at a channel whose writer rings
POLL_S = 0.001  # the same where it cannot: it is on another node, or the system has no such sockets


class MessageRef(NamedTuple):
    """In place of a message that is larger than the channel; its writer holds it until it writes the next one."""

    ref: Ref


class ChannelType(SharedMemoryType):
    """The type of a channel with a buffer of `size` bytes; `graph` names the graph among all on this machine."""

    def __init__(self, size: int, graph: str) -> None:
        super().__init__(buffer_size_bytes=size + HEADER, num_shm_buffers=1)
        self._graph = graph

    # Any: the signature of Ray's own class
    def create_channel(self, writer: Any, reader_and_node_list: Any, driver_actor_id: str | None = None) -> Channel:
        context = DAGContext.get_current()  # of the writer's process: the only size that Ray heeds
        before, context.buffer_size_bytes = context.buffer_size_bytes, self.buffer_size_bytes
        try:
            if writer is not None and any(reader == writer for reader, _ in reader_and_node_list):
                # the writer stands for the driver (:func:`as_driver_proxy`), which is another process
                driver_channel = BufferedSharedMemoryChannel(writer, reader_and_node_list, self._num_shm_buffers)
                channels = {writer._actor_id.hex(): driver_channel}
                channel = Channel(
                    writer, reader_and_node_list, self._num_shm_buffers, driver_actor_id, channels, {driver_channel}
                )
                channel.to = "driver"
            else:
                channel = Channel(writer, reader_and_node_list, self._num_shm_buffers, driver_actor_id)
        finally:
            context.buffer_size_bytes = before
        channel.size, channel.graph, channel.home = self.buffer_size_bytes - HEADER, self._graph, _node_id()
        return channel


class Channel(CompositeChannel):
    """From one actor, or the driver, to others. A message lies in the buffer until no reader refers to it."""

    size, graph, home, to = 0, "", "", ""
    _message: Any = None

    def __reduce__(self) -> Any:
        return _rebuild_channel, (super().__reduce__()[1], self.size, self.graph, self.home, self.to)

    # Any: a message is anything that can be pickled
    def write(self, value: Any, timeout: float | None = None) -> None:
        message = ray._private.worker.global_worker.get_serialization_context().serialize(value)
        ref = None
        if message.total_bytes + len(message.metadata) > self.size:
            ref = ray.put(value)
            message = MessageRef(ref)
        super().write(message, timeout)
        self._message = ref
        for actor in self._channel_dict:
            _ring(self._doorbell_name(actor))

    def read(self, timeout: float | None = None) -> Any:
        until = math.inf if timeout is None or timeout == -1 else time.monotonic() + timeout
        while True:
            try:
                message = super().read(0)
                break
            except RayChannelTimeoutError:
                left = until - time.monotonic()
                if left <= 0:
                    raise
                self.wait(left)
        if isinstance(message, MessageRef):
            try:
                message = ray.get(message.ref)
            except RayTaskError as error:  # a message like any other
                return error
        return message

    def wait(self, seconds: float) -> None:
        """Until there may be a message for this process, `LOOK_S` or as many seconds at the most; what this process has
        to do meanwhile (:func:`before_waiting`) comes first."""
        while _first:
            _first.pop()()
        if sys.platform != "linux" or self.home != _node_id():
            time.sleep(min(seconds, POLL_S))
            return
        _doorbell(self._doorbell_name(self._resolve_actor_id())).wait(min(seconds, LOOK_S))

    def close(self) -> None:
        super().close()
        self._message = None
        _first.clear()
        for actor in self._channel_dict:
            _doorbells.pop(self._doorbell_name(actor), None)

    def _doorbell_name(self, actor: str) -> str:
        return f"\0flray-{self.graph}-{self.to}{actor}"  # an abstract socket: no file, gone with its process


class Doorbell:
    """A socket on which a process is told that there may be something to read; then it looks at all its channels."""

    def __init__(self, name: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind(name)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)

    def wait(self, seconds: float) -> None:
        self._poll.poll(seconds * 1000)
        with contextlib.suppress(BlockingIOError):
            while True:
                self._socket.recv(1)


_first: list[Callable[[], object]] = []
_doorbells: dict[str, Doorbell] = {}
_ringer: socket.socket | None = None


def before_waiting(work: Callable[[], object]) -> None:
    """Call `work` once, when the thread that works in a graph has written its message and waits for the next one."""
    _first.append(work)


def _doorbell(name: str) -> Doorbell:
    """This process's bell of that name; it sounds from the first wait on, and who waits has looked before."""
    if name not in _doorbells:
        _doorbells[name] = Doorbell(name)
    return _doorbells[name]


def _ring(name: str) -> None:
    global _ringer
    if _ringer is None:
        _ringer = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        _ringer.setblocking(False)
    # it does not listen yet, has heard enough, or is on another node and looks by itself
    with contextlib.suppress(OSError):
        _ringer.sendto(b"\0", name)


def _node_id() -> str:
    node_id: str = ray.get_runtime_context().get_node_id()
    return node_id


def _rebuild_channel(arguments: tuple[Any, ...], size: int, graph: str, home: str, to: str) -> Channel:
    channel = Channel(*arguments)
    channel.size, channel.graph, channel.home, channel.to = size, graph, home, to
    return channel


@contextlib.contextmanager
def as_driver_proxy(actor: Actor, there: str) -> Iterator[None]:
    """Graphs that are compiled here ask `actor`, which is on the node `there`, where they would ask their driver, which
    answers no calls.

    Ray starts a process for that in each graph, 330 MB like every one that imports torch; nobody calls it as long as
    the driver is on one node with the actor that writes its answers. Elsewhere `actor` is not asked, and Ray starts it.
    """
    before = CompiledDAG.DAGDriverProxyActor
    if there == _node_id():
        CompiledDAG.DAGDriverProxyActor = _ExistingActor(actor)
    try:
        yield
    finally:
        CompiledDAG.DAGDriverProxyActor = before


class _ExistingActor:
    """In place of an actor class: the actor that is there already."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor

    # Any: options of Ray that are not read
    def options(self, **_: Any) -> _ExistingActor:
        return self

    def remote(self) -> Any:
        return self._actor

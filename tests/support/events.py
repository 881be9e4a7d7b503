"""TensorBoard's files, record by record."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any


def events_of(path: Path) -> Iterator[Any]:
    """The events of a file: each is its length (8 bytes), a checksum (4), the event, a checksum (4)."""
    from tensorboardX.proto.event_pb2 import Event

    content, at = path.read_bytes(), 0
    while at < len(content):
        length = int.from_bytes(content[at : at + 8], "little")
        yield Event.FromString(content[at + 12 : at + 12 + length])
        at += 16 + length

"""The curves of a run for TensorBoard, in its folder `tensorboard/`.

The caller's thread writes the events, without tensorboardX's own thread: that one dies when the machine's clock is set
back by weeks, and a caller that fills its queue then waits for ever.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flray.core.schema.errors import described, warn

NOT_CURVES = ("done", "task", "round")


class Curves:
    """The numbers of rows as curves over the rounds done. A failure is one warning, and the run goes on without."""

    def __init__(self) -> None:
        self._file: Any = None
        self._broken = False

    def add(self, folder: Path, rows: Sequence[tuple[int, Mapping[str, Any]]]) -> None:
        """Write rows (rounds done, row) to a file in `folder`, which is made at the first row. TensorBoard leaves out
        the curves' points after that row in earlier files."""
        if self._broken or not rows:
            return
        try:
            if self._file is None:
                self._file = _open(folder, rows[0][0])
            for done, row in rows:
                for name, value in row.items():
                    if name not in NOT_CURVES and isinstance(value, int | float):
                        self._file.write_event(_event(done, name, value))
            self._file.flush()
        except Exception as error:  # of a disk, or of a library whose parts have changed
            self._broken = True
            what = f"{folder}: TensorBoard's curves cannot be written ({described(error)})"
            warn(f"{what}; the run goes on without them")

    def close(self) -> None:
        if self._file is not None and not self._broken:
            self._file.close()
            self._file = None


def _open(folder: Path, first: int) -> Any:
    from tensorboardX.event_file_writer import EventsWriter
    from tensorboardX.proto.event_pb2 import Event, SessionLog

    folder.mkdir(exist_ok=True)
    # the name contains seconds: a resume in the same one has another file
    file = EventsWriter(str(folder / "events"), f".{secrets.token_hex(4)}")
    start = SessionLog(status=SessionLog.START)
    file.write_event(Event(wall_time=time.time(), step=first, session_log=start))
    return file


def _event(done: int, name: str, value: float) -> Any:
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.summary import scalar

    return Event(wall_time=time.time(), step=done, summary=scalar(name, float(value)))

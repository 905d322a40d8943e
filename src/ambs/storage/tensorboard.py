"""TensorBoard's view of a run: event files made from the rows of `metrics.jsonl` and `episodes.jsonl`, nothing else."""

import io
import itertools
import os
import socket
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ambs.errors import UserError, extras
from ambs.storage.files import write_all

MISSING = ""
"""Why nothing is written for TensorBoard; empty if it is."""
try:
    with extras():
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter
except UserError as error:
    MISSING = f"nothing is written for TensorBoard: {error}"

_FLUSH_BYTES = 1 << 20
_counter = itertools.count()


class EventFile:
    """One event file. Nothing reaches the disk before `flush`, whose OSError leaves the file unusable.

    TensorBoard's own `EventFileWriter` writes from a thread, where a full disk ends in a traceback on the terminal; this
    uses its record format only.
    """

    def __init__(self, folder: Path) -> None:
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{next(_counter)}"
        self._buffer = io.BytesIO()
        self._records = RecordWriter(self._buffer)
        self._records.write(Event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString())
        self._fd = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)

    def add(self, row: Mapping[str, Any], prefix: str) -> None:
        """Every number of a row as a scalar `prefix + its name`; step: `frames`, wall time: `time`."""
        values = [
            Summary.Value(tag=prefix + name, simple_value=value)
            for name, value in row.items()
            if isinstance(value, int | float) and name not in ("frames", "time")
        ]
        event = Event(wall_time=row["time"], step=row["frames"], summary=Summary(value=values))
        self._records.write(event.SerializeToString())

    def flush(self) -> None:
        """Hand everything to the operating system."""
        write_all(self._fd, self._buffer.getvalue())
        self._buffer.seek(0)
        self._buffer.truncate()

    def close(self) -> None:
        """Close the file; what was not flushed is lost."""
        os.close(self._fd)


def rewrite(folder: Path, rows: Mapping[str, Iterable[dict[str, Any]]]) -> EventFile | None:
    """Delete the folder's event files and write a new one from rows by prefix; it stays open for more. None, and nothing done,
    where TensorBoard is not installed."""
    if MISSING:
        return None
    folder.mkdir(exist_ok=True)
    for old in folder.glob("events.out.tfevents.*"):
        old.unlink()
    events = EventFile(folder)
    try:
        for prefix, part in rows.items():
            for row in part:
                events.add(row, prefix)
                if events._buffer.tell() > _FLUSH_BYTES:
                    events.flush()
        events.flush()
    except BaseException:
        events.close()
        raise
    return events

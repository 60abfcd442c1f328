"""TensorBoard's event file of a training run, which every reading of its curve continues where it ends.

An event file is a row of records: length (uint64), its checksum (uint32), data, checksum of the data (uint32). The
first names the format. There is one event per line of the curve, so the number of whole records says what is written.
"""

import struct
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]
from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]
from tensorboard.summary.writer.record_writer import RecordWriter

from deepsearch_rl.training.curves import CurveLine

FORMAT = "brain.Event:2"
_HEADER_BYTES, _FOOTER_BYTES = 12, 4


def write_events(path: Path, steps: Iterable[CurveLine], prefix: str) -> None:
    """Append those of a run's steps that the event file does not have, each metric named ``<prefix><name>``.

    A record that a kill cut off is written again.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        written = _count_records(file)
        writer = RecordWriter(file)
        if not written:
            writer.write(Event(file_version=FORMAT).SerializeToString())
        for line in list(steps)[max(0, written - 1) :]:
            pairs = ((name, value) for name, value in line.metrics.items() if value is not None)
            values = [Summary.Value(tag=f"{prefix}{name}", simple_value=value) for name, value in pairs]
            event = Event(wall_time=line.time_ms / 1000, step=line.step, summary=Summary(value=values))
            writer.write(event.SerializeToString())


def _count_records(file: BinaryIO) -> int:
    """Return the number of whole records; cut off what stands behind them."""
    size, count, end = file.tell(), 0, 0
    while end + _HEADER_BYTES <= size:
        file.seek(end)
        (length,) = struct.unpack("<Q", file.read(8))
        behind = end + _HEADER_BYTES + length + _FOOTER_BYTES
        if behind > size:
            break
        count, end = count + 1, behind
    file.truncate(end)
    return count

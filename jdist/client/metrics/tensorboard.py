"""TensorBoard: the points of a run as event files, in a folder for each rank, which it draws side by side."""

import os
from collections.abc import Iterable
from pathlib import Path

from jdist.core.errors import UsageError

_Point = tuple[int, int, str, float, float]  # Step, rank, name, value, time.


def write_events(points: Iterable[_Point], directory: str | os.PathLike[str], run: int) -> Path:
    """Write ``directory/run7/rank0`` and so on; the folder of the run. Raises UsageError if that cannot be done.

    The files of an earlier call stay: TensorBoard shows the points of all files in a folder.
    """
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError as e:
        text = f"tensorboard cannot be imported in the notebook's environment ({e}): pip install tensorboard"
        raise UsageError(f"{text}; a CSV file needs no further package") from None
    target = Path(directory).expanduser() / f"run{run}"
    writers: dict[int, EventFileWriter] = {}
    try:
        for step, rank, name, value, time in points:
            if rank not in writers:
                writers[rank] = EventFileWriter(str(target / f"rank{rank}"))
            summary = Summary(value=[Summary.Value(tag=name, simple_value=value)])
            writers[rank].add_event(Event(wall_time=time, step=step, summary=summary))
    except OSError as e:
        raise UsageError(f"the metrics cannot be written to {target}: {e.strerror or e}") from None
    finally:
        for writer in writers.values():
            writer.close()
    return target

"""Resources: what a node and the processes of its ranks have used over time, and which runs there were meanwhile.

The clocks of hosts differ, so times are ages: seconds before the answer was given. The quantities are ``cpu`` (busy
cores), ``memory`` (bytes), ``gpu`` (share of the time in which it was busy, 0 to 1), ``gpu_memory`` (bytes), and of
nodes ``received`` and ``sent`` (bytes per second over the network, without the loopback interface).
"""

from msgspec import Struct

from jdist.core.messages.base import Message

Series = dict[str, tuple[float, ...]]  # By quantity; NaN where it is unknown.


MOST_SECONDS = 7200
"""For longer than this, nothing is recorded."""


class ReadResources(Message, frozen=True):
    """Ask for the last ``seconds``, averaged over that many ``points`` at most."""

    seconds: float
    points: int


class NodeResources(Message, frozen=True):
    """A node's answer. A quantity that the node does not have, such as ``gpu``, is left out."""

    ages: tuple[float, ...]  # Of the points in the series, the oldest first.
    node: Series
    ranks: dict[int, Series]
    cores: int  # That the agent's processes may use.
    memory: int  # Bytes of memory that the node has.
    gpus: int = 0
    gpu_memory: int = 0  # Bytes of all of its GPUs; 0 if unknown.


class ListRuns(Message, frozen=True):
    """Ask the controller for the runs of the last ``seconds``, and those that are still active."""

    request: str
    seconds: float


class RunInterval(Struct, frozen=True):
    """When a run was active."""

    run: int
    ranks: tuple[int, ...]
    began: float  # Seconds before the answer.
    ended: float | None  # None: it is still active.


class RunIntervals(Message, frozen=True):
    """The runs, oldest first."""

    request: str
    runs: tuple[RunInterval, ...]


ClientMessage = ListRuns
ToClient = RunIntervals
NodeOp = ReadResources
NodeReplyBody = NodeResources

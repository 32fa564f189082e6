"""Nodes: what a node reports of itself, the network path to another node, and resources over time. Sizes in bytes.

The clocks of hosts differ, so times are ages: seconds before the answer was given. The quantities are ``cpu`` (busy
cores), ``memory`` (bytes), ``gpu`` (share of the time in which it was busy, 0 to 1), ``gpu_memory`` (bytes), and of
nodes ``received`` and ``sent`` (bytes per second over the network, without the loopback interface).
"""

from typing import Literal

from msgspec import Struct

from jdist.core.messages.base import Message

UNLIMITED = -1


class Gpu(Struct, frozen=True):
    """One GPU, as the driver describes it."""

    name: str
    memory: int
    used: int


class GpuUse(Struct, frozen=True, omit_defaults=True):
    """A rank's share of its GPU, and how busy the GPU is, as the driver reports it."""

    name: str  # "GPU 3 (NVIDIA H200)", by the driver's number, or "a slice of" it.
    total: int = 0  # 0: not reported, as for a slice, or a GPU that uses the host's memory.
    used: int = 0  # By all processes.
    own: int | None = None  # By the rank's process; None if not reported, as often in a container.
    busy: float | None = None  # Share of the last second or less in which the GPU was busy, 0 to 1; None if unknown.


class Disk(Struct, frozen=True):
    """The file system that a folder lies on."""

    what: str  # Purpose of the folder: "working directory", "temporary files", "/dev/shm".
    path: str
    total: int
    free: int


class Limits(Struct, frozen=True):
    """Soft limits of a process or user (``ulimit``); UNLIMITED if there is none."""

    nofile: int
    memlock: int  # Bytes.
    nproc: int


class Lack(Struct, frozen=True):
    """A feature of jdist that does not work with the installed torch, which lacks these names."""

    feature: str
    names: tuple[str, ...]


class TorchFacts(Struct, frozen=True):
    """Facts about torch on a node where it was imported."""

    version: str
    cuda: str  # The CUDA version it was built for; "" for a CPU build.
    nccl: str  # "" where there is none.
    gpus: int  # Number of GPUs that it can use.
    trouble: str = ""  # Why it can use no GPU, though it was built for CUDA.
    lacks: tuple[Lack, ...] = ()


class NodeReport(Message, frozen=True):
    """A report of one node. A brief one leaves out what takes time to find out."""

    hostname: str
    address: str  # Address of the interface that reaches the controller.
    python: str
    torch: str
    jdist: str
    cpus: int
    memory: int
    disks: tuple[Disk, ...]
    limits: Limits
    interfaces: tuple[str, ...]  # Names of the node's network interfaces.
    chosen_interface: str  # The interface that gloo and NCCL use; "" if they choose.
    is_users_choice: bool  # Whether the user's environment named it.
    rdma: tuple[str, ...]  # InfiniBand or RoCE devices.
    gpu_count: int  # Visible to the node's ranks.
    gpus: tuple[Gpu, ...] = ()
    driver: str = ""
    facts: TorchFacts | None = None
    trouble: tuple[str, ...] = ()  # What could not be examined, and why.
    now: float = 0.0  # The node's wall clock.
    lacks: tuple[Lack, ...] = ()  # As far as a worker knew when it was started.
    is_carried: bool = False  # As in `NodeFacts`.


class NetworkPath(Message, frozen=True):
    """The network path from one node to another, as it was probed."""

    name: str  # The other node's host name; `addresses` is what it resolved to.
    addresses: tuple[str, ...]
    name_trouble: str  # Why the name could not be looked up; "" if it could.
    trouble: str = ""  # Why its port was not reached; "" if it was.
    kind: str = ""  # "timeout", "refused", "unreachable" or "broken", if there was trouble.
    round_trip: float = 0.0  # Seconds, the shortest of several.


class ReadClock(Message, frozen=True):
    """Ask for the node's time."""


class ClockReading(Message, frozen=True):
    """The node's wall clock, seconds since the epoch."""

    now: float


class ReportNode(Message, frozen=True):
    """Ask for a report of the node; ``is_brief``: only what is known at once."""

    is_brief: bool = False


class Listen(Message, frozen=True):
    """Listen for other nodes at a port that the system chooses, for ``seconds``; 0: stop."""

    token: str  # The bytes with which a connection must begin.
    seconds: float


class Listening(Message, frozen=True):
    """The port; 0: it is closed."""

    port: int


class ProbePath(Message, frozen=True):
    """Probe the path to another node, which listens: look up its name, connect, measure."""

    hostname: str
    address: str
    port: int
    token: str
    timeout: float  # Seconds to look up the name, and again to connect.


# cpu: busy cores. memory, gpu_memory: bytes. gpu: the share of the time in which it was busy, 0 to 1. received, sent:
# bytes per second over the network.
Quantity = Literal["cpu", "memory", "gpu", "gpu_memory", "received", "sent"]
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
NodeOp = ReadClock | ReportNode | Listen | ProbePath | ReadResources
NodeReplyBody = ClockReading | NodeReport | Listening | NetworkPath | NodeResources

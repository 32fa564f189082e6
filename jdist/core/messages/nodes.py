"""Nodes: a node's clock, the report of what is found on it, and the network path to another. Sizes in bytes."""

from __future__ import annotations

from msgspec import Struct

from jdist.core.messages.base import Message

UNLIMITED = -1


class Gpu(Struct, frozen=True):
    """One GPU, as the driver describes it."""

    name: str
    memory: int
    used: int


class GpuUse(Struct, frozen=True, omit_defaults=True):
    """What a rank has of its GPU, and how busy that is, as the driver tells."""

    name: str
    """"GPU 3 (NVIDIA H200)", by the driver's number, or "a slice of" it."""
    total: int = 0
    """0: the driver does not tell, as of a slice, or of a GPU that has the host's memory."""
    used: int = 0
    """By anybody."""
    own: int | None = None
    """By the rank's process; None where the driver does not tell, as often in a container."""
    busy: float | None = None
    """Share of the last second or less in which the GPU worked, for anybody, 0 to 1; None where it is not known."""


class Disk(Struct, frozen=True):
    """The file system that a folder lies on."""

    what: str
    """What the folder is for: "working directory", "temporary files", "/dev/shm"."""
    path: str
    total: int
    free: int


class Limits(Struct, frozen=True):
    """What one process, or one user, may have (``ulimit``'s soft limits); UNLIMITED where there is none."""

    nofile: int
    memlock: int
    """Bytes."""
    nproc: int


class TorchFacts(Struct, frozen=True):
    """What torch says about itself where it has been imported."""

    version: str
    cuda: str
    """That it was built with; "" for a CPU build."""
    nccl: str
    """"" where there is none."""
    gpus: int
    """That it can use."""
    trouble: str = ""
    """Why it can use none, though it was built for it."""


class NodeReport(Struct, frozen=True):
    """One node. What takes longer than a moment to find out is left open in a report that is made in short."""

    hostname: str
    address: str
    """Of the interface that reaches the controller."""
    python: str
    torch: str
    jdist: str
    cpus: int
    memory: int
    disks: tuple[Disk, ...]
    limits: Limits
    interfaces: tuple[str, ...]
    """Names of the node's network interfaces."""
    chosen_interface: str
    """The one that gloo and NCCL use; "" if they are left to choose."""
    is_users_choice: bool
    """Whether it was in the environment already."""
    rdma: tuple[str, ...]
    """InfiniBand or RoCE devices."""
    gpu_count: int
    """Visible to the node's ranks."""
    gpus: tuple[Gpu, ...] = ()
    driver: str = ""
    facts: TorchFacts | None = None
    trouble: tuple[str, ...] = ()
    """What could not be looked at, and why."""


class NetworkPath(Struct, frozen=True):
    """The way from one node to another, as it was found by going it."""

    name: str
    """The other node's host name, and what it was found to mean here."""
    addresses: tuple[str, ...]
    name_trouble: str
    """Why the name could not be looked up; "" if it could."""
    trouble: str = ""
    """Why its port was not reached; "" if it was."""
    kind: str = ""
    """"timeout", "refused", "unreachable" or "broken", if there was trouble."""
    round_trip: float = 0.0
    """Seconds, the shortest of several."""
    bandwidth: float = 0.0
    """Bytes per second in a short burst over one connection."""


class ReadClock(Message, frozen=True):
    """What time is it?"""


class ClockReading(Message, frozen=True):
    """The node's wall clock, seconds since the epoch."""

    now: float


class ReportNode(Message, frozen=True):
    """What is on the node? ``is_brief``: only what is known at once."""

    is_brief: bool = False


class NodeReported(Message, frozen=True):
    """What was found."""

    report: NodeReport
    now: float
    """The node's wall clock."""


class Listen(Message, frozen=True):
    """Be reachable for other nodes at a port that the system chooses, for ``seconds``; 0: no longer."""

    token: str
    """What a connection must begin with."""
    seconds: float


class Listening(Message, frozen=True):
    """Where; 0: nowhere any more."""

    port: int


class ProbePath(Message, frozen=True):
    """Go the way to another node, which listens: look up its name, connect, measure."""

    hostname: str
    address: str
    port: int
    token: str
    timeout: float
    """Seconds to look up the name, and again to connect."""
    burst: float
    """Seconds for which bandwidth is measured; 0: not at all."""


class PathProbed(Message, frozen=True):
    """How it went."""

    path: NetworkPath

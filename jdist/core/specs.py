"""Specs: what a program of jdist passes to another when it starts it. Encoded and decoded by msgspec on both sides.

The controller's is `StartController` in `jdist.wire.transport.keys`, because a charter with keys belongs to it.
"""

from __future__ import annotations

from msgspec import Struct


class WorkerSpec(Struct, frozen=True):
    """Passed by an agent to a worker that it starts."""

    rank: int
    gpu_index: int
    """The GPU that is the worker's own among the node's workers, from 0."""
    identity: str
    """The worker's identity at the agent's socket."""
    connection_file: str
    """Kernel connection file, transport ipc, in the agent's private directory."""
    agent_socket: str
    """The agent's ipc socket for jdist's own messages."""
    handover_socket: str
    """Unix socket where the agent hands over connections to the data port."""
    cluster: str
    threads: int


class StoreSpec(Struct, frozen=True):
    """Passed by an agent to the rendezvous store's process: where to listen, and the Unix socket to report to."""

    host: str
    port: int
    """0: any free port."""
    report_to: str


class StoreReport(Struct, frozen=True):
    """The store's port, or the reason why it cannot listen."""

    port: int = 0
    error: str = ""


class TorchFactsSpec(Struct, frozen=True):
    """Passed to the process that asks torch about a node. It reports `TorchFacts` to a Unix socket."""

    report_to: str


class SshBootstrapSpec(Struct, frozen=True):
    """Passed over ssh to the bootstrap script, which starts a node's agent and reports one line after ``mark``."""

    mark: str
    python: tuple[int, int]
    """The oldest version of Python that will do."""
    jdist: str
    """The version that has to be installed there."""
    directory: str
    env: dict[str, str]
    words: tuple[str, ...]
    """The agent's command line."""
    log: str
    """Name of the log file, to which the process id is added."""

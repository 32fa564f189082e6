"""Deadlines and limits, in one place. Seconds unless said otherwise."""

from __future__ import annotations

from typing import Literal, get_args

from msgspec import Struct

OnDeath = Literal["replace", "wait", "stop"]
"""What follows a rank's death. replace: a fresh process takes its place. wait: the place stays empty until somebody
restarts the rank. stop: the cluster is stopped."""
ON_DEATH: tuple[str, ...] = get_args(OnDeath)


class Host(Struct, frozen=True):
    """A host as a user names it: where a node's agent is to be started."""

    name: str
    """As in ssh's configuration: a name, an alias or an address."""
    slots: int = 0
    """Ranks on it; 0: as the cluster's other nodes."""
    python: str = ""
    """The interpreter there; empty: as the launcher chooses."""
    directory: str = ""
    """The working directory there; empty: where a login starts."""


class Settings(Struct, frozen=True, kw_only=True):
    """What a cluster is started with; travels to the controller as JSON on its standard input."""

    name: str
    nnodes: int = 1
    """0 until the launcher has said: as it finds them."""
    nproc_per_node: tuple[int, ...] = ()
    """Empty: each node says (one rank per GPU, else 2)."""
    backend: str = ""
    """Empty: nccl with gloo for CPU tensors where every rank has a GPU, else gloo."""
    init_method: str = "env://"
    bind_host: str = ""
    """Address of this host at which nodes reach the controller, "*" for any. Empty: they are all on this host."""
    launcher: str = "local"
    launcher_args: tuple[str, ...] = ()
    """What the user wrote after ``--``."""
    hosts: tuple[Host, ...] = ()
    """``--hosts`` or ``--hostfile``, for launchers that start one node on each."""
    env: tuple[tuple[str, str], ...] = ()
    """Variables for every node's agent, and with it for the node's ranks."""
    min_nodes: int = 0
    """The world is formed with as many if the others cannot be had; 0: all of them are needed."""
    fork: bool = True
    """How its agents were started, for one that has to be started again."""
    on_death: OnDeath = "replace"
    warm: bool = True
    """While a node is idle, import ahead what its next workers' first optimizer would; see agent/starters/warming."""

    form_timeout: float = 120.0
    """For one forming of the world, once every worker is up."""
    interrupt_grace: float = 5.0
    """From an interrupt until a rank that did not come back is replaced."""
    agent_grace: float = 60.0
    """From losing the controller until an agent ends its workers; as long the controller can be started again."""
    beat_timeout: float = 3.0
    """Without a word from an agent until its node counts as cut off. Nothing is lost by that."""
    node_grace: float = 15.0
    """Without a word from an agent until its node is given up, and its ranks with it."""
    invitation: float = 86400.0
    """For which a join line can be used."""
    idle_timeout: float = 3600.0
    """Without a client and a run until the controller ends the cluster."""
    empty_timeout: float = 600.0
    """Without a client while nodes are still missing."""
    output_lines: int = 2000
    """Lines of a rank's stream per run that travel to the notebook; all of them are in the rank's log."""


REFORM_TIMEOUT = 180.0
"""For what is asked for and needs the world formed again: all deadlines on the way there together."""

BEAT = 1.0
"""Between two beats of an agent."""

INLINE_LIMIT = 256 * 1024
"""Bytes of a value that travel with the message; larger ones go through shared memory or the data port."""

OUTPUT_DELAY = 0.02
"""How long an agent gathers its ranks' output before it sends it on as one message."""


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

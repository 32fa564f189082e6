"""Settings of a cluster, the options of a start that they come from, and specs of started programs.

Deadlines and limits are in seconds unless said otherwise. The releases of torch with which jdist is tested are the
oldest, which it requires at least, and the newest.

The controller's spec is `StartController` in `jdist.wire.transport.keys`, because a charter with keys belongs to it.
"""

import functools
from typing import Annotated, Any, Literal, get_args, get_origin

from msgspec import Struct
from msgspec.structs import fields

from jdist.core import __version__

OLDEST_PYTHON = (3, 11)
OLDEST_TORCH = "2.12.1"
NEWEST_TORCH = "2.14.1"
ADVICE = f"jdist is tested with torch {OLDEST_TORCH} to {NEWEST_TORCH}; install one of these, or a newer jdist"


# What follows a rank's death. replace: start a fresh process in its place. wait: leave the place empty until the user
# restarts the rank. stop: stop the cluster.
OnDeath = Literal["replace", "wait", "stop"]
ON_DEATH: tuple[str, ...] = get_args(OnDeath)


class Host(Struct, frozen=True):
    """A host, as a user names it, on which a node's agent is started."""

    name: str  # A name, an address, or an alias of ssh's configuration.
    slots: int = 0  # Number of ranks; 0: as many as on the cluster's other nodes.
    python: str = ""  # The interpreter there; empty: the launcher chooses.
    directory: str = ""  # The working directory there; empty: the login directory.


class Settings(Struct, frozen=True, kw_only=True):
    """The settings of a cluster; sent to the controller as JSON on its standard input."""

    name: str
    nnodes: int = 1  # 0 until the launcher has found out.
    nproc_per_node: tuple[int, ...] = ()  # Empty: each node decides (one rank per GPU, else 2).
    backend: str = ""  # Empty: nccl with gloo for CPU tensors where every rank has a GPU, else gloo.
    init_method: str = "env://"
    bind_host: str = ""  # Address at which nodes reach the controller, "*" for any; empty if all nodes are on its host.
    launcher: str = "local"
    launcher_args: tuple[str, ...] = ()  # The user's words after `--`.
    hosts: tuple[Host, ...] = ()  # From `--hosts` or `--hostfile`, for launchers that start one node on each.
    env: tuple[tuple[str, str], ...] = ()  # Variables for every node's agent, and so for the node's ranks.
    min_nodes: int = 0  # Form the world with so many nodes if the others are not available; 0: all are needed.
    fork: bool = True  # Whether workers are forked; kept for agents that are started again.
    on_death: OnDeath = "replace"
    warm: bool = True  # While a node is idle, import ahead what its next workers need; see agent/processes/starter.

    form_timeout: float = 120.0  # Time to form the world once every worker is up.
    interrupt_grace: float = 5.0  # Time from an interrupt until a rank that did not stop is replaced.
    handler_grace: float = 30.0  # Time for which a cell's own handlers of an interrupt may run, such as a `finally`.
    end_grace: float = 10.0  # Time for a rank to end as a kernel does (exit functions, threads), before it is killed.
    agent_grace: float = 60.0  # Time for the controller to be restarted, after which an agent ends its workers.
    leave_grace: float = 25.0  # Time that a node stays for a last save after SIGTERM; Slurm and Kubernetes give 30 s.
    beat_timeout: float = 3.0  # Time without a heartbeat until a node counts as unreachable, which loses nothing.
    node_grace: float = 15.0  # Time without a heartbeat until a node is dropped, and its ranks with it.
    carried_grace: float = 600.0  # Both graces of a node whose connections a login carries: logins break, and return.
    invitation: float = 86400.0  # The lifetime of a join line.
    idle_timeout: float = 3600.0  # Time without any client or run until the controller ends the cluster.
    empty_timeout: float = 600.0  # Time without clients until the cluster ends, while nodes are missing.
    until: int = 0  # Process id on the controller's host: the cluster ends with that process. 0: none.
    output_lines: int = 2000  # Lines per run and stream that reach the notebook; the rank's log has all.


class Option(Struct, frozen=True):
    """How a command line shows an option of a start or a cell: its help, and the words with which it is given."""

    help: str  # Empty: it is no option of a command line.
    short: str = ""  # Another way to write it, such as ``-n``.
    word: str = ""  # How it is written; empty: as its name, and a switch that is on by default as ``--no-NAME``.
    metavar: str | None = None
    is_copied: bool = True  # Whether a drill takes it over from the cluster that it imitates.


class StartOptions(Struct, frozen=True):
    """The options of a start. The parsers of command lines, the server's arguments and a drill derive from these.

    :meth:`jdist.AsyncCluster.start` spells them out, and `make_settings` turns them into :class:`Settings`.
    """

    nproc_per_node: Annotated[
        int | str | None, Option("ranks per node, or one number per node: 2,1", short="-n", metavar="N")
    ] = None
    nnodes: Annotated[
        int | None, Option("nodes; default: as the launcher finds them, else 1", short="-N", metavar="M")
    ] = None
    backend: Annotated[str | None, Option("gloo, nccl or mpi")] = None
    init_method: Annotated[str, Option("env://, tcp://HOST:PORT or file:///PATH", is_copied=False)] = "env://"
    launcher: Annotated[str, Option("how to start agents on the nodes")] = "local"
    launcher_args: Annotated[tuple[str, ...], Option("")] = ()  # The words after ``--``.
    hosts: Annotated[str, Option("for ssh and mpi: hosts, and the ranks on each", metavar="A:2,B:2")] = ""
    env: Annotated[dict[str, str] | None, Option("environment variable for every node", metavar="NAME=V")] = None
    min_nodes: Annotated[int, Option("continue with M if others fail", metavar="M", is_copied=False)] = 0
    bind_host: Annotated[
        str, Option("address of this host at which nodes reach it; default: any", word="--bind", metavar="ADDRESS")
    ] = ""
    name: Annotated[str | None, Option("the cluster's name", is_copied=False)] = None
    timeout: Annotated[
        float | None, Option("how long to wait for missing nodes; default: as long as it takes", is_copied=False)
    ] = None
    idle_timeout: Annotated[
        float | None, Option("how long it runs without a notebook; default 1h", is_copied=False)
    ] = None
    output_lines: Annotated[
        int | None, Option("lines of each rank's stream that a run shows; default 2000", metavar="N", is_copied=False)
    ] = None
    on_death: Annotated[OnDeath, Option("what to do when a rank dies", is_copied=False)] = "replace"
    warm: Annotated[bool, Option("import nothing in advance on idle nodes", is_copied=False)] = True
    fork: Annotated[bool, Option("start workers as fresh interpreters")] = True


LIMIT_OPTIONS = ("idle_timeout", "output_lines")  # Options that are limits of the settings; None: the settings' own.


class DeclaredOption(Struct, frozen=True):
    """An option as a field of a Struct declares it."""

    name: str
    type: Any
    about: Option
    default: Any


@functools.cache
def declared_options(struct: type[Struct] = StartOptions) -> tuple[DeclaredOption, ...]:
    """The options that a Struct declares among its fields, in the order of their help."""
    declared = ((f, get_args(f.type)) for f in fields(struct) if get_origin(f.type) is Annotated)
    return tuple(DeclaredOption(f.name, kind, about, f.default) for f, (kind, about) in declared)


REFORM_TIMEOUT = 180.0  # Time for a request that re-forms the world: the sum of all deadlines on the way.

BEAT = 1.0  # Time between two heartbeats of an agent.

INLINE_LIMIT = 256 * 1024  # Largest value in a message, in bytes; others use shared memory or the data port.

OUTPUT_DELAY = 0.02  # Time for which an agent collects its ranks' output into one message.
END_DELAY = 0.005  # Seconds for which a rank's end of a cell may wait for those of others, to travel with them.


class WorkerSpec(Struct, frozen=True):
    """Passed by an agent to a worker that it starts."""

    worker: int  # Its id, for life.
    rank: int  # Its rank until it is given one in a world.
    gpu_index: int  # The GPU that is the worker's own among the node's workers, from 0.
    identity: str  # The worker's identity at the agent's socket.
    connection_file: str  # Kernel connection file, transport ipc, in the agent's private directory.
    agent_socket: str  # The agent's ipc socket for jdist's own messages.
    handover_socket: str  # Unix socket where the agent hands over connections to the data port.
    cluster: str
    threads: int
    stack_file: str = ""  # Where faulthandler writes the main thread's stack upon the signal below; "": nowhere.
    stack_signal: int = 0
    names_socket: str = ""  # Unix socket to which a process that fails hands its names over; "": there is none.
    inherits: bool = False  # The process before it has handed its names over.


class StoreSpec(Struct, frozen=True):
    """Passed by an agent to the rendezvous store's process: where to listen, and the Unix socket to report to."""

    host: str
    port: int  # 0: any free port.
    report_to: str


class StoreReport(Struct, frozen=True):
    """The store's port, or the reason why it cannot listen."""

    port: int = 0
    error: str = ""


class TorchFactsSpec(Struct, frozen=True):
    """Passed to the process that asks torch about a node. It reports `TorchFacts` to a Unix socket."""

    report_to: str


class SshBootstrapSpec(Struct, frozen=True):
    """Passed over ssh to the bootstrap script, which reports a line after ``mark`` and becomes a ``jdist`` command."""

    mark: str
    words: tuple[str, ...]  # The command line.
    directory: str = ""
    env: dict[str, str] = {}
    log: str = ""  # Name of the file for its output, to which the process id is added; "": the login's own output.
    python: tuple[int, int] = OLDEST_PYTHON
    jdist: str = __version__  # The version that has to be installed there.
    installing: str = f"pip install jdist=={__version__} there"  # What to do if it is not there, or another version is.
    naming: str = "-- --python PATH, or python=PATH in the hostfile"  # How the Python there is named.
    named: bool = False  # Whether the user has named it; an environment that was made from another is not used then.
    wheel: str = ""  # The name of a wheel that is sent if jdist is missing there; "": it is not installed.
    wheel_size: int = 0  # Bytes.

"""Questions to ranks (and a few to the controller), and their answers: Ask.op and Answer.body."""

from __future__ import annotations

from jdist.core.messages.base import Message, Missing, PayloadWire, ProbeWire
from jdist.core.node_report import GpuUse
from jdist.core.observation import Call, Doing, GroupProgress


class Peek(Message, frozen=True):
    """What are these expressions? Small values come back whole; large ones are held and described."""

    names: tuple[str, ...]
    inline_limit: int = 0
    probe: ProbeWire | None = None
    """The asker's, to find out which ranks share its host."""


class Peeked(Message, frozen=True):
    """One entry per name: the payload (buffers None: held for Fetch under ``handle``), or why not."""

    items: tuple[PayloadWire | Missing, ...]
    handle: str = ""
    is_near: bool = False
    """The rank sees the asker's probe: a segment is the way."""


class Fetch(Message, frozen=True):
    """Bring a held value's buffers: into a segment for the owner of ``probe``, or through the data port."""

    handle: str
    probe: ProbeWire | None = None
    transfer: str = ""
    """A one-time name under which the controller's data port expects the bytes."""


class Fetched(Message, frozen=True):
    """Where the buffers are now: a segment's path on the shared host, or "" when they went through the data port."""

    path: str
    nbytes: int


class Release(Message, frozen=True):
    """Forget a held value."""

    handle: str


class Put(Message, frozen=True):
    """Bind names. Buffers are inline, or in a segment at ``path`` that this host shares, laid out one after another."""

    names: tuple[str, ...]
    payloads: tuple[PayloadWire, ...]
    path: str = ""
    nbytes: int = 0
    probe: ProbeWire | None = None
    transfer: str = ""


class Describe(Message, frozen=True):
    """A row about an expression for ``%dist show``."""

    name: str


class Described(Message, frozen=True):
    """See worker/values/describe.Description; encoded by it."""

    body: bytes


class Digest(Message, frozen=True):
    """Digests of an expression's entries (``blocks`` None), or of blocks of one entry's flat elements."""

    expr: str
    key: str = ""
    start: int = 0
    stop: int = 0
    blocks: int = 0


class Digested(Message, frozen=True):
    """``(key, meta, digest)`` by entry, or block digests with empty keys."""

    entries: tuple[tuple[str, str, str], ...]


class Element(Message, frozen=True):
    """One flat element of one entry."""

    expr: str
    key: str
    index: int


class Elementary(Message, frozen=True):
    """Its index as the tensor's index, and its repr."""

    index: tuple[int, ...]
    text: str


class Look(Message, frozen=True):
    """What is the rank doing? ``recent``: how many of each group's last calls are wanted as well.

    ``with_gpu``: what it has of its GPU is wanted, too, which its agent finds out.
    """

    recent: int = 0
    with_gpu: bool = False


class Looked(Message, frozen=True):
    """What the rank is doing, seen from outside its main thread, and how far it is in each group.

    An agent answers for a rank that does not answer in time: ``doing.kind`` is "silent" then, and no more is known.
    """

    device: str
    doing: Doing
    rss: int
    """Bytes."""
    groups: tuple[GroupProgress, ...] = ()
    recent: tuple[Call, ...] = ()
    """Oldest first; what is in flight is among them."""
    run: int = 0
    """The run whose cell the rank is in, 0 between cells."""
    gpu: GpuUse | None = None
    """None: there is none, nobody asked, or the driver does not tell."""


class Stack(Message, frozen=True):
    """Where is the rank's main thread, frame by frame?"""


class Stacked(Message, frozen=True):
    """As Python prints a stack, the innermost frame last; from the cell on, where one runs."""

    text: str


class Trace(Message, frozen=True):
    """Which calls of torch.distributed did the rank make in ``run`` (0: in its last)?"""

    run: int = 0


class Traced(Message, frozen=True):
    """Its calls, oldest first. Times are the wall clock of the rank's host, seconds since the epoch."""

    run: int
    calls: tuple[Call, ...]
    began: float
    """When the cell began."""
    ended: float | None
    now: float
    left_out: int = 0
    """Older calls that are not kept any more."""


class Complete(Message, frozen=True):
    """Which names of the rank's go on with what stands in ``code`` before ``cursor``?"""

    code: str
    cursor: int


class Completed(Message, frozen=True):
    """What may stand between ``start`` and ``end``."""

    matches: tuple[str, ...]
    start: int
    end: int
    types: tuple[str, ...] = ()
    """One for each match: "Tensor", "function", "class", "keyword"; "" where it is not known."""


class Inspect(Message, frozen=True):
    """What is ``name``, which may have dots? ``detail`` 1: with its source."""

    name: str
    detail: int = 0


class Inspected(Message, frozen=True):
    """Type, signature, documentation; "" if there is none of that name."""

    text: str


class Logs(Message, frozen=True):
    """The newest ``lines`` lines of the rank's log (answered by its agent)."""

    lines: int


class LogText(Message, frozen=True):
    """The text, and where the whole log lies on the node."""

    text: str
    path: str


class Console(Message, frozen=True):
    """How does one attach a terminal to this rank (answered by its agent)?"""


class ConsoleAt(Message, frozen=True):
    """Host and kernel connection file."""

    hostname: str
    connection_file: str


class Fault(Message, frozen=True):
    """Why a question has no answer."""

    reason: str


class Progress(Message, frozen=True):
    """Not an answer yet: bytes moved so far for this question."""

    done: int
    total: int


class PassOn(Message, frozen=True):
    """Ask the controller to pass on a transfer's bytes at its data port, from the one PUT to the one GET of them."""

    transfer: str
    nbytes: int
    probe: ProbeWire | None = None


class PassedAt(Message, frozen=True):
    """Where to GET them: ``near``, a Unix socket in the abstract namespace, if the asker shares the controller's host
    and may have the very connection of the PUT; "": at the data port.
    """

    near: str


class Keep(Message, frozen=True):
    """Ask the controller to keep a transfer's bytes for the nodes' GETs: those of the segment at ``path`` (a Fault on
    another host than its owner's), or without a path those of a PUT to come.
    """

    transfer: str
    nbytes: int
    probe: ProbeWire | None = None
    path: str = ""


class Invite(Message, frozen=True):
    """Ask the controller for a new line with which agents join."""

    is_remote: bool = False
    """For agents on other hosts, too."""
    seconds: float = 0.0
    """For which it can be used; 0: as the cluster's settings say."""
    revokes: bool = False
    """All lines before it are void."""


class Invited(Message, frozen=True):
    """The line. Keys are in it: it reaches an agent through its standard input."""

    line: str


class Placed(Message, frozen=True):
    """A place is open for one more node."""

    node_rank: int


class Resized(Message, frozen=True):
    """The world has another size and has been formed again; as text, what has changed, a line each."""

    world_size: int
    renumbered: dict[int, int]
    """``{old rank: new rank}`` of every rank that lived on."""
    added: tuple[int, ...]
    """Ranks that are new; only setup cells have been run there."""
    notes: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(self.notes)


class Grouped(Message, frozen=True):
    """A group or mesh has been made."""

    text: str


class Nothing(Message, frozen=True):
    """Done; there is nothing to say."""


Op = (
    Peek
    | Fetch
    | Release
    | Put
    | Describe
    | Digest
    | Element
    | Look
    | Stack
    | Trace
    | Complete
    | Inspect
    | Logs
    | Console
    | PassOn
    | Keep
    | Invite
)
Answered = (
    Peeked
    | Fetched
    | Described
    | Digested
    | Elementary
    | Looked
    | Stacked
    | Traced
    | Completed
    | Inspected
    | LogText
    | ConsoleAt
    | PassedAt
    | Grouped
    | Invited
    | Placed
    | Resized
    | Nothing
    | Progress
    | Fault
)


class Ask(Message, frozen=True):
    """A question to ``ranks``; each answers for itself. Ranks: empty means the controller is asked."""

    request: str
    ranks: tuple[int, ...]
    op: Op


class Answer(Message, frozen=True):
    """One rank's answer (-1: the controller's)."""

    request: str
    rank: int
    body: Answered

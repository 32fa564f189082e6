"""Values: evaluate, describe, compare and move values between notebook and ranks, and inspect names and logs."""

from msgspec import Struct

from jdist.core.messages.base import Message, PayloadWire, ProbeWire, ValueMissing


class Evaluate(Message, frozen=True):
    """Evaluate expressions. Small values are returned whole; large ones are held for Fetch and described."""

    names: tuple[str, ...]
    probe: ProbeWire | None = None  # The client's probe, which shows whether the rank shares its host.


class Evaluated(Message, frozen=True):
    """For each name the payload (without buffers: they are held for Fetch under ``handle``), or why there is none."""

    items: tuple[PayloadWire | ValueMissing, ...]
    handle: str = ""
    is_near: bool = False  # The rank sees the client's probe, so bytes can pass through a segment.


class Fetch(Message, frozen=True):
    """Send a held value's buffers: in a segment for the owner of ``probe``, or through the data port."""

    handle: str
    probe: ProbeWire | None = None
    transfer: str = ""  # The one-time name under which the data port expects the bytes.


class Fetched(Message, frozen=True):
    """The path of the segment that has the buffers, or "" if they went through the data port."""

    path: str
    nbytes: int


class Release(Message, frozen=True):
    """Release a held value."""

    handle: str


class BindNames(Message, frozen=True):
    """Bind names. Buffers are inline, in a segment at ``path`` that this host shares, or at the data port."""

    names: tuple[str, ...]
    payloads: tuple[PayloadWire, ...]
    path: str = ""
    nbytes: int = 0
    probe: ProbeWire | None = None
    transfer: str = ""


class Describe(Message, frozen=True):
    """A row about an expression, for the table of the show verb."""

    name: str


class Described(Message, frozen=True):
    """See worker/variables/describe.Description; encoded by it."""

    body: bytes


class BinElements(Message, frozen=True):
    """Count the elements of a tensor or an array in ``bins`` bins of equal width between ``low`` and ``high``.

    A bin has its lower end, and the last one the upper end, too. Of a DTensor, they are those of the rank's part.
    """

    expr: str
    low: float
    high: float
    bins: int


class BinnedElements(Message, frozen=True):
    """The counts by bin, and those of elements that are in none. Of a very large tensor, those of a sample."""

    counts: tuple[int, ...]
    nan: int = 0
    negative_infinity: int = 0
    positive_infinity: int = 0
    outside: int = 0  # Finite elements beyond the ends: they have changed since those were found out.


class ListVariables(Message, frozen=True):
    """List the names that cells have bound and that match ``pattern``, from metadata alone.

    Patterns are those of a shell, separated by commas. Without one, modules, functions, classes and names that begin
    with an underscore are left out. Contents are read only for ``numbers`` and ``digests``.
    """

    pattern: str = ""
    most: int = 500
    numbers: bool = False  # With the mean and norm of tensors and arrays.
    digests: bool = False


class VariableFacts(Struct, frozen=True, array_like=True):
    """A variable of one rank. Its size is bounded: long texts are cut."""

    name: str
    type: str
    shape: tuple[int, ...] | None = None  # Of a DTensor: of the whole.
    dtype: str = ""
    device: str = ""
    placement: str = ""  # As in ValueDescription.
    nbytes: int | None = None  # Of tensors and arrays held here, also in modules and small containers.
    length: int | None = None
    value: str = ""  # All of a number or short text; "" for anything else.
    detail: str = ""  # What else the metadata say.
    mean: float | None = None
    norm: float | None = None
    digest: str = ""
    problem: str = ""  # Why its contents could not be read.


class VariableList(Message, frozen=True):
    """The variables by name."""

    variables: tuple[VariableFacts, ...]
    left_out: int = 0  # Number of names beyond ``most``.
    hidden: tuple[str, ...] = ()  # Names that are left out without a pattern.
    frame: str = ""  # The paused function whose names these are; "": those of the rank's cells.


class Digest(Message, frozen=True):
    """Compute digests of an expression's entries (``blocks`` 0), or of blocks of one entry's flat elements."""

    expr: str
    key: str = ""
    start: int = 0
    stop: int = 0
    blocks: int = 0


class Digested(Message, frozen=True):
    """``(key, meta, digest)`` by entry, or block digests with empty keys."""

    entries: tuple[tuple[str, str, str], ...]


class ReadElement(Message, frozen=True):
    """Read one flat element of one entry."""

    expr: str
    key: str
    index: int


class ElementRead(Message, frozen=True):
    """The element's index in the tensor, and its repr."""

    index: tuple[int, ...]
    text: str


class Forward(Message, frozen=True):
    """Ask the controller to relay a transfer's bytes at its data port, from one PUT to one GET."""

    transfer: str
    nbytes: int
    probe: ProbeWire | None = None


class ForwardedAt(Message, frozen=True):
    """Where to GET them: at ``near``, a Unix socket in the abstract namespace, if the client shares the controller's
    host and can be handed the PUT's connection; if that is "", at the data port.
    """

    near: str


class Hold(Message, frozen=True):
    """Ask the controller to store a transfer's bytes for the nodes' GETs: those of the segment at ``path`` (QueryFailed
    if the controller is on another host), or without a path those of a PUT to come.
    """

    transfer: str
    nbytes: int
    probe: ProbeWire | None = None
    path: str = ""


class Complete(Message, frozen=True):
    """Complete the name before ``cursor`` in ``code`` with the rank's names."""

    code: str
    cursor: int


class Completed(Message, frozen=True):
    """Completions of the text between ``start`` and ``end``."""

    matches: tuple[str, ...]
    start: int
    end: int
    types: tuple[str, ...] = ()  # The type of each match: "Tensor", "function", "class", "keyword"; "" if unknown.


class Inspect(Message, frozen=True):
    """Describe ``name``, which may have dots; ``detail`` 1: with its source."""

    name: str
    detail: int = 0


class Inspected(Message, frozen=True):
    """Type, signature and documentation; "" if the name does not exist."""

    text: str


class Logs(Message, frozen=True):
    """Ask the agent for the newest ``lines`` lines of a rank's log."""

    lines: int


class LogText(Message, frozen=True):
    """The lines, and the path of the whole log on the node."""

    text: str
    path: str


class Console(Message, frozen=True):
    """Ask the agent how to attach a terminal to a rank."""


class ConsoleAt(Message, frozen=True):
    """The rank's host and kernel connection file."""

    hostname: str
    connection_file: str


class GetDebugLog(Message, frozen=True):
    """The newest ``lines`` log records of a process of jdist: of the controller, an agent or a worker."""

    lines: int


class DebugRecord(Struct, frozen=True, array_like=True):
    """One record, with its traceback if it has one."""

    time: float  # Seconds since the epoch, by the host's own clock.
    level: str  # "DEBUG", "INFO", "WARNING" or "ERROR".
    floor: str  # The logger: "controller", "wire", …
    text: str


class DebugLog(Message, frozen=True):
    """Log records, oldest first."""

    records: tuple[DebugRecord, ...]


_Examined = Describe | BinElements | ListVariables | Digest | ReadElement
_Read = Complete | Inspect | Logs | Console | GetDebugLog
RankOp = Evaluate | Fetch | Release | BindNames | _Examined | Forward | Hold | _Read
_Found = Evaluated | Fetched | Described | BinnedElements | VariableList | Digested | ElementRead | ForwardedAt
RankReplyBody = _Found | Completed | Inspected | LogText | ConsoleAt | DebugLog

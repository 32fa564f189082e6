"""Base: the class of all messages, and the parts that messages of several ideas share."""

from msgspec import Struct

PROTOCOL = 18  # Checked at every hello; a peer with another number is refused, with both numbers named.
MESSAGE_ID = "jdist-"  # Id of the Jupyter request that is the parent of a run's output; the run's number follows.
AGENT_IDENTITY = "jdist-agent"  # The agent's identity at each worker's stdin socket, to which cells' input requests go.


class Message(Struct, frozen=True, tag=True, omit_defaults=True):
    """Anything that crosses a socket."""


class PayloadWire(Message, frozen=True):
    """An encoded value (see wire/values/objects). All that could run code when it is unpacked is in the head."""

    head: bytes  # The format's number, then a msgpack description with the notes, and a pickle stream if one is needed.
    sizes: tuple[int, ...]  # Byte length of each buffer.
    nbytes: int  # Sum of `sizes`.
    summary: str  # One line for messages: "Tensor float32 [3, 4]", "list of 3".
    buffers: tuple[bytes, ...] | None = None  # None if they travel beside the message.


class ProbeWire(Struct, frozen=True):
    """Proof that two processes share a host's memory: a file that holds a nonce."""

    path: str
    nonce: str


class ValueMissing(Message, frozen=True):
    """Why a name could not be pulled from a rank."""

    reason: str


class QueryFailed(Message, frozen=True):
    """Why a query has no answer."""

    reason: str


class Progress(Message, frozen=True):
    """Bytes moved so far for a query that is not answered yet."""

    done: int
    total: int


class Ack(Message, frozen=True):
    """The query was carried out; it has no result."""


CommonReplyBody = Ack | Progress | QueryFailed

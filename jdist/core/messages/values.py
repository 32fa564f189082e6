"""Values: expressions are evaluated, described, compared and moved between the notebook and the ranks."""

from __future__ import annotations

from jdist.core.messages.base import Message, PayloadWire, ProbeWire, ValueMissing


class Evaluate(Message, frozen=True):
    """What are these expressions? Small values come back whole; large ones are held and described."""

    names: tuple[str, ...]
    inline_limit: int = 0
    probe: ProbeWire | None = None
    """The asker's, to find out which ranks share its host."""


class Evaluated(Message, frozen=True):
    """One entry per name: the payload (buffers None: held for Fetch under ``handle``), or why not."""

    items: tuple[PayloadWire | ValueMissing, ...]
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


class BindNames(Message, frozen=True):
    """Bind names. Buffers are inline, or in a segment at ``path`` that this host shares, laid out one after another."""

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


class ReadElement(Message, frozen=True):
    """One flat element of one entry."""

    expr: str
    key: str
    index: int


class ElementRead(Message, frozen=True):
    """Its index as the tensor's index, and its repr."""

    index: tuple[int, ...]
    text: str


class Forward(Message, frozen=True):
    """Ask the controller to pass on a transfer's bytes at its data port, from the one PUT to the one GET of them."""

    transfer: str
    nbytes: int
    probe: ProbeWire | None = None


class ForwardedAt(Message, frozen=True):
    """Where to GET them: ``near``, a Unix socket in the abstract namespace, if the asker shares the controller's host
    and may have the very connection of the PUT; "": at the data port.
    """

    near: str


class Hold(Message, frozen=True):
    """Ask the controller to keep a transfer's bytes for the nodes' GETs: those of the segment at ``path`` (a Fault on
    another host than its owner's), or without a path those of a PUT to come.
    """

    transfer: str
    nbytes: int
    probe: ProbeWire | None = None
    path: str = ""

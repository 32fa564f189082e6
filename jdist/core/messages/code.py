"""Code: a local source tree is copied to the nodes and made importable on the ranks."""

from __future__ import annotations

from jdist.core.messages.base import Message, ProbeWire
from jdist.core.source_tree import Piece, SourceTree


class CompareTree(Message, frozen=True):
    """Which contents of this tree are not on the node?"""

    tree: SourceTree


class TreeCompared(Message, frozen=True):
    """Digests of what it lacks. ``place`` is the same on nodes that share the folder ``path``."""

    place: str
    path: str
    lacks: tuple[bytes, ...]


class StorePieces(Message, frozen=True):
    """Keep contents until the tree is settled: small ones in ``pieces``, or a part of a large one as a transfer.

    A transfer's bytes are in a segment at ``path`` that this host shares, or at the controller's data port.
    """

    tree: str
    pieces: tuple[Piece, ...] = ()
    digest: bytes = b""
    offset: int = 0
    nbytes: int = 0
    transfer: str = ""
    path: str = ""
    probe: ProbeWire | None = None


class ApplyTree(Message, frozen=True):
    """Make the folder be as the tree, from what was there and what was stored; then the ranks import from it."""

    tree: SourceTree


class TreeApplied(Message, frozen=True):
    """It is. ``changed`` and ``deleted``: paths in the tree."""

    changed: tuple[str, ...]
    deleted: tuple[str, ...]


class AdoptTree(Message, frozen=True):
    """The folder was settled by another node that shares it: the ranks import from it."""

    name: str
    is_package: bool
    changed: tuple[str, ...]


class CodeSynced(Message, frozen=True):
    """Code that was synced: ``folders`` come first on the path; files at ``changed`` are to be read again."""

    folders: tuple[str, ...]
    changed: tuple[str, ...]

"""Code: a local source tree, as a list of entries, is copied to the nodes and made importable on the ranks."""

from __future__ import annotations

import posixpath

from msgspec import Struct

from jdist.core.errors import UsageError
from jdist.core.messages.base import Message, ProbeWire

STAGING = ".jdist-staging"
"""The folder, in a tree's own, in which what has arrived waits to be put in place."""


class TreeEntry(Struct, frozen=True, array_like=True):
    """A file, or a link if it has a ``target``. ``path`` is relative to the tree's root, with slashes."""

    path: str
    size: int
    digest: bytes
    """BLAKE2b of the content, 32 bytes; empty for a link."""
    is_executable: bool = False
    target: str = ""
    """Relative to the link's own folder."""


class SourceTree(Struct, frozen=True):
    """All that a folder on a node is to hold."""

    name: str
    """Of the folder."""
    entries: tuple[TreeEntry, ...]
    is_package: bool = False
    """It is imported under its own name, not what is in it."""

    def check(self) -> None:
        """Raises UsageError for a name or path that leads out of the tree."""
        if not is_inside(self.name) or "/" in self.name:
            raise UsageError(f"{self.name!r} is no name of a folder")
        for entry in self.entries:
            if not is_inside(entry.path) or entry.path.split("/")[0] == STAGING:
                raise UsageError(f"{entry.path!r} is no path in {self.name}")
            if entry.target and not leads_inside(entry.path, entry.target):
                raise UsageError(f"the link {entry.path} leads out of {self.name}: to {entry.target}")
            if not entry.target and len(entry.digest) != 32:
                raise UsageError(f"{entry.path} in {self.name} comes without a digest")


class Piece(Struct, frozen=True, array_like=True):
    """``data`` of the content with ``digest``, from ``offset`` on."""

    digest: bytes
    offset: int
    data: bytes


def is_inside(path: str) -> bool:
    """Whether a relative path leads nowhere but down."""
    return (
        bool(path)
        and "\0" not in path
        and not posixpath.isabs(path)
        and posixpath.normpath(path) == path
        and path.split("/", maxsplit=1)[0] not in {"..", "."}
    )


def leads_inside(path: str, target: str) -> bool:
    """Whether a link at ``path`` to ``target`` stays in the tree, by the names alone."""
    if posixpath.isabs(target) or "\0" in target:
        return False
    return posixpath.normpath(posixpath.join("root", posixpath.dirname(path), target)).split("/")[0] == "root"


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

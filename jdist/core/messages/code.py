"""Code: where ranks find modules. A local source tree, as a list of entries, is copied to the nodes."""

import posixpath

from msgspec import Struct, field

from jdist.core.errors import UsageError
from jdist.core.import_path import ImportPath
from jdist.core.messages.base import Message, ProbeWire

STAGING = ".jdist-staging"  # The folder in a tree's folder where received contents wait until the tree is applied.


class TreeEntry(Struct, frozen=True, array_like=True):
    """A file, or a link if it has a ``target``. ``path`` is relative to the tree's root, with slashes."""

    path: str
    size: int
    digest: bytes  # BLAKE2b of the content, 32 bytes; empty for a link.
    is_executable: bool = False
    target: str = ""  # Relative to the link's own folder.


class SourceTree(Struct, frozen=True):
    """The complete contents of a folder on a node."""

    name: str  # Name of the folder.
    entries: tuple[TreeEntry, ...]
    is_package: bool = False  # The folder itself is imported as a package, not the modules in it.
    origin: str = ""  # The client's directory whose place on the import path its copy takes; "": the copy comes first.

    def check(self) -> None:
        """Raises UsageError for a name or path outside of the tree."""
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
    """Bytes of the content with ``digest``, from ``offset``."""

    digest: bytes
    offset: int
    data: bytes


def is_inside(path: str) -> bool:
    """Whether a relative path stays below its start."""
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
    """Ask which contents of this tree are missing on the node."""

    tree: SourceTree


class TreeCompared(Message, frozen=True):
    """Digests of missing contents. ``place`` is equal on nodes that share the folder ``path``."""

    place: str
    path: str
    lacks: tuple[bytes, ...]
    has_origin: bool = False  # Every file of the tree is in its origin on the node, too, which needs no copy.


class StorePieces(Message, frozen=True):
    """Store contents until the tree is applied: small ones in ``pieces``, or a part of a large one as a transfer."""

    tree: str
    pieces: tuple[Piece, ...] = ()
    digest: bytes = b""
    offset: int = 0
    nbytes: int = 0
    transfer: str = ""
    path: str = ""  # The segment that has a transfer's bytes, if the node shares it; else they are at the data port.
    probe: ProbeWire | None = None


class ApplyTree(Message, frozen=True):
    """Make the folder equal to the tree, from its own and the stored contents; then ranks import from it."""

    tree: SourceTree


class TreeApplied(Message, frozen=True):
    """The tree was applied; paths of ``changed`` and ``deleted`` files in it."""

    changed: tuple[str, ...]
    deleted: tuple[str, ...]


class AdoptTree(Message, frozen=True):
    """Import from a folder that another node, which shares it, has applied."""

    name: str
    is_package: bool
    origin: str
    changed: tuple[str, ...]


class CodeSynced(Message, frozen=True):
    """Code was synced: put ``folders`` first on the import path, and reload modules at ``changed``."""

    folders: tuple[str, ...]
    changed: tuple[str, ...]
    copies: dict[str, str] = field(default_factory=dict)  # Folders that take the place of their origins, by these.


class UseImportPath(Message, frozen=True):
    """Add a client's own entries of ``sys.path`` to that of every rank, as far as they exist on its node."""

    path: ImportPath
    modules: tuple[str, ...] = ()  # The top-level modules in these entries, which a rank that lacks one may request.


class ModuleRequest(Message, frozen=True):
    """A rank's cell imports a module that its node lacks and the client has: sync the directory in which it is."""

    run: int
    rank: int
    name: str


class ModuleReply(Message, frozen=True):
    """The directory was synced, or is not; ``text`` is what the cell's output says about it."""

    rank: int
    name: str
    text: str


NodeOp = CompareTree | StorePieces | ApplyTree | AdoptTree
NodeReplyBody = TreeCompared | TreeApplied
ClientMessage = ToAgent = UseImportPath | ModuleReply
ToClient = AgentMessage = WorkerMessage = ModuleRequest
ToWorker = CodeSynced | UseImportPath | ModuleReply

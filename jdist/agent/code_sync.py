"""Code sync, a node's part: it reports what it lacks, stores what arrives, and has its ranks import it.

A cluster has one folder on a host for synced code; agents of one host share it, and the last removes it. Content waits
in a staging folder until its digest has been verified, and is then renamed into its place, so that no rank reads half a
file. Nothing is written through a link: a link in the way is replaced.
"""

import asyncio
import contextlib
import fcntl
import hashlib
import importlib.util
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterable
from pathlib import Path

from jdist.agent.node import NodeContext
from jdist.core.errors import UsageError, writing_to
from jdist.core.import_path import ImportPath
from jdist.core.messages import code
from jdist.core.messages.base import Ack, Message
from jdist.core.messages.protocol import NodeReplyBody
from jdist.wire.transport.dialing import get_segment
from jdist.wire.transport.keys import code_directory, lock_file
from jdist.wire.values.segments import Segment, shares_memory

_PLACE = ".jdist-place"
_NAMES = 8  # Names that are tried where another user has taken some.

CodeOp = code.CompareTree | code.StorePieces | code.ApplyTree | code.AdoptTree


def has_origin(tree: code.SourceTree) -> bool:
    """Whether this node shares the client's directory with the tree's files."""
    return bool(tree.origin) and all(os.path.lexists(os.path.join(tree.origin, e.path)) for e in tree.entries)


class CodeReceiver:
    """Applies synced trees; ``broadcast`` sends to every worker of this node."""

    def __init__(self, node: NodeContext, broadcast: Callable[[Message], object]):
        self._node = node
        self._broadcast = broadcast
        self.folder = CodeFolder(node.endpoint.cluster)
        self._lock = asyncio.Lock()
        self._import_paths: dict[ImportPath, code.UseImportPath] = {}

    def use_import_path(self, message: code.UseImportPath) -> None:
        """Have this node's ranks, and those that are started later, find modules where a client does."""
        self._import_paths[message.path] = message
        self._broadcast(message)

    def greetings(self) -> tuple[Message, ...]:
        """Messages for a fresh worker, after which it finds modules where the others do."""
        folders, copies = self.folder.folders, self.folder.copies
        synced = (code.CodeSynced(folders, (), copies),) if folders or copies else ()
        return (*self._import_paths.values(), *synced)

    async def answer(self, op: CodeOp, progress: Callable[[int], object]) -> NodeReplyBody:
        """Raises OSError, JdistError."""
        match op:
            case code.StorePieces():
                await asyncio.to_thread(self._store, op, progress)
                return Ack()
            case code.CompareTree(tree):
                async with self._lock:
                    missing = await asyncio.to_thread(self.folder.missing, tree)
                    shares = await asyncio.to_thread(has_origin, tree)
                return code.TreeCompared(self.folder.place, str(self.folder.path), missing, shares)
            case code.ApplyTree(tree):
                async with self._lock:
                    changed, deleted = await asyncio.to_thread(self.folder.apply, tree)
                self._adopt(code.AdoptTree(tree.name, tree.is_package, tree.origin, changed))
                return code.TreeApplied(changed, deleted)
            case code.AdoptTree():
                self._adopt(op)
                return Ack()

    def _adopt(self, tree: code.AdoptTree) -> None:
        self.folder.adopt(tree.name, tree.is_package, tree.origin)
        root = self.folder.path / tree.name
        changed = tuple(str(root / path) for path in tree.changed)
        self._broadcast(code.CodeSynced(self.folder.folders, changed, self.folder.copies))

    def _store(self, op: code.StorePieces, progress: Callable[[int], object]) -> None:
        for piece in op.pieces:
            self.folder.store(op.tree, piece.digest, piece.offset, piece.data)
        if not op.transfer:
            return
        if op.path and shares_memory(op.probe):
            segment, is_fetched = Segment.open(op.path, op.nbytes), False
        else:
            cluster = self._node.endpoint.cluster
            segment = get_segment(self._node.data_port, op.transfer, cluster, op.nbytes, progress)
            is_fetched = True
        try:
            self.folder.store(op.tree, op.digest, op.offset, segment.view)
        finally:
            segment.close()
            if is_fetched:
                segment.unlink()


class CodeFolder:
    """Made when it is first needed; `close` removes it unless another agent uses it, too."""

    def __init__(self, cluster: str):
        self._cluster = cluster
        self._path: Path | None = None
        self._lock = -1
        self._known: dict[str, tuple[tuple[int, ...], bytes]] = {}  # By path; valid while the file's stat is the same.
        self._folders: dict[str, Path] = {}  # By the name of each tree that ranks import from, oldest first.
        self._origins: dict[str, str] = {}  # By the name of each tree that has one.

    @property
    def path(self) -> Path:
        """Raises OSError where it cannot be made."""
        if self._path is None:
            self._path, self._lock = _open(self._cluster)
        return self._path

    @property
    def place(self) -> str:
        """A random name, the same for all agents that share the folder."""
        mark = self.path / _PLACE
        with contextlib.suppress(FileExistsError), writing_to(self.path):
            fresh = self.path / f"{_PLACE}-{os.getpid()}"
            fresh.write_text(secrets.token_hex(16))
            try:
                os.link(fresh, mark)  # only one of several succeeds, and its content is whole
            finally:
                fresh.unlink()
        return mark.read_text()

    @property
    def folders(self) -> tuple[str, ...]:
        """For the beginning of this node's ranks' import path, the newest first."""
        found = [str(path) for name, path in reversed(self._folders.items()) if name not in self._origins]
        return tuple(dict.fromkeys(found))

    @property
    def copies(self) -> dict[str, str]:
        """Folders that take the place of their origins on the import path, by these."""
        return {origin: str(self._folders[name]) for name, origin in self._origins.items()}

    def adopt(self, name: str, is_package: bool, origin: str = "") -> None:
        """Have ranks import from this tree. Raises UsageError for an invalid name."""
        if not code.is_inside(name) or "/" in name:
            raise UsageError(f"{name!r} is no name of a folder")
        self._folders.pop(name, None)
        self._origins.pop(name, None)
        self._folders[name] = self.path if is_package else self.path / name
        if origin:
            self._origins[name] = origin

    def close(self) -> None:
        """Release the folder, and remove it unless another agent uses it."""
        if self._path is None:
            return
        with contextlib.suppress(OSError):
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # if refused, our own hold is gone as well
            shutil.rmtree(self._path, ignore_errors=True)
        os.close(self._lock)
        self._path = None

    def missing(self, tree: code.SourceTree) -> tuple[bytes, ...]:
        """Digests of the contents that no file of the tree has here. Raises UsageError."""
        tree.check()
        wanted = {e.digest for e in tree.entries if not e.target}
        return tuple(sorted(wanted.difference(self._digests(tree).values())))

    def _digests(self, tree: code.SourceTree) -> dict[str, bytes]:
        """Digests, by path, of the files here whose size is one of the tree's; no other can have a content of it."""
        root, sizes = self.path / tree.name, {e.size for e in tree.entries}
        files = (path for path in _walk(root) if not path.is_symlink() and path.lstat().st_size in sizes)
        return {str(path.relative_to(root)): self._digest(path) for path in files}

    def _digest(self, path: Path) -> bytes:
        found = path.lstat()
        mark = (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
        known = self._known.get(str(path))
        if known is None or known[0] != mark:
            known = self._known[str(path)] = (mark, _hash(path))
        return known[1]

    def store(self, tree: str, digest: bytes, offset: int, data: bytes | memoryview) -> None:
        """Stage a part of a content. Raises UsageError, OSError."""
        if not code.is_inside(tree) or "/" in tree or len(digest) != 32:
            raise UsageError(f"{tree!r} is no name of a folder, or a digest is none")
        staging = self.path / tree / code.STAGING
        staging.mkdir(parents=True, exist_ok=True)
        fd = os.open(staging / digest.hex(), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            view = memoryview(data)
            with writing_to(self.path):
                while view:
                    written = os.pwrite(fd, view, offset)
                    view, offset = view[written:], offset + written
        finally:
            os.close(fd)

    def apply(self, tree: code.SourceTree) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Make the folder equal the tree; the (changed, deleted) paths. Raises UsageError, OSError with the path."""
        tree.check()
        root = self.path / tree.name
        staging = root / code.STAGING
        staging.mkdir(parents=True, exist_ok=True)
        try:
            wanted = {e.path for e in tree.entries}
            with writing_to(self.path):
                self._gather(tree, staging)
                changed = [e.path for e in tree.entries if self._put(root, staging, e)]
            found = [str(p.relative_to(root)) for p in _walk(root)]
            deleted = sorted(p for p in found if p not in wanted and "__pycache__" not in p.split("/"))
            for path in deleted:
                (root / path).unlink(missing_ok=True)
            for path in (*changed, *deleted):
                if path.endswith(".py"):  # its bytecode counts as current if the source has the same second and size
                    Path(importlib.util.cache_from_source(str(root / path))).unlink(missing_ok=True)
            _prune(root)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        return tuple(changed), tuple(deleted)

    def _gather(self, tree: code.SourceTree, staging: Path) -> None:
        """Stage and verify every content that is needed, before anything is changed."""
        here = self._digests(tree)
        needed = {e.digest: e for e in tree.entries if not e.target and here.get(e.path) != e.digest}
        elsewhere = {digest: path for path, digest in here.items()}
        for digest, entry in needed.items():
            staged = staging / digest.hex()
            if staged.exists():
                if _hash(staged) != digest:
                    raise UsageError(f"{entry.path} did not arrive as it was sent")
            elif digest in elsewhere:
                shutil.copyfile(self.path / tree.name / elsewhere[digest], staged)
            else:
                raise UsageError(f"{entry.path} did not arrive")

    def _put(self, root: Path, staging: Path, entry: code.TreeEntry) -> bool:
        """Put one entry into its place; whether that changed something."""
        path, fresh = root / entry.path, staging / "fresh"
        mode = 0o755 if entry.is_executable else 0o644
        try:
            folder = root
            for part in entry.path.split("/")[:-1]:  # each is to be a real folder; anything else in the way is removed
                folder /= part
                if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
                    folder.unlink()
                folder.mkdir(exist_ok=True)
            if entry.target:
                if path.is_symlink() and os.readlink(path) == entry.target:
                    return False
                fresh.symlink_to(entry.target)
            elif path.is_file() and not path.is_symlink() and self._digest(path) == entry.digest:
                if stat.S_IMODE(path.stat().st_mode) != mode:
                    path.chmod(mode)
                return False
            else:
                shutil.copyfile(staging / entry.digest.hex(), fresh)  # the same content may be wanted at several paths
                fresh.chmod(mode)
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            fresh.replace(path)
            return True
        except OSError as e:
            raise OSError(e.errno, f"{entry.path}: {e.strerror}") from e


def _open(cluster: str) -> tuple[Path, int]:
    """The folder and a descriptor that holds it. Another agent that ends may remove it in between; then try again."""
    number = 0
    while True:
        path = code_directory(cluster, number)
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            if number >= _NAMES:
                raise PermissionError(f"{path} is there already, and is not this user's own")
            number += 1  # another user has taken the name; the cluster's other agents here go on to the same next one
            continue
        try:
            lock = os.open(lock_file(path), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            continue
        fcntl.flock(lock, fcntl.LOCK_SH)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock), os.stat(lock_file(path))):
                return path, lock
        os.close(lock)


def _walk(root: Path) -> Iterable[Path]:
    """All files and links, but those that wait in the staging folder."""
    for folder, folders, files in os.walk(root):
        if folder == str(root) and code.STAGING in folders:
            folders.remove(code.STAGING)
        for name in (*files, *(f for f in folders if os.path.islink(os.path.join(folder, f)))):
            yield Path(folder, name)


def _prune(root: Path) -> None:
    """Remove folders that hold nothing but bytecode."""
    for folder, folders, files in os.walk(root, topdown=False):
        if folder == str(root) or os.path.basename(folder) == code.STAGING:
            continue
        left = [f for f in folders if f != "__pycache__" and os.path.lexists(os.path.join(folder, f))]
        if os.path.basename(folder) != "__pycache__" and not left and not files:
            shutil.rmtree(folder, ignore_errors=True)


def _hash(path: Path) -> bytes:
    with open(path, "rb") as f:
        return hashlib.file_digest(f, lambda: hashlib.blake2b(digest_size=32)).digest()

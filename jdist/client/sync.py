"""Code sync: copy local files to every node, also to one that joins later, and keep them up to date while watched.

A tree lists a local file or folder with digests, without what .gitignore files, users or a fixed list omit. A directory
is synced without being told if a rank requests a module in it, and again before the next cell if it has changed; its
copy has the directory's place on the ranks' import path, and nodes that share the directory get none. Of a home
directory, or a large one, only the modules are synced that ranks request. Nodes get only
the contents that they lack, once if they share a folder, and put them in place all at once. Small contents travel
in messages, large ones in parts through the data port. Others on the network can read a part, like a pushed value, but
cannot change it, because the digests come over the encrypted port.
"""

import asyncio
import contextlib
import hashlib
import importlib.machinery
import itertools
import os
import stat
import sys
import time
from collections.abc import Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct, structs
from pathspec import GitIgnoreSpec
from watchfiles import awatch

from jdist.client.attachment import Attachment
from jdist.client.history import Annotation
from jdist.client.variables.carrier import Carrier, OnProgress
from jdist.core.errors import ConnectionLost, JdistError, Remedy, UsageError
from jdist.core.messages.base import Message, QueryFailed
from jdist.core.messages.code import (
    AdoptTree,
    ApplyTree,
    CompareTree,
    ModuleReply,
    ModuleRequest,
    Piece,
    SourceTree,
    StorePieces,
    TreeApplied,
    TreeCompared,
    TreeEntry,
    leads_inside,
)
from jdist.core.messages.protocol import NodeOp, NodeReplyBody
from jdist.core.messages.status import ClusterFacts, Notice
from jdist.core.quantities import format_bytes, format_count
from jdist.core.ranks import RankSet, ranks_by

ALWAYS = (".git", "__pycache__", "*.py[co]", ".ipynb_checkpoints", ".jdist-*")  # A user's `!` takes one back.
_DATA = "arrow avi bin bz2 ckpt csv db feather flac gguf gz h5 hdf5 ipynb jpeg jpg jsonl mat mp3 mp4 npy npz onnx"
_DATA += " parquet pickle pkl png pt pth rar safetensors sqlite tar tfrecord tgz tif tiff tsv wav webp xz zip zst"
NOT_CODE = (".*", "*.key", "*.pem", "site-packages", "node_modules", *(f"*.{suffix}" for suffix in _DATA.split()))
"""What is left out of a directory that is synced because a rank has requested a module in it."""
_MOST_BYTES = 50_000_000  # In such a directory.
_RECENT = 2_000_000_000  # Nanoseconds: two changes that are closer may have the same time on some file systems.
_MOST_FOLDERS = 100  # In which a module's files are looked for.


class SyncSource:
    """A path that the user syncs, and the patterns of files that are left out."""

    _most_files = sys.maxsize

    def __init__(self, path: str, exclude: Sequence[str] = ()):
        """Raises UsageError when there is nothing to sync."""
        given = Path(path).expanduser()
        if not given.exists():
            raise UsageError(f"sync {path}: there is no such file or folder here")
        self.exclude = tuple(exclude)
        self.path = given.resolve()
        self.is_file = self.path.is_file()
        self.root = self.path.parent if self.is_file else self.path
        self.name = self.path.stem if self.is_file else self.path.name
        if not self.name:
            raise UsageError(f"sync {path}: the whole file system cannot be synced; name a folder")
        self.synced: SourceTree | None = None  # The tree that was synced last.
        self._known: dict[str, tuple[tuple[int, ...], bytes]] = {}  # An unchanged file is not read again.
        self._rules = IgnoreRules(self.root, self.exclude)  # Those of the last list.

    def list(self) -> SourceTree:
        """The files as they are now. Raises UsageError naming a file that cannot be read or a link that leads out."""
        entries = tuple(filter(None, map(self._entry, self._paths())))
        is_package = not self.is_file and (self.path / "__init__.py").is_file()
        return SourceTree(self.name, entries, is_package)

    def _paths(self) -> Sequence[Path]:
        return [self.path] if self.is_file else sorted(self._walk())

    def _walk(self, only: Collection[str] | None = None) -> Iterator[Path]:
        """The files that are not left out; with ``only``, of the root those files and folders."""
        ignoring, seen = IgnoreRules(self.root, self.exclude), 0
        self._rules = ignoring
        for folder, folders, names in os.walk(self.root):
            here = Path(folder)
            files = names
            if only is not None and here == self.root:
                folders[:], files = [f for f in folders if f in only], [f for f in names if f in only]
            seen += len(files)
            if seen > self._most_files:
                raise UsageError(f"{self.path} has more than {self._most_files} files")
            ignoring.enter(here)
            links = [f for f in folders if (here / f).is_symlink()]
            folders[:] = sorted(f for f in folders if f not in links and not ignoring.ignores(here / f, True))
            for name in (*files, *links):
                if not ignoring.ignores(here / name, False):
                    yield here / name

    def _entry(self, path: Path) -> TreeEntry | None:
        """None for anything but files and links, and for a file that vanished meanwhile."""
        relative = path.relative_to(self.root).as_posix()
        try:
            found = path.lstat()
            if stat.S_ISLNK(found.st_mode):
                return TreeEntry(relative, 0, b"", target=self._target(path, relative))
            if not stat.S_ISREG(found.st_mode):
                return None
            return TreeEntry(relative, found.st_size, self._digest(path, found), bool(found.st_mode & stat.S_IXUSR))
        except FileNotFoundError:
            return None
        except OSError as e:
            raise UsageError(f"sync: {path} cannot be read: {e.strerror}; --exclude {relative} leaves it out") from e

    def _target(self, path: Path, relative: str) -> str:
        """The target of a link, relative to the link's folder."""
        target = os.readlink(path)
        if os.path.isabs(target):
            target = os.path.relpath(target, path.parent)
        if not leads_inside(relative, target):
            out = f"the link {relative} leads out of {self.root}, to {os.readlink(path)}"
            raise UsageError(f"sync: {out}; --exclude {relative} leaves it out, or put what it leads to in its place")
        return target

    def _digest(self, path: Path, found: os.stat_result) -> bytes:
        mark = _mark(found)
        known = self._known.get(str(path))
        if known is None or known[0] != mark:
            with open(path, "rb") as f:
                digest = hashlib.file_digest(f, partial(hashlib.blake2b, digest_size=32)).digest()
            known = self._known[str(path)] = (mark, digest)
        return known[1]


def _mark(found: os.stat_result) -> tuple[int, ...]:
    return (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


class ModuleSource(SyncSource):
    """A directory of modules that a rank has requested: what in it is code, or of too much only what was requested."""

    _most_files = 10_000  # With those that are left out.

    def __init__(self, directory: str):
        super().__init__(directory, NOT_CODE)
        self.requested: set[str] = set()  # Modules.
        self._is_whole = not Path(os.path.expanduser("~")).resolve().is_relative_to(self.path)
        self._origin = directory  # As it is on the import path.
        self._listed: dict[Path, tuple[int, ...]] = {}  # Marks of all that decides what is listed.
        self._is_recent = True  # Some of it changed when it was listed, or just before.

    def list(self) -> SourceTree:
        """The files as they are now. Raises UsageError if they are too many, or too large."""
        self._is_recent, began = True, time.time_ns()
        tree = super().list()
        files = (self.path / entry.path for entry in tree.entries)
        self._listed = _look((*self._rules.read, *files))
        newest = max((mark[-1] for mark in self._listed.values()), default=0)
        self._is_recent = newest > began - _RECENT
        return structs.replace(tree, is_package=False, origin=self._origin)

    def may_have_changed(self) -> bool:
        """Whether another list could differ from the last. It looks at times only, which takes a tenth of the time."""
        return self._is_recent or _look(self._listed) != self._listed

    def parts(self, module: str) -> set[str]:
        """The names of the files and the folder that can be imported as it, which a folder of other things cannot."""
        suffixes = tuple(importlib.machinery.all_suffixes())
        found = {path.name for path in self.path.glob(f"{module}.*") if path.name.endswith(suffixes)}
        folders = itertools.islice(os.walk(self.path / module), _MOST_FOLDERS)
        has_code = any(name.endswith(suffixes) for _, _, names in folders for name in names)
        return found | {module} if has_code else found

    def suggested(self, module: str) -> str:
        """What the user can sync instead."""
        found = (path for path in self.path.glob(f"{module}*") if path.name.split(".")[0] == module)
        return str(self.path if self._is_whole else next(found, self.path))

    def _paths(self) -> Sequence[Path]:
        if self._is_whole:
            try:
                return self._code()
            except UsageError:
                if self.synced is not None:  # the nodes would lose what they have
                    raise
                self._is_whole = False
        return self._code(set[str]().union(*map(self.parts, self.requested)))

    def _code(self, only: Collection[str] | None = None) -> Sequence[Path]:
        paths = sorted(path for path in self._walk(only) if not self._leads_out(path))
        nbytes = sum(path.lstat().st_size for path in paths if os.path.lexists(path))
        if nbytes > _MOST_BYTES:
            what = str(self.path) if only is None else f"{', '.join(sorted(self.requested))} in {self.path}"
            most = f"more than {format_bytes(_MOST_BYTES)}"
            raise UsageError(f"{what} has {format_bytes(nbytes)} that git does not ignore, {most}")
        return paths

    def _leads_out(self, path: Path) -> bool:
        """Whether it is a link out of the directory, as many are that lead to data."""
        if not path.is_symlink():
            return False
        return not Path(os.path.normpath(path.parent / os.readlink(path))).is_relative_to(self.path)


def _look(paths: Iterable[Path]) -> dict[Path, tuple[int, ...]]:
    """The marks of those that exist."""
    found = {}
    for path in paths:
        with contextlib.suppress(OSError):
            found[path] = _mark(path.lstat())
    return found


class IgnoreRules:
    """The rules for one tree; the .gitignore files in it are read as its folders are entered."""

    def __init__(self, root: Path, exclude: Sequence[str]):
        self._root = root
        self._own = GitIgnoreSpec.from_lines([*ALWAYS, *exclude])
        self._specs: dict[Path, GitIgnoreSpec] = {}
        self.read: list[Path] = []  # Folders that were entered, and their .gitignore files.
        for folder in _repository(root):
            self.enter(folder)

    def enter(self, folder: Path) -> None:
        """Read the folder's .gitignore, if it has one."""
        self.read += (folder, folder / ".gitignore")
        try:
            text = (folder / ".gitignore").read_text(errors="replace")
        except OSError:
            return
        self._specs[folder] = GitIgnoreSpec.from_lines(text.splitlines())

    def ignores(self, path: Path, is_folder: bool) -> bool:
        """Whether a path is left out. The user's patterns count before those of the nearest .gitignore."""
        specs = [(self._root, self._own), *((f, self._specs[f]) for f in path.parents if f in self._specs)]
        for folder, spec in specs:  # the nearest .gitignore first
            found = spec.check_file(path.relative_to(folder).as_posix() + "/" * is_folder).include
            if found is not None:
                return found
        return False


def _repository(root: Path) -> list[Path]:
    """The folders above ``root`` in its git repository, whose .gitignore files apply to it, too."""
    for depth, folder in enumerate((root, *root.parents)):
        if os.path.lexists(folder / ".git"):
            return list(root.parents)[:depth]
    return []


_SMALL = 1 << 20  # Bytes of a content that travels in a message.
_MESSAGE = 4 << 20  # Bytes of contents in one message.
_PART = 16 << 20  # Bytes of a large content that travel at once.
_AT_ONCE = 4
_QUIET = 120.0  # Seconds without an answer from a node that compares its files, or fetches a part.


# ---------------------------------------------------------------- copies on the nodes


class Synced(Struct, frozen=True):
    """The result of a sync. Paths are relative to the tree."""

    name: str
    folder: str  # The copy on the first node; on the others it has the same name in their temporary folder.
    files: int  # Number of files in the synced tree.
    sent: int  # Number of contents that some node lacked.
    nbytes: int  # Bytes of those contents, each counted once for all nodes.
    changed: tuple[str, ...]
    deleted: tuple[str, ...]
    nodes: tuple[int, ...]

    def __str__(self) -> str:
        nodes = format_count(len(self.nodes), "node")
        if not self.changed and not self.deleted:
            return f"{self.name}: nothing has changed; {self.files} files on {nodes}"
        parts = [f"{format_count(len(self.changed), 'file')} of {self.files} written, {format_bytes(self.nbytes)} sent"]
        parts += [f"{format_count(len(self.deleted), 'file')} deleted"] * bool(self.deleted)
        return f"{self.name}: {', '.join(parts)}, on {nodes}; imports find it in {self.folder}"


class SyncedCode:
    """The part of a cluster that keeps local code in sync with its nodes."""

    def __init__(self, attachment: Attachment, carrier: Carrier) -> None:
        self._attachment = attachment
        self._carrier = carrier
        self._sources: dict[str, SyncSource] = {}
        self.watches: dict[str, asyncio.Task[None]] = {}  # Tasks that sync changed files, by the source's name.
        self._syncing = asyncio.Lock()
        self._seen_nodes: tuple[str, ...] = ()
        self._for_new_nodes: asyncio.Task[None] | None = None
        self._requested: dict[tuple[int, str], asyncio.Task[str]] = {}  # By run and module; what is said about it.
        self._replying: set[asyncio.Task[None]] = set()
        attachment.watch(self._on_message)
        attachment.route(self._on_request)
        attachment.before_cells(self._sync_modules)

    async def sync(
        self, path: str, *, exclude: Sequence[str] = (), watch: bool = False, on_progress: OnProgress | None = None
    ) -> Synced:
        """Copy a local file or folder to every node, only what has changed, and have every rank import from it.

        The copy is in a folder of the cluster's own that ends with it; what was deleted here is deleted there. A folder
        with an ``__init__.py`` is imported by its name, any other folder's modules by theirs. Modules that are loaded
        already are read again before a rank's next cell, and names imported from them are updated. Left out are .git,
        __pycache__, what .gitignore files name, and ``exclude``, in the same syntax.
        With ``watch``, changes are synced as they happen until this client detaches, or syncs the path without it.
        Nodes and ranks that join later have the code, too. Raises UsageError naming node and file; nothing has been
        changed then.
        """
        source = SyncSource(path, exclude)
        known = self._sources.get(source.name)
        if known is not None and known.path != source.path:
            raise UsageError(f"sync {path}: {known.path} is synced under the name {source.name} already; rename one")
        if known is not None and known.exclude == source.exclude:
            source = known  # it knows what has not changed
        await self._end_watch(source.name)
        if watch:
            self.watches[source.name] = asyncio.create_task(self._keep_in_sync(source))
            await asyncio.sleep(0)  # from here on no change is missed
        try:
            synced = await self._sync(source, on_progress)
        except BaseException:
            await self._end_watch(source.name)
            raise
        self._sources[source.name] = source
        self._attachment.history.add(Annotation(f"{path} synced; a script imports from PYTHONPATH and its own folder"))
        return synced

    def _on_request(self, message: Message) -> None:
        """Reply to ranks that lack a module. Those of one run that lack the same module are told the same."""
        if not isinstance(message, ModuleRequest):
            return
        key = (message.run, message.name)
        self._requested = {k: task for k, task in self._requested.items() if k[0] == message.run or not task.done()}
        if key not in self._requested:
            self._requested[key] = asyncio.create_task(self._sync_requested(message.name))
        task = asyncio.create_task(self._reply(message, self._requested[key]))
        self._replying.add(task)
        task.add_done_callback(self._replying.discard)

    async def _reply(self, message: ModuleRequest, said: asyncio.Task[str]) -> None:
        reply = ModuleReply(message.rank, message.name, await said)
        if not self._attachment.link.lost:
            self._attachment.link.send(reply)

    async def _sync_requested(self, module: str) -> str:
        """Sync the directory that has the module to the nodes that lack it; the line that the cell's output has."""
        directory = self._attachment.modules.get(module)
        if directory is None:
            return ""
        source: SyncSource | None = None
        is_new = False
        try:
            requested = ModuleSource(directory)
            if not await asyncio.to_thread(requested.parts, module):
                return ""
            source = next((each for each in self._sources.values() if each.path == requested.path), requested)
            if isinstance(source, ModuleSource):
                is_new = module not in source.requested
                source.requested.add(module)
            while self._sources.setdefault(source.name, source) is not source:
                source.name += "_"  # another directory has the name
            synced = await self._sync(source)
        except (JdistError, OSError) as e:
            suggested = directory
            if isinstance(source, ModuleSource):
                suggested = source.suggested(module)
                if is_new:  # else the nodes would lose what they have
                    source.requested.discard(module)
            if source is not None and source.synced is None:
                self._sources.pop(source.name, None)
            return f"{module} was not synced to the nodes that lack it: {e}; `sync {suggested}` copies it"
        if not synced.changed:
            return ""
        is_one = len(synced.nodes) == 1
        nodes, to = f"node{'' if is_one else 's'} {RankSet(synced.nodes)}", "it" if is_one else "them"
        return f"{module} is not on {nodes}: synced {format_count(synced.files, 'file')} of {directory} to {to}"

    async def _sync_modules(self) -> None:
        """Sync what ranks have requested, if it has changed. What cannot be synced is reported and forgotten."""
        for name, source in list(self._sources.items()):
            if not isinstance(source, ModuleSource):
                continue
            try:
                if await asyncio.to_thread(self._has_changed, source):
                    await self._sync(source)
            except ConnectionLost:
                return
            except (JdistError, OSError) as e:
                del self._sources[name]
                self._attachment.notify(Notice(f"{e}; it is not kept in sync any more"))

    @staticmethod
    def _has_changed(source: ModuleSource) -> bool:
        return source.may_have_changed() and source.list() != source.synced

    async def _sync(self, source: SyncSource, on_progress: OnProgress | None = None) -> Synced:
        async with self._syncing:
            tree = await asyncio.to_thread(source.list)
            try:
                synced = await Upload(self._attachment, self._carrier, source, on_progress).send(tree)
            except BaseExceptionGroup as group:
                first: BaseException = group
                while isinstance(first, BaseExceptionGroup):
                    first = first.exceptions[0]  # the others were cancelled, or failed alike
                raise first from group
            source.synced = tree
            return synced

    async def _keep_in_sync(self, source: SyncSource) -> None:
        """Sync after every change. A file that cannot be synced is reported, and tried again at the next change."""
        where = source.root if source.is_file else source.path
        async for _ in awatch(where, watch_filter=None, recursive=not source.is_file):
            try:
                if await asyncio.to_thread(source.list) == source.synced:
                    continue
                synced = await self._sync(source)
            except ConnectionLost:
                return
            except (JdistError, OSError) as e:
                self._attachment.notify(Notice(str(e)))
            else:
                self._attachment.notify(Notice(f"synced {synced}"))

    async def _end_watch(self, name: str) -> None:
        if watch := self.watches.pop(name, None):
            watch.cancel()
            await asyncio.wait([watch])

    def _on_message(self, message: Message) -> None:
        """Sync to nodes that were missing in the facts before."""
        if not isinstance(message, ClusterFacts):
            return
        before, self._seen_nodes = self._seen_nodes, message.hostnames
        joined = [n for n, name in enumerate(message.hostnames) if name and (n >= len(before) or not before[n])]
        if joined and self._sources and self._for_new_nodes is None:
            self._for_new_nodes = asyncio.get_running_loop().create_task(self._sync_new_nodes())

    async def _sync_new_nodes(self) -> None:
        try:
            for source in list(self._sources.values()):
                await self._sync(source)
        except ConnectionLost:
            return
        except (JdistError, OSError) as e:
            text = f"code could not be synced to a new node: {e}"
            self._attachment.notify(Notice(text, remedies=(Remedy("sync", "sync it again"),)))
        finally:
            self._for_new_nodes = None

    async def settled(self) -> None:
        """Wait until nodes that have joined have the code of the others."""
        if self._for_new_nodes is not None:
            await asyncio.wait([self._for_new_nodes])

    async def close(self) -> None:
        """End every watch; a node that joins from now on gets no code, and no rank a module."""
        self._sources.clear()
        for task in (*self._replying, *self._requested.values()):
            task.cancel()
        for name in list(self.watches):
            await self._end_watch(name)
        if self._for_new_nodes is not None:
            self._for_new_nodes.cancel()
            await asyncio.wait([self._for_new_nodes])


class Upload:
    """Sends one tree to nodes."""

    def __init__(
        self, attachment: Attachment, carrier: Carrier, source: SyncSource, on_progress: OnProgress | None
    ) -> None:
        self._link = attachment.link
        self._carrier = carrier
        self._names = attachment.facts.hostnames
        self._source = source
        self._on_progress = on_progress or (lambda *_: None)
        self._done = 0
        self._total = 0

    async def send(self, tree: SourceTree) -> Synced:
        """Bring all nodes up to date. Raises UsageError naming node and file; nothing has been changed there."""
        nodes = [n for n, name in enumerate(self._names) if name]
        if not nodes:
            raise UsageError("no node is attached to sync to")
        answers = await self._query(nodes, CompareTree(tree))
        found = {n: a for n, a in answers.items() if isinstance(a, TreeCompared) and not a.has_origin}
        if not found:  # all nodes share the directory
            return Synced(tree.name, tree.origin, len(tree.entries), 0, 0, (), (), ())
        sharing = ranks_by((node, found[node].place) for node in sorted(found)).values()
        followers = {leader: others for leader, *others in sharing}
        lacking = ranks_by((node, digest) for node in followers for digest in found[node].lacks)
        sent = {e.digest: e for e in tree.entries if e.digest in lacking}
        self._total = sum(e.size for e in sent.values())
        await self._send_all(sent.values(), lacking)
        changed: set[str] = set()
        deleted: set[str] = set()
        for node, answer in (await self._query(tuple(followers), ApplyTree(tree))).items():
            if isinstance(answer, TreeApplied):
                changed |= set(answer.changed)
                deleted |= set(answer.deleted)
                await self._query(followers[node], AdoptTree(tree.name, tree.is_package, tree.origin, answer.changed))
        first = found[min(followers)]
        folder = first.path if tree.is_package else os.path.join(first.path, tree.name)
        counts = (len(tree.entries), len(sent), self._total)
        return Synced(tree.name, folder, *counts, tuple(sorted(changed)), tuple(sorted(deleted)), tuple(sorted(found)))

    async def _send_all(self, entries: Iterable[TreeEntry], lacking: Mapping[bytes, Sequence[int]]) -> None:
        small: dict[tuple[int, ...], list[TreeEntry]] = {}
        gate = asyncio.Semaphore(_AT_ONCE)
        async with asyncio.TaskGroup() as group:
            for entry in entries:
                nodes = tuple(lacking[entry.digest])
                if entry.size <= _SMALL:
                    small.setdefault(nodes, []).append(entry)
                    continue
                for offset in range(0, entry.size, _PART):
                    group.create_task(self._send_part(entry, offset, nodes, gate))
            for nodes, wanted in small.items():
                group.create_task(self._send_small(wanted, nodes, gate))

    async def _send_small(self, entries: Sequence[TreeEntry], nodes: Sequence[int], gate: asyncio.Semaphore) -> None:
        pieces: list[Piece] = []
        for i, entry in enumerate(entries, 1):
            data = await asyncio.to_thread(_read, self._source.root / entry.path, 0, _SMALL)
            pieces.append(Piece(entry.digest, 0, data))
            nbytes = sum(len(p.data) for p in pieces)
            if nbytes >= _MESSAGE or i == len(entries):
                async with gate:
                    await self._query(nodes, StorePieces(self._source.name, tuple(pieces)))
                self._note(nbytes)
                pieces = []

    async def _send_part(self, entry: TreeEntry, offset: int, nodes: Sequence[int], gate: asyncio.Semaphore) -> None:
        def fetch(path: str, nbytes: int, transfer: str) -> Coroutine[Any, Any, Any]:
            place = (entry.digest, offset, nbytes, transfer, path, self._carrier.probe)
            return self._query(nodes, StorePieces(self._source.name, (), *place))

        async with gate:
            count = min(_PART, entry.size - offset)
            data = await asyncio.to_thread(_read, self._source.root / entry.path, offset, count)
            if not data:
                return  # the file has become shorter; the digest will not match, which is reported
            await self._carrier.share([memoryview(data)], fetch)
        self._note(len(data))

    def _note(self, nbytes: int) -> None:
        self._done += nbytes
        self._on_progress(self._source.name, self._done, self._total)

    async def _query(self, nodes: Sequence[int], op: NodeOp) -> dict[int, NodeReplyBody]:
        """The nodes' answers. Raises UsageError when a node failed."""
        answers = await self._link.query_nodes(nodes, op, _QUIET) if nodes else {}
        failed = {n: a.reason for n, a in sorted(answers.items()) if isinstance(a, QueryFailed)}
        if failed:
            each = "; ".join(f"node {n} ({self._names[n]}): {reason}" for n, reason in failed.items())
            raise UsageError(f"sync {self._source.path}: {each}")
        return answers


def _read(path: Path, offset: int, count: int) -> bytes:
    """A part of a file. Raises UsageError naming the file."""
    try:
        with open(path, "rb") as f:
            f.seek(offset)
            return f.read(count)
    except OSError as e:
        raise UsageError(f"sync: {path} cannot be read any more: {e.strerror}; sync again") from e

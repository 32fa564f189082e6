"""Session: named groups and the mesh of an attached cluster, and saves of what its ranks hold.

Groups and the mesh are made again whenever the world is formed. A save is a folder, which another world can load.
"""

import asyncio
import uuid
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from jdist.client.active_runs import ActiveRuns
from jdist.client.attachment import Attachment, Ranks
from jdist.client.history import GroupStep, MeshStep
from jdist.client.link import new_request
from jdist.client.variables.variables import split_names
from jdist.core import rank_code
from jdist.core.errors import UsageError, ValueFailed
from jdist.core.messages.base import Message
from jdist.core.messages.membership import GroupCreated, MakeGroup, MakeMesh
from jdist.core.messages.saving import Autosave, LoadReport, Manifest, Omission, SaveEnded, SaveOptions, SaveReport
from jdist.core.messages.status import Stopped
from jdist.core.ranks import RankSet
from jdist.core.settings import REFORM_TIMEOUT
from jdist.core.topology import Mesh


class NamedGroups:
    """The part of a cluster that makes named groups and the mesh."""

    def __init__(self, attachment: Attachment) -> None:
        self._attachment = attachment

    async def new_group(self, name: str, ranks: Ranks) -> str:
        """Make a named process group, now and after every re-forming: ``-g NAME``, ``groups["NAME"]`` on the ranks."""
        if not name.isidentifier() or name in ("world", "all", "node"):
            raise UsageError(f"a group's name is a plain word other than world, all and node; not {name!r}")
        message = MakeGroup(new_request(), name, self._attachment.select(ranks))
        made = await self._attachment.link.request(message, GroupCreated, REFORM_TIMEOUT)
        self._attachment.history.add(GroupStep(name, message.ranks))
        return made.text

    async def new_mesh(self, text: str) -> str:
        """Make a named mesh such as "dp=2,tp=2": ``-r dp=0`` in the notebook, ``mesh["dp"]`` on the ranks."""
        mesh = Mesh.parse(text, self._attachment.facts.topology.world_size)
        message = MakeMesh(new_request(), mesh.names, mesh.sizes)
        made = await self._attachment.link.request(message, GroupCreated, REFORM_TIMEOUT)
        self._attachment.history.add(MeshStep(mesh.names, mesh.sizes))
        return made.text


class SavedSession(Struct, frozen=True):
    """A save: what was copied, and (once it has been written) where it is."""

    folder: str
    names: tuple[str, ...]
    left_out: tuple[Omission, ...]
    nbytes: int  # Of the tensors, each counted once.
    busy_seconds: float  # For which the ranks were busy.
    seconds: float  # From the beginning until everything was written; 0 if that was not waited for.


class LoadedSession(Struct, frozen=True):
    """A session that was loaded."""

    folder: str
    names: dict[str, tuple[int, ...]]  # The ranks that have each.
    decisions: tuple[str, ...]  # What had to be decided because the world has another size.
    failed: tuple[Omission, ...]
    manifest: Manifest
    notes: tuple[str, ...]  # What was not made again besides names: groups, the mesh, setup cells.


class Saving:
    """The part of a cluster that saves and loads sessions."""

    def __init__(self, attachment: Attachment, runs: ActiveRuns, groups: NamedGroups) -> None:
        self._attachment = attachment
        self._runs = runs
        self._groups = groups

    async def save(self, directory: str, names: str = "", *, keep: int = 2, background: bool = False) -> SavedSession:
        """Save what the ranks hold into a new folder in ``directory``, of which the newest ``keep`` are kept.

        ``names`` ("model,optimizer"), or everything that cells have bound, with random numbers, setup cells, groups
        and the mesh. The ranks are busy only while they copy their values, and write them while other cells run; with
        ``background``, this returns then. The directory has to be on a file system that all nodes share, and belongs
        to the user alone. Names that cannot be saved are in ``left_out``. Raises UsageError, and ValueFailed if
        something could not be written; older saves stay as they were in each case.
        """
        if keep < 1:
            raise UsageError(f"at least one save is kept, not {keep}")
        number = uuid.uuid4().hex[:12]
        path = await self._absolute(directory)
        code = rank_code.save(path, split_names(names) if names else (), number, keep)
        finished: asyncio.Future[SaveEnded] = asyncio.get_running_loop().create_future()

        def note(message: Message) -> None:
            if finished.done():
                return
            if isinstance(message, SaveEnded) and message.save == number:
                finished.set_result(message)
            elif isinstance(message, Stopped):
                finished.set_exception(ValueFailed(f"the cluster ended before the save was complete: {message.reason}"))

        unwatch = self._attachment.watch(note)
        try:
            copied: SaveReport = (await self._runs.run_refusable(code)).values[0]
            done = None if background else await finished
        finally:
            unwatch()
            finished.cancel()
        if done is not None and done.error:
            raise ValueFailed(f"the save was abandoned: {done.error}; older saves are unchanged")
        seconds = 0.0 if done is None else done.seconds
        return SavedSession(copied.folder, copied.names, copied.left_out, copied.nbytes, copied.seconds, seconds)

    async def autosave(self, directory: str, names: str = "", *, every: float | None = 600.0, keep: int = 2) -> None:
        """Save by itself ``every`` so many seconds, and keep the newest ``keep`` saves; with None, not any more.

        The controller does that, also when no notebook is attached. A save begins between two cells; within a cell
        whose ranks all call ``jdist.save_if_due()`` in a loop, it begins at such a call. Raises UsageError.
        """
        options = None
        if every is not None:
            options = SaveOptions(await self._absolute(directory), split_names(names) if names else (), keep)
        await self._attachment.link.request(Autosave(new_request(), options, every or 0.0), object)

    async def load(self, directory: str, names: str = "", *, sources: Mapping[int, int] | None = None) -> LoadedSession:
        """Bind what was saved in ``directory`` (its newest save, or one save's folder) on the ranks.

        In a world of another size, DTensors are sharded anew and names that were equal on all ranks are on all ranks;
        of names that differed by rank, each rank gets those of its number, and new ranks get only models and
        optimizers, from the rank ``rank % saved world size``. ``sources``, ``{rank: saved rank}``, overrides that.
        Without ``names``, setup cells are run, and named groups and the mesh made, before. Raises UsageError, with
        nothing bound.
        """
        path = await self._absolute(directory)
        manifest: Manifest = (await self._runs.run_refusable(rank_code.read_manifest(path), ranks=(0,))).values[0]
        notes = () if names else await self._prepare(manifest)
        code = rank_code.load(path, split_names(names) if names else (), dict(sources or {}))
        run = await self._runs.run_refusable(code)
        loaded: dict[int, LoadReport] = run.values
        bound: dict[str, list[int]] = {}
        failed: dict[tuple[str, str], list[int]] = {}
        for rank, found in loaded.items():
            for name in found.names:
                bound.setdefault(name, []).append(rank)
            for each in found.failed:
                failed.setdefault((each.name, each.why), []).append(rank)
        return LoadedSession(
            loaded[0].folder,
            {name: tuple(ranks) for name, ranks in bound.items()},
            loaded[0].decisions,
            tuple(Omission(name, str(RankSet(ranks)), why) for (name, why), ranks in failed.items()),
            manifest,
            tuple(notes),
        )

    async def _prepare(self, manifest: Manifest) -> list[str]:
        """Make groups and the mesh, and run the setup cells, which may use them; what could not be done."""
        notes = []
        size = self._attachment.facts.topology.world_size
        for name, ranks in manifest.groups.items():
            if name in self._attachment.facts.groups:
                continue
            if max(ranks) >= size:
                notes.append(f"group {name} is not made: it had ranks {RankSet(ranks)}, and there are {size} ranks")
            else:
                await self._groups.new_group(name, ranks)
        if manifest.mesh is not None and self._attachment.facts.mesh is None:
            names, sizes = manifest.mesh
            text = ",".join(f"{name}={count}" for name, count in zip(names, sizes, strict=True))
            if manifest.world_size == size:
                await self._groups.new_mesh(text)
            else:
                notes.append(
                    f"the mesh {text} is not made: {manifest.world_size} ranks were saved, and there are {size}"
                )
        for code in manifest.setup:
            run = await self._runs.run(code, self._attachment.select(), check=False, setup=True)
            error = next((o.error for o in run.outcomes.values() if o.error is not None), None)
            if error is not None:
                notes.append(f"a setup cell failed: {error.ename}: {error.evalue}")
        return notes

    async def _absolute(self, directory: str) -> str:
        """The directory as it is to be found here, or at the cluster's host if that is behind ssh."""
        if self._attachment.link.host is None:
            return _absolute_here(directory)
        found: str = (await self._runs.run_refusable(rank_code.absolute(directory), ranks=(0,))).values[0]
        return found


def _absolute_here(directory: str) -> str:
    return str(Path(directory).expanduser().absolute())

"""Groups: the life cycle of the world's process group, and of the groups made from it, in one worker.

A *generation* is formed, used until a collective is cut or a rank is lost, and left for the next one. What a user has
built on a generation lives on: groups are made again in the same order, so that torch gives them the same names, and
handles of the old ones are replaced (see worker/groups/rebind).
"""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeGuard

from jdist.core.errors import LaunchError
from jdist.core.messages.groups import GroupSpec
from jdist.worker.gloo.connections import Endpoint, let_go, own_listeners, quiet
from jdist.worker.gloo.wake_listeners import Knocker
from jdist.worker.groups import patches
from jdist.worker.groups.formation import (
    FormReport,
    FormSpec,
    choose,
    exchange,
    forget_world,
    init_world,
    make_groups,
    set_environment,
    watchdog,
)
from jdist.worker.groups.rebind import ON_REFORM, Pairs, swap
from jdist.worker.groups.store_client import StoreClient, sweep
from jdist.worker.observe.call_log import Notes

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["FormReport", "FormSpec", "Groups"]


class Groups:
    """This worker's process groups. Callable from any thread; ``form`` only while no cell runs.

    ``on_group(index, spec, listeners)`` is called on the cell's thread when a cell has made a group: its place in the
    list of such groups, what it is, and the sockets on which it made this rank listen.
    """

    def __init__(self, namespace: dict[str, Any]):
        self.on_group: Callable[[int, GroupSpec, set[Endpoint]], None] = lambda _index, _spec, _listeners: None
        self._namespace = namespace
        self._bound: dict[str, Any] = {}
        self._client = StoreClient()
        self._lock = threading.Lock()
        self._turn = threading.Lock()  # guards the two below
        self._newest = 0
        self._abandoned = threading.Event()
        self._forming: int | None = None
        self._spec: FormSpec | None = None
        self._backend = ""
        self._device: Any = None
        self._groups: dict[object, Any] = {}
        self._left: dict[object, Any] = {}  # the last generation's, to which users' handles still lead
        self._log: list[GroupSpec] = []
        self._gone: set[int] = set()
        self._local: list[tuple[int, ...]] = []
        self._named: dict[str, Any] = {}
        self._world_size = 0
        self._made_so_far: Callable[[], set[Endpoint]] = set
        self._knocker = Knocker()
        self.notes = Notes()
        """This process's calls of torch.distributed, once the wrappers are installed."""
        self.listeners: set[Endpoint] = set()
        """Every rank's listeners of this generation, as far as this rank knows them."""

    # ------------------------------------------------------------ what others ask

    @property
    def generation(self) -> int | None:
        """The generation that is held, or None."""
        return self._spec.generation if self._spec is not None else None

    @property
    def store_ports(self) -> tuple[int, ...]:
        return self._client.ports

    @property
    def has_nccl(self) -> bool:
        return "nccl" in self._backend

    @property
    def is_in_cell(self) -> bool:
        return self._spec is not None and self._forming != threading.get_ident()

    @property
    def held(self) -> tuple[str, int, int]:
        if self._spec is None:
            raise LaunchError("no world is formed on this worker")
        return self._backend, self._spec.rank, self._spec.world_size

    def install_wrappers(self) -> None:
        """Wrap torch.distributed's functions for this worker; once a process, before user code runs."""
        patches.install(self)
        self.notes.install()

    def labels(self) -> dict[str, str]:
        """What users call the groups that have a name of their own, by torch's name."""
        held = {f"group {name!r}": name for name in self._named}
        dimensions = self._spec.mesh[0] if self._spec is not None and self._spec.mesh is not None else ()
        held |= {f"mesh dimension {name!r}": name for name in dimensions}
        return {str(g.group_name): held[k] for k, g in list(self._groups.items()) if k in held and _is_group(g)}

    def end_making(self) -> None:
        """End a wait in the making of a group: at the rendezvous store, or for a peer that will not connect."""
        self._client.cut()
        if self._spec is not None:
            self._knocker.knock(self._made_so_far(), self._spec.world_size)

    # ------------------------------------------------------------ what cells do (called by the wrappers)

    @contextlib.contextmanager
    def making(self) -> Iterator[Callable[[], set[Endpoint]]]:
        before = own_listeners()
        self._knocker = Knocker()
        self._made_so_far = lambda: own_listeners() - before
        try:
            yield self._made_so_far
        finally:
            self._made_so_far = set

    def made(self, spec: GroupSpec, group: Any, listeners: set[Endpoint]) -> None:
        index = len(self._log)
        self._log.append(spec)
        self._groups[index] = group
        self._gone.discard(index)
        self.listeners |= listeners
        self.on_group(index, spec, listeners)

    def made_locally(self, ranks: tuple[int, ...]) -> None:
        self._local.append(ranks)

    def destroyed(self, group: Any) -> None:
        """The group stays in the list, since its members alone know that it is gone and names count it."""
        for index, held in list(self._groups.items()):
            if held is group and isinstance(index, int):
                self._gone.add(index)
                del self._groups[index]

    # ------------------------------------------------------------ forming

    def form(self, spec: FormSpec) -> FormReport:
        """Leave the generation that is held, if any, and form ``spec.generation`` with all other ranks.

        A forming that is still on, of an older generation, is abandoned: one of its ranks is gone.
        Raises LaunchError that says what is missing, when ranks, store or backend are.
        """
        with self._turn:
            self._newest = max(self._newest, spec.generation)
            self._abandoned.set()
        with self._lock, self._as_former():
            with self._turn:
                if spec.generation < self._newest:
                    raise LaunchError(f"generation {spec.generation} was given up for {self._newest}")
                abandoned = self._abandoned = threading.Event()
            began = time.monotonic()
            self._backend, self._device = choose(spec)
            set_environment(spec)
            self._leave(spec.cut)
            before = own_listeners()
            deadline = began + spec.timeout
            try:
                with watchdog(self._client, spec.world_size, deadline, abandoned):
                    init_world(spec, self._backend, self._device, self._client, deadline)
                    groups = make_groups(spec, self._device)
                    own = own_listeners() - before
                    listeners = exchange(spec, self._backend, self._device, own)
            except LaunchError:
                raise
            except Exception as e:
                reason = str(e).splitlines()[0] if str(e) else type(e).__name__
                raise LaunchError(f"rank {spec.rank} could not join the world of {spec.world_size}: {reason}") from e
            self.listeners = listeners
            notices = self._adopt(spec, groups)
            let_go()
        seconds = time.monotonic() - began
        return FormReport(spec.generation, tuple(sorted(own)), str(self._device), seconds, notices)

    @contextlib.contextmanager
    def _as_former(self) -> Iterator[None]:
        self._forming = threading.get_ident()
        try:
            yield
        finally:
            self._forming = None

    def _leave(self, listeners: tuple[Endpoint, ...]) -> None:
        """Destroy the groups that are held; cut first, since destroying waits for operations that never end."""
        import torch.distributed as dist

        if self._groups:  # else the last forming failed, and what was left before it counts
            self._left, self._groups = self._groups, {}
        self._spec = None
        quiet({*listeners, *self.listeners})
        self.listeners = set()
        if dist.is_initialized():
            try:
                dist.destroy_process_group()
            except RuntimeError as e:  # the group is broken, which is why it is left
                print(f"jdist: leaving a broken process group: {e}", file=sys.__stderr__)
        forget_world()
        gc.collect()

    def _adopt(self, spec: FormSpec, groups: dict[object, Any]) -> tuple[str, ...]:
        """Make the new generation the one that is held."""
        mesh = groups.pop("mesh", None)
        notices = [*self._swap(groups), *self._not_replayed(), *self._other_meshes(spec.world_size)]
        self._local.clear()
        self._groups, self._log = groups, list(spec.replay)
        for index in sorted(self._gone):
            self._destroy_again(index)
        self._named.clear()
        self._named.update({name: groups[f"group {name!r}"] for name in spec.named})
        self._bind(spec, mesh)
        if spec.rank == 0 and spec.store_port:
            sweep(self._client.get(spec.store_host, spec.store_port), spec.generation)
        self.notes.formed_at = time.time_ns()
        self._spec = spec
        return tuple(notices)

    def _swap(self, groups: dict[object, Any]) -> Iterator[str]:
        pairs = Pairs()
        for key, group in self._left.items():
            if not _is_group(group):
                continue
            new = groups.get(key)
            name = key if isinstance(key, str) else f"group {group.group_name} ({group.group_desc})"
            if _is_group(new):
                pairs.add(group, new, name)
            else:
                yield f"{name} of the last generation is gone; make it again{ON_REFORM}"
        self._left.clear()
        yield from swap(pairs, self._namespace)

    def _not_replayed(self) -> Iterator[str]:
        for ranks in self._local:
            yield f"the group of ranks {ranks}, made by its members alone, is gone; make it again{ON_REFORM}"

    def _other_meshes(self, world_size: int) -> Iterator[str]:
        """Meshes of cells over the whole of a world of another size: torch would take the new world for theirs."""
        size, self._world_size = self._world_size, world_size
        if size in (0, world_size):
            return
        from torch.distributed.device_mesh import DeviceMesh

        found = [m for m in gc.get_objects() if type(m) is DeviceMesh and m.size() == size]
        if found:
            yield f"a DeviceMesh over all {size} ranks does not fit a world of {world_size}; make it again"

    def _destroy_again(self, index: int) -> None:
        import torch.distributed as dist

        group = self._groups.pop(index, None)
        if _is_group(group):
            dist.destroy_process_group(group)
        else:
            self._gone.discard(index)

    def _bind(self, spec: FormSpec, mesh: Any) -> None:
        """Give the namespace its names, except where the user has given a name another meaning."""
        import torch
        import torch.distributed as dist

        names = {
            "torch": torch,
            "dist": dist,
            "rank": spec.rank,
            "local_rank": spec.local_rank,
            "node_rank": spec.node_rank,
            "world_size": spec.world_size,
            "device": self._device,
            "groups": self._named,
        }
        if mesh is not None:
            names["mesh"] = mesh
        elif "mesh" in self._bound and self._namespace.get("mesh") is self._bound["mesh"]:
            del self._namespace["mesh"], self._bound["mesh"]  # it was for a world of another size
        for name, value in names.items():
            if name not in self._namespace or name not in self._bound or self._namespace[name] is self._bound[name]:
                self._namespace[name] = value
                self._bound[name] = value


def _is_group(value: Any) -> TypeGuard[ProcessGroup]:
    """A rank that is not in a group holds something else in its place."""
    import torch.distributed as dist

    return isinstance(value, dist.ProcessGroup)

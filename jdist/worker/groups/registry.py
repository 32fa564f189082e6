"""The registry of process groups: the world's generations, and the groups made from them, in one worker.

A *generation* is formed, used until a collective is aborted or a rank is lost, and left for the next one. Users' groups
are made again there in the same order, so that torch gives them the same names, and handles of the old ones are
replaced (see worker/groups/rebind).
"""

import gc
import logging
import sys
import threading
from collections.abc import Callable, Iterable
from datetime import timedelta
from types import FrameType
from typing import Any, TypeGuard

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from jdist.core.errors import LaunchError
from jdist.core.messages.membership import FormWorld, GroupSpec, WorldFormed
from jdist.worker.compat import torch as torch_compat
from jdist.worker.groups import on_reform
from jdist.worker.groups.environment import RankEnvironment
from jdist.worker.groups.formation import Facts, RankFormation
from jdist.worker.groups.gloo import Endpoint, ListenerWaker, end_reading, own_listeners, release, stop_listening, waits
from jdist.worker.groups.rebind import AGAIN, rebind, renew_reducers
from jdist.worker.groups.rpc import RpcAgent
from jdist.worker.groups.store import StoreClient, sweep
from jdist.worker.observe.call_log import CallLog

_log = logging.getLogger("jdist.worker")

_ABANDONED = 5.0  # Seconds for a formation that was given up to end.
_ABORTED = 1.0  # Seconds for NCCL to end its communicators, unless CUDA graphs hold them.
_HELD = "since NCCL waits for those that hold collectives of the world that was left"
_LAUNCHERS = ("torch.distributed.elastic.", "accelerate.launchers")  # Modules that give ranks to what they fork.


class GroupRegistry:
    """This worker's process groups. Callable from any thread; ``form`` only while no cell runs.

    ``on_group_made(index, spec, listeners)`` is called on the cell's thread when a cell has made a group; ``listeners``
    are the sockets on which it made this rank listen. ``holders`` may hold groups of cells besides the namespace.
    """

    def __init__(self, namespace: dict[str, Any], cluster: str = "jdist", holders: Iterable[Any] = ()):
        self.on_group_made: Callable[[int, GroupSpec, set[Endpoint]], None] = lambda _index, _spec, _listeners: None
        self._namespace = namespace
        self._holders = tuple(holders)
        self._bound: dict[str, Any] = {}
        self.own_names: dict[str, Any] = {}  # What every rank has; one dict for all generations.
        self.store_client = StoreClient()
        self.environment = RankEnvironment(cluster)
        self.rpc = RpcAgent()
        self._lock = threading.Lock()
        self._turn = threading.Lock()  # guards the two below
        self._newest = 0
        self._abandoned = threading.Event()
        self._formation: RankFormation | None = None  # The generation's that is held.
        self.why_unformed = ""  # Why there is no world in the cell that runs; "" if there is one.
        self._groups: dict[object, Any] = {}
        self._previous: dict[object, Any] = {}  # the last generation's, to which users' handles still lead
        self._made: list[GroupSpec] = []
        self._destroyed: set[int] = set()
        self._local: list[tuple[int, ...]] = []
        self._named: dict[str, Any] = {}
        self._world_size = 0
        self._world_timeout: timedelta | None = None  # As a cell has asked for; None: no limit.
        self._inherited: list[Any] = []
        self._is_forked = False
        self._new_listeners: Callable[[], set[Endpoint]] = set
        self._waker = ListenerWaker()
        self._nccl_abort: threading.Thread | None = None  # The last one that was begun.
        self._graphs_reset = 0  # CUDA graphs, since the last generation was adopted.
        self.log = CallLog()  # This process's calls of torch.distributed.
        self.listeners: set[Endpoint] = set()  # Every rank's listeners of this generation, as far as known.
        self._own_listeners: set[Endpoint] = set()  # This process's when it was formed, and those of groups made since.

    # ------------------------------------------------------------ what is held

    @property
    def is_in_cell(self) -> bool:
        """Whether what calls is a cell: while a world is formed, none is held."""
        return self._formation is not None

    @property
    def world(self) -> tuple[str, int, int]:
        """Backend, rank and world_size."""
        formation = self._formation
        if formation is None:
            raise LaunchError("no world is formed on this worker")
        return formation.backend, formation.rank, formation.form.world_size

    def labels(self) -> dict[str, str]:
        """The names that users gave to groups and mesh dimensions, by torch's name of the group."""
        known = {f"group {name!r}": name for name in self._named}
        mesh = self._formation.form.mesh if self._formation is not None else None
        known |= {f"mesh dimension {name!r}": name for name in (mesh[0] if mesh is not None else ())}
        return {str(g.group_name): known[k] for k, g in list(self._groups.items()) if k in known and _is_group(g)}

    def named_groups(self) -> tuple[dict[str, tuple[int, ...]], tuple[tuple[str, ...], tuple[int, ...]] | None]:
        """The named groups, and the names and sizes of the mesh, as users have asked for them."""
        form = self._formation.form if self._formation is not None else None
        return ({}, None) if form is None else (dict(form.named), form.mesh)

    def end_others(self) -> None:
        """End what cells have made besides process groups: RPC, and whatever met by a rendezvous of its own."""
        self.rpc.end()
        self.environment.disconnect()

    def abort_nccl(self) -> None:
        """Begin to end what NCCL runs on the GPU. It may take as long as NCCL likes, which must not hold up others."""
        if torch_compat.has_nccl() and (self._nccl_abort is None or not self._nccl_abort.is_alive()):
            self._nccl_abort = threading.Thread(target=_abort_nccl, name="jdist-abort", daemon=True)
            self._nccl_abort.start()

    def abort_group_creation(self) -> None:
        """End a wait in the making of a group: at the rendezvous store, or for a peer that will not connect."""
        self.store_client.disconnect()
        if self._formation is not None:
            self._waker.wake(self._new_listeners(), self._formation.form.world_size)

    def abort_nccl_creation(self) -> None:
        """End a wait in the making of an NCCL communicator, at a group's first collective or a pair's first transfer.

        The first member waits for the others at sockets of its own, the others for its address at the store, and NCCL
        has nothing to abort yet. Which sockets are NCCL's is not known: all that were opened since the world was formed
        are taken, but not gloo's, since it would end the process.
        """
        if self._nccl_abort is not None and self.log.open(threading.main_thread().ident or 0) is not None:
            self.store_client.disconnect()
            stop_listening(own_listeners() - self._own_listeners - self._new_listeners())

    def is_own_name(self, name: str) -> bool:
        """Whether every rank has this name from jdist, and the user has given it no other meaning."""
        return name in self._bound and self._namespace.get(name) is self._bound[name]

    # ------------------------------------------------------------ what cells do (called by the patches)

    def make_group(self, make: Callable[[], Any], spec: GroupSpec, *, is_local: bool = False) -> Any:
        """Make a cell's group. Of a local one only its members know, so that it cannot be made again by itself."""
        before = own_listeners()
        self._waker = ListenerWaker()
        self._new_listeners = lambda: own_listeners() - before
        try:
            group, listeners = make(), self._new_listeners()
        finally:
            self._new_listeners = set
        self._own_listeners |= listeners
        if is_local:
            self._local.append(spec.ranks)
        else:
            index = len(self._made)
            self._made.append(spec)
            self._groups[index] = group
            self.listeners |= listeners
            self.on_group_made(index, spec, listeners)
        return group

    def set_world_timeout(self, timeout: timedelta) -> None:
        """Set the timeout of the world's collectives on this rank, in later generations as well."""
        torch_compat.set_timeout(dist.group.WORLD, timeout)
        self._world_timeout = timeout

    def record_destroyed(self, group: Any) -> None:
        """A cell destroyed a group. It stays in the list: only its members know that it is gone, and names count it."""
        for index, held in list(self._groups.items()):
            if held is group and isinstance(index, int):
                self._destroyed.add(index)
                del self._groups[index]

    def go_without(self, reason: str) -> None:
        """Have a cell run without a world, which could not be formed for this reason; before it runs."""
        with self._turn:
            self._abandoned.set()
        if self._lock.acquire(timeout=_ABANDONED):
            try:
                self._leave((), _ABANDONED)
            finally:
                self._lock.release()
        self._set_unformed(f"the world is not formed: {reason}")

    def _set_unformed(self, reason: str) -> None:
        if reason != self.why_unformed:
            self.why_unformed = reason
            torch_compat.refuse_default_group(reason)

    # ------------------------------------------------------------ in a forked child

    def after_fork(self) -> None:
        """In a forked child: stop patching calls; torch keeps the world until `forget_inherited`.

        A launcher's child is told its rank in another world, so it begins without one.
        """
        self._formation, self._is_forked = None, True
        self._set_unformed("")
        self.log.refuse_inherited()
        if _is_launched():
            self.forget_inherited()

    def forget_inherited(self) -> bool:
        """In a forked child, take the rank's groups out of torch's registries, once; whether that was done.

        The objects stay: gloo's destructors would wait for threads that a child does not have.
        """
        if not self._is_forked:
            return False
        self._is_forked = False
        self.log.forget_inherited()
        self._inherited = torch_compat.groups()
        torch_compat.forget_groups()
        return True

    # ------------------------------------------------------------ forming

    def form(self, form: FormWorld, worker: int, gpu_index: int) -> WorldFormed:
        """Leave the generation that is held, if any, and form the next one with all other ranks.

        Abandons an older formation under way. Raises LaunchError that says what is missing: ranks, store or backend.
        """
        rank = form.workers.index(worker)
        with self._turn:
            self._newest = max(self._newest, form.generation)
            self._abandoned.set()
        with self._lock:
            with self._turn:
                if form.generation < self._newest:
                    raise LaunchError(f"generation {form.generation} was given up for {self._newest}")
                abandoned = self._abandoned = threading.Event()
            self._set_unformed("")
            formation = RankFormation(form, rank, gpu_index, self.store_client, abandoned)
            formation.set_environment(self.environment)
            self._leave(form.cut, form.timeout)
            waits.resume()
            before = own_listeners()
            try:
                with formation.watchdog():
                    formation.init_world()
                    groups = formation.make_groups()
                    own = own_listeners() - before
                    facts = formation.exchange(Facts(tuple(sorted(own)), self.rpc.state()), self.environment)
            except LaunchError:
                raise
            except Exception as e:
                reason = str(e).splitlines()[0] if str(e) else type(e).__name__
                raise LaunchError(f"rank {rank} could not join the world of {form.world_size}: {reason}") from e
            self.listeners = {endpoint for of in facts.values() for endpoint in of.listeners}
            self._own_listeners = own_listeners()
            notices = self._adopt(formation, groups)
            notices += self.rpc.agree({r: of.rpc for r, of in facts.items()}, rank, form.generation)
            release()
            torch_compat.unmute_warnings()
        device, listeners = str(formation.device), tuple(sorted(own))
        return WorldFormed(worker, form.generation, device, listeners, notices, on_reform.is_wanted())

    def _leave(self, listeners: tuple[Endpoint, ...], timeout: float) -> None:
        """Destroy the groups that are held; first end connections, since destroying waits for pending operations.

        NCCL's are aborted: destroying them waits for all that is queued, which never ends if a rank is gone.
        """
        self.abort_nccl()
        is_aborted = self._nccl_abort is not None
        if self._nccl_abort is not None:  # it empties torch's registries, which must not be the next generation's
            self._nccl_abort.join(min(_ABORTED, timeout))
            if self._nccl_abort.is_alive():
                self._graphs_reset += torch_compat.reset_cuda_graphs()
                self._nccl_abort.join(timeout)
            if self._nccl_abort.is_alive():
                raise LaunchError(f"NCCL has not ended its communicators within {timeout:g} s; restart this rank")
            self._nccl_abort = None
        if self._groups:  # else the last formation failed, and what was left before it counts
            self._previous, self._groups = self._groups, {}
        self._formation = None
        self.rpc.leave()
        end_reading({*listeners, *self.listeners})
        self.listeners = set()
        if dist.is_initialized() and not is_aborted:
            try:
                dist.destroy_process_group()
            except RuntimeError as e:  # the group is broken, which is why it is left
                _log.info("leaving a broken process group: %s", e)
        torch_compat.forget_groups()
        gc.collect()

    def _adopt(self, formation: RankFormation, groups: dict[object, Any]) -> tuple[str, ...]:
        """Make the new generation the one that is held; returns what the user must make again."""
        form = formation.form
        mesh = groups.pop("mesh", None)
        notices = rebind(self._previous, groups, self._namespace, self._holders)
        if form.inheriting:
            renew_reducers()
        if form.is_after_abort:
            torch_compat.end_steps()
        notices += [f"the group of ranks {r}, made by its members alone, is gone; {AGAIN}" for r in self._local]
        if self._graphs_reset:
            notices.append(
                f"the CUDA graphs of this process ({self._graphs_reset}) were reset, {_HELD}; capture them again"
            )
            self._graphs_reset = 0
        notices += self._misfit_meshes(form.world_size)
        self._previous.clear()
        self._local.clear()
        self._groups, self._made = groups, list(form.replay)
        self._destroyed = {index for index in self._destroyed if _is_group(groups.get(index))}
        for index in sorted(self._destroyed):
            dist.destroy_process_group(groups.pop(index))
        self._named.clear()
        self._named.update({name: groups[f"group {name!r}"] for name in form.named})
        self._bind_names(formation, mesh)
        if formation.rank == 0 and formation.store is not None:
            try:
                sweep(formation.store, form.generation)
            except RuntimeError as e:  # the store has died since; its keys are gone with it
                _log.info("keys of earlier generations were not deleted: %s", e)
        self.log.world_formed()
        if self._world_timeout is not None:
            torch_compat.set_timeout(dist.group.WORLD, self._world_timeout)
        self._formation = formation
        return tuple(notices)

    def _misfit_meshes(self, world_size: int) -> list[str]:
        """Meshes of cells over the whole of a world of another size: torch would take the new world for theirs."""
        size, self._world_size = self._world_size, world_size
        if size in (0, world_size):
            return []
        from torch.distributed.device_mesh import DeviceMesh

        found = any(type(m) is DeviceMesh and m.size() == size for m in gc.get_objects())
        return [f"a DeviceMesh over all {size} ranks does not fit a world of {world_size}; make it again"] * found

    def _bind_names(self, formation: RankFormation, mesh: Any) -> None:
        """Give the namespace its names, except where the user has given a name another meaning."""
        names = {
            "torch": torch,
            "dist": dist,
            "rank": formation.rank,
            "local_rank": formation.local_rank,
            "node_rank": formation.node_rank,
            "world_size": formation.form.world_size,
            "device": formation.device,
            "groups": self._named,
        }
        if mesh is not None:
            names["mesh"] = mesh
        elif "mesh" in self._bound and self._namespace.get("mesh") is self._bound["mesh"]:
            del self._namespace["mesh"], self._bound["mesh"]  # it was for a world of another size
        self.own_names.clear()
        self.own_names.update(names)
        for name, value in names.items():
            if name not in self._namespace or name not in self._bound or self._namespace[name] is self._bound[name]:
                self._namespace[name] = value
                self._bound[name] = value


def _is_launched() -> bool:
    """Whether a launcher forks this child: it tells the child its rank, and has it form a world."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if str(frame.f_globals.get("__name__")).startswith(_LAUNCHERS):
            return True
        frame = frame.f_back
    return False


def _abort_nccl() -> None:
    try:
        torch_compat.abort_nccl()
    except RuntimeError as e:  # the CUDA context is lost, say
        _log.info("aborting NCCL: %s", e)


def _is_group(value: Any) -> TypeGuard[ProcessGroup]:
    """A rank that is not in a group holds something else in its place."""
    return isinstance(value, dist.ProcessGroup)

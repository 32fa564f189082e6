"""Formation: when the world's process group is formed, with what, and what waits for it. Pure.

The world becomes *dirty* when its process group may be out of step: a run was halted, a rank was replaced, a group was
asked for. A dirty world forms its next generation as soon as every rank is up and none runs anything.
"""

import math

from jdist.controller.model.model import Model
from jdist.controller.model.phases import transition
from jdist.controller.model.world import Node, Numbering, Rank
from jdist.controller.runs.lifecycle import OwnRuns, RunLifecycle
from jdist.core.messages import membership
from jdist.core.messages.protocol import RankReply, RankReplyBody
from jdist.core.messages.status import Notice
from jdist.core.ranks import RankSet, describe_carried

# Seconds from a rank's failure to join until the world has failed: news of what caused it may be on its way, such as a
# rank's death or another store, and that is mended.
_NEWS = 2.0


class Formation:
    """Forms generations."""

    def __init__(self, model: Model, runs: RunLifecycle, own_runs: OwnRuns):
        self._model = model
        self._runs = runs
        self._own_runs = own_runs
        self.named: dict[str, tuple[int, ...]] = {}
        self.mesh: tuple[tuple[str, ...], tuple[int, ...]] | None = None
        self.deadline: float | None = None
        self.init_seconds = 0.0
        self._began = model.now
        self._joining: set[int] = set()  # Ranks that do not hold the generation that is being formed yet.
        self._failed: dict[int, str] = {}  # Those of them that said why they cannot.
        self._store: tuple[str, int] | None = None
        self._store_failed = False
        self._may_retry = False  # A cell has run since the world could not be formed, and may have removed the cause.
        # Client, name and answer of each request that is done when the world is formed: with the next generation to be
        # begun, and with the one that is being formed.
        self._waiting: list[tuple[str, str, RankReplyBody]] = []
        self._underway: list[tuple[str, str, RankReplyBody]] = []

    @property
    def backend(self) -> str:
        """As asked for, or what all nodes can do."""
        nodes = self._model.world.nodes.values()
        has_gpus = bool(nodes) and all(n.has_gpus for n in nodes)
        return self._model.settings.backend or ("cpu:gloo,cuda:nccl" if has_gpus else "gloo")

    # ------------------------------------------------------------ the store

    def start_store(self, running: tuple[str, int] | None = None) -> None:
        """Have node 0 host the rendezvous store, at ``tcp://HOST:PORT`` if asked for, unless one is running there."""
        self._store, self._store_failed = running, False
        if running is not None:
            return
        host, port, method = "", 0, self._model.settings.init_method
        if method.startswith("tcp://"):
            host, _, number = method.removeprefix("tcp://").partition("?")[0].rpartition(":")
            host, port = host.strip("[]"), int(number)
        self._model.send_to_node(0, membership.StartStore(host, port))

    def handle_store_up(self, node: Node, message: membership.StoreUp) -> None:
        """The store listens. If it is another one, the last, where cells would make groups, is gone."""
        if node.node_rank != 0:
            return  # all ranks would meet at a store that another node names
        old, self._store = self._store, (message.host, message.port)
        if old is None or old == self._store:
            return
        self._model.is_dirty = True
        if self._model.phase == "forming":
            self.abandon("another store")

    def handle_store_down(self, node: Node, message: membership.StoreDown) -> None:
        """The store could not be started, or died: nothing can be formed until there is another."""
        if node.node_rank == 0:
            self._store, self._store_failed = None, True
            self.fail(message.reason)

    def mend_store(self) -> None:
        if self._store_failed:
            self.start_store()

    # ------------------------------------------------------------ requests that need the world formed again

    def handle_make_group(self, client: str, message: membership.MakeGroup) -> None:
        m = self._model
        reason = m.unformed() or m.unknown_ranks(message.ranks)
        if reason:
            m.refuse(client, message.request, reason)
            return
        self.named[message.name] = message.ranks
        m.is_dirty = True
        self.await_next(
            client, message.request, membership.GroupCreated(f"{message.name}: ranks {RankSet(message.ranks)}")
        )

    def handle_make_mesh(self, client: str, message: membership.MakeMesh) -> None:
        m, size = self._model, math.prod(message.sizes)
        text = ", ".join(f"{n}={s}" for n, s in zip(message.names, message.sizes, strict=False))
        reason = m.unformed()
        if not reason and (size != len(m.world.ranks) or len(message.names) != len(message.sizes)):
            reason = f"mesh {text} has {size} ranks, but the world has {len(m.world.ranks)}"
        if reason:
            m.refuse(client, message.request, reason)
            return
        self.mesh = (message.names, message.sizes)
        m.is_dirty = True
        self.await_next(client, message.request, membership.GroupCreated(f"mesh {text}"))

    def await_next(self, client: str, request: str, body: RankReplyBody) -> None:
        """Answer the request with ``body`` once the next generation to be begun is formed."""
        self._waiting.append((client, request, body))

    # ------------------------------------------------------------ a world of another size

    def renumber(self, numbering: Numbering) -> tuple[str, ...]:
        """Adapt named groups to a removal and drop the mesh, which does not fit any more; what became of each."""
        notes = []
        for name, ranks in list(self.named.items()):
            kept = numbering.kept(ranks)
            if not kept:
                del self.named[name]
                notes.append(f"group {name} is gone: none of its ranks is left")
                continue
            self.named[name] = kept
            if kept != ranks:
                left = "" if len(kept) == len(ranks) else f", {len(kept)} of {len(ranks)}"
                notes.append(f"group {name} is now ranks {RankSet(kept)}{left}")
        return (*notes, *self.drop_mesh())

    def drop_mesh(self) -> tuple[str, ...]:
        """A mesh covers the whole world: in one of another size there is none until one is made."""
        if self.mesh is None:
            return ()
        text = ",".join(f"{n}={s}" for n, s in zip(*self.mesh, strict=True))
        self.mesh = None
        return (f"mesh {text} is gone: it does not fit {len(self._model.world.ranks)} ranks; make one that does",)

    # ------------------------------------------------------------ a generation

    def handle_run_ended(self) -> None:
        """A user's run has ended: if the world could not be formed before it, try again."""
        self._may_retry = self._model.phase == "failed"

    def retry_if_due(self) -> None:
        """Try to form a world again that could not be formed, once no run is left."""
        m = self._model
        if self._may_retry and m.is_unformed and not m.runs.running:
            self._may_retry = False
            transition(m, "gathering", "a cell has run since it could not be formed")
            m.reason = ""
            m.is_dirty = True
            self.mend_store()

    def form_if_possible(self) -> None:
        """Begin the next generation if every rank is up and free, and the store listens."""
        m, ranks = self._model, self._model.world.ranks
        is_up = m.world.is_complete and ranks and all(r.has_process for r in ranks.values())
        if not is_up or self._store is None or m.runs.running:
            return
        replay = m.world.common_groups(m.generation) if m.generation else ()
        m.generation += 1
        transition(m, "forming", f"generation {m.generation}")
        m.is_dirty = False
        self._joining, self._failed = set(ranks), {}
        self._underway, self._waiting = [*self._underway, *self._waiting], []
        self._began = m.now
        self.deadline = m.now + m.settings.form_timeout
        topology = m.world.topology
        form = membership.FormWorld(
            generation=m.generation,
            workers=tuple(ranks[r].worker for r in range(topology.world_size)),
            backend=self.backend,
            init_method=m.settings.init_method,
            store_host=self._store[0],
            store_port=self._store[1],
            world_size=topology.world_size,
            nproc_per_node=topology.nproc_per_node,
            timeout=m.settings.form_timeout,
            replay=replay,
            named=dict(self.named),
            mesh=self.mesh,
            cut=m.world.listeners(),
            inheriting=tuple(rank.worker for rank in ranks.values() if rank.inherits),
            is_after_abort=m.was_aborted,
            node_of=topology.node_of,
        )
        for node_rank in m.world.nodes:
            m.send_to_node(node_rank, form)
        for rank in ranks.values():
            rank.listeners, rank.groups = set(), list(replay)

    def handle_world_formed(self, node: Node, message: membership.WorldFormed) -> None:
        """A rank holds the generation; with the last one, the world is ready."""
        m = self._model
        rank = m.world.rank_of(node, message.worker)
        if rank is None:
            return
        rank.listeners |= set(message.listeners)
        if message.carried is not None:
            self._handle_carried(rank, message.carried)
        for text in message.notices:
            m.broadcast(Notice(f"rank {rank.rank}: {text}"))
        if message.generation != m.generation or rank.rank not in self._joining:
            return
        self._joining.discard(rank.rank)
        transition(rank, "held", f"generation {message.generation}")
        rank.generation = message.generation
        rank.wants_reform = message.wants_reform
        if self._joining:
            return
        transition(m, "ready", "every rank holds the generation")
        m.reason = ""
        m.was_aborted = False
        self.deadline = None
        self.init_seconds = m.now - self._began
        for client, request, body in self._underway:
            m.send(client, RankReply(request, -1, body))
        self._underway = []
        self._own_runs.queue()

    def _handle_carried(self, rank: Rank, carried: membership.CarriedNames) -> None:
        """The rank has taken over the names of the process before it, so that it is not fresh and needs no setup."""
        rank.inherits = False
        if carried.count:
            rank.is_fresh = rank.needs_setup = False
            self._model.broadcast(Notice(describe_carried(rank.rank, carried.lost)))
        else:
            self._model.broadcast(self._model.fresh_notice(rank.rank, carried.error))

    def handle_world_failed(self, node: Node, message: membership.WorldFailed) -> None:
        """A rank cannot join: give the generation up soon, unless the cause is mended before."""
        rank = self._model.world.rank_of(node, message.worker)
        if rank is not None and message.generation == self._model.generation and rank.rank in self._joining:
            self._failed.setdefault(rank.rank, message.reason)
            if self.deadline is not None:
                self.deadline = min(self.deadline, self._model.now + _NEWS)

    def handle_tick(self) -> None:
        """Give up a forming that takes too long."""
        if self.deadline is None or self._model.now < self.deadline:
            return
        if self._failed:
            rank, reason = next(iter(self._failed.items()))
            self.fail(f"{self._model.world.where(rank)} could not join the world: {reason}")
        else:
            missing = RankSet(self._joining)
            self.fail(f"ranks {missing} did not join the world within {self._model.settings.form_timeout:.0f} s")

    def abandon(self, why: str) -> None:
        """The generation that is being formed, or held, has lost a rank or a node: back to gathering."""
        m = self._model
        if m.phase in ("forming", "ready"):
            transition(m, "gathering", why)
        m.is_dirty = True
        self._joining = set()
        self.deadline = None

    def refuse_waiting(self, reason: str, why_not_run: str = "") -> None:
        """The world will not be formed soon: refuse the requests that wait for it, and end the users' cells that do."""
        self.refuse_requests(reason)
        self._runs.end_waiting(why_not_run or reason)

    def refuse_requests(self, reason: str) -> None:
        """Refuse the requests that wait for the world."""
        for client, request, _ in [*self._underway, *self._waiting]:
            self._model.refuse(client, request, reason)
        self._underway, self._waiting = [], []

    def fail(self, reason: str) -> None:
        """The world cannot be formed; what waits for it is refused."""
        m = self._model
        self.abandon(reason)
        transition(m, "failed", reason)
        m.reason = reason
        self._may_retry = False
        text = f"the world could not be formed: {reason}"
        if m.is_unformed:  # each cell will say so
            self.refuse_requests(reason)
        else:
            self.refuse_waiting(reason, text)
            m.broadcast(Notice(text, remedies=m.remedies()))

    def handle_group_made(self, node: Node, message: membership.GroupMade) -> None:
        rank = self._model.world.rank_of(node, message.worker)
        if rank is not None and message.generation == rank.generation:
            del rank.groups[message.index :]
            rank.groups.append(message.spec)
            rank.listeners |= set(message.listeners)

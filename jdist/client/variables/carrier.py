"""Carrier: moves values between this process and the ranks.

A value's description comes first, and a small value with it. Large ones must fit into free memory before a byte moves;
they pass through shared memory where the rank and this process share it, else through the controller's data port.
"""

import asyncio
import contextlib
import importlib
import os
import sys
import uuid
import weakref
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import psutil

from jdist.client.attachment import Attachment
from jdist.client.link import ANSWER_TIMEOUT, CONTROLLER, Link, OnMoved, new_request
from jdist.client.threads import aside
from jdist.core.errors import ConnectionLost, JdistError, ValueFailed
from jdist.core.messages.base import PayloadWire, ProbeWire, QueryFailed, ValueMissing
from jdist.core.messages.observation import ReadProfile
from jdist.core.messages.protocol import RankQuery, RankReplyBody
from jdist.core.messages.values import (
    BindNames,
    Evaluate,
    Evaluated,
    Fetch,
    Fetched,
    Forward,
    ForwardedAt,
    Hold,
    Release,
)
from jdist.core.ranks import describe_ranks, ranks_by
from jdist.core.settings import INLINE_LIMIT
from jdist.wire.transport.dialing import Receiver, put_segment
from jdist.wire.values.frames import MAX_REQUEST
from jdist.wire.values.objects import decode, encode, inline, needs_torch
from jdist.wire.values.segments import Segment, create_probe, layout, new_memory, receiving, split

# Called with the names of the values, bytes done and bytes in all; with 0 in all for something else that takes time.
OnProgress = Callable[[str, int, int], None]
T = TypeVar("T")

_MEMORY_SHARE = 0.9
_AT_ONCE = 4
_PUT_TIMEOUT = 120.0  # Seconds without progress of a rank that binds, or a node that fetches, a pushed value.
_PROFILE_TIMEOUT = 120.0  # Seconds for a rank to read what torch has recorded, and to make its table.
_IMPORT_SHOWN = 1.0  # Seconds of importing torch after which the user is told.
_LARGEST_HEAD = MAX_REQUEST - (1 << 20)


class _Pulled:
    """The values of one pull as they arrive, and the reasons why others do not."""

    def __init__(self, names: tuple[str, ...], on_progress: OnProgress | None):
        self.names = names
        self.values: dict[str, dict[int, Any]] = {n: {} for n in names}
        self.errors: dict[int, str] = {}
        self.total = 0
        self.gate = asyncio.Semaphore(_AT_ONCE)
        self._done: dict[int, int] = {}
        self._on_progress = on_progress

    async def decode(self, rank: int, arrived: list[tuple[str, PayloadWire, list[Any]]]) -> None:
        """Rebuild what has arrived from a rank: (name, payload, buffers)."""

        def rebuild() -> None:
            for name, item, buffers in arrived:
                try:
                    self.values[name][rank] = decode(item, buffers)
                except JdistError as e:
                    self.errors[rank] = f"{item.summary} arrived, but cannot be unpickled here: {e}"

        if any(needs_torch(item) for _, item, _ in arrived):
            await self.import_torch()
        await aside(rebuild)

    async def import_torch(self) -> None:
        """Import torch, which takes seconds on a busy machine; if another pull is importing it, wait for that."""
        if not _is_missing("torch"):
            return
        importing = asyncio.ensure_future(aside(lambda: importlib.import_module("torch")))
        done, _ = await asyncio.wait({importing}, timeout=_IMPORT_SHOWN)
        if not done and self._on_progress is not None:
            self._on_progress("importing torch in the notebook, for the first tensor that is pulled", 0, 0)
        with contextlib.suppress(Exception):  # where there is none, or a broken one, rebuilding says so
            await importing

    def note(self, rank: int, done: int) -> None:
        """Report that ``done`` bytes of a rank's value have arrived."""
        self._done[rank] = done
        if self._on_progress is not None:
            self._on_progress(", ".join(self.names), sum(self._done.values()), self.total)


class Carrier:
    """Moves values for one attached client."""

    def __init__(self, attachment: Attachment) -> None:
        self._attachment = attachment
        self._remove_probe: Callable[[], object] = lambda: None
        attachment.on_close(self.close)

    @property
    def _link(self) -> Link:
        return self._attachment.link

    @property
    def _cluster(self) -> str:
        return self._link.connection.cluster

    @property
    def _data_port(self) -> tuple[str, int]:
        return self._link.connection.host, self._link.connection.data_port

    @cached_property
    def probe(self) -> ProbeWire:
        """Shows other processes whether they share this host's memory. Made when a value is first to be moved.

        Raises ValueFailed where there is no room for its file.
        """
        probe = create_probe(self._cluster)
        self._remove_probe = weakref.finalize(self, _remove, probe.path, os.getpid())  # at exit, too
        return probe

    def close(self) -> None:
        """Remove this client's mark from shared memory, if it has made one."""
        self._remove_probe()

    async def read_profiles(self, run: int, ranks: tuple[int, ...]) -> tuple[dict[int, bytes], dict[int, str]]:
        """``{rank: encoded profile}`` of ``run`` (0: the last one), and ``{rank: why}`` of the ranks that have none."""
        try:
            found = await self.pull(("profile",), ranks, op=ReadProfile(run, self.probe))
        except ValueFailed as e:
            return e.values["profile"], e.errors
        return found["profile"], {}

    async def pull(
        self,
        names: tuple[str, ...],
        ranks: tuple[int, ...],
        on_progress: OnProgress | None = None,
        op: ReadProfile | None = None,
    ) -> dict[str, dict[int, Any]]:
        """``{name: {rank: value}}``. Raises ValueFailed naming the ranks that gave none; the rest is on the error."""
        await self._link.current()
        pulled = _Pulled(names, on_progress)
        held: dict[int, Evaluated] = {}
        within = ANSWER_TIMEOUT if op is None else _PROFILE_TIMEOUT
        answers = await self._link.query(ranks, op or Evaluate(names, probe=self.probe), within)
        for rank, answer in answers.items():
            if not isinstance(answer, Evaluated):
                pulled.errors[rank] = reason_of(answer)
                continue
            for item in answer.items:
                if isinstance(item, ValueMissing):
                    pulled.errors[rank] = "; ".join(filter(None, (pulled.errors.get(rank), item.reason)))
            if answer.handle:
                held[rank] = answer
        pulled.total = sum(map(_held_size, held.values()))
        await self._check_room(pulled, held)
        arrived = {rank: _inline_items(names, a) for rank, a in answers.items() if isinstance(a, Evaluated)}
        work = [self._fetch(rank, answer, pulled) for rank, answer in held.items()]
        work += [pulled.decode(rank, items) for rank, items in arrived.items() if items]
        if any(needs_torch(i) for a in held.values() for i in a.items if isinstance(i, PayloadWire)):
            work.append(pulled.import_torch())  # while they travel
        await asyncio.gather(*work)
        if pulled.errors:
            raise _failed(f"pull {', '.join(names)}", pulled.values, pulled.errors)
        return {n: dict(sorted(v.items())) for n, v in pulled.values.items()}

    async def _check_room(self, pulled: _Pulled, held: Mapping[int, Evaluated]) -> None:
        """Raise ValueFailed, and have the ranks release their values, if these do not fit into free memory here."""
        free = psutil.virtual_memory().available
        if pulled.total <= free * _MEMORY_SHARE:
            return
        for rank, answer in held.items():
            await self._link.query((rank,), Release(answer.handle))
        raise ValueFailed(
            f"{', '.join(pulled.names)} from ranks {sorted(held)}: {pulled.total:,} bytes, but this machine has "
            f"{free:,} free; nothing was moved. Pull fewer ranks (-r), or a part such as x[:1000]"
        )

    async def _fetch(self, rank: int, answer: Evaluated, pulled: _Pulled) -> None:
        named = zip(pulled.names, answer.items, strict=True)
        items = [(n, i) for n, i in named if isinstance(i, PayloadWire) and i.buffers is None]
        sizes = [size for _, item in items for size in item.sizes]
        fetch = self._map if answer.is_near else self._receive
        async with pulled.gate:
            try:
                buffers = await fetch(rank, answer.handle, sizes, lambda r, step: pulled.note(r, step.done))
                views = iter(buffers)
                await pulled.decode(rank, [(name, item, list(islice(views, len(item.sizes)))) for name, item in items])
            except (JdistError, OSError) as e:
                host = self._link.host
                if host is not None and host.is_away:
                    pulled.errors[rank] = f"the connection to {host.name} broke on the way; pull it again"
                else:
                    pulled.errors[rank] = str(e).removeprefix(f"rank {rank}: ")
            pulled.note(rank, _held_size(answer))

    async def _map(self, rank: int, handle: str, sizes: list[int], progress: OnMoved) -> list[memoryview]:
        """A held value's buffers in a segment, already unlinked: it lives as long as the values made on it."""
        with receiving(self._cluster) as probe:
            answer = await self._link.query_one(rank, Fetch(handle, probe), Fetched, on_progress=progress)
            with Segment.open(answer.path, layout(sizes)[1], private=False) as segment:
                segment.unlink()
                return split(segment.view, sizes)

    async def _receive(self, rank: int, handle: str, sizes: list[int], progress: OnMoved) -> list[memoryview]:
        """A held value's buffers in memory of this process, received while the rank sends them."""
        memory = new_memory(layout(sizes)[1])
        transfer = uuid.uuid4().hex
        pass_on = Forward(transfer, len(memory), self.probe)
        passing = asyncio.create_task(self._link.query_one(CONTROLLER, pass_on, ForwardedAt))  # must arrive first
        fetch = Fetch(handle, transfer=transfer)
        fetching = asyncio.create_task(self._link.query_one(rank, fetch, Fetched, on_progress=progress))
        try:
            receiver = Receiver(self._data_port, transfer, memory, (await passing).near)
            await self._receive_by(receiver, fetching)
        except BaseException:
            self._release(transfer)  # frees the rank
            raise
        finally:
            passing.cancel()
            fetching.cancel()
        return split(memory, sizes)

    async def _receive_by(self, receiver: Receiver, fetching: asyncio.Task[Fetched]) -> None:
        getting = asyncio.ensure_future(asyncio.to_thread(receiver.run))
        try:
            await asyncio.wait({getting, fetching}, return_when=asyncio.FIRST_COMPLETED)
            if not getting.done() or getting.exception() is not None:
                await fetching  # its error explains best what went wrong
            await getting
        finally:
            receiver.cut()
            await asyncio.wait({getting})

    async def push(
        self, values: Mapping[str, Any], ranks: tuple[int, ...], on_progress: OnProgress | None = None
    ) -> None:
        """Bind ``values`` on ``ranks``. Raises ValueFailed naming the ranks on which they could not be bound."""
        names = tuple(values)
        what = ", ".join(names)
        encoded = await aside(lambda: [encode(v) for v in values.values()])
        pickled = sum(len(p.head) for p, _ in encoded)  # arrays and tensors travel beside it
        if pickled > _LARGEST_HEAD:
            raise ValueFailed(
                f"push {what}: {pickled:,} bytes of pickle, the limit is {_LARGEST_HEAD:,}; nothing was moved. "
                "Push an array or a tensor, which have no limit, or parts"
            )
        buffers = [b for _, bs in encoded for b in bs]
        if sum(b.nbytes for b in buffers) <= INLINE_LIMIT:
            answers = await self._link.query(ranks, BindNames(names, tuple(inline(p, bs) for p, bs in encoded)))
        else:

            def fetch(path: str, nbytes: int, transfer: str) -> Coroutine[Any, Any, dict[int, RankReplyBody]]:
                bind = BindNames(names, tuple(p for p, _ in encoded), path, nbytes, self.probe, transfer)
                return self._link.query(ranks, bind, timeout=_PUT_TIMEOUT)

            answers = await self.share(buffers, fetch, on_progress and partial(on_progress, what))
        errors = {r: reason_of(a) for r, a in answers.items() if isinstance(a, QueryFailed)}
        if errors:
            raise _failed(f"push {what}", {}, errors)

    async def share(
        self,
        buffers: Sequence[memoryview],
        fetch: Callable[[str, int, str], Coroutine[Any, Any, T]],
        on_progress: Callable[[int, int], None] | None = None,
    ) -> T:
        """Put buffers into a segment that ranks or nodes ``fetch``; from a remote controller while its copy arrives."""
        await self._link.current()  # a segment that is made while there is no controller would be swept
        nbytes = layout([b.nbytes for b in buffers])[1]
        segment = Segment.create(self._cluster, nbytes)
        transfer = uuid.uuid4().hex
        fetching: asyncio.Task[T] | None = None
        try:
            report = on_progress or (lambda *_: None)
            await asyncio.to_thread(segment.fill, buffers, lambda done: report(done, nbytes))
            held = (await self._link.query((), Hold(transfer, nbytes, self.probe, segment.path)))[CONTROLLER]
            is_far = isinstance(held, QueryFailed)
            if is_far:
                await self._link.query((), Hold(transfer, nbytes))
            fetching = asyncio.create_task(fetch(segment.path, nbytes, transfer))
            if is_far:
                await asyncio.to_thread(put_segment, self._data_port, transfer, segment)
            return await fetching
        finally:
            if fetching is not None:
                fetching.cancel()
            segment.close()
            segment.unlink()
            self._release(transfer)

    def _release(self, transfer: str) -> None:
        """Free what is held for a transfer; no answer is awaited."""
        with contextlib.suppress(ConnectionLost):
            self._link.send(RankQuery(new_request(), (), Release(transfer)))


def _remove(path: str, owner: int) -> None:
    """Remove a file, unless this process was forked from its owner."""
    if os.getpid() == owner:
        Path(path).unlink(missing_ok=True)


def _inline_items(names: tuple[str, ...], answer: Evaluated) -> list[tuple[str, PayloadWire, list[Any]]]:
    return [
        (name, item, [bytearray(b) for b in item.buffers])
        for name, item in zip(names, answer.items, strict=True)
        if isinstance(item, PayloadWire) and item.buffers is not None
    ]


def _is_missing(module: str) -> bool:
    """Whether the module has not been imported completely."""
    spec = getattr(sys.modules.get(module), "__spec__", None)
    return module not in sys.modules or bool(getattr(spec, "_initializing", False))


def _held_size(peeked: Evaluated) -> int:
    return sum(i.nbytes for i in peeked.items if isinstance(i, PayloadWire) and i.buffers is None)


def reason_of(answer: object) -> str:
    """Why an answer is none."""
    return answer.reason if isinstance(answer, QueryFailed) else f"an unexpected answer ({type(answer).__name__})"


def _failed(doing: str, found: dict[Any, Any], errors: dict[int, str]) -> ValueFailed:
    alike = ranks_by(sorted(errors.items()))
    reasons = "; ".join(f"{describe_ranks(ranks)}: {reason}" for reason, ranks in alike.items())
    kept = "; what arrived is in the error's .values" if any(found.values()) else ""
    return ValueFailed(f"{doing}: {reasons}{kept}", found, errors)

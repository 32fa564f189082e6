"""Worlds of four ranks, as a poll finds them: ranks in a call, in the store, busy in Python, or past their part."""

from __future__ import annotations

from typing import Any

from jdist.controller.verdict.wait_graph import Part, PolledRanks, RankSnapshot
from jdist.core.messages.observation import Activity, Call, Channel, GroupProgress, Observation

ALL = (0, 1, 2, 3)
GROUPS = {"0": ("world", ALL), "1": ("tp", (0, 1)), "2": ("", (2, 3)), "3": ("dp", (1, 2))}


def call(op: str = "all_reduce", number: int = 17, group: str = "0", size: int = 16, **more: Any) -> Call:
    shapes: dict[str, Any] = {"shapes": ((size,),), "dtypes": ("float32",)} if size else {}
    return Call(op, group, number, **shapes | more)


def seen(
    rank: int, part: Part = "running", doing: Activity | None = None, begun: dict[str, int] | None = None, **more: Any
) -> RankSnapshot:
    """A rank that has ended 16 collectives of the world and none of the others, unless ``begun`` says more."""
    begun = {"0": 16} | (begun or {})
    flying = {c.group for c in (doing.calls if doing else ()) if c.peer is None}
    progress = tuple(
        GroupProgress.of(g, ranks, begun.get(g, 0), begun.get(g, 0) - (g in flying), label)
        for g, (label, ranks) in GROUPS.items()
        if rank in ranks
    )
    recent, channels = more.pop("recent", ()), more.pop("channels", ())
    observation = Observation("cpu", doing or Activity("idle"), 1, progress, recent, channels=channels)
    return RankSnapshot(f"rank {rank} (node {rank // 2}, h{rank // 2})", part, observation, **more)


def coll(
    rank: int, op: str = "all_reduce", number: int = 17, group: str = "0", part: Part = "running", **more: Any
) -> RankSnapshot:
    seconds, recent = more.pop("seconds", 0.6), more.pop("recent", ())
    one = call(op, number, group, **more)
    doing = Activity("collective", op, 5, seconds=seconds, calls=(one,))
    return seen(rank, part, doing, {group: number}, recent=recent)


def busy(rank: int, number: int = 16, **more: Any) -> RankSnapshot:
    doing = Activity("python", "f", 3, "loader.next()", more.pop("seconds", 6.0), more.pop("cpu", 0.0))
    return seen(rank, more.pop("part", "running"), doing, {"0": number}, **more)


def moving(rank: int, op: str, peer: int, **more: Any) -> RankSnapshot:
    """A rank in a send or recv; ``channels`` are its others."""
    part, seconds, channels = more.pop("part", "running"), more.pop("seconds", 0.6), more.pop("channels", ())
    one = Call(op, more.pop("group", "0"), peer=peer, **{"nth": 1, **more})
    own = Channel(one.group, one.is_send, peer, one.tag, one.nth, 1)
    return seen(rank, part, Activity("transfer", op, 2, seconds=seconds, calls=(one,)), channels=(own, *channels))


def sent(peer: int, begun: int = 1, tag: int = 0, group: str = "0") -> tuple[Channel, ...]:
    """A channel in which a rank has sent."""
    return (Channel(group, True, peer, tag, begun),)


def received(peer: int, begun: int = 1, tag: int = 0, **more: Any) -> tuple[Channel, ...]:
    """A channel in which a rank has received."""
    return (Channel("0", False, peer, tag, begun, **more),)


def recv(rank: int, peer: int, **more: Any) -> RankSnapshot:
    return moving(rank, "recv", peer, **more)


def send(rank: int, peer: int, **more: Any) -> RankSnapshot:
    return moving(rank, "send", peer, **more)


def store(rank: int, op: str = "new_group", **more: Any) -> RankSnapshot:
    return seen(rank, "running", Activity("store", op, 4, seconds=0.6, **more))


def over(rank: int, part: Part = "done", number: int = 16, **more: Any) -> RankSnapshot:
    return seen(rank, part, None, {"0": number} | more.pop("begun", {}), **{"ago": 0.6, **more})


def world(*ranks: RankSnapshot) -> dict[int, RankSnapshot]:
    return PolledRanks(dict(enumerate(ranks)))

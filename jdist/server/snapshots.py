"""Pictures: what a browser is told of a cluster, as plain values for JSON. Pure.

Nothing in them is needed to reach a cluster: no key, no join line, no address, no port.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from jdist.core.messages.observation import Observation
from jdist.core.messages.status import ClusterFacts, RankFacts, StatusReport
from jdist.core.observation import Activity, Verdict
from jdist.core.ranks import RankSet
from jdist.core.topology import Topology

Picture = dict[str, Any]
_JOIN_LINE = re.compile(r"jdist1\.\S+")
_MIB = 1 << 20
_LASTING = ("gpu_name", "gpu_total", "gpu_used", "gpu_own")


def safe(text: str) -> str:
    """The text without the join line that may stand in it, which holds keys."""
    return _JOIN_LINE.sub("(a join line; an invitation prints one)", text)


def summary(name: str, state: str, *, cluster: str = "", version: str = "", reason: str = "") -> Picture:
    """A cluster of which no more is known."""
    return {"name": name, "cluster": cluster, "state": state, "reason": safe(reason), "version": version}


def facts(found: ClusterFacts) -> Picture:
    """The cluster in a few words; its state is the world's phase."""
    topology = found.topology
    return {
        "name": found.name,
        "state": found.phase,
        "reason": safe(found.reason),
        "backend": found.backend,
        "generation": found.generation,
        "nnodes": topology.nnodes,
        "world_size": topology.world_size,
        "ready": found.ready,
        "nodes": _nodes(found, topology),
        "groups": [{"name": name, "ranks": list(ranks)} for name, ranks in found.groups.items()],
        "mesh": None if found.mesh is None else {"names": list(found.mesh[0]), "sizes": list(found.mesh[1])},
        "left_out": list(found.left_out),
    }


def survey(found: StatusReport, looked: Mapping[int, Observation], before: Picture | None = None) -> Picture:
    """All that is known of a cluster; ``looked`` is what ranks said of themselves.

    Of a rank that was not asked, the device, its memory, the rank's and how far that is in its groups stay as they were
    ``before``.
    """
    topology = found.facts.topology
    # For all at once: a rank's own takes a walk over the places.
    local = {r: i for node in range(topology.nnodes) for i, r in enumerate(topology.ranks_on(node))}
    earlier = {(row["rank"], row["pid"]): row for row in (before or {}).get("ranks", ())}
    on_run = {number: sum(row.run == number for row in found.ranks) for number, *_ in found.runs}
    return {
        **facts(found.facts),
        "ranks": [
            rank(row, local.get(row.rank, 0), looked.get(row.rank), earlier.get((row.rank, row.pid), {}))
            for row in found.ranks
        ],
        "runs": [
            {
                "number": number,
                "state": state,
                "ranks": str(RankSet(ranks)),
                "count": len(ranks),
                "done": 0 if state == "queued" else len(ranks) - on_run[number],
                "seconds": round(seconds, 3),
            }
            for number, state, ranks, seconds in found.runs
        ],
        "cell_groups": [
            {"name": group.name, "ranks": list(group.ranks), "backend": group.backend, "is_gone": group.is_gone}
            for group in found.groups
        ],
        "verdicts": [verdict(each) for each in found.verdicts],
        "silences": list(found.silences),
    }


def _nodes(found: ClusterFacts, topology: Topology) -> list[Picture]:
    return [
        {
            "node": node,
            "hostname": topology.host_of_node(node),
            "is_here": bool(topology.host_of_node(node)),
            "is_cut_off": any(_node_of(topology, place) == node for place in found.unreachable),
            "ranks": list(topology.ranks_on(node)),
        }
        for node in range(topology.nnodes)
    ]


def _node_of(topology: Topology, place: int) -> int:
    return topology.node_of[place] if topology.node_of else place


def rank(row: RankFacts, local_rank: int, looked: Observation | None, before: Picture) -> Picture:
    """A rank's row; ``before`` is its process's last one, {} if there was none."""
    picture = {
        "rank": row.rank,
        "node": row.node_rank,
        "local_rank": local_rank,
        "hostname": row.hostname,
        "pid": row.pid,
        "state": row.state,
        "run": row.run,
        "last_line": row.last_line,
        "is_fresh": row.fresh,
        "death": row.death,
        "death_age": round(row.death_age, 1),
        "device": before.get("device", ""),
        "rss": before.get("rss"),
        "doing": None,
        "progress": before.get("progress", []),
    }
    if looked is None:
        return picture | {key: before[key] for key in _LASTING if key in before}
    labels = {g.name: g.label or g.name for g in looked.groups}
    return picture | {
        # Its agent speaks for a rank that is silent, and knows neither.
        "device": looked.device or picture["device"],
        "rss": looked.rss // _MIB * _MIB,
        "doing": None if looked.doing.kind == "idle" else doing(looked.doing, labels),
        "progress": [{"group": labels[g.name], "begun": g.begun, "ended": g.ended} for g in looked.groups]
        or picture["progress"],
        **gpu(looked),
    }


def gpu(looked: Observation) -> Picture:
    """What the rank has of its GPU, sizes in bytes and shares from 0 to 1; {} where there is none.

    How busy it is, is known of a moment: of a rank that is idle, of which nobody asks again, it is left out.
    """
    use = looked.gpu
    if use is None:
        return {}
    lasting = {"gpu_name": use.name, "gpu_total": use.total, "gpu_used": use.used, "gpu_own": use.own}
    return lasting | {"gpu_busy": None if looked.doing.kind == "idle" else use.busy}


def doing(now: Activity, labels: Mapping[str, str]) -> Picture:
    """What a rank's main thread does, and in which collective it is; ``labels`` of groups by torch's names."""
    call = now.calls[0] if now.calls else None
    return {
        "kind": now.kind,
        "op": now.op,
        "number": 0 if call is None else call.number,
        "group": "" if call is None else labels.get(call.group, ""),
        "line": now.line,
        "source": now.source,
        "seconds": round(now.seconds, 1),
        "cpu": None if now.cpu is None else round(now.cpu, 1),
        "waits_for": now.waits_for,
        "process": now.state,
    }


def verdict(found: Verdict) -> Picture:
    """Why a run does not move, and the ways out."""
    return {
        "run": found.run,
        "kind": found.kind,
        "is_certain": found.is_certain,
        "headline": found.headline,
        "details": list(found.details),
        "responsible": list(found.responsible),
        "waiting": list(found.waiting),
        "remedies": [{"action": each.action, "ranks": each.ranks, "effect": each.effect} for each in found.remedies],
    }


def changed_ranks(before: Picture, now: Picture) -> list[Picture]:
    """The rows of ranks that say something else than before; time that passes is nothing new."""
    known = {row["rank"]: _timeless_rank(row) for row in before.get("ranks", ())}
    return [row for row in now.get("ranks", ()) if known.get(row["rank"]) != _timeless_rank(row)]


def timeless(picture: Picture) -> Picture:
    """The picture without what changes by itself as time passes."""
    ranks = [_timeless_rank(row) for row in picture.get("ranks", ())]
    return picture | {"ranks": ranks, "runs": [run | {"seconds": 0} for run in picture.get("runs", ())]}


def _timeless_rank(row: Picture) -> Picture:
    now = row["doing"]
    return row | {"death_age": 0, "doing": now and now | {"seconds": 0}}

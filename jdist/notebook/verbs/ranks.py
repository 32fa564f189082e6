"""Ranks: what they do, and how to stop, replace, read and enter one: status, interrupt, restart, logs, console."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from html import escape

from jdist.core.messages.status import RankFacts, StatusReport
from jdist.core.quantities import ArgumentParser, parse_count
from jdist.core.ranks import describe_fresh_ranks, describe_ranks
from jdist.core.remedy import sentence
from jdist.core.verdict import Verdict
from jdist.notebook.options import ranks_parser
from jdist.notebook.session import Session
from jdist.notebook.text.rank_text import describe_doing, describe_gpu_load, describe_gpu_memory
from jdist.notebook.text.remedy_text import command, typed
from jdist.notebook.text.tables import table

Words = list[str]
_HEADS = ("rank", "node", "device", "pid", "state", "doing", "memory", "GPU", "GPU memory", "last line", "lost")
_SOMETIMES = ("GPU", "GPU memory", "lost")
"""Columns that are there only if something is to be said in them."""


def status(s: Session, words: Words) -> None:
    """per rank: node, device, pid, state, run, current operation, memory, its GPU's, last line"""
    ArgumentParser(typed("status"), "Every rank's row.").parse(words)
    cluster = s.cluster
    found: StatusReport = cluster.status()
    alive = [r.rank for r in found.ranks if r.pid and r.state != "cut off"]
    looks = cluster.look(alive) if alive else {}
    rows = []
    for r in found.ranks:
        look = looks.get(r.rank)
        doing = describe_doing(look) if look is not None and r.run else ""
        state = f"{r.state} (run {r.run})" if r.run else r.state
        rows.append(
            [
                r.rank,
                f"{r.node_rank} {r.hostname}",
                look.device if look else "?" if r.pid else "",
                r.pid or "",
                state + (", fresh" if r.fresh else ""),
                doing,
                f"{look.rss / 1e6:.0f} MB" if look else "",
                describe_gpu_load(look) if look else "",
                describe_gpu_memory(look) if look else "",
                r.last_line[:60],
                lost(r),
            ]
        )
    facts = found.facts
    title = f"cluster {facts.name} · {facts.phase} · {facts.backend} · generation {facts.generation}"
    if facts.reason:
        title += f" · {sentence(facts.reason, facts.remedies, command)}"
    title = "\n".join([title, *found.silences])
    kept = [n for n, head in enumerate(_HEADS) if head not in _SOMETIMES or any(row[n] for row in rows)]
    body = table([_HEADS[n] for n in kept], [[row[n] for n in kept] for row in rows])
    s.screen.show(_titled(title, body, found.verdicts))


def lost(row: RankFacts) -> str:
    """What became of the process that was in the rank's place before, and when; "" if none was."""
    if not row.death:
        return ""
    when = datetime.now().astimezone() - timedelta(seconds=row.death_age)
    what = "is gone" if row.state == "gone" else "is fresh"
    return f"{what} since {when:%H:%M:%S}: {row.death}"


def interrupt(s: Session, words: Words) -> None:
    """stop what runs, keep every namespace: interrupt [-r RANKS]"""
    o = ranks_parser(typed("interrupt"), "Stop what runs, keep every namespace.").parse(words)
    cluster = s.cluster
    chosen = cluster.select(o.ranks, o.group)
    found = cluster.status()
    in_it = {n: [row.rank for row in found.ranks if row.run == n] for n, _, _, _ in found.runs}
    running = [
        f"run {n} on {describe_ranks(in_it[n] or ranks)}" for n, _, ranks, _ in found.runs if set(ranks) & set(chosen)
    ]
    if not running:
        s.say("nothing runs there")
        return
    cluster.interrupt(chosen)
    s.say(f"interrupting {', '.join(running)}; every namespace is kept, the group is re-formed before the next cell")


def restart(s: Session, words: Words) -> None:
    """replace ranks' processes (their names are lost): restart [-r RANKS]"""
    o = ranks_parser(typed("restart"), "Replace ranks' processes.").parse(words)
    chosen = s.cluster.select(o.ranks, o.group)
    s.cluster.restart(chosen)
    s.say(f"{describe_fresh_ranks(chosen)}; the world is re-formed")


def logs(s: Session, words: Words) -> None:
    """a rank's log: logs -r RANK [-n 50]"""
    p = ranks_parser(typed("logs"), "All that a rank wrote.")
    p.add_argument("-n", "--lines", type=parse_count, default=50)
    o = p.parse(words)
    for rank in s.cluster.select(o.ranks, o.group):
        log = s.cluster.logs(rank, o.lines)
        s.say(f"rank {rank}, {log.path} on {s.cluster.topology.host_of(rank)}:\n{log.text}")


def console(s: Session, words: Words) -> None:
    """how to attach a terminal to a rank's kernel: console -r RANK"""
    o = ranks_parser(typed("console"), "How to attach a terminal to a rank.").parse(words)
    for rank in s.cluster.select(o.ranks, o.group):
        at = s.cluster.console(rank)
        s.say(f"on {at.hostname}: jupyter console --existing {at.connection_file}")


def _titled(title: str, body: dict[str, str], verdicts: Sequence[Verdict]) -> dict[str, str]:
    told = "\n".join(verdict.text(command) for verdict in verdicts)
    return {
        "text/plain": "\n".join(filter(None, (title, body["text/plain"], told))),
        "text/html": "".join(f"<div>{escape(line)}</div>" for line in title.splitlines())
        + body["text/html"]
        + (f"<pre>{escape(told)}</pre>" if told else ""),
    }

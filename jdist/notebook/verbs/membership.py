"""Size: a node more, or ranks less, between two cells: add-node, remove."""

from __future__ import annotations

from jdist.core.errors import UsageError
from jdist.core.quantities import ArgumentParser, parse_count, parse_duration
from jdist.core.ranks import RankSet
from jdist.notebook.options import ranks_parser
from jdist.notebook.session import Session
from jdist.notebook.text.remedy_text import typed

Words = list[str]

_TIMEOUT = 120.0


def add_node(s: Session, words: Words) -> None:
    """one node more: add-node [-n RANKS] [--launcher NAME]; its ranks are the highest, all others stay as they are"""
    before, after = (words[: words.index("--")], words[words.index("--") + 1 :]) if "--" in words else (words, [])
    p = ArgumentParser(typed("add-node"), "Launch one node more, and form the world again with its ranks.")
    p.add_argument("-n", "--nproc-per-node", type=parse_count, metavar="N", help="its ranks; default: as the last node")
    p.add_argument("--launcher", help="how its agent is started; default: as the cluster's others")
    p.add_argument("--no-fork", action="store_true", help="start workers as fresh interpreters")
    p.add_argument("--timeout", type=parse_duration, default=_TIMEOUT, help="how long to wait for it; default 2m")
    o = p.parse(before)
    resized = s.cluster.add_node(
        o.nproc_per_node, launcher=o.launcher, launcher_args=after, fork=False if o.no_fork else None, timeout=o.timeout
    )
    new = RankSet(resized.added)
    restore = f"{typed('restore')} {new} --from 0 NAMES brings what replicas hold"
    s.say(f"{resized}\nsetup cells have been run on {new}; {restore}")


def remove(s: Session, words: Words) -> None:
    """end ranks for good: remove -r RANKS; the others are renumbered and keep their names"""
    o = ranks_parser(typed("remove"), "End ranks, and form the world again without them.").parse(words)
    if o.ranks is None and o.group is None:
        how = f"say which ranks, such as -r 3 or -r node=1; {typed('stop')} ends them all"
        raise UsageError(f"{typed('remove')}: {how}")
    s.say(str(s.cluster.remove(s.cluster.select(o.ranks, o.group))))

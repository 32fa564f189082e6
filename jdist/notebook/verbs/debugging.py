"""Verbs of the debugger: pausing, inspecting and resuming ranks. The output shows where each rank is afterwards."""

from argparse import Namespace
from collections.abc import Mapping

from jdist.client.attachment import Ranks
from jdist.client.debug import Places, Stacks
from jdist.core.errors import UsageError
from jdist.core.messages.observation import StepKind
from jdist.core.outcome import OutcomeKind
from jdist.core.quantities import parse_count
from jdist.core.ranks import ranks_by
from jdist.notebook.session import Session
from jdist.notebook.text.cluster_text import PAUSE_SIGN
from jdist.notebook.text.markup import naming
from jdist.notebook.text.remedy_text import typed
from jdist.notebook.verbs.registry import RANKS, option, verb

_SIGNS = (PAUSE_SIGN, "▶", "✓", "✗", "■")  # In this order.
_ENDED: Mapping[OutcomeKind | None, str] = {"value": "✓", "interrupted": "■", None: "■"}  # Others: ✗.
_FRAMES = option("frames", nargs="?", type=parse_count, default=1, help="number of frames")


@verb("pause", RANKS)
def pause(s: Session, o: Namespace) -> None:
    """pause running ranks at their next line of Python; cells then run in the paused frames: pause [-r RANKS]

    A rank that is inside a collective pauses when the collective returns.
    """
    places = s.cluster.pause(_chosen(s, o))
    s.echo(_described(places) or "nothing is running there")


@verb("continue", RANKS)
def continue_(s: Session, o: Namespace) -> None:
    """resume paused ranks; their output appears in the run's own cell: continue [-r RANKS]"""
    _resume(s, o, "continue")


@verb("where", RANKS)
def where(s: Session, o: Namespace) -> None:
    """show the stacks of paused ranks as one tree, with identical stacks merged: where [-r RANKS]"""
    s.echo(_drawn(s.cluster.where(_chosen(s, o))))


@verb("up", _FRAMES, RANKS)
def up(s: Session, o: Namespace) -> None:
    """run cells in the caller of the chosen frame: up [FRAMES] [-r RANKS]"""
    s.echo(_drawn(s.cluster.up(o.frames, _chosen(s, o) or s.debugged or None)))


@verb("down", _FRAMES, RANKS)
def down(s: Session, o: Namespace) -> None:
    """run cells in the frame that the chosen frame called: down [FRAMES] [-r RANKS]"""
    s.echo(_drawn(s.cluster.down(o.frames, _chosen(s, o) or s.debugged or None)))


@verb("step", RANKS)
def step(s: Session, o: Namespace) -> None:
    """run paused ranks to their next line, stepping into functions: step [-r RANKS]"""
    _resume(s, o, "step")


@verb("next", RANKS)
def next_(s: Session, o: Namespace) -> None:
    """run paused ranks to the next line of their chosen frame, or to its return: next [-r RANKS]"""
    _resume(s, o, "next")


@verb("return", RANKS)
def return_(s: Session, o: Namespace) -> None:
    """run paused ranks until their chosen frame is about to return: return [-r RANKS]"""
    _resume(s, o, "return")


@verb("until", option("line", type=parse_count, metavar="LINE"), RANKS)
def until(s: Session, o: Namespace) -> None:
    """run paused ranks to the given line of their chosen frame, or a later one: until LINE [-r RANKS]"""
    _resume(s, o, "until", o.line)


@verb("next-call", RANKS)
def next_call(s: Session, o: Namespace) -> None:
    """run paused ranks until each is about to begin a collective or transfer: next-call [-r RANKS]

    The output shows what each rank is about to call.
    """
    _resume(s, o, "next_call")


@verb("debug", option("run", nargs="?", metavar="RUN|off", help="a run's number, or off"), RANKS, attaches=None)
def debug(s: Session, o: Namespace) -> None:
    """after a failure, run cells in the frame that failed on each rank: debug [RUN|off]

    Without a run's number, each rank's last cell is used; up, down and where work as in a pause. `debug off` returns to
    normal and frees what the frames hold, such as tensors.
    """
    cluster = s.cluster
    if o.run == "off":
        s.echo("cells use the ranks' own names again" if s.debugged else "no failure is being debugged")
        cluster.stop_debugging(s.debugged or None)  # a failure keeps its frames even where it is not debugged
        s.debugged = ()
        return
    if o.run is not None and not o.run.isdecimal():
        raise UsageError(f"{typed('debug')} {o.run}: expected the number of a run, or off")
    stacks = cluster.debug(int(o.run or 0), _chosen(s, o))
    s.debugged = tuple(stacks)
    s.echo(f"%%dist cells run where {naming(stacks)} failed; {typed('debug off')} returns to normal\n{stacks}")


def _chosen(s: Session, o: Namespace) -> Ranks:
    """The ranks that the user named; None for the verb's default."""
    return None if o.ranks is None and o.group is None else s.cluster.select(o.ranks, o.group)


def _resume(s: Session, o: Namespace, how: StepKind, line: int = 0) -> None:
    s.echo(_described(s.cluster.resume(how, _chosen(s, o), line=line)))


def _described(places: Places) -> str:
    """Where the ranks are; each line begins with a sign for paused, running, or how the rank's part ended."""
    signed = {PAUSE_SIGN: Places(places, {})}
    for rank, text in places.others.items():
        sign = _ENDED.get(places.ended[rank], "✗") if rank in places.ended else "▶"
        signed.setdefault(sign, Places({}, {})).others[rank] = text
    return "\n".join(f"{sign} {line}" for sign in _SIGNS if sign in signed for line in str(signed[sign]).splitlines())


def _drawn(stacks: Stacks) -> str:
    """The tree, headed by the paused runs."""
    runs = ranks_by((rank, stack.run) for rank, stack in stacks.items())
    head = " · ".join(f"run {run} on {naming(ranks)}" for run, ranks in runs.items())
    return f"{head}\n{stacks}".lstrip()

"""Stack tree: the stacks of paused ranks as one tree. Ranks at the same place share a branch. Pure."""

from collections.abc import Iterator, Mapping

from msgspec import Struct

from jdist.client.debug.places import bracketed, list_places, shortened
from jdist.core.messages.debug import Stack
from jdist.core.observation import StackFrame

CHOSEN = "◂"  # Marks the frames in which cells run.
_MOST_LINES = 200


class Branch(Struct):
    """A frame that some ranks have in common, and the frames that it called there."""

    frame: StackFrame
    ranks: list[int]
    chosen: list[int]  # Ranks whose cells run in this frame.
    children: "list[Branch]"


class Stacks(dict[int, Stack]):
    """``{rank: Stack}``. ``str()`` draws the stacks as one tree, and lists what the other ranks are doing."""

    def __init__(self, stacks: Mapping[int, Stack], others: Mapping[int, str]):
        super().__init__(stacks)
        self.others = dict(others)
        """``{rank: what it is doing}`` for the ranks that are not paused."""

    def __repr__(self) -> str:
        drawn = list(_draw(merge(self)))
        if len(drawn) > _MOST_LINES:
            drawn = [*drawn[:_MOST_LINES], f"… {len(drawn) - _MOST_LINES} more lines; use -r to select ranks"]
        causes: dict[int, str] = {}
        for rank, stack in self.items():
            thread = f"in thread {stack.thread}" if stack.thread else ""
            causes[rank] = " · ".join(filter(None, (stack.error, thread)))
        notes = list_places({}, {rank: text for rank, text in causes.items() if text})
        return "\n".join([*drawn, *notes, *list_places({}, self.others)])


def listed(stack: Stack) -> list[int]:
    """The indexes of the frames that the tree shows: those of user code, and the one in which cells run."""
    return [index for index, frame in enumerate(stack.frames) if frame.is_user_code or index == stack.chosen]


def merge(stacks: Mapping[int, Stack]) -> list[Branch]:
    """The outermost frames of the tree, with those frames of each rank that are :func:`listed`."""
    roots: list[Branch] = []
    for rank, stack in sorted(stacks.items()):
        level = roots
        for index in listed(stack):
            frame = stack.frames[index]
            branch = next((each for each in level if _is_same(each.frame, frame)), None)
            if branch is None:
                branch = Branch(frame, [], [], [])
                level.append(branch)
            branch.ranks.append(rank)
            if index == stack.chosen:
                branch.chosen.append(rank)
            level = branch.children
    return roots


def _is_same(one: StackFrame, other: StackFrame) -> bool:
    return (one.function, one.file, one.line, one.run) == (other.function, other.file, other.line, other.run)


def _draw(level: list[Branch], margin: str = "") -> Iterator[str]:
    """A line for each frame."""
    for place, branch in enumerate(level):
        is_last = place == len(level) - 1
        lead, below = ("", "") if not margin and len(level) == 1 else ("└─ ", "   ") if is_last else ("├─ ", "│  ")
        yield from _draw_chain(branch, f"{margin}{lead}{bracketed(branch.ranks)} ", margin + below)


def _draw_chain(branch: Branch, lead: str, margin: str) -> Iterator[str]:
    """The frame and, below it, the frames that it called; those in which ranks differ are indented."""
    while True:
        yield lead + _text(branch)
        lead = f"{margin}   "
        if len(branch.children) != 1 or branch.children[0].ranks != branch.ranks:
            break
        branch = branch.children[0]
    yield from _draw(branch.children, f"{margin} ")


def _text(branch: Branch) -> str:
    frame = branch.frame
    text = shortened(f"{frame.place}: {frame.source}" if frame.source else frame.place)
    if not branch.chosen:
        return text
    whose = "cells" if branch.chosen == branch.ranks else f"cells of {bracketed(branch.chosen)}"
    return f"{text}  {CHOSEN} {whose} run here"

"""Paused stacks as one tree: ranks that agree are together, the frames in which cells run are marked."""

from __future__ import annotations

from jdist.client.debug import Stacks
from jdist.core.messages.debug import Stack
from jdist.core.messages.observation import StackFrame

CELL = StackFrame("<cell>", "", 5, "loss = train_step(model, batch)", 12)
STEP = StackFrame("train_step", "", 8, "loss.backward()", 12)
CHECK = StackFrame("check", "", 3, "if torch.isnan(loss): breakpoint()", 12)
LIBRARY = StackFrame("Tensor.backward", "/lib/torch/_tensor.py", 500, "torch.autograd.backward(", 0, False)
HOOK = StackFrame("hook", "/home/u/model.py", 77, "grad *= 2")


def stack(*frames: StackFrame, chosen: int | None = None, **more: str) -> Stack:
    return Stack(frames, len(frames) - 1 if chosen is None else chosen, 12, "request", **more)


def test_one_place_has_no_branches() -> None:
    stacks = dict.fromkeys(range(4), stack(CELL, STEP, LIBRARY, chosen=1))
    assert str(Stacks(stacks, {})).splitlines() == [
        "[0-3] <cell>, line 5: loss = train_step(model, batch)",
        "   train_step, line 8: loss.backward()  ◂ cells run here",
    ]


def test_a_world_of_64_ranks_is_a_few_lines() -> None:
    stacks = dict.fromkeys(range(62), stack(CELL, STEP, LIBRARY, chosen=1))
    stacks[1] = stack(CELL, CHECK)
    stacks |= dict.fromkeys(range(40, 48), stack(CELL, STEP, LIBRARY, HOOK, thread="autograd"))
    tree = Stacks(stacks, {62: "in all_reduce #17 of world; pause pending", 63: "finished run 12"})
    assert str(tree).splitlines() == [
        "[0-61] <cell>, line 5: loss = train_step(model, batch)",
        " ├─ [0,2-61] train_step, line 8: loss.backward()  ◂ cells of [0,2-39,48-61] run here",
        " │   └─ [40-47] hook, model.py line 77: grad *= 2  ◂ cells run here",
        " └─ [1] check, line 3: if torch.isnan(loss): breakpoint()  ◂ cells run here",
        "[40-47] in thread autograd",
        "[62] in all_reduce #17 of world; pause pending",
        "[63] finished run 12",
    ]


def test_a_frame_of_a_library_is_shown_where_cells_run_in_it() -> None:
    stacks = {0: stack(CELL, STEP, LIBRARY, error="ValueError: bad"), 1: stack(StackFrame("<cell>", "", 2, "f()", 13))}
    assert str(Stacks(stacks, {})).splitlines() == [
        "├─ [0] <cell>, line 5: loss = train_step(model, batch)",
        "│     train_step, line 8: loss.backward()",
        "│     Tensor.backward, _tensor.py line 500: torch.autograd.backward(  ◂ cells run here",
        "└─ [1] <cell>, line 2: f()  ◂ cells run here",
        "[0] ValueError: bad",
    ]

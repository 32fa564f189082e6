"""Stacks of paused ranks, as seen from outside the rank's process."""

from typing import Literal

from msgspec import Struct

# request: a user requested it. breakpoint: the code reached one. step: a step is complete. next_call: the rank is about
# to begin a collective or transfer. failure: an exception left the code of a cell that is held on failure.
PauseReason = Literal["request", "breakpoint", "step", "next_call", "failure"]

# How a paused rank resumes. continue: until something else pauses it. step: to the next line anywhere; next: to the
# next line of the chosen frame or of one of its callers; return: until the chosen frame is about to return; until: to a
# line of the chosen frame at or after a number. These four also pause where a function in question is about to return.
# next_call: until it is about to begin its next collective or transfer.
StepKind = Literal["continue", "step", "next", "return", "until", "next_call"]


class StackFrame(Struct, frozen=True, omit_defaults=True):
    """One frame of a rank's Python stack."""

    function: str  # Qualified name; "<cell>" for the code of a cell outside of any function.
    file: str  # Path on the rank's node; "" for a cell.
    line: int  # From 1.
    source: str = ""  # Text of that line, without its indentation.
    run: int = 0  # The run whose cell the code is from; 0 if it is not from a cell.
    is_user_code: bool = True  # Of a cell, a script or the user's own modules, rather than of an installed library.

    @property
    def place(self) -> str:
        """Such as "train_step, line 8" or "train_step, model.py line 8"."""
        file = f"{self.file.rpartition('/')[2]} " if self.file else ""
        return f"{self.function}, {file}line {self.line}"

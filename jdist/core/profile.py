"""Profile: what is recorded of a cell that runs under torch.profiler."""

from typing import Literal

from msgspec import Struct

ProfileActivity = Literal["cpu", "cuda"]
ACTIVITIES: tuple[ProfileActivity, ...] = ("cpu", "cuda")
MOST_OPERATORS = 1_200_000  # Of all ranks together; an operator takes some 150 bytes of a Chrome trace.
LEAST_OPERATORS = 2_000  # That a rank may keep, however many ranks there are.


class ProfileOptions(Struct, frozen=True, omit_defaults=True):
    """How a cell is profiled. Steps count as in :func:`torch.profiler.schedule`; no active ones: the whole cell."""

    activities: tuple[ProfileActivity, ...] = ()  # Empty: all that the rank has.
    wait: int = 0  # Steps at the start of each cycle of which nothing is recorded.
    warmup: int = 0  # Steps after them that are recorded and thrown away.
    active: int = 0  # Steps after them that are recorded.
    repeat: int = 0  # Number of cycles; 0: as many as there are.
    most_operators: int = MOST_OPERATORS  # That a rank keeps; the shortest ones are left out first.

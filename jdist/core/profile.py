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


# operator: one of torch's on a thread. scope: what record_function, an optimizer or a loader of data has named.
# collective: what a backend did for a collective, up to its end. kernel: what ran on a GPU.
OPERATOR, SCOPE, COLLECTIVE, KERNEL = range(4)
MAIN = 0  # The main thread's index in `RankProfile.threads`.
LOADING = "enumerate(DataLoader)"  # How the name of a scope begins in which a DataLoader is waited for.


class RankProfile(Struct, frozen=True, omit_defaults=True):
    """What was recorded on one rank. Times are the wall clock of its host; columns are little-endian."""

    run: int
    began: float  # Seconds since the epoch.
    ended: float
    names: tuple[str, ...]
    threads: tuple[str, ...]  # The main one first; a GPU's streams are among them.
    starts: bytes  # int64, nanoseconds since `began`, ascending.
    durations: bytes  # int64, nanoseconds.
    name: bytes  # uint32, index in `names`.
    thread: bytes  # uint16, index in `threads`.
    kind: bytes  # uint8.
    windows: tuple[tuple[float, float], ...] = ()  # When something was recorded: seconds since `began`.
    steps: tuple[float, ...] = ()  # When a step ended: seconds since `began`.
    left_out: int = 0  # Operators that were recorded and not kept.
    longest_left_out: int = 0  # Nanoseconds.
    left_out_seconds: float = 0.0  # Of the main thread, within no operator that was kept.
    reason: str = ""  # Why nothing, or not everything, was recorded.

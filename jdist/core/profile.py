"""Profile: what is recorded while a cell runs under torch.profiler."""

from typing import Literal

from msgspec import Struct

ProfileActivity = Literal["cpu", "cuda"]
ACTIVITIES: tuple[ProfileActivity, ...] = ("cpu", "cuda")
MOST_OPERATORS = 1_200_000  # For all ranks together; an operator takes about 150 bytes of a Chrome trace.
LEAST_OPERATORS = 2_000  # That a rank may keep regardless of the number of ranks.


class ProfileOptions(Struct, frozen=True, omit_defaults=True):
    """How a cell is profiled. Steps are as in :func:`torch.profiler.schedule`; without active ones, all is recorded."""

    activities: tuple[ProfileActivity, ...] = ()  # Empty: all that the rank supports.
    wait: int = 0  # Steps at the start of each cycle that are not recorded.
    warmup: int = 0  # Steps after these that are recorded and discarded.
    active: int = 0  # Steps after these that are recorded and kept.
    repeat: int = 0  # Number of cycles; 0: unlimited.
    most_operators: int = MOST_OPERATORS  # Number that a rank keeps; the shortest are dropped first.


# operator: a torch operator on a thread. scope: named by record_function, an optimizer or a data loader.
# collective: a backend's work on a collective, up to its end. kernel: executed on a GPU.
OPERATOR, SCOPE, COLLECTIVE, KERNEL = range(4)
MAIN = 0  # The main thread's index in `RankProfile.threads`.
LOADING = "enumerate(DataLoader)"  # Prefix of the scopes in which code waits for a DataLoader.


class RankProfile(Struct, frozen=True, omit_defaults=True):
    """What was recorded on one rank. Times are the wall clock of its host; columns are little-endian."""

    run: int
    began: float  # Seconds since the epoch.
    ended: float
    names: tuple[str, ...]
    threads: tuple[str, ...]  # The main thread first; GPU streams are included.
    starts: bytes  # int64, nanoseconds since `began`, ascending.
    durations: bytes  # int64, nanoseconds.
    name: bytes  # uint32, index in `names`.
    thread: bytes  # uint16, index in `threads`.
    kind: bytes  # uint8.
    windows: tuple[tuple[float, float], ...] = ()  # When recording was active: seconds since `began`.
    steps: tuple[float, ...] = ()  # When a step ended: seconds since `began`.
    left_out: int = 0  # Number of operators that were recorded but not kept.
    longest_left_out: int = 0  # Nanoseconds.
    left_out_seconds: float = 0.0  # Main thread's time in such operators, outside operators that were kept.
    reason: str = ""  # Why nothing, or not everything, was recorded.

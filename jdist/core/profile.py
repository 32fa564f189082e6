"""Profile: what is recorded while a cell runs under torch.profiler."""

from collections.abc import Sequence
from typing import Literal, cast

from msgspec import Struct

from jdist.core.errors import UsageError

ProfileActivity = Literal["cpu", "cuda"]
ACTIVITIES: tuple[ProfileActivity, ...] = ("cpu", "cuda")
MOST_OPERATORS = 1_200_000  # For all ranks together; an operator takes about 150 bytes of a Chrome trace.
LEAST_OPERATORS = 2_000  # That a rank may keep regardless of the number of ranks.
_SCHEDULE = ("wait", "warmup", "active", "repeat")


class ProfileOptions(Struct, frozen=True, omit_defaults=True):
    """How a cell is profiled. Steps are as in :func:`torch.profiler.schedule`; without active ones, all is recorded."""

    activities: tuple[ProfileActivity, ...] = ()  # Empty: all that the rank supports.
    wait: int = 0  # Steps at the start of each cycle that are not recorded.
    warmup: int = 0  # Steps after these that are recorded and discarded.
    active: int = 0  # Steps after these that are recorded and kept.
    repeat: int = 0  # Number of cycles; 0: unlimited.
    most_operators: int = MOST_OPERATORS  # Number that a rank keeps; the shortest are dropped first.


def profile_options(
    ranks: int,
    *,
    activities: str | Sequence[str] = (),
    wait: int = 0,
    warmup: int = 0,
    active: int = 0,
    repeat: int = 0,
) -> ProfileOptions:
    """Check the options of a profile of ``ranks`` ranks, which share the space that is available. Raises UsageError."""
    chosen = activities.split(",") if isinstance(activities, str) else activities
    names = tuple(filter(None, (name.strip() for name in chosen)))
    if unknown := [name for name in names if name not in ACTIVITIES]:
        raise UsageError(f"cannot profile the activity {', '.join(unknown)}; choose from {', '.join(ACTIVITIES)}")
    numbers = dict(zip(_SCHEDULE, (wait, warmup, active, repeat), strict=True))
    if wrong := [f"{name}={number}" for name, number in numbers.items() if number < 0]:
        raise UsageError(f"the steps of a schedule must not be negative: {', '.join(wrong)}")
    if (wait or warmup or repeat) and not active:
        raise UsageError("a schedule needs active steps, which are recorded, such as active=3")
    most = max(LEAST_OPERATORS, MOST_OPERATORS // max(1, ranks))
    return ProfileOptions(cast("tuple[ProfileActivity, ...]", names), wait, warmup, active, repeat, most)


def parse_schedule(text: str) -> dict[str, int]:
    """``wait=1,warmup=1,active=3,repeat=2`` as arguments of :func:`profile_options`. Raises UsageError."""
    found = {}
    for part in filter(None, text.split(",")):
        name, _, number = part.strip().partition("=")
        if name not in _SCHEDULE or not number.isdecimal():
            raise UsageError(f"{part!r} is not part of a schedule; an example is wait=1,warmup=1,active=3,repeat=2")
        found[name] = int(number)
    return found


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
    reason: str = ""  # Why nothing, or not everything, was recorded.
    table: str = ""  # torch.profiler's own, of the operators that took longest; "" if there is none.
    tabulated: int = 0  # Number of windows that it is made of.

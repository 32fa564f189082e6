"""Options of a profile, as given by users: a schedule of steps, and what to record."""

from collections.abc import Sequence
from typing import cast

from jdist.core.errors import UsageError
from jdist.core.profile import ACTIVITIES, LEAST_OPERATORS, MOST_OPERATORS, ProfileActivity, ProfileOptions

SCHEDULE = ("wait", "warmup", "active", "repeat")


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
    numbers = dict(zip(SCHEDULE, (wait, warmup, active, repeat), strict=True))
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
        if name not in SCHEDULE or not number.isdecimal():
            raise UsageError(f"{part!r} is not part of a schedule; an example is wait=1,warmup=1,active=3,repeat=2")
        found[name] = int(number)
    return found

"""What ranks tell each other during a save or a load: collectives of Python objects on the world.

An error on one rank is raised on all, so that none waits for it in the next collective.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

from jdist.core.errors import UsageError, describe_error
from jdist.core.ranks import describe_ranks, ranks_by

T = TypeVar("T")
R = TypeVar("R")


def decided(value: T, decide: Callable[[list[T]], R]) -> R:
    """What ``decide`` makes of the values of all ranks, on rank 0. Raises UsageError, on every rank, if it fails."""

    def decide_for_all(values: list[T]) -> list[R]:
        decision = decide(values)
        return [decision] * len(values)

    return planned(value, decide_for_all)


def planned(value: T, plan: Callable[[list[T]], list[R]]) -> R:
    """What ``plan`` makes for this rank of the values of all ranks, on rank 0. Raises UsageError as above."""
    is_first, size = dist.get_rank() == 0, dist.get_world_size()
    values: list[Any] | None = [None] * size if is_first else None
    dist.gather_object(value, values, dst=0)
    results: list[Any] | None = None
    if values is not None:
        try:
            results = [(result, "") for result in plan(values)]
        except Exception as e:  # the others wait for an answer
            results = [(None, str(e) if isinstance(e, UsageError) else describe_error(e))] * size
    box: list[Any] = [None]
    dist.scatter_object_list(box, results, src=0)
    result, error = box[0]
    if error:
        raise UsageError(error)
    found: R = result
    return found


def agreed(work: Callable[[], T]) -> T:
    """The result of ``work`` on this rank. Raises UsageError, on every rank, if it fails on any."""
    result, error = None, ""
    try:
        result = work()
    except Exception as e:  # the user's own code runs in some of it
        error = str(e) if isinstance(e, UsageError) else describe_error(e)
    check(error)
    return result  # type: ignore[return-value]


def check(error: str) -> None:
    """Raises UsageError on every rank if any has an error."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, error)
    alike = ranks_by((rank, each) for rank, each in enumerate(found) if each)
    if alike:
        raise UsageError("; ".join(f"{describe_ranks(ranks)}: {why}" for why, ranks in alike.items()))

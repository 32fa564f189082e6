"""Names: what ranks answered about names, put together; and which part of a cell goes to the ranks. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from jdist.core.messages.introspection import Completed
from jdist.core.ranks import RankSet

_MAGIC = "%%dist"
_HERE = ("%", "!", "get_ipython()")


class Part(Struct, frozen=True):
    """The part of a cell that runs on ranks."""

    options: str
    """The words after ``%%dist``."""
    offset: int
    """Where it begins in the cell."""


def ranks_part(code: str, *, is_auto: bool) -> Part | None:
    """None for a cell that runs in the notebook. ``is_auto``: plain cells go to the ranks."""
    blank = len(code) - len(code.lstrip())
    first, newline, _ = code[blank:].partition("\n")
    words = first.split(maxsplit=1)
    if words[:1] == [_MAGIC]:
        return Part(words[1].strip() if len(words) > 1 else "", blank + len(first) + len(newline))
    if is_auto and first and not first.startswith(_HERE):
        return Part("", 0)
    return None


def is_for_ranks(line: str) -> bool:
    """Whether the names that begin in this line of the part are the ranks': modules and magics are the notebook's."""
    words = line.split(maxsplit=1)
    return not words or not (words[0] in ("import", "from") or words[0].startswith(("%", "!")))


def spread(ranks: tuple[int, ...], most: int) -> tuple[int, ...]:
    """At most so many of them, from the first to the last."""
    if len(ranks) <= most:
        return ranks
    return tuple(ranks[i * (len(ranks) - 1) // (most - 1)] for i in range(most))


def combine(answers: Mapping[int, Completed]) -> list[tuple[str, str]]:
    """``(name, type)`` in alphabetical order; the type says so where a name is not the same on the ranks that answered.

    Names that all have come first.
    """
    kinds: dict[str, dict[int, str]] = {}
    for rank, answer in answers.items():
        types = answer.types or ("",) * len(answer.matches)
        for match, kind in zip(answer.matches, types, strict=True):
            kinds.setdefault(match, {})[rank] = kind
    told = [(name, _tell(by_rank, answers.keys())) for name, by_rank in kinds.items()]
    return sorted(told, key=lambda item: (len(kinds[item[0]]) < len(answers), item[0]))


def _tell(by_rank: Mapping[int, str], asked: Iterable[int]) -> str:
    ranks_of: dict[str, list[int]] = {}
    for rank, kind in by_rank.items():
        ranks_of.setdefault(kind, []).append(rank)
    if len(ranks_of) > 1:
        return ", ".join(f"{kind or '?'} on {RankSet(ranks)}" for kind, ranks in ranks_of.items())
    (kind,) = ranks_of
    if set(by_rank) == set(asked):
        return kind
    return f"{kind} only on {RankSet(by_rank)}".lstrip()


def put_together(name: str, answers: Mapping[int, str]) -> str:
    """What a name is, once for the ranks where it is the same; "" where no rank has it."""
    ranks_of: dict[str, list[int]] = {}
    for rank, text in answers.items():
        ranks_of.setdefault(text, []).append(rank)
    if not any(ranks_of):
        return ""
    if len(ranks_of) == 1:
        return next(iter(ranks_of))
    parts = [f"[{RankSet(ranks)}] {text or f'there is no {name}'}" for text, ranks in ranks_of.items()]
    return "\n\n".join([f"{name} is not the same on every rank", *parts])

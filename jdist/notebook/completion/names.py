"""Names of ranks: which part of a cell goes to the ranks, and their answers about names combined. Pure."""

from collections.abc import Mapping

from msgspec import Struct

from jdist.core.messages.introspection import Completed
from jdist.core.ranks import RankSet, ranks_by


class RanksPart(Struct, frozen=True):
    """The part of a cell that runs on ranks, from ``offset``; ``options`` are the words after ``%%dist``."""

    options: str
    offset: int


def ranks_part(code: str, *, is_auto: bool) -> RanksPart | None:
    """None for a cell that runs in the notebook. ``is_auto``: plain cells go to the ranks."""
    blank = len(code) - len(code.lstrip())
    first, newline, _ = code[blank:].partition("\n")
    words = first.split(maxsplit=1)
    if words[:1] == ["%%dist"]:
        return RanksPart(words[1].strip() if len(words) > 1 else "", blank + len(first) + len(newline))
    if is_auto and first and not first.startswith(("%", "!", "get_ipython()")):
        return RanksPart("", 0)
    return None


def is_for_ranks(line: str) -> bool:
    """Whether names in this line of the part are the ranks'. Modules and magics are completed by the notebook."""
    words = line.split(maxsplit=1)
    return not words or not (words[0] in ("import", "from") or words[0].startswith(("%", "!")))


def spread(ranks: tuple[int, ...], most: int) -> tuple[int, ...]:
    """At most ``most`` ranks, from the first to the last."""
    if len(ranks) <= most:
        return ranks
    return tuple(ranks[i * (len(ranks) - 1) // (most - 1)] for i in range(most))


def combine(answers: Mapping[int, Completed]) -> list[tuple[str, str]]:
    """``(name, type)``, names of all ranks first, then alphabetical; the type says where ranks differ in the name."""
    kinds: dict[str, dict[int, str]] = {}
    for rank, answer in answers.items():
        types = answer.types or ("",) * len(answer.matches)
        for match, kind in zip(answer.matches, types, strict=True):
            kinds.setdefault(match, {})[rank] = kind
    names = [(name, _describe_type(by_rank, len(answers))) for name, by_rank in kinds.items()]
    return sorted(names, key=lambda item: (len(kinds[item[0]]) < len(answers), item[0]))


def _describe_type(by_rank: Mapping[int, str], asked: int) -> str:
    ranks_of = ranks_by(by_rank.items())
    if len(ranks_of) > 1:
        return ", ".join(f"{kind or '?'} on {RankSet(ranks)}" for kind, ranks in ranks_of.items())
    (kind,) = ranks_of
    return kind if len(by_rank) == asked else f"{kind} only on {RankSet(by_rank)}".lstrip()


def describe_name(name: str, answers: Mapping[int, str]) -> str:
    """The ranks' descriptions of a name, equal ones once; "" where no rank has it."""
    ranks_of = ranks_by(answers.items())
    if not any(ranks_of):
        return ""
    if len(ranks_of) == 1:
        return next(iter(ranks_of))
    parts = [f"[{RankSet(ranks)}] {text or f'there is no {name}'}" for text, ranks in ranks_of.items()]
    return "\n\n".join([f"{name} is not the same on every rank", *parts])

"""Compare: whether an expression is equal on all ranks, or where it first differs. A large state_dict is not moved."""

import math

from msgspec import Struct

from jdist.client.link import Link
from jdist.core.errors import UsageError
from jdist.core.messages.base import QueryFailed
from jdist.core.messages.values import Digest, Digested, ElementRead, ReadElement
from jdist.core.ranks import describe_ranks, ranks_by
from jdist.wire.values.partition import bounds

_BLOCKS = 64
TIMEOUT = 600.0  # Seconds for a rank to digest: it reads every byte.


class CheckResult(Struct, frozen=True):
    """The answer of ``check``."""

    expr: str
    is_equal: bool
    entries: int  # Number of entries that were compared.
    key: str = ""  # The first entry that differs; "" for a value that is one entry.
    index: tuple[int, ...] | None = None  # Of the first differing element, if shapes and types agree.
    found: tuple[tuple[tuple[int, ...], str], ...] = ()  # The ranks' values there: `(ranks, text)`, most ranks first.

    def __bool__(self) -> bool:
        return self.is_equal

    def __str__(self) -> str:
        if self.is_equal:
            n = f"{self.entries} entries, " if self.entries > 1 else ""
            return f"{self.expr} is equal on all ranks ({n}compared by digest)"
        at = f"{self.expr}" + (f" entry {self.key!r}" if self.key else "")
        if self.index is not None:
            at += f" at index {list(self.index)}"
        held = "; ".join(f"{describe_ranks(r)}: {text}" for r, text in self.found)
        return f"{at} differs: {held}"

    __repr__ = __str__


async def check(link: Link, expr: str, ranks: tuple[int, ...]) -> CheckResult:
    """Compare ``expr`` over ``ranks``. Raises UsageError naming the ranks that do not have it."""
    by_rank = await _digests(link, Digest(expr), ranks)
    keyed = {r: {key: (meta, digest) for key, meta, digest in entries} for r, entries in by_rank.items()}
    order = dict.fromkeys([*keyed[ranks[0]], *sorted({key for entries in keyed.values() for key in entries})])
    for key in order:
        held = {r: keyed[r].get(key) for r in ranks}
        if len(set(held.values())) > 1:
            index, texts = None, {r: h[0] if h else "missing" for r, h in held.items()}
            if len(set(texts.values())) == 1:
                index, texts = await _narrow(link, expr, key, texts[ranks[0]], ranks)
            by_text = sorted(ranks_by(sorted(texts.items())).items(), key=lambda item: -len(item[1]))
            found = tuple((tuple(alike), text) for text, alike in by_text)
            return CheckResult(expr, False, len(order), key, index, found)
    return CheckResult(expr, True, len(order))


async def _digests(link: Link, op: Digest, ranks: tuple[int, ...]) -> dict[int, tuple[tuple[str, str, str], ...]]:
    answers = await link.query(ranks, op, timeout=TIMEOUT)
    errors = {r: a.reason for r, a in answers.items() if isinstance(a, QueryFailed)}
    if errors:
        raise UsageError("; ".join(f"rank {r}: {why}" for r, why in sorted(errors.items())))
    return {r: a.entries for r, a in answers.items() if isinstance(a, Digested)}


async def _narrow(
    link: Link, expr: str, key: str, meta: str, ranks: tuple[int, ...]
) -> tuple[tuple[int, ...] | None, dict[int, str]]:
    """The first differing element's index, found in a few rounds of block digests, and its text by rank."""
    numel = _numel(meta)
    start, stop = 0, numel
    while stop - start > 1:
        blocks = min(_BLOCKS, stop - start)
        found = await _digests(link, Digest(expr, key, start, stop, blocks), ranks)
        columns = zip(*([d for _, _, d in found[r]] for r in ranks), strict=True)
        first = next((i for i, column in enumerate(columns) if len(set(column)) > 1), None)
        if first is None:
            return None, dict.fromkeys(ranks, "equal now: it changed while it was compared")
        low, high = bounds(stop - start, first, blocks)
        start, stop = start + low, start + high
    answers = await link.query(ranks, ReadElement(expr, key, start))
    texts = {r: a.text if isinstance(a, ElementRead) else str(a) for r, a in answers.items()}
    index = next((a.index for a in answers.values() if isinstance(a, ElementRead)), None)
    return index if numel else None, texts


def _numel(meta: str) -> int:
    """The number of elements of a tensor such as "float32 [3, 4]"; 0 for a value without elements."""
    _, bracket, shape = meta.rpartition("[")
    if not bracket or not shape.endswith("]"):
        return 0
    sizes = shape[:-1].strip()
    return math.prod(int(s) for s in sizes.split(",")) if sizes else 1

"""Variables: read, bind, move, describe, compare and delete names on the ranks.

Descriptions have histograms with bins that all ranks have in common. A comparison moves digests, never a large value.
"""

import math
import sys
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from jdist.client.active_runs import ActiveRuns
from jdist.client.attachment import Attachment, Ranks
from jdist.client.history import Annotation, BroadcastStep
from jdist.client.link import Link
from jdist.client.variables.carrier import Carrier, OnProgress, reason_of
from jdist.client.variables.table import VariableTable, merge_lists
from jdist.core import rank_code
from jdist.core.errors import UsageError, ValueFailed
from jdist.core.messages.base import QueryFailed
from jdist.core.messages.values import (
    BinElements,
    BinnedElements,
    Complete,
    Completed,
    Describe,
    Described,
    Digest,
    Digested,
    ElementRead,
    Inspect,
    Inspected,
    ListVariables,
    ReadElement,
    VariableList,
)
from jdist.core.ranks import describe_ranks, ranks_by
from jdist.wire.values.partition import bounds, concatenate, slice_along

# ---------------------------------------------------------------- histograms

_BINS = 32
_EXACT = 2.0**52  # Whole numbers up to which a float tells each from the next.


class Bins(Struct, frozen=True):
    """Bins of equal width from ``low`` to ``high``."""

    low: float
    high: float
    count: int


def common_bins(found: Mapping[int, Mapping[str, Any]]) -> Bins | None:
    """Bins for the values that ``found`` describes by rank; None if none has elements that can be ordered.

    Of whole numbers, each bin has as many as every other.
    """
    described = [each for each in found.values() if each.get("finite")]
    if not described:
        return None
    low = min(each["finite"][0] for each in described)
    high = max(each["finite"][1] for each in described)
    is_whole = all(each["dtype"].startswith(("int", "uint", "bool")) for each in described)
    if is_whole and max(abs(low), abs(high)) < _EXACT:
        width = math.ceil((high - low + 1) / _BINS)
        count = math.ceil((high - low + 1) / width)
        return Bins(low - 0.5, low - 0.5 + count * width, count)
    if high / _BINS - low / _BINS < sys.float_info.min:  # all are equal, or nearly
        pad = max(0.5, abs(low) / 1024)
        low, high = max(low - pad, -sys.float_info.max), min(high + pad, sys.float_info.max)
    return Bins(low, high, _BINS)


def histogram_of(bins: Bins, binned: BinnedElements) -> dict[str, Any]:
    """``{"low", "high", "counts", "nan", "negative_infinity", "positive_infinity", "outside"}``."""
    return {"low": bins.low, "high": bins.high, **asdict(binned), "counts": list(binned.counts)}


# ---------------------------------------------------------------- comparisons

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


# ---------------------------------------------------------------- variables

_MOST = 500  # Names that are listed of each rank.


class Variables:
    """The part of a cluster that reads and binds variables of its ranks."""

    def __init__(self, attachment: Attachment, runs: ActiveRuns, carrier: Carrier) -> None:
        self._attachment = attachment
        self._runs = runs
        self._carrier = carrier

    async def pull(
        self, names: str, ranks: Ranks = None, *, full: bool = False, on_progress: OnProgress | None = None
    ) -> dict[Any, Any]:
        """``{rank: value}`` of a name or expression; of several ("a, b"), ``{name: {rank: value}}``.

        ``full=True`` assembles DTensors first, for which all ranks must be free. Raises ValueFailed, with the values
        that did arrive in its ``values``.
        """
        wanted = split_names(names)
        chosen = self._attachment.select(ranks) if full else self._attachment.select_paused(ranks)
        exprs = wanted
        if full:
            await self._runs.run_internal(rank_code.full_values(wanted))
            exprs = tuple(f"{rank_code.FULL_VALUES}[{n!r}]" for n in wanted)

        def shaped(found: dict[str, dict[int, Any]]) -> dict[Any, Any]:
            by_name = {w: found.get(e, {}) for w, e in zip(wanted, exprs, strict=True)}
            return by_name[wanted[0]] if len(wanted) == 1 else by_name

        try:
            return shaped(await self._carrier.pull(exprs, chosen, on_progress))
        except ValueFailed as e:
            e.values = shaped(e.values)
            raise
        finally:
            if full:
                await self._runs.run_internal(f"del {rank_code.FULL_VALUES}")

    async def push(self, /, ranks: Ranks = None, *, on_progress: OnProgress | None = None, **values: Any) -> None:
        """Bind ``values`` by name on ranks. Raises ValueFailed."""
        if not values:
            raise UsageError("push needs at least one name=value")
        chosen = self._attachment.select_paused(ranks)
        await self._carrier.push(values, chosen, on_progress)
        self._attachment.history.add_values(values, chosen)

    async def scatter(
        self, name: str, value: Any, dim: int = 0, ranks: Ranks = None, *, on_progress: OnProgress | None = None
    ) -> None:
        """Bind part i of ``value`` along ``dim`` as ``name`` on the i-th rank; parts as torch.tensor_split cuts."""
        chosen = self._attachment.select(ranks)
        for i, rank in enumerate(chosen):
            part = slice_along(value, dim, i, len(chosen))
            await self._carrier.push({name: part}, (rank,), on_progress)
        self._attachment.history.add_values({name: value}, chosen, dim)

    async def gather(
        self, name: str, dim: int = 0, ranks: Ranks = None, *, on_progress: OnProgress | None = None
    ) -> Any:
        """The ranks' values of ``name``, concatenated along ``dim`` in rank order."""
        pulled = await self.pull(name, self._attachment.select(ranks), full=False, on_progress=on_progress)
        return concatenate([pulled[r] for r in sorted(pulled)], dim)

    async def show(self, name: str, ranks: Ranks = None) -> dict[int, dict[str, Any]]:
        """``{rank: description}``: type, shape, dtype, device, placement, mean, std, norm, NaN count, thumb.

        A tensor or array with several elements that can be ordered has a ``histogram``, in bins that are the same on
        all ranks: ``{"low": -1.0, "high": 1.0, "counts": [3, …], "nan": 0, …}``; of a DTensor, that of the rank's part.
        """
        link = self._attachment.link
        answers = await link.query(self._attachment.select_paused(ranks), Describe(name))
        found: dict[int, dict[str, Any]] = {
            r: msgspec.msgpack.decode(a.body) if isinstance(a, Described) else {"error": reason_of(a)}
            for r, a in sorted(answers.items())
        }
        if (bins := common_bins(found)) is not None:
            counted = tuple(r for r, each in found.items() if each.get("nan_count") is not None)
            query = BinElements(name, bins.low, bins.high, bins.count)
            for r, answer in (await link.query(counted, query)).items():
                if isinstance(answer, BinnedElements):  # else they are complex, or something else by now
                    found[r]["histogram"] = histogram_of(bins, answer)
        return found

    async def broadcast(self, name: str, src: int = 0) -> None:
        """Bind rank ``src``'s value of ``name`` on every rank; moves between the ranks, not through the notebook."""
        (source,) = self._attachment.select(src)
        await self._runs.run_internal(rank_code.broadcast(name, source))
        self._attachment.history.add(BroadcastStep(name, source))

    async def restore(self, rank: Ranks, src: int, names: str) -> dict[int, dict[str, str]]:
        """Copy ``names`` to a fresh rank (or several) from rank ``src``, which must be its replica.

        Moves between the ranks, which must all be free. A module, optimizer or other object with a state_dict that the
        rank has made again is filled in place; what it lacks is sent whole; DDP is wrapped around its module again.
        ``{rank: {name: what was done}}``. Raises UsageError, with nothing changed, for names that ``src`` lacks or that
        do not fit.
        """
        wanted = split_names(names)
        (source,) = self._attachment.select(src)
        fresh = self._attachment.select(rank)
        bad = [n for n in wanted if not n.isidentifier()]
        if bad:
            raise UsageError(f"restore takes variable names, and {bad[0]!r} is not one; restore the whole object")
        if source in fresh:
            raise UsageError(f"rank {source} cannot be restored from itself: name a surviving rank as the source")
        done = {}
        for target in fresh:
            run = await self._runs.run_refusable(rank_code.restore(wanted, source, target))
            done[target] = run.values[target]
            self._attachment.history.add(Annotation(f"{names} of rank {target} restored from rank {source}"))
        return done

    async def check(self, expr: str, ranks: Ranks = None) -> CheckResult:
        """Whether ``expr`` is equal on all ranks, compared by digests that the ranks compute."""
        return await check(self._attachment.link, expr, self._attachment.select_paused(ranks))

    async def variables(
        self, pattern: str = "", ranks: Ranks = None, *, stats: bool = False, check: bool = False, timeout: float = 2.0
    ) -> VariableTable:
        """What each rank has under which name: type, shape, dtype, device, placement, bytes, and who agrees.

        ``pattern`` is one of a shell, or several ("loss*,model"). Without one, modules, functions, classes and names
        that begin with an underscore are left out. Only metadata are read, while cells may be running: no tensor's
        elements, and no code of the values' own classes. ``stats`` adds mean and norm of tensors and arrays, and
        ``check`` compares contents by digest; both read every byte, and wait for what a device still computes.
        A rank that sends nothing for ``timeout`` seconds (ten minutes with ``stats`` or ``check``) is in ``absent``.
        """
        chosen = self._attachment.select_paused(ranks)
        query = ListVariables(pattern, _MOST, stats, check)
        patience = TIMEOUT if stats or check else timeout
        answers = await self._attachment.link.query(chosen, query, patience)
        lists = {rank: a for rank, a in answers.items() if isinstance(a, VariableList)}
        return merge_lists(lists, {rank: reason_of(a) for rank, a in answers.items() if rank not in lists})

    async def delete(self, names: str, ranks: Ranks = None) -> dict[int, int]:
        """Delete variables ("a, b") on ranks, after the cells that run there; ``{rank: how many it had}``.

        Raises UsageError, ClusterError.
        """
        wanted = split_names(names)
        if bad := [name for name in wanted if not name.isidentifier()]:
            raise UsageError(f"only variables can be deleted, and {bad[0]!r} is not a name")
        chosen = self._attachment.select_paused(ranks)
        run = await self._runs.run_internal(rank_code.delete_names(wanted), chosen)
        return {rank: int(count) for rank, count in run.values.items()}

    async def complete(self, code: str, cursor: int, ranks: Ranks = None, timeout: float = 0.2) -> dict[int, Completed]:
        """Names that complete the text before ``cursor`` in ``code``, a line, by rank that answers in ``timeout`` s."""
        return await self._attachment.link.query_within(
            self._attachment.select_paused(ranks), Complete(code, cursor), Completed, timeout
        )

    async def inspect(self, name: str, ranks: Ranks = None, detail: int = 0, timeout: float = 0.2) -> dict[int, str]:
        """Type, signature and documentation of a name, with ``detail`` 1 its source, by rank; "" for no such name.

        A rank that does not answer within ``timeout`` seconds is missing.
        """
        found = await self._attachment.link.query_within(
            self._attachment.select_paused(ranks), Inspect(name, detail), Inspected, timeout
        )
        return {r: each.text for r, each in found.items()}


# ---------------------------------------------------------------- names as users write them


def split_names(text: str) -> tuple[str, ...]:
    """``"a, b[0, 1], f(x, y)"`` at the commas that are not inside brackets or quotes."""
    names = tuple(name.strip() for name in split_outside(text, ","))
    if not all(names):
        raise UsageError(f"a name is missing in {text!r}")
    return names


def split_outside(text: str, separators: str) -> list[str]:
    """A line of Python, cut at ``separators`` outside brackets and quotes. Raises UsageError for an open quote."""
    parts, depth, start, quote, is_escaped = [], 0, 0, "", False
    for i, c in enumerate(text):
        if quote:
            quote = "" if c == quote and not is_escaped else quote
            is_escaped = c == "\\" and not is_escaped
        elif c in "'\"":
            quote = c
        elif c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
        elif c in separators and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    if quote:
        raise UsageError(f"{text!r}: a quote {quote} is not closed")
    return [*parts, text[start:]]

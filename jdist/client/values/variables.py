"""Variables: read, bind, move, describe, compare and delete names on the ranks."""

from typing import Any

import msgspec

from jdist.client.active_runs import ActiveRuns
from jdist.client.attachment import Attachment, Ranks
from jdist.client.expressions import split_names
from jdist.client.history import Annotation, BroadcastStep
from jdist.client.values import compare
from jdist.client.values.carrier import Carrier, OnProgress, reason_of
from jdist.client.values.histogram import common_bins, histogram_of
from jdist.client.values.variable_table import VariableTable, merge_lists
from jdist.core import rank_code
from jdist.core.errors import UsageError, ValueFailed
from jdist.core.messages.introspection import Complete, Completed, Inspect, Inspected
from jdist.core.messages.values import BinElements, BinnedElements, Describe, Described, ListVariables, VariableList
from jdist.wire.values.partition import concatenate, slice_along

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

    async def check(self, expr: str, ranks: Ranks = None) -> compare.CheckResult:
        """Whether ``expr`` is equal on all ranks, compared by digests that the ranks compute."""
        return await compare.check(self._attachment.link, expr, self._attachment.select_paused(ranks))

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
        patience = compare.TIMEOUT if stats or check else timeout
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

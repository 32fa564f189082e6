"""Variables: names on the ranks are read, bound, moved from rank to rank, described and compared."""

from __future__ import annotations

from typing import Any

from jdist.client.cluster.attachment import Ranks
from jdist.client.cluster.cells import Cells
from jdist.client.expressions import split_names
from jdist.client.history import BroadcastStep, Remark
from jdist.client.values import compare
from jdist.client.values.carrier import OnProgress
from jdist.core import rank_code
from jdist.core.errors import UsageError, ValueFailed
from jdist.wire.values.partition import concatenate, slice_along


class Variables(Cells):
    """The variables of an attached cluster's ranks."""

    async def pull(
        self, names: str, ranks: Ranks = None, *, full: bool = False, on_progress: OnProgress | None = None
    ) -> dict[Any, Any]:
        """``{rank: value}`` of a name or expression; of several ("a, b"), ``{name: {rank: value}}``.

        ``full=True`` assembles DTensors first, which all ranks must be free for. Raises ValueFailed; what did arrive is
        on it.
        """
        wanted = split_names(names)
        chosen = self.select(ranks)
        exprs = wanted
        if full:
            await self.run(rank_code.full_values(wanted), internal=True)
            exprs = tuple(f"{rank_code.FULL_VALUES}[{n!r}]" for n in wanted)

        def shaped(found: dict[str, dict[int, Any]]) -> dict[Any, Any]:
            by_name = {w: found.get(e, {}) for w, e in zip(wanted, exprs, strict=True)}
            return by_name[wanted[0]] if len(wanted) == 1 else by_name

        try:
            return shaped(await self.carrier.pull(exprs, chosen, on_progress))
        except ValueFailed as e:
            e.values = shaped(e.values)
            raise
        finally:
            if full:
                await self.run(f"del {rank_code.FULL_VALUES}", internal=True)

    async def push(self, /, ranks: Ranks = None, *, on_progress: OnProgress | None = None, **values: Any) -> None:
        """Bind ``values`` by name on ranks. Raises ValueFailed."""
        if not values:
            raise UsageError("push needs at least one name=value")
        chosen = self.select(ranks)
        await self.carrier.push(values, chosen, on_progress)
        self.history.add_values(values, chosen)

    async def scatter(
        self, name: str, value: Any, dim: int = 0, ranks: Ranks = None, *, on_progress: OnProgress | None = None
    ) -> None:
        """Bind part i of ``value`` along ``dim`` as ``name`` on the i-th rank; parts as torch.tensor_split cuts."""
        chosen = self.select(ranks)
        for i, rank in enumerate(chosen):
            part = slice_along(value, dim, i, len(chosen))
            await self.carrier.push({name: part}, (rank,), on_progress)
        self.history.add_values({name: value}, chosen, dim)

    async def gather(
        self, name: str, dim: int = 0, ranks: Ranks = None, *, on_progress: OnProgress | None = None
    ) -> Any:
        """The ranks' values of ``name``, concatenated along ``dim`` in rank order."""
        pulled = await self.pull(name, ranks, on_progress=on_progress)
        return concatenate([pulled[r] for r in sorted(pulled)], dim)

    async def broadcast(self, name: str, src: int = 0) -> None:
        """Bind rank ``src``'s value of ``name`` on every rank; moves between the ranks, not through the notebook."""
        source = self.select(src)[0]
        await self.run(rank_code.broadcast(name, source), internal=True)
        self.history.add(BroadcastStep(name, source))

    async def restore(self, rank: Ranks, src: int, names: str) -> dict[int, dict[str, str]]:
        """Bring ``names`` of a fresh rank (or several) back from rank ``src``, which must be its replica.

        Moves between the ranks, which must all be free. A module, optimizer or other object with a state_dict that the
        rank has made again is filled in place; what it lacks is sent whole; DDP is wrapped around its module again.
        ``{rank: {name: what was done}}``. Raises UsageError, with nothing changed, for names that ``src`` lacks or that
        do not fit.
        """
        wanted = split_names(names)
        source = self.select(src)[0]
        fresh = self.select(rank)
        bad = [n for n in wanted if not n.isidentifier()]
        if bad:
            raise UsageError(f"restore takes variable names, and {bad[0]!r} is none; restore the whole object")
        if source in fresh:
            raise UsageError(
                f"rank {source} cannot be restored from itself: name a rank that has lived on as the source"
            )
        done = {}
        for target in fresh:
            code = rank_code.restore(wanted, source, target)
            run = await self.run(code, internal=True, check=False)
            errors = [o.error for o in run.outcomes.values() if o.error is not None and o.error.ename == "UsageError"]
            if errors:
                raise UsageError(errors[0].evalue)
            run.check()
            done[target] = run.values[target]
            self.history.add(Remark(f"{names} of rank {target} restored from rank {source}"))
        return done

    async def show(self, name: str, ranks: Ranks = None) -> dict[int, dict[str, Any]]:
        """``{rank: description}``: type, shape, dtype, device, placement, mean, std, norm, NaN count, thumb."""
        return await self.carrier.describe(name, self.select(ranks))

    async def check(self, expr: str, ranks: Ranks = None) -> compare.Check:
        """Is ``expr`` equal on all ranks? Compared by digests computed there."""
        return await compare.check(self.link, expr, self.select(ranks))

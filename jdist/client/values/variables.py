"""Variables: names on the ranks are read, bound, moved between ranks, described and compared."""

from typing import Any

import msgspec

from jdist.client.active_runs import ActiveRuns
from jdist.client.attachment import Attachment, Ranks
from jdist.client.expressions import split_names
from jdist.client.history import Annotation, BroadcastStep
from jdist.client.values.carrier import OnProgress, reason_of
from jdist.client.values.histogram import common_bins, histogram_of
from jdist.core import rank_code
from jdist.core.errors import UsageError, ValueFailed
from jdist.core.messages.values import BinElements, BinnedElements, Describe, Described
from jdist.wire.values.partition import concatenate, slice_along


class Variables:
    """The variables of an attached cluster's ranks, as AsyncCluster documents their methods."""

    def __init__(self, attachment: Attachment, runs: ActiveRuns) -> None:
        self._attachment = attachment
        self._runs = runs

    async def pull(self, names: str, ranks: Ranks, *, full: bool, on_progress: OnProgress | None) -> dict[Any, Any]:
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
            return shaped(await self._attachment.carrier.pull(exprs, chosen, on_progress))
        except ValueFailed as e:
            e.values = shaped(e.values)
            raise
        finally:
            if full:
                await self._runs.run_internal(f"del {rank_code.FULL_VALUES}")

    async def push(self, values: dict[str, Any], ranks: Ranks, on_progress: OnProgress | None) -> None:
        if not values:
            raise UsageError("push needs at least one name=value")
        chosen = self._attachment.select_paused(ranks)
        await self._attachment.carrier.push(values, chosen, on_progress)
        self._attachment.history.add_values(values, chosen)

    async def scatter(self, name: str, value: Any, dim: int, ranks: Ranks, on_progress: OnProgress | None) -> None:
        chosen = self._attachment.select(ranks)
        for i, rank in enumerate(chosen):
            part = slice_along(value, dim, i, len(chosen))
            await self._attachment.carrier.push({name: part}, (rank,), on_progress)
        self._attachment.history.add_values({name: value}, chosen, dim)

    async def gather(self, name: str, dim: int, ranks: Ranks, on_progress: OnProgress | None) -> Any:
        pulled = await self.pull(name, self._attachment.select(ranks), full=False, on_progress=on_progress)
        return concatenate([pulled[r] for r in sorted(pulled)], dim)

    async def show(self, name: str, ranks: Ranks) -> dict[int, dict[str, Any]]:
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

    async def broadcast(self, name: str, src: int) -> None:
        (source,) = self._attachment.select(src)
        await self._runs.run_internal(rank_code.broadcast(name, source))
        self._attachment.history.add(BroadcastStep(name, source))

    async def restore(self, ranks: Ranks, src: int, names: str) -> dict[int, dict[str, str]]:
        wanted = split_names(names)
        (source,) = self._attachment.select(src)
        fresh = self._attachment.select(ranks)
        bad = [n for n in wanted if not n.isidentifier()]
        if bad:
            raise UsageError(f"restore takes variable names, and {bad[0]!r} is not one; restore the whole object")
        if source in fresh:
            raise UsageError(f"rank {source} cannot be restored from itself: name a surviving rank as the source")
        done = {}
        for target in fresh:
            run = await self._runs.run_internal(rank_code.restore(wanted, source, target), check=False)
            errors = [o.error for o in run.outcomes.values() if o.error is not None and o.error.ename == "UsageError"]
            if errors:
                raise UsageError(errors[0].evalue)
            run.check()
            done[target] = run.values[target]
            self._attachment.history.add(Annotation(f"{names} of rank {target} restored from rank {source}"))
        return done

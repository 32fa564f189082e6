"""The methods of a cluster that tell what the ranks have and use, and delete variables where they are."""

from typing import Any

from jdist.client.attachment import Attachment, Ranks
from jdist.client.debug.debugging import DebuggedCluster
from jdist.client.expressions import split_names
from jdist.client.link import new_request
from jdist.client.measure.resources import Resources, collect_resources
from jdist.client.values import compare
from jdist.client.values.carrier import reason_of
from jdist.client.values.variable_table import VariableTable, merge_lists
from jdist.client.values.variables import Variables
from jdist.core import rank_code
from jdist.core.errors import UsageError
from jdist.core.messages.nodes import MOST_SECONDS
from jdist.core.messages.runs import CellSpec, RunCell
from jdist.core.messages.values import Complete, Completed, Inspect, Inspected, ListVariables, VariableList

_MOST = 500  # Names that are listed of each rank.


class InspectedCluster(DebuggedCluster):
    """The part of AsyncCluster that shows what the ranks have and use."""

    def __init__(self, attachment: Attachment) -> None:
        super().__init__(attachment)
        self._values = Variables(attachment, self._runs)

    async def show(self, name: str, ranks: Ranks = None) -> dict[int, dict[str, Any]]:
        """``{rank: description}``: type, shape, dtype, device, placement, mean, std, norm, NaN count, thumb.

        A tensor or array with several elements that can be ordered has a ``histogram``, in bins that are the same on
        all ranks: ``{"low": -1.0, "high": 1.0, "counts": [3, …], "nan": 0, …}``; of a DTensor, that of the rank's part.
        """
        return await self._values.show(name, ranks)

    async def check(self, expr: str, ranks: Ranks = None) -> compare.CheckResult:
        """Whether ``expr`` is equal on all ranks, compared by digests that the ranks compute."""
        return await compare.check(self.attachment.link, expr, self.select_paused(ranks))

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
        chosen = self.select_paused(ranks)
        query = ListVariables(pattern, _MOST, stats, check)
        patience = compare.TIMEOUT if stats or check else timeout
        answers = await self.attachment.link.query(chosen, query, patience)
        lists = {rank: a for rank, a in answers.items() if isinstance(a, VariableList)}
        return merge_lists(lists, {rank: reason_of(a) for rank, a in answers.items() if rank not in lists})

    async def delete(self, names: str, ranks: Ranks = None) -> dict[int, int]:
        """Delete variables ("a, b") on ranks, after the cells that run there; ``{rank: how many it had}``.

        Raises UsageError, ClusterError.
        """
        wanted = split_names(names)
        if bad := [name for name in wanted if not name.isidentifier()]:
            raise UsageError(f"only variables can be deleted, and {bad[0]!r} is not a name")
        cell = RunCell(
            new_request(), CellSpec(rank_code.delete_names(wanted), is_internal=True), self.select_paused(ranks)
        )
        run = await self._runs.wait(await self._runs.submit(cell), check=True)
        return {rank: int(count) for rank, count in run.values.items()}

    async def resources(self, seconds: float = 300.0, points: int = 120, timeout: float = 5.0) -> Resources:
        """CPU, memory, GPUs and network of each node and rank during the last ``seconds``, at most about an hour.

        Each quantity has ``points`` numbers at most. Nodes record it every two seconds whether or not anybody asks; one
        that does not answer within ``timeout`` seconds is in ``missing``. Raises UsageError.
        """
        if not 0 < seconds <= MOST_SECONDS or points < 1:
            limit = f"nodes record the last {MOST_SECONDS // 3600} hours"
            raise UsageError(f"seconds: more than 0, and at most {MOST_SECONDS} ({limit}); points: 1 or more")
        return await collect_resources(self.attachment.link, self.attachment.facts, seconds, points, timeout)

    async def complete(self, code: str, cursor: int, ranks: Ranks = None, timeout: float = 0.2) -> dict[int, Completed]:
        """Names that complete the text before ``cursor`` in ``code``, a line, by rank that answers in ``timeout`` s."""
        return await self.attachment.link.query_within(
            self.select_paused(ranks), Complete(code, cursor), Completed, timeout
        )

    async def inspect(self, name: str, ranks: Ranks = None, detail: int = 0, timeout: float = 0.2) -> dict[int, str]:
        """Type, signature and documentation of a name, with ``detail`` 1 its source, by rank; "" for no such name.

        A rank that does not answer within ``timeout`` seconds is missing.
        """
        found = await self.attachment.link.query_within(
            self.select_paused(ranks), Inspect(name, detail), Inspected, timeout
        )
        return {r: each.text for r, each in found.items()}

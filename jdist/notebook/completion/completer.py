"""Asking: completion and Shift-Tab in cells that run on ranks, answered by the ranks' own names, or at once not at all.

IPython asks a matcher for completions, whatever the front end. For Shift-Tab it hands over no more than a name, so the
kernel is asked before it.
"""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from IPython.core.completer import CompletionContext, SimpleCompletion, context_matcher
from IPython.utils.tokenutil import token_at_cursor

from jdist.client.blocking import Cluster, bridge
from jdist.core.errors import JdistError, UsageError
from jdist.core.quantities import HelpWanted
from jdist.notebook.completion.names import Part, combine, is_for_ranks, put_together, ranks_part, spread
from jdist.notebook.options import cell_parser, split_words
from jdist.notebook.session import Session

R = TypeVar("R")

_DEADLINE = 0.2
"""Seconds for the ranks to answer; then the notebook answers alone."""
_MARGIN = 0.1
"""More, for the client's own thread."""
_REST = 2.0
"""Seconds for which a rank is left alone that has not answered in time."""
_MOST = 32
"""Ranks that are asked; of a larger world a sample."""


class RankNames:
    """Of one session. ``install`` and ``remove`` are called with the shell."""

    def __init__(self, session: Session, clock: Callable[[], float] = time.monotonic):
        self._session = session
        self._clock = clock
        self._late: dict[int, float] = {}
        self._undo: Callable[[], None] = lambda: None

    # ------------------------------------------------------------ into the shell

    def install(self, shell: Any) -> None:
        """From now on the shell asks here first."""
        matchers = getattr(getattr(shell, "Completer", None), "custom_matchers", None)
        if matchers is not None:
            matchers.append(self.match)
        kernel: Any = getattr(shell, "kernel", None)
        own = getattr(kernel, "do_inspect", None)
        if own is not None:
            kernel.do_inspect = self._inspecting(own)

        def undo() -> None:
            if matchers is not None and self.match in matchers:
                matchers.remove(self.match)
            if own is not None:
                kernel.do_inspect = own

        self._undo = undo

    def remove(self) -> None:
        """All is as it was."""
        self._undo()

    # ------------------------------------------------------------ questions

    @context_matcher(  # type: ignore[untyped-decorator]
        identifier="jdist.ranks", priority=100
    )
    def match(self, context: CompletionContext) -> Any:
        """IPython's matcher: what the ranks have, and then nothing of the notebook's own."""
        nothing: dict[str, Any] = {"completions": [], "suppress": False}
        lines = context.full_text.split("\n")
        line = lines[context.cursor_line][: context.cursor_position]
        at = sum(len(text) + 1 for text in lines[: context.cursor_line]) + len(line)
        asked = self._asked(context.full_text, at)
        if asked is None or not is_for_ranks(line):
            return nothing
        cluster, ranks = asked
        answers = self._ask(ranks, cluster.asynchronous.complete(line, len(line), ranks, _DEADLINE))
        if not answers:
            return nothing
        start = min(answer.start for answer in answers.values())
        found = combine({r: answer for r, answer in answers.items() if answer.start == start})
        return {
            "completions": [SimpleCompletion(name, type=_unbroken(kind) or None) for name, kind in found],
            "matched_fragment": line[start:],
            "suppress": True,
            "ordered": True,
        }

    def _inspecting(self, own: Callable[..., Any]) -> Callable[..., Any]:
        """The kernel's do_inspect, in cells for ranks by the ranks; ``own`` where these know nothing."""

        def do_inspect(code: str, cursor_pos: int, detail_level: int = 0, omit_sections: Any = ()) -> Any:
            text = self.describe(code, cursor_pos, detail_level)
            if not text:
                return own(code, cursor_pos, detail_level, omit_sections)
            return {"status": "ok", "found": True, "data": {"text/plain": text}, "metadata": {}}

        return do_inspect

    def describe(self, code: str, cursor: int, detail: int = 0) -> str:
        """What the name at the cursor is on the ranks; "" if they do not say."""
        asked = self._asked(code, cursor)
        if asked is None:
            return ""
        cluster, ranks = asked
        offset = getattr(self._part(code), "offset", 0)
        name = token_at_cursor(code[offset:], cursor - offset)
        if not name:
            return ""
        answers = self._ask(ranks, cluster.asynchronous.inspect(name, ranks, detail, _DEADLINE))
        return put_together(name, answers or {})

    # ------------------------------------------------------------ whom

    def _part(self, code: str) -> Part | None:
        return ranks_part(code, is_auto=self._session.is_auto)

    def _asked(self, code: str, cursor: int) -> tuple[Cluster, tuple[int, ...]] | None:
        """The cluster in use, and the ranks of the cell that have answered of late; None if it is not theirs."""
        part = self._part(code)
        cluster = self._session.current
        if part is None or cursor < part.offset or cluster is None or cluster.asynchronous.link.lost:
            return None
        now = self._clock()
        self._late = {rank: until for rank, until in self._late.items() if until > now}
        try:
            chosen = spread(self._ranks(cluster, part.options), _MOST)
        except UsageError:  # the cluster has not said yet which ranks it has
            return None
        ranks = tuple(rank for rank in chosen if rank not in self._late)
        return (cluster, ranks) if ranks else None

    @staticmethod
    def _ranks(cluster: Cluster, options: str) -> tuple[int, ...]:
        """Of the cell; all of them while its options are not written to the end."""
        try:
            o = cell_parser().parse(split_words(options))
            return cluster.select(o.ranks, o.group)
        except (UsageError, HelpWanted):
            return cluster.select()

    def _ask(self, ranks: tuple[int, ...], work: Coroutine[Any, Any, dict[int, R]]) -> dict[int, R] | None:
        """The answers that came in time. Whoever was late is left alone for a while."""
        future, _ = bridge().begin(work)
        try:
            answers = future.result(_DEADLINE + _MARGIN)
        except (JdistError, OSError, concurrent.futures.TimeoutError):
            future.cancel()
            answers = {}
        now = self._clock()
        self._late |= {rank: now + _REST for rank in ranks if rank not in answers}
        return answers or None


def _unbroken(text: str) -> str:
    """JupyterLab would break the line at a space or hyphen, over the next name."""
    return text.replace(" ", "\N{NO-BREAK SPACE}").replace("-", "\N{NON-BREAKING HYPHEN}")

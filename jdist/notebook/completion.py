"""Completion and Shift-Tab in cells that run on ranks: the ranks' own names, as far as they answer at once.

IPython asks a matcher for completions; for Shift-Tab it passes on only a name, so ``do_inspect`` is wrapped instead.
"""

import concurrent.futures
import re
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from IPython.core.completer import CompletionContext, SimpleCompletion, context_matcher
from IPython.utils.tokenutil import token_at_cursor

from jdist.client.cluster import Cluster
from jdist.client.threads import bridge
from jdist.core.errors import JdistError, UsageError
from jdist.core.messages.values import Completed
from jdist.core.quantities import HelpWanted
from jdist.core.ranks import RankSet, ranks_by
from jdist.notebook.options import cell_parser, split_words
from jdist.notebook.session import Session

R = TypeVar("R")

_DEADLINE = 0.2  # Seconds for the ranks to answer; then the notebook answers alone.
_MARGIN = 0.1  # Further seconds for the client's own thread.
_REST = 2.0  # Seconds for which a rank that missed the deadline is not asked.
_MOST = 32  # Ranks that are asked; of a larger world a sample.
_ABOVE = re.compile(r"(?:\s*#.*(?:\n|\Z))*\s*")
_UNBROKEN = str.maketrans(" -", "\N{NO-BREAK SPACE}\N{NON-BREAKING HYPHEN}")  # JupyterLab would break the line there.


class RankCompleter:
    """Completion for one session. ``install`` and ``remove`` are called with the shell."""

    def __init__(self, session: Session, clock: Callable[[], float] = time.monotonic):
        self._session = session
        self._clock = clock
        self._resting: dict[int, float] = {}  # When each rank that missed a deadline may be asked again.
        self._undo: Callable[[], None] = lambda: None

    def install(self, shell: Any) -> None:
        """Make the shell ask the ranks first."""
        matchers = getattr(getattr(shell, "Completer", None), "custom_matchers", None)
        kernel: Any = getattr(shell, "kernel", None)
        own: Any = getattr(kernel, "do_inspect", None)

        def do_inspect(code: str, cursor_pos: int, detail_level: int = 0, omit_sections: Any = ()) -> Any:
            text = self.describe(code, cursor_pos, detail_level)
            if not text:  # the ranks know nothing, or the cell runs here
                return own(code, cursor_pos, detail_level, omit_sections)
            return {"status": "ok", "found": True, "data": {"text/plain": text}, "metadata": {}}

        if matchers is not None:
            matchers.append(self.match)
        if own is not None:
            kernel.do_inspect = do_inspect

        def undo() -> None:
            if matchers is not None and self.match in matchers:
                matchers.remove(self.match)
            if own is not None:
                kernel.do_inspect = own

        self._undo = undo

    def remove(self) -> None:
        """Undo :meth:`install`."""
        self._undo()

    @context_matcher(identifier="jdist.ranks", priority=100)  # type: ignore[untyped-decorator]
    def match(self, context: CompletionContext) -> Any:
        """IPython's matcher: the ranks' names, and then none of the notebook's own."""
        lines = context.full_text.split("\n")
        line = lines[context.cursor_line][: context.cursor_position]
        at = sum(len(text) + 1 for text in lines[: context.cursor_line]) + len(line)
        target = self._target(context.full_text, at)
        answers: dict[int, Any] = {}
        if target is not None and is_for_ranks(line):
            cluster, ranks, _ = target
            answers = self._ask(ranks, cluster.asynchronous.complete(line, len(line), ranks, _DEADLINE))
        if not answers:
            return {"completions": [], "suppress": False}
        start = min(answer.start for answer in answers.values())
        found = combine({r: answer for r, answer in answers.items() if answer.start == start})
        return {
            "completions": [SimpleCompletion(name, type=kind.translate(_UNBROKEN) or None) for name, kind in found],
            "matched_fragment": line[start:],
            "suppress": True,
            "ordered": True,
        }

    def describe(self, code: str, cursor: int, detail: int = 0) -> str:
        """The ranks' description of the name at the cursor; "" if they have none."""
        target = self._target(code, cursor)
        if target is None:
            return ""
        cluster, ranks, offset = target
        name = token_at_cursor(code[offset:], cursor - offset)
        if not name:
            return ""
        return describe_name(name, self._ask(ranks, cluster.asynchronous.inspect(name, ranks, detail, _DEADLINE)))

    def _target(self, code: str, cursor: int) -> tuple[Cluster, tuple[int, ...], int] | None:
        """The cluster in use, the ranks to ask, and where their part of the cell begins; None: it runs here."""
        part = ranks_part(code, is_auto=self._session.is_auto)
        cluster = self._session.current
        if part is None or cluster is None or cluster.asynchronous.link.lost:
            return None
        options, offset = part
        if cursor < offset:
            return None
        now = self._clock()
        self._resting = {rank: until for rank, until in self._resting.items() if until > now}
        try:
            chosen = spread(_select(cluster, options), _MOST)
        except UsageError:  # it is not known yet which ranks the cluster has
            return None
        ranks = tuple(rank for rank in chosen if rank not in self._resting)
        return (cluster, ranks, offset) if ranks else None

    def _ask(self, ranks: tuple[int, ...], query: Coroutine[Any, Any, dict[int, R]]) -> dict[int, R]:
        """The answers that came before the deadline. Ranks that missed it are not asked for a while."""
        future, _ = bridge().begin(query)
        try:
            answers = future.result(_DEADLINE + _MARGIN)
        except (JdistError, OSError, concurrent.futures.TimeoutError):
            future.cancel()
            answers = {}
        until = self._clock() + _REST
        self._resting |= {rank: until for rank in ranks if rank not in answers}
        return answers


def _select(cluster: Cluster, options: str) -> tuple[int, ...]:
    """The ranks of a cell with these options; all of them while the options are incomplete."""
    try:
        o = cell_parser().parse(split_words(options))
        return cluster.select_paused(o.ranks, o.group)
    except (UsageError, HelpWanted):
        return cluster.select_paused()


def ranks_part(code: str, *, is_auto: bool) -> tuple[str, int] | None:
    """The words after ``%%dist``, and where the ranks' part begins, or None. ``is_auto``: plain cells go to ranks."""
    start = code_start(code)
    first, newline, _ = code[start:].partition("\n")
    words = first.split(maxsplit=1)
    if words[:1] == ["%%dist"]:
        return words[1].strip() if len(words) > 1 else "", start + len(first) + len(newline)
    if is_auto and first and not first.startswith(("%", "!", "get_ipython()")):
        return "", 0
    return None


def code_start(code: str) -> int:
    """Where the first line begins that is neither blank nor a comment; the code's length if there is none."""
    return _ABOVE.match(code).end()  # type: ignore[union-attr]  # it matches nothing, too


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

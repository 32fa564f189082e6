"""Every error jdist raises, in one tree, and the remedies that are suggested to the user, as data. Pure.

::

    JdistError
     ├─ UsageError        a request cannot be carried out as it was made
     ├─ LaunchError       a node, a worker or the world's process group could not be started
     ├─ ConnectionLost    the controller does not answer any more
     ├─ ProtocolError     a peer speaks another version, or sent an invalid message
     │   └─ Overrun       a peer confirms nothing of what it is sent
     ├─ ValueFailed       a value could not be moved between the notebook and a rank
     ├─ NotPicklable      a value cannot leave its process
     │   └─ ShardedValue  one rank's shard of a DTensor cannot be moved by itself
     ├─ NotRebuilt        a value arrived, but cannot be rebuilt here
     ├─ TooLarge          a value has more bytes than the limit
     └─ CellError         a rank failed in a run; carries the run
         ├─ CellTimeout   the run's deadline passed
         ├─ CellInterrupted   the run was interrupted
         └─ RankLost      a rank's process died or its node is gone

Every message names the rank, the node, and what was being done; ``remedies`` say what to do next. Each front end words
the remedies: notebook and command line by :mod:`jdist.notebook.text.remedy_text`, JupyterLab as buttons.
"""

import contextlib
import difflib
import errno
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

from msgspec import Struct

# What is done to a cluster, to some of its ranks, or to a name. run_cell: run a cell of the user's on these ranks.
_OfCluster = Literal["start", "list", "attach", "stop", "status", "doctor", "invite", "sync"]
_OfPauses = Literal["pause", "continue", "where", "debug"]
_OfNames = Literal["push", "pull", "restore"]
Action = _OfCluster | _OfPauses | _OfNames | Literal["interrupt", "restart", "remove", "run_cell", "run", "logs"]


class Remedy(Struct, frozen=True, omit_defaults=True):
    """One suggested action and its effect, an infinitive such as "start a fresh process"."""

    action: Action
    effect: str
    ranks: str = ""  # Ranks as a user writes them: "2", "0-3,7", "node=1"; "" for all, or none in particular.
    name: str = ""  # The cluster's name, the path or the variable that it is about, with what is typed beside it.
    run: int = 0  # The only run that it acts on; 0: it is not about one.

    def __str__(self) -> str:
        """Plain words, for a program that has no front end: ``restart rank 2``."""
        is_one = self.ranks.isdecimal()
        ranks = f"rank{'' if is_one or '=' in self.ranks else 's'} {self.ranks}" if self.ranks else ""
        about = self.name or (f"run {self.run}" if self.run else ranks)
        return f"{self.action.replace('_', ' ')} {about}".rstrip()


def sentence(text: str, remedies: Iterable[Remedy], word: Callable[[Remedy], str] = str) -> str:
    """``text`` with its suggested actions in the words of ``word``: "rank 2 is gone; restart rank 2 to replace it"."""
    actions = ", or ".join(f"{word(each)} to {each.effect}" for each in remedies)
    return f"{text}; {actions}" if actions else text


def _do_nothing() -> None:
    """Stands for ``before_shown`` where no notebook is."""


before_shown: Callable[[], None] = _do_nothing  # Called when IPython asks one of these errors for its text.


class JdistError(Exception):
    """The root of the tree. ``remedies`` are the actions suggested to the user, which each front end words."""

    def __init__(self, message: str = "", *, remedies: Iterable[Remedy] = ()):
        super().__init__(message)
        self.message = message
        self.remedies = tuple(remedies)

    def __str__(self) -> str:
        return sentence(self.message, self.remedies)

    def _render_traceback_(self) -> list[str]:
        """IPython's hook: the notebook user sees the message, not jdist's own frames."""
        before_shown()
        return [f"{type(self).__name__}: {self}"]


class UsageError(JdistError):
    """A request cannot be carried out as it was made; nothing has been changed."""


class LaunchError(JdistError):
    """A node, a worker or the world's process group could not be started."""


class ConnectionLost(JdistError):
    """The controller does not answer any more."""


class ProtocolError(JdistError):
    """A peer speaks another protocol version, or sent something that is no message."""


class Overrun(ProtocolError):
    """A peer confirms nothing of what it is sent, or asks for it again and again; its session is dropped."""


class NotPicklable(JdistError):
    """A value cannot leave its process; the message names the part of it that cannot be pickled."""


class ShardedValue(NotPicklable, TypeError):
    """One rank's shard of a DTensor cannot be moved by itself, because it belongs to the tensor's mesh."""


class NotRebuilt(JdistError):
    """A value arrived whole but cannot be rebuilt here, mostly because a module that it needs cannot be imported."""


class TooLarge(JdistError):
    """A value has more bytes than the limit; nothing of it was copied from a device."""


class ValueFailed(JdistError):
    """A value could not be moved; ``values`` holds what did arrive, ``errors`` why the rest did not.

    Attributes
    ----------
    values : dict
        ``{rank: value}``, or ``{name: {rank: value}}`` where several names were asked for.
    errors : dict[int, str]
        why, by rank.
    """

    def __init__(self, message: str = "", values: dict[Any, Any] | None = None, errors: dict[int, str] | None = None):
        super().__init__(message)
        self.values = values or {}
        self.errors = errors or {}


class CellError(JdistError):
    """A rank failed in a run. ``run`` is the :class:`~jdist.client.run.CellRun`; healthy ranks' values are kept."""

    def __init__(self, message: str = "", run: Any = None, *, remedies: Iterable[Remedy] = ()):
        super().__init__(message, remedies=remedies)
        self.run = run

    @property
    def outcomes(self) -> dict[int, Any]:
        """``{rank: Outcome}`` of the run."""
        return dict(self.run.outcomes) if self.run is not None else {}

    @property
    def values(self) -> dict[int, Any]:
        """``{rank: value}`` of the ranks that finished."""
        return dict(self.run.values) if self.run is not None else {}


class CellTimeout(CellError):
    """The run's deadline passed; every rank was interrupted and kept its namespace."""


class CellInterrupted(CellError):
    """The run was interrupted; every rank kept its namespace."""


class RankLost(CellError):
    """A rank's process died, or its node is gone. Its namespace is lost unless the next process has taken it over."""


@contextlib.contextmanager
def writing_to(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Have the error of a full disk, which a write raises without a path, say where there is no room and what to do."""
    try:
        yield
    except OSError as e:
        if e.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise OSError(e.errno, f"{os.strerror(e.errno)}: make room in {os.fspath(folder)}, then try again") from e


def describe_error(error: BaseException) -> str:
    """The text of one of jdist's own errors; of any other, its class as well. Never raises."""
    try:
        text = str(error)
    except BaseException as e:  # the user's own __str__
        return f"{type(error).__name__} (its text raises {type(e).__name__})"
    if isinstance(error, JdistError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def nearest(word: str, known: Iterable[object]) -> str:
    """The end of a message: "; did you mean …?" with the known word nearest to ``word``, or a list of all."""
    names = [str(k) for k in known]
    begun = [n for n in names if word and n.startswith(word)]
    if len(begun) == 1:
        return f"; did you mean {begun[0]}?"
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.6 if len(word) > 3 else 0.5)
    if close:
        return f"; did you mean {close[0]}?"
    return f"; there is {', '.join(names)}" if names else ""

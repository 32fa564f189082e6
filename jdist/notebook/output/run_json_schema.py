"""The structure of a run's output, ``application/vnd.jdist.run.v1+json``, for a front end to draw.

It stands in one bundle with ``text/plain`` and ``text/html``, which show the same without it. Text stands here once for
all ranks that wrote it. Large things are not here at all: a picture, a table or a traceback is an :class:`HtmlPiece`, a
part of the bundle's ``text/html``. Sets of ranks are written as users do: ``0-3,7``. Fields that have their default are
left out. A front end that meets another ``version`` shows ``text/html``.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

MIME = "application/vnd.jdist.run.v1+json"
VERSION: Literal[1] = 1

RankState = Literal["waiting", "running", "value", "error", "timeout", "interrupted", "lost"]
Count = Annotated[int, Meta(ge=0)]


class _Record(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """An object without what has its default."""


class HtmlPiece(_Record, frozen=True):
    """A part of the bundle's ``text/html``, in UTF-16 code units, as JavaScript counts them."""

    start: Count
    length: Count


class RankStates(_Record, frozen=True):
    """Ranks in one state. ``seconds`` from the cell's start there to its end there, rounded; null while it runs."""

    ranks: str
    state: RankState
    seconds: float | None = None


class TextSegment(_Record, frozen=True, tag="text", tag_field="kind"):
    """Lines that these ranks wrote, equal on all of them, with ANSI colours."""

    ranks: str
    text: str
    stderr: bool = False


class VariantText(_Record, frozen=True):
    """The lines of some of the ranks of a :class:`VariantSegment`."""

    ranks: str
    text: str


class VariantSegment(_Record, frozen=True, tag="alike", tag_field="kind"):
    """Lines that differ in their numbers only: the n-th lines of all ``texts`` stand in one place."""

    texts: list[VariantText]
    stderr: bool = False


class DisplaySegment(_Record, frozen=True, tag="shown", tag_field="kind"):
    """A display, or with ``is_result`` a cell's last value: ``piece`` if it is there, else ``data`` by mime type."""

    ranks: str
    piece: HtmlPiece | None = None
    data: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    is_result: bool = False


class GapSegment(_Record, frozen=True, tag="gap", tag_field="kind"):
    """Something was left out here: how much, of whom, and where it is. Without ``ranks`` it concerns all."""

    text: str
    ranks: str = ""


Segment = TextSegment | VariantSegment | DisplaySegment | GapSegment


class FailureJson(_Record, frozen=True):
    """Ranks on which the same went wrong. ``is_echo``: most likely the effect of the first failure."""

    ranks: str
    state: RankState
    headline: str
    place: str = ""  # `line 5: dist.all_reduce(t)`
    traceback: HtmlPiece | None = None
    is_echo: bool = False


class RemedyJson(_Record, frozen=True):
    """A suggested action: a :class:`~jdist.core.remedy.Remedy`, which the front end words."""

    action: str
    effect: str
    ranks: str = ""


class VerdictJson(_Record, frozen=True):
    """Why the run makes no progress or, without remedies, did not finish."""

    headline: str
    is_certain: bool
    details: list[str] = []
    remedies: list[RemedyJson] = []


class RunJson(_Record, frozen=True):
    """A run. ``seconds``: since its start, or in all once it is done."""

    version: Literal[1]
    run: int
    cluster: str
    state: Literal["waiting", "running", "done"]
    seconds: float
    ranks: list[RankStates]
    segments: list[Segment] = []
    failures: list[FailureJson] = []  # The first cause first, echoes last.
    more_failures: int = 0  # The number of distinct failures that are left out.
    verdict: VerdictJson | None = None
    notices: list[str] = []
    title: str = ""
    lead: int | None = None  # The rank to show first; None: all ranks.

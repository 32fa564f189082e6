"""Tracebacks in which consecutive frames of installed packages are one line, which a click opens."""

import itertools
import re

from msgspec import Struct

from jdist.core.outcome import ErrorInfo
from jdist.core.quantities import format_count
from jdist.notebook.text import ansi

_FRAME = re.compile(r"\s*(?:File|Cell|Input) .*?(?P<line>\d+)(?:,? in (?P<function>[^(\n]+))?(?:\(|\n|\Z)")
_SKIPPED = "[... skipping"  # IPython's entry for hidden frames, and for those of a recursion
_MOST_NAMES = 3


class FoldedFrames(Struct, frozen=True):
    """Consecutive frames of installed packages: the line that stands for them, and their text with its colours."""

    summary: str
    text: str


class _Entry(Struct, frozen=True):
    text: str
    path: str  # Of a frame in an installed package; else "".
    plain: str

    @property
    def frame(self) -> re.Match[str] | None:
        return _FRAME.match(self.plain)


def fold(error: ErrorInfo) -> list[str | FoldedFrames]:
    """The traceback in pieces. If an error was raised in a package, the line for its frames says in which function."""
    entries = _entries(error)
    groups = [(path, list(group)) for path, group in itertools.groupby(entries, key=lambda entry: bool(entry.path))]
    pieces: list[str | FoldedFrames] = []
    for at, (is_installed, group) in enumerate(groups):
        text = "\n".join(entry.text for entry in group)
        is_last = at + 1 == len(groups) or groups[at + 1][1][0].frame is None
        pieces.append(FoldedFrames(_summary(group, is_last=is_last), text) if is_installed else text)
    return pieces


def _entries(error: ErrorInfo) -> list[_Entry]:
    found: list[_Entry] = []
    for text, path in itertools.zip_longest(error.traceback, error.installed[: len(error.traceback)], fillvalue=""):
        plain = ansi.strip(text)
        is_skipped = plain.lstrip().startswith(_SKIPPED) and bool(found)
        found.append(_Entry(text, found[-1].path if is_skipped else path, plain))
    return found


def _summary(group: list[_Entry], *, is_last: bool) -> str:
    """``… 6 frames in torch``; of the last frames before an error, also the one that raised it."""
    names = list(dict.fromkeys(re.split(r"[/.]", entry.path, maxsplit=1)[0] for entry in group))
    names = names if len(names) <= _MOST_NAMES else [*names[:_MOST_NAMES], "others"]
    frames = [(entry.path, found) for entry in group if (found := entry.frame) is not None]
    text = f"… {format_count(len(frames), 'frame')} in {', '.join(names)}"
    if not is_last or not frames:
        return text
    path, last = frames[-1]
    at = f"{path}:{last['line']}"
    return f"{text}; the last is {last['function'].strip()}, {at}" if last["function"] else f"{text}; the last is {at}"

"""Expressions: parses the names of values and the scripts that users write."""

from collections.abc import Sequence
from pathlib import Path

from jdist.core.errors import UsageError
from jdist.core.rank_code import run_script


def script_cell(path: str, args: Sequence[str] = (), *, in_job: bool = False) -> str:
    """A cell that runs the script at ``path`` as ``__main__``. Raises UsageError when it is not there."""
    script = Path(path).expanduser()
    if not script.is_file():
        raise UsageError(f"there is no script {path!r} here ({Path.cwd()})")
    return run_script(str(script.resolve()), args, in_job=in_job)


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

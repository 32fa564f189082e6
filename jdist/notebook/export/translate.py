"""Cell text: a cell as it can stand in a script, verbatim, with what only IPython can run as comments."""

import ast
from typing import Any

from IPython.core import inputtransformer2 as ipython
from msgspec import Struct

_MAGICS: tuple[Any, ...] = (ipython.MagicAssign, ipython.SystemAssign, ipython.EscapedCommand, ipython.HelpEnd)
_TRANSPARENT = ("time", "capture", "prun")  # Cell magics that run the cell as it is.


class Untranslatable(Exception):
    """Why a cell cannot stand in a script."""


class Translation(Struct, frozen=True):
    """A cell as Python, at no indentation."""

    code: str
    tree: ast.Module
    left_out: tuple[str, ...] = ()  # Magics and shell commands, which are comments.
    futures: tuple[str, ...] = ()  # Names of `from __future__` imports, which have to stand at a script's top.


def translate(cell: str) -> Translation:
    """Comment out what is not Python. Raises Untranslatable if what remains is not valid Python."""
    lines = cell.replace("\r\n", "\n").replace("\r", "\n").strip("\n").split("\n")
    left_out = []
    if lines[0].startswith("%%"):
        if lines[0][2:].partition(" ")[0] not in _TRANSPARENT:
            raise Untranslatable(f"{lines[0].partition(' ')[0]} works only in notebooks")
        left_out.append(lines[0])
        lines[0] = _comment(lines[0])
    while found := _find_magic(lines):
        first, last = found
        left_out.append(lines[first].strip())
        _comment_out(lines, first, last)
    tree = _parse("\n".join(lines))
    futures = [s for s in tree.body if isinstance(s, ast.ImportFrom) and s.module == "__future__"]
    for statement in futures:
        _comment_out(lines, statement.lineno - 1, (statement.end_lineno or statement.lineno) - 1)
    names = tuple(alias.name for statement in futures for alias in statement.names)
    return Translation("\n".join(lines), tree, tuple(left_out), names)


def indented(text: str) -> str:
    """Indent the text by one level; lines that begin inside a string are part of its value, and stay."""
    strings = (ast.JoinedStr, getattr(ast, "TemplateStr", ast.JoinedStr))
    inside: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, strings) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)):
            inside.update(range(node.lineno + 1, (node.end_lineno or 0) + 1))
    lines = text.split("\n")
    return "\n".join(line if not line.strip() or n in inside else f"    {line}" for n, line in enumerate(lines, 1))


def _find_magic(lines: list[str]) -> tuple[int, int] | None:
    """Indices of the first and the last line of a magic, a shell command or a question such as ``x?``."""
    tokens = ipython.make_tokens_by_line([f"{line}\n" for line in lines])
    for kind in _MAGICS:
        if found := kind.find(tokens):
            last = found.start_line
            while lines[last].endswith("\\") and last + 1 < len(lines):
                last += 1
            return found.start_line, last
    return None


def _comment_out(lines: list[str], first: int, last: int) -> None:
    """Turn the lines into comments; in a block, which may hold nothing else, the last one becomes ``pass``."""
    margin = lines[first][: len(lines[first]) - len(lines[first].lstrip())]
    for i in range(first, last + 1):
        text = _comment(lines[i].strip())
        lines[i] = f"{margin}pass  {text}" if margin and i == last else f"{margin}{text}"


def _comment(line: str) -> str:
    return f"# {line}  (left out)"


def _parse(text: str) -> ast.Module:
    try:
        compile(text, "<cell>", "exec", dont_inherit=True)
        return ast.parse(text)
    except (SyntaxError, ValueError) as e:
        where = f" in line {e.lineno}" if isinstance(e, SyntaxError) and e.lineno else ""
        raise Untranslatable(f"it is not valid Python: {e.msg if isinstance(e, SyntaxError) else e}{where}") from None

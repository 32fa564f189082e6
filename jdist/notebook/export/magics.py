"""Magics of a cell, as calls of get_ipython() that IPython makes of them, and what stands for each in plain Python."""

from __future__ import annotations

import ast
import re

from msgspec import Struct

from jdist.notebook.export.bound_names import Provided

TRANSPARENT = {"time": "", "capture": "what it hid in the session is printed", "prun": ""}
"""Cell magics that run the cell as it is, and what is different without them."""
_HARMLESS = {"matplotlib", "load_ext", "autoreload", "config", "xmode", "pdb", "precision", "colors", "pinfo", "pinfo2"}
"""Line magics that bind nothing and print nothing of use."""
_EXPANDS = re.compile(r"[{$]")


class CellMagic(Struct, frozen=True):
    """``%%name line`` and the rest of its cell."""

    name: str
    line: str
    body: str

    def __str__(self) -> str:
        return f"%%{self.name} {self.line}".rstrip()


class Put(Struct, frozen=True):
    """What stands for a magic: ``code``, or nothing. ``text``: as the user wrote it; ``note``: what is missing."""

    code: str = ""
    text: str = ""
    note: str = ""
    needs: frozenset[str] = frozenset()
    has_value: bool = False


def whole_cell(tree: ast.Module) -> CellMagic | None:
    """The cell magic that the cell is, if it is one."""
    statement = tree.body[0] if len(tree.body) == 1 else None
    found = _call(statement.value) if isinstance(statement, ast.Expr) else None
    return CellMagic(*found[1]) if found is not None and found[0] == "run_cell_magic" and len(found[1]) == 3 else None


def is_in(node: ast.AST) -> bool:
    """Whether it calls get_ipython, which is how IPython writes magics as Python."""
    return any(isinstance(n, ast.Name) and n.id == "get_ipython" for n in ast.walk(node))


def holds_statements(node: ast.stmt) -> bool:
    """Whether it is a block, such as ``if`` or ``def``."""
    return any(isinstance(n, ast.stmt | ast.excepthandler | ast.match_case) for n in ast.iter_child_nodes(node))


def is_in_head(node: ast.stmt) -> bool:
    """Whether a block's own head calls get_ipython: ``if get_ipython():``."""
    parts = [n for n in ast.iter_child_nodes(node) if not isinstance(n, ast.stmt | ast.excepthandler | ast.match_case)]
    return any(is_in(part) for part in parts)


def put_into_python(statement: ast.stmt, provided: Provided) -> Put:
    """What stands for a statement that calls get_ipython."""
    if isinstance(statement, ast.Expr):
        target, value = "", statement.value
    elif isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target, value = f"{ast.unparse(statement.targets[0])} = ", statement.value
    else:
        return Put(note=f"{ast.unparse(statement).partition(chr(10))[0]}: get_ipython is a notebook's, left out")
    found = _call(value)
    if found is None:
        return Put(note=f"{ast.unparse(statement).partition(chr(10))[0]}: get_ipython is a notebook's, left out")
    method, words = found
    match method, words:
        case "run_line_magic", (name, line):
            return _line_magic(target, name, line)
        case ("system", (command,)):
            return _shell(f"{target}!{command}", target, provided.shell, command)
        case ("getoutput", (command,)):
            mark = f"{target}!{command}" if target else f"!!{command}"
            return _shell(mark, target, provided.lines, command)
        case _:
            text = f"{target}{method} {' '.join(words)}".strip()
            return Put(text=text, note=f"{text.partition(chr(10))[0]}: left out, it is a notebook's")


def _line_magic(target: str, name: str, line: str) -> Put:
    text = f"{target}%{name} {line}".rstrip()
    if name in ("pinfo", "pinfo2"):
        text = line + "?" * (1 + (name == "pinfo2"))
    if name == "time" and line and _is_python(target + line):
        return Put(target + line, text, has_value=True)
    if not target and name == "cd" and line and not _EXPANDS.search(line) and not line.startswith("-"):
        return Put(f"os.chdir(os.path.expanduser({line.strip(chr(34) + chr(39))!r}))", text)
    variable = re.fullmatch(r"(\w+)(?:\s*=\s*|\s+)(.+)", line)
    if not target and name in ("env", "set_env") and variable and not _EXPANDS.search(line):
        return Put(f"os.environ[{variable[1]!r}] = {variable[2].strip()!r}", text)
    return Put(text=text, note="" if name in _HARMLESS else f"{text}: left out, it is a notebook's")


def _shell(text: str, target: str, need: str, command: str) -> Put:
    if _EXPANDS.search(command):
        return Put(text=text, note=f"{text}: left out, a notebook puts values of Python into it")
    return Put(f"{target}{need}({command!r})", text, needs=frozenset({need}), has_value=text.startswith("!!"))


def _is_python(text: str) -> bool:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError):
        return False
    return True


def _call(value: ast.expr) -> tuple[str, tuple[str, ...]] | None:
    """Method and arguments of ``get_ipython().method('…', …)``."""
    match value:
        case ast.Call(
            func=ast.Attribute(value=ast.Call(func=ast.Name(id="get_ipython")), attr=method),
            args=arguments,
            keywords=[],
        ):
            words = tuple(a.value for a in arguments if isinstance(a, ast.Constant) and isinstance(a.value, str))
            return (method, words) if len(words) == len(arguments) else None
    return None

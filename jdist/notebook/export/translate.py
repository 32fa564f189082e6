"""Translates one cell, which IPython ran, into plain Python: verbatim, but for magics and shell commands, which become
Python where that is simple, else a comment; the value that a cell shows is printed.
"""

import ast
import inspect
import re
import symtable
from collections.abc import Iterable, Iterator
from typing import Self

from IPython.core.inputtransformer2 import TransformerManager
from msgspec import Struct, structs

# Cell magics that run the cell as it is, and what is different without them.
_TRANSPARENT = {"time": "", "capture": "output that it hid in the session is printed", "prun": ""}
# Line magics that bind nothing and print nothing of use.
_HARMLESS = {"matplotlib", "load_ext", "autoreload", "config", "xmode", "pdb", "precision", "colors", "pinfo", "pinfo2"}
_EXPANDS = re.compile(r"[{$]")
_HISTORY = re.compile(r"^(_{1,3}|_\d+|_i+|_i\d+|_[io]h|In|Out)$")
_UNAVAILABLE = {
    "input": "reads input(), and torchrun gives its processes none",
    "breakpoint": "calls breakpoint(), and torchrun gives its processes no terminal",
}
_BLOCKS = (ast.stmt, ast.excepthandler, ast.match_case)
_STRINGS = (ast.JoinedStr, getattr(ast, "TemplateStr", ast.JoinedStr))


class Untranslatable(Exception):
    """Why a cell cannot stand in a script."""


class HelperNames(Struct, frozen=True):
    """Names of the functions that a script's prologue defines for its cells."""

    show: str = "show"
    display: str = "display"
    shell: str = "shell"
    lines: str = "shell_lines"
    loop: str = "event_loop"
    box: str = "passed_on"
    leave: str = "leave_world"
    formed: str = "already_formed"
    kept: str = "leave_group"

    @classmethod
    def beside(cls, bound: Iterable[str]) -> Self:
        """Names that no cell gives a meaning of its own; ``display`` is the notebook's, and has to stay."""
        taken = set(bound)
        free = {}
        for role, usual in structs.asdict(cls()).items():
            name = str(usual)
            while name in taken and role != "display":
                name = f"{name}_"
            free[role] = name
        return cls(**free)


class Translation(Struct, frozen=True):
    """A cell as Python, at no indentation."""

    code: str
    notes: tuple[str, ...] = ()  # Differences from the session.
    helpers: frozenset[str] = frozenset()  # The functions of the prologue that it calls.
    futures: tuple[str, ...] = ()  # Names of `from __future__` imports, which have to stand at a script's top.
    loads: frozenset[str] = frozenset()  # Names that it reads.
    binds: frozenset[str] = frozenset()  # Names that it gives a meaning, wherever in it.
    is_empty: bool = False  # It has nothing but comments.


def translate(cell: str, is_shown: bool, name: str, helpers: HelperNames) -> Translation:
    """The cell as Python; ``is_shown``: print its last value; ``name``: for a function of it. Raises Untranslatable."""
    text = cell.replace("\r\n", "\n").replace("\r", "\n")
    if not _is_python(text):  # %time f() becomes a call of get_ipython(), as IPython reads it
        text = str(TransformerManager().transform_cell(text))  # type: ignore[no-untyped-call]
    text = text.strip("\n")
    tree = _parse(text)
    match _magic_call(tree.body[0].value) if len(tree.body) == 1 and isinstance(tree.body[0], ast.Expr) else None:
        case "run_cell_magic", (magic, line, body):
            if magic not in _TRANSPARENT:
                raise Untranslatable(f"%%{magic} works only in notebooks")
            found, shown = translate(body, is_shown, name, helpers), f"%%{magic} {line}".rstrip()
            notes = [f"{shown}: {_TRANSPARENT[magic]}"] if _TRANSPARENT[magic] else []
            return structs.replace(found, code=f"# {shown}\n{found.code}", notes=(*notes, *found.notes))
    rewriter = _Rewriter(text, tree, helpers)
    code = rewriter.rewrite(is_shown and not cell.rstrip().endswith(";"))
    written = ast.parse(code)
    loads, binds = _names(written)
    notes, used = [*rewriter.notes], set(rewriter.used)
    compiled = compile(code, "<cell>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    if compiled.co_flags & inspect.CO_COROUTINE:
        code = f"{_in_function(code, name)}\n\n\n{helpers.loop}.run_until_complete({name}())"
        used.add(helpers.loop)
    free = loads - binds
    notes += [_UNAVAILABLE[n] for n in sorted(free & _UNAVAILABLE.keys())]
    if past := sorted(filter(_HISTORY.match, free)):
        notes.append(f"reads {', '.join(past)}, which only a notebook has")
    futures, is_empty = tuple(rewriter.futures), not written.body
    return Translation(code, tuple(notes), frozenset(used), futures, frozenset(loads), frozenset(binds), is_empty)


# ---------------------------------------------------------------- the statements


class _Replacement(Struct, frozen=True):
    """Stands for a magic: ``code``, or nothing but a comment."""

    code: str = ""
    text: str = ""  # The magic as the user wrote it.
    note: str = ""  # The difference from the session, if there is one.
    helper: str = ""
    has_value: bool = False


class _Rewriter:
    """Changes a cell's text in one pass over its statements."""

    def __init__(self, text: str, tree: ast.Module, helpers: HelperNames):
        self._tree = tree
        self._helpers = helpers
        self._text = text.encode()  # ast counts columns in bytes
        self._line_starts = [0]
        for line in self._text.split(b"\n"):
            self._line_starts.append(self._line_starts[-1] + len(line) + 1)
        self._edits: list[tuple[int, int, str]] = []
        self.notes: list[str] = []
        self.used: set[str] = set()
        self.futures: list[str] = []

    def rewrite(self, is_shown: bool) -> str:
        """The text as it is to be. ``is_shown``: the last expression is printed."""
        last = self._tree.body[-1] if is_shown and self._tree.body else None
        for statement in _statements(self._tree):
            if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
                self.futures += [alias.name for alias in statement.names]
                self._drop(statement, f"{self._source(statement)}  (moved to the top)")
            elif _uses_ipython(statement):
                found = _as_python(statement, self._helpers)
                self.notes += [found.note] if found.note else []
                self.used |= {found.helper} - {""}
                if found.code:
                    is_value = statement is last and found.has_value
                    self._replace(statement, self._showing(found.code) if is_value else found.code)
                else:
                    self._drop(statement, f"{found.text or self._source(statement)}  (left out)")
            elif statement is last and isinstance(statement, ast.Expr):
                self._replace(statement, self._showing(self._source(statement)))
        text = self._text
        for begin, end, new in sorted(self._edits, reverse=True):
            text = text[:begin] + new.encode() + text[end:]
        return text.decode()

    def _drop(self, statement: ast.stmt, text: str) -> None:
        comment = "\n".join(f"# {line}".rstrip() for line in text.splitlines())
        self._replace(statement, comment if statement.col_offset == 0 else f"{comment}\npass")  # else a block is empty

    def _showing(self, text: str) -> str:
        """The expression, printed."""
        body = ast.parse(text).body
        if len(body) != 1 or not isinstance(body[0], ast.Expr):
            return text
        value, show = body[0].value, self._helpers.show
        self.used.add(show)
        call = ast.parse(f"{show}({text})", mode="eval").body
        is_whole = isinstance(call, ast.Call) and [ast.dump(a) for a in call.args] == [ast.dump(value)]
        is_bare_tuple = isinstance(value, ast.Tuple) and not is_whole  # `a, b` would be two arguments of a call
        return f"{show}(({text}))" if is_bare_tuple else f"{show}({text})"

    def _span(self, node: ast.stmt) -> tuple[int, int]:
        end = self._line_starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        return self._line_starts[node.lineno - 1] + node.col_offset, end

    def _source(self, node: ast.stmt) -> str:
        begin, end = self._span(node)
        return self._text[begin:end].decode()

    def _replace(self, node: ast.stmt, text: str) -> None:
        """Put ``text`` in the statement's place; its further lines are set under its first."""
        begin, end = self._span(node)
        margin = self._text[self._line_starts[node.lineno - 1] : begin].decode()
        if "\n" in text and margin and not margin.strip():
            text = indented(text, margin).removeprefix(margin)
        self._edits.append((begin, end, text))


def _statements(tree: ast.AST) -> Iterator[ast.stmt]:
    """Every statement that holds no others, and any whose own head calls get_ipython; in order of the text."""
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, _BLOCKS):
            continue
        parts = list(ast.iter_child_nodes(node))
        head = [part for part in parts if not isinstance(part, _BLOCKS)]
        if isinstance(node, ast.stmt) and (len(head) == len(parts) or any(map(_uses_ipython, head))):
            yield node
        else:
            yield from _statements(node)


def _uses_ipython(node: ast.AST) -> bool:
    """Whether it calls get_ipython, which is how IPython writes magics as Python."""
    return any(isinstance(n, ast.Name) and n.id == "get_ipython" for n in ast.walk(node))


# ---------------------------------------------------------------- magics


def _as_python(statement: ast.stmt, helpers: HelperNames) -> _Replacement:
    """Stands for a statement that calls get_ipython."""
    target, value = "", None
    if isinstance(statement, ast.Expr):
        value = statement.value
    elif isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target, value = f"{ast.unparse(statement.targets[0])} = ", statement.value
    match _magic_call(value):
        case "run_line_magic", (name, line):
            return _line_magic(target, name, line)
        case "system", (command,):
            return _shell(f"{target}!{command}", target, helpers.shell, command)
        case "getoutput", (command,):
            return _shell(f"{target}!{command}" if target else f"!!{command}", target, helpers.lines, command)
        case method, words:
            text = f"{target}{method} {' '.join(words)}".strip()
            return _Replacement(text=text, note=f"{text.partition(chr(10))[0]}: left out, as it needs a notebook")
    first = ast.unparse(statement).partition("\n")[0]
    return _Replacement(note=f"{first}: left out, as get_ipython exists only in notebooks")


def _line_magic(target: str, name: str, line: str) -> _Replacement:
    text = f"{target}%{name} {line}".rstrip()
    if name in ("pinfo", "pinfo2"):
        text = line + "?" * (1 + (name == "pinfo2"))
    if name == "time" and line and _is_python(target + line):
        return _Replacement(target + line, text, has_value=True)
    if not target and not _EXPANDS.search(line):
        variable = re.fullmatch(r"(\w+)(?:\s*=\s*|\s+)(.+)", line)
        if name == "cd" and line and not line.startswith("-"):
            return _Replacement(f"os.chdir(os.path.expanduser({line.strip(chr(34) + chr(39))!r}))", text)
        if name in ("env", "set_env") and variable:
            return _Replacement(f"os.environ[{variable[1]!r}] = {variable[2].strip()!r}", text)
    return _Replacement(text=text, note="" if name in _HARMLESS else f"{text}: left out, as it needs a notebook")


def _shell(text: str, target: str, helper: str, command: str) -> _Replacement:
    if _EXPANDS.search(command):
        return _Replacement(text=text, note=f"{text}: left out, as only notebooks put Python values into it")
    return _Replacement(f"{target}{helper}({command!r})", text, helper=helper, has_value=text.startswith("!!"))


def _magic_call(value: ast.expr | None) -> tuple[str, tuple[str, ...]] | None:
    """Method and arguments of ``get_ipython().method('…', …)``."""
    match value:
        case ast.Call(ast.Attribute(ast.Call(ast.Name("get_ipython")), method), arguments, []):
            words = tuple(a.value for a in arguments if isinstance(a, ast.Constant) and isinstance(a.value, str))
            return (method, words) if len(words) == len(arguments) else None
    return None


# ---------------------------------------------------------------- text and names


def indented(text: str, margin: str = "    ") -> str:
    """The text set under something; lines that begin inside a string are part of its value, and stay."""
    inside: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, _STRINGS) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)):
            inside.update(range(node.lineno + 1, (node.end_lineno or 0) + 1))
    lines = text.split("\n")
    return "\n".join(line if not line.strip() or n in inside else margin + line for n, line in enumerate(lines, 1))


def _is_python(text: str) -> bool:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError):
        return False
    return True


def _parse(text: str) -> ast.Module:
    try:
        compile(text, "<cell>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        return ast.parse(text)
    except (SyntaxError, ValueError) as e:
        where = f" in line {e.lineno}" if isinstance(e, SyntaxError) and e.lineno else ""
        raise Untranslatable(f"it is not valid Python: {e.msg if isinstance(e, SyntaxError) else e}{where}") from None


def _in_function(code: str, name: str) -> str:
    """Code with ``await`` outside a function, in a coroutine that binds its names for the cells to come."""
    body = indented(code)
    try:
        table = symtable.symtable(f"async def {name}():\n{body}", "<cell>", "exec").get_children()
    except SyntaxError as e:
        raise Untranslatable(f"it awaits outside a function, and {e.msg}") from None
    own = sorted(next(t for t in table if isinstance(t, symtable.Function)).get_locals())
    names = f"    global {', '.join(own)}\n" if own else ""
    return f"async def {name}():\n{names}{body}"


def _names(tree: ast.Module) -> tuple[set[str], set[str]]:
    """Names that are read (attributes with a dot before them), and names that are given a meaning."""
    loads: set[str] = set()
    binds: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                loads.add(name)
            case ast.Name(name) | ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name):
                binds.add(name)
            case ast.Attribute(attr=name):
                loads.add(f".{name}")
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                binds |= {(a.asname or a.name).partition(".")[0] for a in aliases}
                loads |= {f".{a.name}" for a in aliases}
    return loads, binds

"""Translation of one cell, which IPython ran, into plain Python: verbatim, but for what only IPython understands.

Magics and shell commands are put into Python where that is simple, else they become a comment; the value that a cell
shows is printed. Pure: text in, text out.
"""

from __future__ import annotations

import ast
import inspect
import re
import symtable

from IPython.core.inputtransformer2 import TransformerManager
from msgspec import Struct, structs

from jdist.notebook.export import magics, source
from jdist.notebook.export.bound_names import Provided

_HISTORY = re.compile(r"^(_{1,3}|_\d+|_i+|_i\d+|_[io]h|In|Out)$")
_NOT_THERE = {
    "input": "reads input(), and torchrun gives its processes none",
    "breakpoint": "calls breakpoint(), and torchrun gives its processes no terminal",
}


class Untranslatable(Exception):
    """Why a cell cannot stand in a script."""


class Translation(Struct, frozen=True):
    """A cell as Python, at no indentation."""

    code: str
    notes: tuple[str, ...] = ()
    """What is not as it was in the session."""
    needs: frozenset[str] = frozenset()
    """Of the names that a script provides, those that it calls."""
    futures: tuple[str, ...] = ()
    """Names of ``from __future__`` imports, which have to stand at a script's top."""
    loads: frozenset[str] = frozenset()
    """Names that it reads."""
    binds: frozenset[str] = frozenset()
    """Names that it gives a meaning, wherever in it."""
    is_empty: bool = False
    """Nothing but comments."""


def translate(cell: str, is_shown: bool, name: str, provided: Provided) -> Translation:
    """The cell as Python. ``is_shown``: its last expression has a value to show; ``name``: for a function made of it.

    Raises Untranslatable.
    """
    text = _without_magic_syntax(cell)
    tree = _parsed(text)
    whole = magics.whole_cell(tree)
    if whole is not None:
        return _cell_magic(whole, is_shown, name, provided)
    draft = _Draft(text, tree, provided)
    draft.rewrite(is_shown and not cell.rstrip().endswith(";"))
    code = draft.code()
    written = ast.parse(code)
    loads, binds = _names(written)
    if _awaits(code):
        code = f"{_in_function(code, name)}\n\n\n{provided.loop}.run_until_complete({name}())"
        draft.needs.add(provided.loop)
    notes = [*draft.notes, *(_NOT_THERE[n] for n in sorted((loads - binds) & _NOT_THERE.keys()))]
    past = sorted(n for n in loads - binds if _HISTORY.match(n))
    if past:
        notes.append(f"reads {', '.join(past)}, which only a notebook has")
    return Translation(
        code,
        tuple(notes),
        frozenset(draft.needs),
        tuple(draft.futures),
        frozenset(loads),
        frozenset(binds),
        is_empty=not written.body,
    )


def _cell_magic(magic: magics.CellMagic, is_shown: bool, name: str, provided: Provided) -> Translation:
    """The body of a cell magic that only watches it; any other is not Python."""
    if magic.name not in magics.TRANSPARENT:
        raise Untranslatable(f"%%{magic.name} is something that only a notebook does")
    inner = translate(magic.body, is_shown, name, provided)
    why = magics.TRANSPARENT[magic.name]
    notes = (f"{magic}: {why}", *inner.notes) if why else inner.notes
    return structs.replace(inner, code=f"# {magic}\n{inner.code}", notes=notes)


class _Draft:
    """A cell's text with what is to be changed in it."""

    def __init__(self, text: str, tree: ast.Module, provided: Provided):
        self._source = source.Source(text)
        self._tree = tree
        self._provided = provided
        self.notes: list[str] = []
        self.needs: set[str] = set()
        self.futures: list[str] = []

    def code(self) -> str:
        return self._source.edited()

    def rewrite(self, is_shown: bool) -> None:
        last = self._tree.body[-1] if self._tree.body else None
        for statement in _statements(self._tree):
            wanted = is_shown and statement is last
            if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
                self.futures += [alias.name for alias in statement.names]
                self._drop(statement, f"{self._source.of(statement)}  (moved to the top)")
            elif magics.is_in(statement):
                self._replace_magic(statement, wanted)
            elif wanted and isinstance(statement, ast.Expr):
                self._source.replace(statement, self._showing(self._source.of(statement)))

    def _replace_magic(self, statement: ast.stmt, is_shown: bool) -> None:
        found = magics.put_into_python(statement, self._provided)
        if found.note:
            self.notes.append(found.note)
        if not found.code:
            text = found.text or f"{self._source.of(statement)}"
            self._drop(statement, f"{text}  (left out)")
            return
        self.needs |= found.needs
        self._source.replace(statement, self._showing(found.code) if is_shown and found.has_value else found.code)

    def _drop(self, statement: ast.stmt, text: str) -> None:
        comment = "\n".join(f"# {line}".rstrip() for line in text.splitlines())
        if statement.col_offset == 0:
            self._source.replace(statement, comment)
        else:  # in a block, which may hold nothing else
            self._source.replace(statement, f"{comment}\npass")

    def _showing(self, text: str) -> str:
        """The expression, printed; a bare tuple is one value."""
        body = ast.parse(text).body
        if len(body) != 1 or not isinstance(body[0], ast.Expr):
            return text
        show = self._provided.show
        self.needs.add(show)
        return f"{show}(({text}))" if _is_bare_tuple(body[0].value, text) else f"{show}({text})"


def _is_bare_tuple(value: ast.expr, text: str) -> bool:
    """``a, b``, which would be two arguments of a call."""
    called = ast.parse(f"f({text})", mode="eval").body
    arguments = called.args if isinstance(called, ast.Call) else []
    return isinstance(value, ast.Tuple) and [ast.dump(a) for a in arguments] != [ast.dump(value)]


def _without_magic_syntax(cell: str) -> str:
    """``%time f()`` becomes a call of get_ipython(), as IPython reads it; what is Python already stays as it is."""
    text = cell.replace("\r\n", "\n").replace("\r", "\n")
    try:
        ast.parse(text)
    except (SyntaxError, ValueError):
        text = str(TransformerManager().transform_cell(text))  # type: ignore[no-untyped-call]
    return text.strip("\n")


def _parsed(text: str) -> ast.Module:
    try:
        compile(text, "<cell>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        return ast.parse(text)
    except (SyntaxError, ValueError) as e:
        where = f" in line {e.lineno}" if isinstance(e, SyntaxError) and e.lineno else ""
        raise Untranslatable(f"it is no Python: {e.msg if isinstance(e, SyntaxError) else e}{where}") from None


def _statements(tree: ast.AST) -> list[ast.stmt]:
    """Every statement that holds no others, and any whose own head calls get_ipython; in order of the text."""
    found: list[ast.stmt] = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.stmt) and (not magics.holds_statements(node) or magics.is_in_head(node)):
            found.append(node)
        elif isinstance(node, ast.stmt | ast.excepthandler | ast.match_case):
            found += _statements(node)
    return found


def _awaits(code: str) -> bool:
    compiled = compile(code, "<cell>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    return bool(compiled.co_flags & inspect.CO_COROUTINE)


def _in_function(code: str, name: str) -> str:
    """Code with ``await`` outside a function, in a coroutine that binds its names for the cells to come."""
    body = source.indented(code)
    try:
        table = symtable.symtable(f"async def {name}():\n{body}", "<cell>", "exec").get_children()
    except SyntaxError as e:
        raise Untranslatable(f"it awaits outside a function, and {e.msg}") from None
    own = sorted(next(t for t in table if isinstance(t, symtable.Function)).get_locals())
    names = f"    global {', '.join(own)}\n" if own else ""
    return f"async def {name}():\n{names}{body}"


def _names(tree: ast.Module) -> tuple[set[str], set[str]]:
    """Names that are read, and names that get a meaning."""
    loads: set[str] = set()
    binds: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                loads.add(name)
            case ast.Name(id=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                binds.add(name)
            case ast.ClassDef(name=name):
                binds.add(name)
            case ast.Attribute(attr=name):
                loads.add(f".{name}")
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                binds |= {(a.asname or a.name).partition(".")[0] for a in aliases}
                loads |= {f".{a.name}" for a in aliases}
    return loads, binds

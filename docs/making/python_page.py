"""Python page: the public names of the package with their signatures and docstrings."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from typing import Any

import jdist

_ROLE = re.compile(r":\w+:`~?([^`]+)`")
_SECTION = re.compile(r"^(\w+)\n-{3,}$", re.MULTILINE)
_FIELD = re.compile(r"^(\*{0,2}\w+) : (.*)$", re.MULTILINE)
_FIRST = ("start", "Cluster")
_WIDTH = 100


def page() -> str:
    """All of ``jdist.__all__``: functions, then classes, then errors."""
    names = [name for name in jdist.__all__ if not name.startswith(("__", "load_", "unload_"))]
    found = {
        name: getattr(jdist, name) for name in sorted(names, key=lambda name: (name not in _FIRST, names.index(name)))
    }
    errors = {n: o for n, o in found.items() if inspect.isclass(o) and issubclass(o, Exception)}
    classes = {n: o for n, o in found.items() if inspect.isclass(o) and n not in errors and n != "AsyncCluster"}
    functions = {n: o for n, o in found.items() if not inspect.isclass(o)}
    tree = jdist.JdistError.__module__
    parts = [
        "# Python\n\n`import jdist`. Times are in seconds. `AsyncCluster` has the methods of `Cluster` as coroutines.",
        *(_function(f"jdist.{name}", each) for name, each in functions.items()),
        *(_class(name, each) for name, each in classes.items()),
        f"## AsyncCluster {{#AsyncCluster}}\n\n{_text(found['AsyncCluster'])}",
        f"## Errors\n\n{markdown(inspect.getdoc(inspect.getmodule(jdist.JdistError)) or tree)}",
        *(_class(name, each, "###") for name, each in errors.items()),
    ]
    return "\n\n".join(parts)


def markdown(docstring: str) -> str:
    """A docstring as Markdown: roles and literals as code, sections as lists."""
    text = _ROLE.sub(r"`\1`", docstring).replace("``", "`")
    text = re.sub(r"(?m)(?<=[^\n:])::\s*$", ":", text)
    text = re.sub(r"(?m)^::\n", "", text)
    text = _SECTION.sub(r"**\1**\n", text)
    return _FIELD.sub(r"- `\1`: \2", text).strip()


def _text(thing: Any) -> str:
    return markdown(inspect.getdoc(thing) or "")


def _signature(name: str, thing: Any) -> str:
    signature = inspect.signature(thing)
    shown, last = [], inspect.Parameter.POSITIONAL_OR_KEYWORD
    for p in signature.parameters.values():
        if p.name in {"self", "cls"}:
            continue
        if p.kind is p.KEYWORD_ONLY and last is p.POSITIONAL_OR_KEYWORD:
            shown.append("*")
        last = p.kind
        stars = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
        kind = "" if p.annotation is p.empty else f": {_short(p.annotation)}"
        default = "" if p.default is p.empty else f" = {p.default!r}" if kind else f"={p.default!r}"
        shown.append(f"{stars}{p.name}{kind}{default}")
    returned = signature.return_annotation
    arrow = "" if returned is signature.empty else f" -> {_short(returned)}"
    flat = f"{name}({', '.join(shown)}){arrow}"
    return flat if len(flat) <= _WIDTH else f"{name}(\n    " + ",\n    ".join(shown) + f",\n){arrow}"


def _short(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _function(name: str, function: Any, level: str = "##") -> str:
    title = name.rpartition(".")[2]
    return f"{level} {title}\n\n```python\n{_signature(name, function)}\n```\n\n{_text(function)}"


def _class(name: str, cls: type, level: str = "##") -> str:
    parts = [f"{level} {name} {{#{name}}}\n\n{_text(cls)}"]
    fields = {k: v for k, v in _fields(cls).items() if v}
    if fields:
        parts.append("\n".join(f"- `{each}`: {markdown(text)}" for each, text in fields.items()))
    for each, member in _members(cls).items():
        if isinstance(member, property):
            if member.fget is not None and member.fget.__doc__:
                parts.append(f"- `{each}`: {markdown(inspect.cleandoc(member.fget.__doc__))}")
        else:
            parts.append(_function(f"{name}.{each}", member, level + "#"))
    return "\n\n".join(parts)


def _members(cls: type) -> dict[str, Any]:
    """Public methods and properties: the class's own, then its bases'; without those of other packages."""
    found: dict[str, Any] = {}
    for base in cls.__mro__:
        if not base.__module__.startswith("jdist"):
            continue
        for name, member in vars(base).items():
            unwrapped = member if isinstance(member, property) else getattr(cls, name)
            if not name.startswith("_") and name not in found and (callable(unwrapped) or isinstance(member, property)):
                found[name] = unwrapped
    return found


def _fields(cls: type) -> dict[str, str]:
    """Attributes of the class and of its ``__init__``, with the docstring that follows each in the source."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    found: dict[str, str] = {}
    bodies = [node.body for node in ast.walk(tree) if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    for body in bodies:
        for statement, following in zip(body, [*body[1:], None], strict=True):
            name = _assigned(statement)
            if (
                name
                and not name.startswith("_")
                and isinstance(following, ast.Expr)
                and isinstance(following.value, ast.Constant)
            ):
                found[name] = inspect.cleandoc(str(following.value.value))
    return found


def _assigned(statement: ast.stmt) -> str:
    if not isinstance(statement, ast.AnnAssign | ast.Assign):
        return ""
    target = statement.target if isinstance(statement, ast.AnnAssign) else statement.targets[0]
    if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
        return target.attr
    return target.id if isinstance(target, ast.Name) else ""

"""Noting: the source text of the functions that stand in for torch.distributed's and note each call. Pure.

Half of what a note cost was Python's own: arguments packed into a tuple and a dictionary, and asked one by one what
they are. So each function is written out with the parameters of the one that it stands in for, as a dataclass's
``__init__`` is, and looks only at what a call is described by. A note is one flat list, laid out as below.
"""

from __future__ import annotations

import inspect
import textwrap

FILE = "<jdist's notes of torch.distributed>"
"""Stands for the file of that text, in tracebacks too."""

OP, CODE, AT, THREAD, STARTED, ENDED, LEFT, WHAT = range(8)
"""Where in a note: the function's name; the code that called it and the offset in it; the thread; begin and end in
nanoseconds of the wall clock (end 0: it has not returned); what it left: a weak reference to a Work, ``True`` for an
exception, else None; and from there on what is kept of the parameters that ``described`` names."""

_INPUTS = ("tensor", "input_tensor", "input", "tensors", "input_tensor_list", "input_list", "output", "output_tensor")
"""Parameters by whose shape a call is described: the first that is there."""
_PLAIN = "{0} if type({0}) in _plain else _kept({0})"
_OPTIONAL = "None if {0} is None else _kept({0})"
_OTHERS = {
    **dict.fromkeys(("src", "dst", "group_src", "group_dst", "tag"), _PLAIN),
    "op": "{0} if type({0}) is _operation else _kept({0})",
    **dict.fromkeys(("group", "input_split_sizes", "output_split_sizes"), _OPTIONAL),
}
"""The others by which it is, and what is kept of them, written for the value that each mostly has."""

_FUNCTION = """
def {op}({parameters}):
    global _begun{counter}
    __tracebackhide__ = True
    frame = _caller(1)
    if frame.f_code.co_filename not in _cells:
        frame = _outwards(frame)
{look}
    note = [{kept}]
    _begun += 1
    _add(note)
{before}
    try:
        result = _original_{op}({arguments})
    except BaseException:
        note[{LEFT}] = True
        note[{ENDED}] = _now()
{after_error}
        raise
    if result is not None:
        note[{LEFT}] = _left(result)
    note[{ENDED}] = _now()
{after}
    return result
"""
_SPAN = """
def {name}({parameters}):
    __tracebackhide__ = True
    frame = _caller(1)
    if frame.f_code.co_filename not in _cells:
        frame = _outwards(frame)
    note = [{name!r}, frame.f_code, frame.f_lasti, _ident(), _now(), 0, None]
    _add_span(note)
    try:
        return _original_{name}({arguments})
    finally:
        note[{ENDED}] = _now()
"""
_LOOK = """
shape = dtype = None
if type({tensor}) is _tensor:
    try:
        shape, dtype = {tensor}.shape, {tensor}.dtype
    except RuntimeError:  # a nested tensor has no shape; the call itself will say whether it minds
        pass
else:
    shape = _kept({tensor})
"""


def described(signature: inspect.Signature) -> tuple[str, ...]:
    """Parameters of which something is kept. One of tensors comes first, and takes two places: its shape or, where it
    is no plain tensor, all that is kept of it; and its dtype or None.
    """
    tensor = tensor_of(signature)
    return (*((tensor,) if tensor else ()), *(name for name in _OTHERS if name in signature.parameters))


def tensor_of(signature: inspect.Signature) -> str:
    """The parameter by whose shape the call is described; "" where there is none."""
    return next((name for name in _INPUTS if name in signature.parameters), "")


def function(op: str, signature: inspect.Signature, *, is_counted: bool) -> str:
    """The text of one function. Its defaults, all None in the text, are to be set by who compiles it."""
    tensor = tensor_of(signature)
    kept = [f"{op!r}", "frame.f_code", "frame.f_lasti", "_ident()", "_now()", "0", "None"]
    kept += ["shape", "dtype"] if tensor else []
    kept += [how.format(name) for name, how in _OTHERS.items() if name in signature.parameters]
    count = "_transfers += 1" if is_counted else ""
    text = _FUNCTION.format(
        op=op,
        parameters=_parameters(signature),
        counter=", _transfers" if is_counted else "",
        look=textwrap.indent(_LOOK.format(tensor=tensor), "    ") if tensor else "",
        kept=", ".join(kept),
        before=f"    {count}\n    _pending.append(note)" if is_counted else "",
        arguments=_arguments(signature),
        after_error=f"        {count}",
        after=f"    {count}",
        LEFT=LEFT,
        ENDED=ENDED,
    )
    return "\n".join(line for line in text.splitlines() if line.strip())


def span(name: str, signature: inspect.Signature) -> str:
    """The text of one that only notes from when to when it ran, and where: collectives within it have no other line."""
    return _SPAN.format(name=name, parameters=_parameters(signature), arguments=_arguments(signature), ENDED=ENDED)


def _parameters(signature: inspect.Signature) -> str:
    plain = [
        p.replace(annotation=p.empty, default=p.empty if p.default is p.empty else None)
        for p in signature.parameters.values()
    ]
    return str(signature.replace(parameters=plain, return_annotation=signature.empty))[1:-1]


def _arguments(signature: inspect.Signature) -> str:
    """The parameters as they are handed on."""
    written = {"VAR_POSITIONAL": "*{0}", "KEYWORD_ONLY": "{0}={0}", "VAR_KEYWORD": "**{0}"}
    return ", ".join(written.get(p.kind.name, "{0}").format(p.name) for p in signature.parameters.values())

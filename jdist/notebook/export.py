"""Export what a client has run as one script for torchrun: the cells in order, setup cells first.

Cells are copied verbatim. What only IPython can run becomes a comment, with a warning, and so does what jdist did on
the ranks between the cells. The file is written whole or not at all, and never over the user's work.
"""

from __future__ import annotations

import ast
import contextlib
import os
import re
import uuid
from collections.abc import Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from IPython.core import inputtransformer2 as ipython
from msgspec import Struct

from jdist.client.history import Annotation, BroadcastStep, CellStep, GroupStep, MeshStep, Step, ValueStep
from jdist.core.errors import UsageError
from jdist.core.quantities import format_count
from jdist.core.rank_code import is_script
from jdist.core.ranks import RankSet
from jdist.core.topology import Mesh
from jdist.notebook.text.remedy_text import typed

if TYPE_CHECKING:
    from jdist.client.cluster import Cluster


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


_FEW = 4  # Ranks that are written one by one; of more, a range where they are one.
_RANK_VARIABLES = {"rank": "RANK", "local_rank": "LOCAL_RANK", "node_rank": "GROUP_RANK", "world_size": "WORLD_SIZE"}
_DISPLAY = """\
try:
    from IPython.display import display
except ImportError:
    display = print"""
_KEEP_WORLD = """\
# Cells call these. As in the session, the world is formed already, and stays so to the end.
dist.init_process_group = dist.destroy_process_group = lambda *args, **kwargs: None"""


class ScriptWorld(Struct, frozen=True):
    """The world that the script is for."""

    nproc_per_node: tuple[int, ...]
    backend: str

    @property
    def size(self) -> int:
        return sum(self.nproc_per_node)


class Script(Struct, frozen=True):
    """A script, and what became of the cells."""

    text: str
    warnings: tuple[str, ...]  # Each names its cell and says what is not in the script as it was in the session.
    cells: int  # In the script.
    left_out: int


class _ScriptPart(Struct):
    """A place in the script: comment lines, then code for some ranks."""

    heading: str
    code: str = ""
    ranks: tuple[int, ...] | None = None  # None stands for all ranks.
    comments: tuple[str, ...] = ()
    is_tied: bool = False  # Works in a world of this size only.


def compose(steps: Sequence[Step], world: ScriptWorld, file: str = "FILE.py", forgotten: int = 0) -> Script:
    """The script of these steps; ``file`` is what it will be called, ``forgotten`` steps came before them."""
    return _Composer(world, file).compose(steps, forgotten)


class _Composer:
    def __init__(self, world: ScriptWorld, file: str):
        self._world = world
        self._file = file
        self._warnings: list[str] = []
        self._cells: dict[int, Translation | Untranslatable] = {}  # By the step's id().
        self._rank = "rank"  # The expression by which code between the cells asks for the rank.
        self._left_out = 0

    def compose(self, steps: Sequence[Step], forgotten: int) -> Script:
        ordered = setup_first(steps)
        if forgotten:
            self._warnings.append(f"the first {forgotten:,} steps of the session are no longer remembered")
        self._translate(ordered)
        cells = [found for found in self._cells.values() if isinstance(found, Translation)]
        self._rank = "dist.get_rank()" if any(_binds_rank(cell.tree) for cell in cells) else "rank"
        parts = [self._part(step) for step in ordered]
        code = "\n".join(part.code for part in parts)
        forms_world = re.search(r"\b(init|destroy)_process_group\b", code) is not None
        blocks = [
            _docstring(self._world, self._file),
            *(f"from __future__ import {name}" for name in sorted({name for cell in cells for name in cell.futures})),
            "import os",
            "import torch\nimport torch.distributed as dist",
            _predefined(self._world, is_tied=any(part.ranks is not None or part.is_tied for part in parts)),
            "groups = {}" if re.search(r"\bgroups\b", code) else "",
            _DISPLAY if re.search(r"\bdisplay\(", code) else "",
            _KEEP_WORLD if forms_world else "",
            *(_written(part, self._rank) for part in parts),
            "dist.distributed_c10d.destroy_process_group()" if forms_world else "dist.destroy_process_group()",
        ]
        text = "\n\n".join(filter(None, blocks)) + "\n"
        return Script(text, tuple(self._warnings), len(cells), self._left_out)

    # ------------------------------------------------------------ the cells

    def _translate(self, steps: Sequence[Step]) -> None:
        """Translate each cell that did not fail."""
        for step in steps:
            if isinstance(step, CellStep) and step.state != "failed" and not step.is_inner and not is_script(step.code):
                try:
                    self._cells[id(step)] = translate(step.code)
                except Untranslatable as e:
                    self._cells[id(step)] = e

    def _part(self, step: Step) -> _ScriptPart:
        match step:
            case CellStep():
                return self._cell(step)
            case GroupStep(name, ranks):
                code = f'groups["{name}"] = dist.new_group({_listed(ranks)}, group_desc="{name}")'
                return _ScriptPart(f"%dist group {name} {RankSet(ranks)}", code, is_tied=True)
            case MeshStep(names, sizes):
                quoted = ", ".join(f'"{name}"' for name in names) + ("," if len(names) == 1 else "")
                code = f"mesh = dist.init_device_mesh(device.type, {sizes}, mesh_dim_names=({quoted}))"
                return _ScriptPart(f"%dist mesh {Mesh(names, sizes)}", code, is_tied=True)
            case ValueStep():
                return self._value(step)
            case BroadcastStep(name, src):
                boxed = f"{name} = [{name} if {self._rank} == {src} else None]"
                code = f"{boxed}\ndist.broadcast_object_list({name}, src={src})\n{name} = {name}[0]"
                return _ScriptPart(f"%dist broadcast {name} --src {src}", code)
            case Annotation(text):
                self._warn("between cells", text)
                return _ScriptPart(text, comments=("it acts on the cluster, which a script cannot do",))

    def _cell(self, step: CellStep) -> _ScriptPart:
        heading = f"{step.title} · run {step.number}" if step.title else f"run {step.number}"
        heading += " · setup" if step.is_setup and "--setup" not in step.title else ""
        part = _ScriptPart(heading, ranks=step.ranks)
        if step.state == "failed":
            return self._without(step, part, f"it failed: {step.why}")
        if step.is_inner:
            return self._without(step, part, "it ran in the frames of a cell that was paused, or had failed")
        if is_script(step.code):
            return self._without(step, part, "it ran a whole script; give that to torchrun by itself")
        found = self._cells[id(step)]
        if isinstance(found, Untranslatable):
            return self._without(step, part, str(found))
        part.code = found.code
        part.ranks = step.ranks if found.tree.body and step.ranks != tuple(range(self._world.size)) else None
        for magic in found.left_out:
            self._warn(heading, f"left out, as it needs a notebook: {magic}")
        remarks = []
        if step.state == "running":
            remarks.append("it had not ended when the script was written")
        if step.world_size != self._world.size:
            remarks.append(f"it ran in a world of {step.world_size}, on ranks {RankSet(step.ranks)} of that")
            part.ranks = None if step.ranks == tuple(range(step.world_size)) else part.ranks
        for remark in remarks:
            self._warn(heading, remark)
        part.comments = tuple(remarks)
        return part

    def _without(self, step: CellStep, part: _ScriptPart, why: str) -> _ScriptPart:
        self._left_out += 1
        self._warn(part.heading, f"left out: {why}")
        part.comments = (f"left out: {why}", *step.code.strip("\n").split("\n"))
        return part

    def _value(self, step: ValueStep) -> _ScriptPart:
        done = "pushed" if step.dim is None else f"scattered along dimension {step.dim}"
        heading = f"{step.name} {done} from the notebook"
        everybody = step.ranks == tuple(range(self._world.size))
        if not step.text or (step.dim is not None and not step.text.startswith("torch.tensor")):
            value, maker = f"the value ({step.kind})", f"what makes {step.name}"
            self._warn(heading, f"{value} is not in the script; write there {maker}")
            return _ScriptPart(heading, comments=(f"{value} is not here; write {maker}",))
        code = f"{step.name} = {step.text}"
        if step.dim is not None:
            part = self._rank if everybody else f"{_listed(step.ranks)}.index({self._rank})"
            code += f".tensor_split({len(step.ranks)}, dim={step.dim})[{part}]"
        return _ScriptPart(heading, code, None if everybody else step.ranks, is_tied=step.dim is not None)

    def _warn(self, where: str, what: str) -> None:
        self._warnings.append(f"{where}: {what}")


def setup_first(steps: Sequence[Step]) -> list[Step]:
    """Setup cells in their order, with the groups and the mesh that were made before them; then everything else."""
    last = max((i for i, s in enumerate(steps) if isinstance(s, CellStep) and s.is_setup), default=-1)
    early: list[Step] = []
    others: list[Step] = []
    for i, step in enumerate(steps):
        is_setup = step.is_setup if isinstance(step, CellStep) else isinstance(step, GroupStep | MeshStep)
        (early if is_setup and i <= last else others).append(step)
    return early + others


def _written(part: _ScriptPart, rank: str) -> str:
    # A line break would end the comment, and a null character the script.
    comments = [" ".join(text.replace("\0", "\\0").splitlines()) for text in (f"%% {part.heading}", *part.comments)]
    lines = [f"# {comment}".rstrip() for comment in comments]
    if part.code and part.ranks is not None:
        members = _as_range(part.ranks) or str(part.ranks)
        condition = f"{rank} == {part.ranks[0]}" if len(part.ranks) == 1 else f"{rank} in {members}"
        lines += [f"if {condition}:", indented(part.code)]
    elif part.code:
        lines.append(part.code)
    return "\n".join(lines)


def _as_range(ranks: tuple[int, ...]) -> str:
    """``range(0, 512)`` for many ranks at one distance, else nothing."""
    step = ranks[1] - ranks[0] if len(ranks) > _FEW else 0
    if step < 1 or ranks != tuple(range(ranks[0], ranks[-1] + 1, step)):
        return ""
    return f"range({ranks[0]}, {ranks[-1] + 1}{'' if step == 1 else f', {step}'})"


def _listed(ranks: tuple[int, ...]) -> str:
    found = _as_range(ranks)
    return f"list({found})" if found else str(list(ranks))


def _binds_rank(tree: ast.Module) -> bool:
    """Whether the cell may give the name ``rank`` another value."""
    return any(isinstance(n, ast.Name) and n.id == "rank" and isinstance(n.ctx, ast.Store) for n in ast.walk(tree))


# ---------------------------------------------------------------- the head


def _docstring(world: ScriptWorld, file: str) -> str:
    """How to run the script."""
    counts = world.nproc_per_node
    nodes = "one node" if len(counts) == 1 else f"{len(counts)} nodes"
    ranks = f"{', '.join(map(str, counts))} ranks" if len(set(counts)) > 1 else format_count(counts[0], "rank")
    each = " each" if len(counts) > 1 and len(set(counts)) == 1 else ""
    machine = "on one machine, where node_rank is 0 everywhere" if len(counts) > 1 else "on one machine"
    lines = [
        f'"""The cells of a jdist session on {nodes} with {ranks}{each}, backend {world.backend}.',
        "",
        f"Run it {machine}:",
        "",
        f"    torchrun --standalone --nproc-per-node {world.size} {file}",
    ]
    if len(counts) > 1:
        where = "with its number as NODE and the first one's" if each else "with the first one's"
        lines += ["", f"or on each node, {where} address as HOST:", ""]
        lines += [
            f"    torchrun --nnodes {len(counts)} --nproc-per-node {count} --node-rank {node} "
            f"--master-addr HOST --master-port 29500 {file}"
            for node, count in ([("NODE", counts[0])] if each else enumerate(counts))
        ]
    return "\n".join([*lines, '"""'])


def _predefined(world: ScriptWorld, *, is_tied: bool) -> str:
    """The names that every rank of the session has, and the forming of the world."""
    lines = ["# What every rank of the session has."]
    lines += [f'{name} = int(os.environ["{variable}"])' for name, variable in _RANK_VARIABLES.items()]
    if is_tied:
        what = f"cells of this script name ranks of a world of {world.size}, not of {{world_size}}"
        lines += [f"if world_size != {world.size}:", f'    raise SystemExit(f"{what}")']
    if "nccl" in world.backend:
        lines += ['device = torch.device("cuda", local_rank)', "torch.cuda.set_device(device)"]
    else:
        lines.append('device = torch.device("cpu")')
    own = ", device_id=device" if world.backend == "nccl" else ""
    return "\n".join([*lines, f'dist.init_process_group("{world.backend}"{own})'])


_MARK = re.compile(r"# Written by %dist export \(([0-9a-f]{16})\)[^\n]*\n")


class Exported(Struct, frozen=True):
    """The script that was written."""

    path: str
    cells: int  # The number of cells in the script.
    left_out: int  # The number of cells that are only comments in it.
    warnings: tuple[str, ...]  # Each names a cell and says what is not as it was in the session.


def export(cluster: Cluster, path: str, *, force: bool = False) -> Exported:
    """Write what ``cluster`` was asked to run, by this process, as a script: ``torchrun … path``.

    Raises UsageError for a file that export has not written, or that was edited since, unless ``force``; and if nothing
    was run.
    """
    history, topology = cluster.history, cluster.topology
    if not history.steps:
        raise UsageError(
            f"nothing was run on cluster {cluster.name} from here; cells of other notebooks, and of this one before "
            "its kernel was restarted, cannot be exported here"
        )
    world = ScriptWorld(tuple(len(topology.ranks_on(n)) for n in range(topology.nnodes)), cluster.backend)
    script = compose(history.steps, world, os.path.basename(path), history.forgotten)
    return Exported(write(path, script.text, force=force), script.cells, script.left_out, script.warnings)


def write(path: str, text: str, *, force: bool) -> str:
    """Write the script; returns its absolute path. Raises UsageError if it cannot, or may not replace what is there."""
    target = os.path.realpath(os.path.expanduser(path))
    if not force:
        _check(path, target)
    draft = f"{target}.{uuid.uuid4().hex[:8]}.tmp"  # beside the file, which it replaces in one step
    try:
        with open(draft, "x", encoding="utf-8", newline="\n") as f:
            f.write(marked(text))
        os.replace(draft, target)
    except OSError as e:
        with contextlib.suppress(OSError):
            os.unlink(draft)
        raise UsageError(f"{typed('export')}: {path} cannot be written: {e.strerror or e}") from None
    return target


def marked(text: str) -> str:
    """The script with its first line, which shows later whether the script was edited."""
    return f"# Written by %dist export ({_digest(text)}); export will not overwrite it once it is edited.\n{text}"


def _check(path: str, target: str) -> None:
    try:
        with open(target, encoding="utf-8", newline="") as f:
            text = f.read()
    except FileNotFoundError:
        return
    except (OSError, UnicodeDecodeError) as e:
        problem = f"exists but cannot be read: {getattr(e, 'strerror', None) or e}; name another file"
    else:
        found = _MARK.match(text)
        if found is not None and found[1] == _digest(text[found.end() :]):
            return
        problem = "exists and was not written by export" if found is None else "was edited after export wrote it"
        problem += "; name another file, or --force replaces it"
    raise UsageError(f"{typed('export')}: {path} {problem}")


def _digest(text: str) -> str:
    return blake2b(text.encode(), digest_size=8).hexdigest()

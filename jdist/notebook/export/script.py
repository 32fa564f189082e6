"""Script: a session's steps as the source text of one script for torchrun, in which a rank does what it did in the
session, in the same order, setup cells first. What cannot be in a script is a comment in it, and a warning. Pure.
"""

from collections.abc import Sequence

from msgspec import Struct

from jdist.client.history import Annotation, BroadcastStep, CellStep, GroupStep, MeshStep, Step, ValueStep
from jdist.core.rank_code import is_script
from jdist.core.ranks import RankSet
from jdist.core.topology import Mesh
from jdist.notebook.export.prologue import ScriptFrame, ScriptWorld
from jdist.notebook.export.translate import HelperNames, Translation, Untranslatable, indented, translate

_FEW = 4  # Ranks that are written one by one; of more, a range where they are one.


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
        self._translated: dict[int, Translation | Untranslatable] = {}  # What became of each cell's step, by id().
        self._helpers = HelperNames()
        self._rank = "rank"  # The expression by which code between the cells asks for the rank.
        self._cells = self._left_out = 0

    def compose(self, steps: Sequence[Step], forgotten: int) -> Script:
        ordered = setup_first(steps)
        if forgotten:
            self._warnings.append(f"the first {forgotten:,} steps of the session are no longer remembered")
        # The helpers' names depend on what the cells bind, so the cells are translated twice.
        bound = {name for cell in self._translate(ordered) for name in cell.binds}
        self._helpers = HelperNames.beside(bound)
        self._rank = "dist.get_rank()" if "rank" in bound else "rank"
        cells = self._translate(ordered)
        parts = [self._part(step) for step in ordered]
        is_tied = any(part.ranks is not None or part.is_tied for part in parts)
        has_groups = any(isinstance(step, GroupStep) for step in ordered)
        frame = ScriptFrame(self._world, self._file, self._helpers, tuple(cells), is_tied, has_groups)
        text = "\n\n".join([frame.prologue(), *(_written(part, self._rank) for part in parts), frame.end()]) + "\n"
        return Script(text, tuple(self._warnings), self._cells, self._left_out)

    # ------------------------------------------------------------ the cells

    def _translate(self, steps: Sequence[Step]) -> list[Translation]:
        """Each cell that did not fail and can be translated."""
        for step in steps:
            if isinstance(step, CellStep) and step.state != "failed" and not step.is_inner:
                name = f"run_{step.number}"
                try:
                    self._translated[id(step)] = translate(step.code, step.is_shown, name, self._helpers)
                except Untranslatable as e:
                    self._translated[id(step)] = e
        return [found for found in self._translated.values() if isinstance(found, Translation)]

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
                box = self._helpers.box
                taken = f"{box} = [{name} if {self._rank} == {src} else None]"
                code = f"{taken}\ndist.broadcast_object_list({box}, src={src})\n{name} = {box}[0]"
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
        found = self._translated[id(step)]
        if isinstance(found, Untranslatable):
            return self._without(step, part, str(found))
        self._cells += 1
        part.code = found.code
        part.ranks = None if step.ranks == tuple(range(self._world.size)) or found.is_empty else step.ranks
        remarks = list(found.notes)
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

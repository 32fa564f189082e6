"""Prologue and end of a script: how to run it, the names that every rank has, the world, and helper functions."""

from msgspec import Struct, structs

from jdist.core.quantities import format_count
from jdist.notebook.export.translate import HelperNames, Translation

_HELPERS = {
    "show": '''
def {show}(value):
    """Print a cell's last value, as the notebook showed it."""
    if value is None:
        return
    try:
        from IPython.lib.pretty import pretty
    except ImportError:
        pretty = repr
    print(pretty(value))
''',
    "display": '''
def {display}(*values, **options):
    """Print what a cell displayed: its text, where the notebook showed a picture or a table."""
    for value in values:
        {show}(value)
''',
    "shell": '''
def {shell}(command):
    """Run a shell command, as ! did in a cell, and print what it says."""
    print(subprocess.run(command, shell=True, stdout=-1, stderr=-2, text=True).stdout, end="")
''',
    "lines": '''
def {lines}(command):
    """The lines that a shell command writes, as ! gave them in a cell."""
    return subprocess.run(command, shell=True, stdout=-1, stderr=-2, text=True).stdout.splitlines()
''',
    "loop": "\n{loop} = asyncio.new_event_loop()\n",
}
_KEEP_WORLD = """
# Cells call these, too. As in the session, they find the world formed, and it stays so to the end.
{leave} = dist.destroy_process_group


def {formed}(*args, **kwargs):
    print(f"init_process_group: the world of {{world_size}} ranks ({backend}) is already formed; nothing to do")


def {kept}(group=None):
    if group is None or group is dist.group.WORLD:
        print("destroy_process_group: jdist keeps the world formed for the next cell; nothing to do")
    else:
        {leave}(group)


dist.init_process_group, dist.destroy_process_group = {formed}, {kept}
"""
_RANK_VARIABLES = {"rank": "RANK", "local_rank": "LOCAL_RANK", "node_rank": "GROUP_RANK", "world_size": "WORLD_SIZE"}
_FORMING = ("init_process_group", "destroy_process_group")


class ScriptWorld(Struct, frozen=True):
    """The world that the script is for."""

    nproc_per_node: tuple[int, ...]
    backend: str

    @property
    def size(self) -> int:
        return sum(self.nproc_per_node)


class ScriptFrame(Struct, frozen=True):
    """Everything in a script ``file`` before and after these cells."""

    world: ScriptWorld
    file: str
    helpers: HelperNames
    cells: tuple[Translation, ...]
    is_tied: bool  # Works in a world of this size only.
    has_groups: bool

    def prologue(self) -> str:
        """Everything before the first cell."""
        names = structs.asdict(self.helpers)
        unbound = {n for t in self.cells for n in t.loads} - {n for t in self.cells for n in t.binds}
        used = {name for cell in self.cells for name in cell.helpers}
        used |= {self.helpers.display, self.helpers.show} if "display" in unbound else set()
        definitions = "\n".join(text.format(**names) for role, text in _HELPERS.items() if names[role] in used)
        modules = {"os"} | ({"subprocess"} if used & {self.helpers.shell, self.helpers.lines} else set())
        modules |= {"asyncio"} if self.helpers.loop in used else set()
        futures = sorted({name for cell in self.cells for name in cell.futures})
        keep_world = _KEEP_WORLD.format(**names, backend=self.world.backend) if self._forms_world() else ""
        groups = "\ngroups = {}" if self.has_groups or "groups" in unbound else ""
        blocks = [
            self._docstring(self.helpers.show in used),
            f"from __future__ import {', '.join(futures)}" if futures else "",
            "\n".join(f"import {module}" for module in sorted(modules)),
            "import torch\nimport torch.distributed as dist",
            self._names() + groups,
            f"\n{definitions.strip(chr(10))}\n" if definitions else "",
            keep_world.strip("\n"),
        ]
        return "\n\n".join(filter(None, blocks))

    def end(self) -> str:
        """Everything after the last cell."""
        return f"{self.helpers.leave}()" if self._forms_world() else "dist.destroy_process_group()"

    def _forms_world(self) -> bool:
        return any({n, f".{n}"} & t.loads for t in self.cells for n in _FORMING)

    def _docstring(self, is_shown: bool) -> str:
        counts = self.world.nproc_per_node
        nodes = "one node" if len(counts) == 1 else f"{len(counts)} nodes"
        ranks = f"{', '.join(map(str, counts))} ranks" if len(set(counts)) > 1 else format_count(counts[0], "rank")
        each = " each" if len(counts) > 1 and len(set(counts)) == 1 else ""
        machine = "on one machine, where node_rank is 0 everywhere" if len(counts) > 1 else "on one machine"
        lines = [
            f'"""The cells of a jdist session on {nodes} with {ranks}{each}, backend {self.world.backend}.',
            "",
            f"Run it {machine}:",
            "",
            f"    torchrun --standalone --nproc-per-node {self.world.size} {self.file}",
        ]
        if len(counts) > 1:
            where = "with its number as NODE and the first one's" if each else "with the first one's"
            lines += ["", f"or on each node, {where} address as HOST:", ""]
            lines += [
                f"    torchrun --nnodes {len(counts)} --nproc-per-node {count} --node-rank {node} "
                f"--master-addr HOST --master-port 29500 {self.file}"
                for node, count in ([("NODE", counts[0])] if each else enumerate(counts))
            ]
        if is_shown:
            lines += ["", f"What a cell showed as its value is printed by {self.helpers.show}(); pictures and tables"]
            lines += ["of the notebook are their text here."]
        return "\n".join([*lines, '"""'])

    def _names(self) -> str:
        """The names that every rank of the session has, and the forming of the world."""
        backend = self.world.backend
        lines = ["# What every rank of the session has."]
        lines += [f'{name} = int(os.environ["{variable}"])' for name, variable in _RANK_VARIABLES.items()]
        if self.is_tied:
            what = f"cells of this script name ranks of a world of {self.world.size}, not of {{world_size}}"
            lines += [f"if world_size != {self.world.size}:", f'    raise SystemExit(f"{what}")']
        if "nccl" in backend:
            lines += ['device = torch.device("cuda", local_rank)', "torch.cuda.set_device(device)"]
        else:
            lines.append('device = torch.device("cpu")')
        own = ", device_id=device" if backend == "nccl" else ""
        return "\n".join([*lines, f'dist.init_process_group("{backend}"{own})'])

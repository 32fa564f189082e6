"""Ends: what a script has before its cells, and after them: how to run it, the names of a rank, the world."""

from __future__ import annotations

from msgspec import Struct

from jdist.notebook.export.bound_names import Provided
from jdist.notebook.export.translate import Translation

_FORMING = ("init_process_group", "destroy_process_group")


class World(Struct, frozen=True):
    """The world that the script is for."""

    nproc_per_node: tuple[int, ...]
    backend: str

    @property
    def size(self) -> int:
        return sum(self.nproc_per_node)


class Ends(Struct, frozen=True):
    """Head and tail of a script ``file`` with these cells."""

    world: World
    file: str
    provided: Provided
    cells: tuple[Translation, ...]
    is_tied: bool
    """Of use in a world of this size only."""
    has_groups: bool

    def head(self) -> str:
        """Everything before the first cell."""
        needs = self._needs()
        futures = sorted({f for t in self.cells for f in t.futures})
        modules = sorted({"os"} | self.provided.modules(needs))
        blocks = [self._docstring(self.provided.show in needs)]
        blocks += [f"from __future__ import {', '.join(futures)}"] if futures else []
        blocks += ["\n".join(f"import {m}" for m in modules), "import torch\nimport torch.distributed as dist"]
        blocks += ["\n".join([*self._names(), *self._world()])]
        definitions = self.provided.definitions(needs).strip("\n")
        blocks += [f"\n{definitions}\n"] if definitions else []
        blocks += [self.provided.keeping_the_world(self.world.backend).strip("\n")] if self._forms_world() else []
        return "\n\n".join(blocks)

    def tail(self) -> str:
        """Everything after the last cell."""
        return f"{self.provided.leave}()" if self._forms_world() else "dist.destroy_process_group()"

    def _needs(self) -> set[str]:
        needs = {n for t in self.cells for n in t.needs}
        return needs | {self.provided.display, self.provided.show} if "display" in self._unbound() else needs

    def _unbound(self) -> set[str]:
        """Names that cells read and none gives a meaning."""
        return {n for t in self.cells for n in t.loads} - {n for t in self.cells for n in t.binds}

    def _forms_world(self) -> bool:
        return any({n, f".{n}"} & t.loads for t in self.cells for n in _FORMING)

    def _docstring(self, is_shown: bool) -> str:
        counts = self.world.nproc_per_node
        machine = "on one machine, where node_rank is 0 everywhere" if len(counts) > 1 else "on one machine"
        lines = [
            f'"""The cells of a jdist session on {_nodes(counts)}, backend {self.world.backend}.',
            "",
            f"Run it {machine}:",
            "",
            f"    torchrun --standalone --nproc-per-node {self.world.size} {self.file}",
        ]
        if len(counts) > 1:
            each = [("NODE", counts[0])] if len(set(counts)) == 1 else [(str(n), c) for n, c in enumerate(counts)]
            where = "with its number as NODE and the first one's" if len(each) == 1 else "with the first one's"
            lines += ["", f"or on each node, {where} address as HOST:", ""]
            lines += [
                f"    torchrun --nnodes {len(counts)} --nproc-per-node {count} --node-rank {node} "
                f"--master-addr HOST --master-port 29500 {self.file}"
                for node, count in each
            ]
        if is_shown:
            lines += ["", f"What a cell showed as its value is printed by {self.provided.show}(); pictures and tables"]
            lines += ["of the notebook are their text here."]
        return "\n".join([*lines, '"""'])

    def _names(self) -> list[str]:
        lines = [
            "# What every rank of the session has.",
            'rank = int(os.environ["RANK"])',
            'local_rank = int(os.environ["LOCAL_RANK"])',
            'node_rank = int(os.environ["GROUP_RANK"])',
            'world_size = int(os.environ["WORLD_SIZE"])',
        ]
        if self.is_tied:
            lines.append(f"if world_size != {self.world.size}:")
            what = f"cells of this script name ranks of a world of {self.world.size}, not of {{world_size}}"
            lines.append(f'    raise SystemExit(f"{what}")')
        return lines

    def _world(self) -> list[str]:
        backend = self.world.backend
        lines = ['device = torch.device("cpu")', f'dist.init_process_group("{backend}")']
        if "nccl" in backend:
            own = ", device_id=device" if backend == "nccl" else ""
            lines = [
                'device = torch.device("cuda", local_rank)',
                "torch.cuda.set_device(device)",
                f'dist.init_process_group("{backend}"{own})',
            ]
        return [*lines, "groups = {}"] if self.has_groups or "groups" in self._unbound() else lines


def _nodes(counts: tuple[int, ...]) -> str:
    """``2 nodes with 2 ranks each``."""
    if len(set(counts)) > 1:
        return f"{len(counts)} nodes with {', '.join(map(str, counts))} ranks"
    each = f"{counts[0]} rank{'' if counts[0] == 1 else 's'}"
    return f"one node with {each}" if len(counts) == 1 else f"{len(counts)} nodes with {each} each"

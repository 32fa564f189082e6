"""The round trip of a cell: an empty ``%%dist`` cell against an empty cell of a plain kernel, at one front end."""

from __future__ import annotations

from measuring.frontend import IDLE, FrontEnd, private_runtime
from measuring.table import MILLISECONDS, Table, pairs

import jdist

TURNS = 60
AIMS = {4: 3.0, 8: 5.0}
REDUCE = "t = torch.ones(1)\ndist.all_reduce(t)\nprint(t)"


def main() -> None:
    table = Table("one cell, seen by a front end: from execute to idle; floor: the same cell in a plain ipykernel")
    with FrontEnd() as plain, FrontEnd() as notebook:
        for ranks, aim in AIMS.items():
            notebook.start(ranks)
            empty = pairs(lambda: notebook.run("%%dist\npass"), lambda: plain.run("pass"), TURNS, warm_up=5)
            table.row(f"empty %%dist cell, {ranks} ranks", empty, MILLISECONDS, most=aim)
            reduce = pairs(lambda: notebook.run(f"%%dist\n{REDUCE}"), lambda: plain.run("print(1)"), TURNS, warm_up=5)
            table.row(f"all_reduce + print, {ranks} ranks; print(1)", reduce, MILLISECONDS)
            notebook.stop()
        with jdist.start(nproc_per_node=4, idle_timeout=IDLE) as cluster:
            direct = pairs(lambda: _none(cluster.run("pass")), lambda: plain.run("pass"), TURNS, warm_up=5)
            table.row('cluster.run("pass"), 4 ranks', direct, MILLISECONDS)


def _none(_: object) -> None:
    """The pair takes the seconds."""


if __name__ == "__main__":
    with private_runtime():
        main()

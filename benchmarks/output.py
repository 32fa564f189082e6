"""Many lines of output from every rank, against one plain kernel that prints as many."""

from __future__ import annotations

from measuring.frontend import FrontEnd, private_runtime
from measuring.table import SECONDS, Table, pairs

RANKS = 4
LINES = 100_000
TURNS = 3


def main() -> None:
    table = Table(
        f"{LINES:,} lines from each of {RANKS} ranks, until idle; floor: {RANKS * LINES:,} lines from a plain ipykernel"
    )
    flood = "for i in range({}):\n    print('step', i, 'loss', i / 7)"
    with FrontEnd() as plain, FrontEnd() as notebook:
        notebook.start(RANKS)
        by_all = pairs(
            lambda: notebook.run("%%dist\n" + flood.format(LINES)),
            lambda: plain.run(flood.format(RANKS * LINES)),
            TURNS,
            warm_up=0,
        )
        table.row("the same lines on every rank", by_all, SECONDS, most=1.0)
        different = "for i in range({}):\n    print(rank, 'step', i, 'loss', (i + rank) / 7)"
        unlike = pairs(
            lambda: notebook.run("%%dist\n" + different.format(LINES)),
            lambda: plain.run("rank = 0\n" + different.format(RANKS * LINES)),
            TURNS,
            warm_up=0,
        )
        table.row("lines that differ by rank", unlike, SECONDS, most=1.0)
        notebook.stop()


if __name__ == "__main__":
    with private_runtime():
        main()

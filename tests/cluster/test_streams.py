"""A cell may leave anything in ``sys.stdout`` and ``sys.stderr``: it ends, and the next cell has its output."""

from __future__ import annotations

from textwrap import indent

import jdist
from jdist.core.messages.base import Message
from jdist.core.messages.runs import Output
from jdist.notebook.output.content import text_of
from jdist.notebook.output.transcript import BlockPart, Transcript

TEE = """
import sys, io
class Tee:
    def __init__(self, own): self.own = own
    def write(self, text): return self.own.write(text)
"""
LOGGING = """
import logging, io
handler = logging.StreamHandler(io.StringIO())
handler.stream.close()
print('seen')
logging.getLogger('left').addHandler(handler)
logging.getLogger('left').warning('lost')
"""
LEFT = {
    "a class without flush": (TEE + "sys.stdout = Tee(sys.stdout)\nprint('seen')", "seen\n", ""),
    "one with a file": (
        TEE + "Tee.flush = lambda self: None\nsys.stdout = Tee(sys.stdout)\nprint('seen')",
        "seen\n",
        "",
    ),
    "flush raises": (
        TEE
        + "def flush(self): raise ValueError('no')\nTee.flush = flush\nsys.stdout = Tee(sys.stdout)\nprint('seen')\n1",
        "seen\n",
        "jdist: sys.stdout was left as a Tee that cannot be used (ValueError: no); it was reset\n",
    ),
    "flush exits": (
        TEE + "Tee.flush = lambda self: sys.exit(3)\nsys.stdout = Tee(sys.stdout)\nprint('seen')\n1",
        "seen\n",
        "jdist: sys.stdout was left as a Tee that cannot be used (SystemExit: 3); it was reset\n",
    ),
    "write raises": (
        TEE + "def write(self, text): raise ValueError('no')\nTee.write = write\nsys.stdout = Tee(0)\nprint('lost')",
        "",
        "jdist: sys.stdout was left as a Tee that cannot be used (ValueError: no); it was reset\n",
    ),
    "no place for another write": (
        TEE + "Tee.__slots__ = ()\nclass S(Tee):\n    write = property(lambda self: self.own.write)\n"
        "sys.stdout = S(sys.stdout)\nprint('seen')",
        "seen\n",
        "has no setter",
    ),
    "None": ("import sys\nprint('seen')\nsys.stdout = None\nprint('lost')\n1", "seen\n", "was left as None"),
    "None, and an error": ("import sys\nprint('seen')\nsys.stdout = None\n1 / 0", "seen\n", "was left as None"),
    "no stderr, and an error": ("import sys\nsys.stderr = None\n1 / 0", "", "sys.stderr was left as None"),
    "neither, and a group": (
        "import sys\nsys.stdout = sys.stderr = None\nraise ExceptionGroup('g', [OSError()])",
        "",
        "",
    ),
    "None, and an await": ("import sys, asyncio\nsys.stdout = None\nawait asyncio.sleep(0)\n1 / 0", "", "left as None"),
    "its methods are others": (
        "import sys\nprint('seen')\nsys.stderr.flush = sys.stderr.write = sys.stdout.flush = lambda *_: 1 / 0",
        "seen\n",
        "",
    ),
    "it is deleted": ("import sys\nprint('seen')\ndel sys.stdout, sys.stderr", "seen\n", "sys.stdout was left as None"),
    "a class that hides what it is": (
        "import sys\nclass Hidden: __class__ = property(lambda self: 1 / 0)\nprint('seen')\nsys.stdout = Hidden()",
        "seen\n",
        "cannot be looked at (ZeroDivisionError: division by zero)",
    ),
    "closed": ("import sys\nprint('seen')\nsys.stdout.close()\nsys.stderr.close()\n1", "seen\n", ""),
    "a file that is closed": (
        "import sys, os\nsys.stdout = open(os.devnull, 'w')\nsys.stdout.close()\n1",
        "",
        "jdist: sys.stdout was left as a TextIOWrapper that cannot be used (ValueError: it is closed)",
    ),
    "StringIO": (
        "import sys, io\nprint('seen')\nsys.stdout = io.StringIO()\nprint('kept there')\n1",
        "seen\n",
        "jdist: sys.stdout was left as a StringIO, which shows nothing; it was reset\n",
    ),
    "redirect_stdout": (
        "import contextlib, io\ncontextlib.redirect_stdout(io.StringIO()).__enter__()\nprint('kept there')",
        "",
        "jdist: sys.stdout was left as a StringIO",
    ),
    "the process's own": ("import sys\nsys.stdout = sys.__stdout__\nprint('seen')", "seen\n", ""),
    "descriptor 1 is closed": (
        "import os\nprint('seen')\nos.close(1)",
        "seen\n",
        "jdist: file descriptor 1 was closed; it is open again\n",
    ),
    "descriptor 1 leads elsewhere": (
        "import os\nown, null = os.dup(1), os.open(os.devnull, os.O_WRONLY)\nos.dup2(null, 1)\nprint('seen')",
        "seen\n",
        "",
    ),
    "a handler of logging whose stream is closed": (LOGGING, "seen\n", "ValueError: I/O operation on closed file"),
    "a flush that does not return": (
        TEE + "def flush(self):\n    while True: pass\nTee.flush = flush\nsys.stdout = Tee(sys.stdout)\nprint('seen')",
        "seen\n",
        "cannot be used (KeyboardInterrupt)",
    ),
}
NEXT = """
import os
if 'own' in globals() and isinstance(own, int):
    os.dup2(own, 1)
    os.close(own), os.close(null)
    del own, null
print('next')
child = os.system('echo from a child')
"""
AFTER = """
import sys
sys.stdout, sys.stderr = getattr(sys.stdout, 'own', sys.stdout), getattr(sys.stderr, 'own', sys.stderr)
"""


def test_whatever_a_cell_leaves_as_its_streams_it_ends_and_the_next_has_its_output(cluster: jdist.Cluster) -> None:
    cases = list(LEFT.items())
    for at in range(0, len(cases), 4):  # four at a time, one on each rank
        some = cases[at : at + 4]
        cell = "".join(f"if rank == {r}:\n{indent(code, '    ')}\n" for r, (_, (code, _, _)) in enumerate(some))
        run = cluster.submit(f"{cell}rank", (0, 1, 2, 3), timeout=5 if at + 4 >= len(cases) else 30)
        assert run.wait(40), some
        after = cluster.submit(NEXT, (0, 1, 2, 3), timeout=30)
        assert after.wait(40), some
        for rank, (name, (_, out, err)) in enumerate(some):
            outcome = run.outcomes[rank]
            assert outcome.kind in ("value", "error"), (name, outcome)
            assert outcome.stdout == out or name.startswith("neither"), (name, outcome.stdout)
            assert err in outcome.stderr if err else "jdist" not in outcome.stderr or name.startswith("neither"), (
                name,
                outcome.stderr,
            )
            assert after.outcomes[rank].stdout == "next\nfrom a child\n", (name, after.outcomes[rank])
            assert after.outcomes[rank].stderr == "", (name, after.outcomes[rank])
        cluster.run(AFTER, timeout=30)


def test_a_class_that_also_writes_to_a_file_stays_for_the_next_cell(cluster: jdist.Cluster) -> None:
    code = (
        TEE
        + "def write(self, text):\n    log.append(text)\n    return self.own.write(text)\nTee.write = write\nlog = []\n"
    )
    cluster.run(code + "sys.stdout = Tee(sys.stdout)", timeout=30)
    run = cluster.submit("print('two')", (0, 1, 2, 3), timeout=30)
    assert run.wait(40)
    assert all(o.stdout == "two\n" for o in run.outcomes.values())
    assert cluster.run("''.join(log)", timeout=30).values == dict.fromkeys(range(4), "two\n")
    cluster.run(AFTER, timeout=30)


def test_each_rank_is_shown_in_the_order_in_which_it_printed_warned_and_displayed(cluster: jdist.Cluster) -> None:
    run = cluster.run("""
import os, sys
for step in range(20):
    print("printed", step, rank)
    print("warned", step, rank, file=sys.stderr)
    display(f"displayed {step} {rank}")
    os.system(f"echo child {step} {rank}")
    display(f"last {step} {rank}")
""")
    transcript = Transcript(run.ranks)

    def feed(message: Message | None) -> None:
        for item in message.items if isinstance(message, Output) else ():
            transcript.feed(item)

    run.watch(feed)
    transcript.close()
    for rank in run.ranks:
        written = [text_of(BlockPart((rank,), item)).strip("'") for item in transcript.items(rank)]
        words = ("printed", "warned", "displayed", "child", "last")
        assert written == [f"{word} {step} {rank}" for step in range(20) for word in words]

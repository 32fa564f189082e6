"""Values whose own code fails when they are shown: the cell goes on, and says what failed."""

from __future__ import annotations

from textwrap import indent

import jdist
from jdist.core.messages.base import Message
from jdist.core.messages.runs import Display, Output

FORGET = "get_ipython().displayhook.flush()"
"""Ranks keep results in `Out`: a rank that crashes in a later test would have to pickle those that cannot be."""

CASES = {
    "def __repr__(self): raise ValueError('bad')": ("<Own: repr() raised ValueError: bad>", ""),
    "def __repr__(self): raise type('E', (Exception,), {'__str__': lambda e: 1 / 0})": (
        "<Own: repr() raised E, whose text raises ZeroDivisionError>",
        "",
    ),
    "def __repr__(self): return 3": ("<Own: repr() raised TypeError: __repr__ returned non-string (type int)>", ""),
    "def __repr__(self): return repr(self)": (
        "<Own: repr() raised RecursionError: maximum recursion depth exceeded",
        "",
    ),
    "def _repr_html_(self): raise ValueError('bad')": ("Own()", "jdist: Own._repr_html_() raised ValueError: bad\n"),
    "def _repr_html_(self): return 3": ("Own()", "jdist: Own._repr_html_() returned int\n"),
    "def _repr_mimebundle_(self, **_): raise ValueError('bad')": (
        "Own()",
        "jdist: Own._repr_mimebundle_() raised ValueError: bad\n",
    ),
    "def _ipython_display_(self): raise ValueError('bad')": (
        "Own()",
        "jdist: Own._ipython_display_() raised ValueError: bad\n",
    ),
    "def __reduce__(self): raise SystemExit(1)": ("Own()", ""),
    "def __repr__(self): return 'a\\udc80b'": ("a\ufffdb", ""),
    "def __repr__(self): print('said'); return 'Own()'": ("Own()", ""),
    "def __repr__(self): return 'x' * 20_000_000": ("x" * 20_000 + "\n… 19,960,000 characters left out …", ""),
}


def test_a_value_that_cannot_be_shown_says_so_and_the_cell_goes_on(cluster: jdist.Cluster) -> None:
    cases = list(CASES.items())
    for at in range(0, len(cases), 4):  # four at a time, one on each rank
        some = cases[at : at + 4]
        made = "class Own:\n    def __repr__(self): return 'Own()'\n"
        made += "".join(
            f"if rank == {r}:\n    class Own(Own):\n{indent(code, ' ' * 8)}\n" for r, (code, _) in enumerate(some)
        )
        shown: dict[int, list[Display]] = {r: [] for r in range(4)}

        def watch(message: Message | None, shown: dict[int, list[Display]] = shown) -> None:
            for item in message.items if isinstance(message, Output) else ():
                if isinstance(item, Display):
                    for r in item.ranks:
                        shown[r].append(item)

        run = cluster.submit(f"{made}display(Own())\nOwn()", (0, 1, 2, 3), timeout=30)
        run.watch(watch)
        assert run.wait(40)
        for rank, (code, (text, err)) in enumerate(some):
            assert run.outcomes[rank].kind == "value", (code, run.outcomes[rank])
            assert [d.is_result for d in shown[rank]] == [False, True], code
            assert all(d.data["text/plain"].startswith(text) for d in shown[rank]), (code, shown[rank])
            assert run.outcomes[rank].stderr == err * 2, code
    cluster.run(f"del Own; {FORGET}", timeout=30)


def test_what_never_ends_when_it_is_shown_or_sent_ends_at_stop_and_one_may_call_a_collective(
    cluster: jdist.Cluster,
) -> None:
    made = (
        "class Own:\n    def __repr__(self):\n        return f'sum {dist.all_reduce(t := torch.ones(1)) or t.item()}'\n"
    )
    run = cluster.submit(f"{made}Own()", (0, 1, 2, 3), timeout=60)
    assert run.wait(70)
    assert {o.kind for o in run.outcomes.values()} == {"value"}
    endless = "        while True: pass\n"
    made = (
        f"kept = rank\nclass Own:\n    def __repr__(self):\n{endless}class Sent:\n    def __reduce__(self):\n{endless}"
    )
    cluster.submit(made, (0, 1, 2, 3), timeout=30).wait(40)
    for value in ("Own()", "Sent()"):
        run = cluster.submit(value, (0, 1, 2, 3), timeout=1)
        assert run.wait(30)
        assert {o.kind for o in run.outcomes.values()} <= {"timeout", "value"}, run.outcomes
    assert cluster.run("kept", timeout=30).values == {r: r for r in range(4)}, "no rank was replaced"
    cluster.run(f"del Own, Sent, kept; {FORGET}", timeout=30)

"""Export: cells of a session become one script, verbatim but for what a script cannot have, of which it is told."""

from __future__ import annotations

import ast
import textwrap
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jdist.client.history import Annotation, BroadcastStep, CellStep, GroupStep, MeshStep, Step, ValueStep
from jdist.core.rank_code import run_script
from jdist.notebook.export import Script, ScriptWorld, Untranslatable, compose, indented, setup_first, translate

WORLD = ScriptWorld((2, 2), "gloo")


def cell(code: str, number: int = 1, ranks: tuple[int, ...] = (0, 1, 2, 3), **more: Any) -> CellStep:
    return CellStep(**{"number": number, "code": code, "ranks": ranks, "world_size": 4, "state": "done", **more})


def script(*steps: Step, world: ScriptWorld = WORLD) -> Script:
    """Composed, and Python."""
    made = compose(steps, world, "train.py")
    compile(made.text, "train.py", "exec")
    return made


def body(*steps: Step) -> str:
    """What the script has between its head and its end, each cell's heading left out."""
    text = script(*steps).text
    between = text[text.index("# %%") : text.index("\ndist.destroy_process_group()")]
    return "\n".join(line for line in between.splitlines() if not line.startswith("# %%")).strip("\n")


# ---------------------------------------------------------------- one cell

AS_IT_IS = [
    "x = 1",
    "t = torch.ones(3)  # as written\n\n\ndist.all_reduce(t)",
    "def f(a):\n    '''Doc\n  string.'''\n    return a",
    "try:\n    x = 1\nexcept ValueError as e:\n    raise RuntimeError from e\nfinally:\n    pass",
    "for _ in range(3): pass",
    "x = 5 % 2\ny = (x\n     % 3)",
    "s = '''\n%time\n!ls\n'''",
    "class A:\n    async def f(self):\n        await g()",
    "match x:\n    case 1:\n        y = 2",
]


@pytest.mark.parametrize("code", AS_IT_IS)
def test_what_is_python_stays_as_it_is(code: str) -> None:
    assert translate(code).code == code
    assert body(cell(code)) == code


MAGICS = [
    ("!ls -l", "# !ls -l  (left out)", "!ls -l"),
    ("files = !ls", "# files = !ls  (left out)", "files = !ls"),
    ("%time x = f()\nx", "# %time x = f()  (left out)\nx", "%time x = f()"),
    ("n = %sx ls", "# n = %sx ls  (left out)", "n = %sx ls"),
    ("x?", "# x?  (left out)", "x?"),
    ("!ls \\\n  -l\nx = 1", "# !ls \\  (left out)\n# -l  (left out)\nx = 1", "!ls"),
    ("s = '''\n!ls\n'''\n!ls", "s = '''\n!ls\n'''\n# !ls  (left out)", "!ls"),
    ("if rank == 0:\n    !ls", "if rank == 0:\n    pass  # !ls  (left out)", "!ls"),
    ("x = 1\n%%time", "x = 1\n# %%time  (left out)", "%%time"),
    ("%%time\nx = 1\nx", "# %%time  (left out)\nx = 1\nx", "%%time"),
    ("%%bash\nls", None, "%%bash"),
    ("%%writefile a.py\nx = 1", None, "%%writefile"),
    ("return 1", None, "not valid Python"),
    ("await f()", None, "not valid Python"),
    ("x = = 1", None, "not valid Python"),
    ("x = 1\0", None, "not valid Python"),
]


@pytest.mark.parametrize(("code", "expected", "note"), MAGICS, ids=[m[0] for m in MAGICS])
def test_what_only_a_notebook_does(code: str, expected: str | None, note: str) -> None:
    if expected is None:
        with pytest.raises(Untranslatable, match=note):
            translate(code)
        return
    found = translate(code)
    assert found.code == expected
    assert note in " ".join(found.left_out)


def test_from_future_moves_to_the_top() -> None:
    text = script(cell("x = 1"), cell("from __future__ import annotations\ndef f(a: Later): ...", 2)).text
    assert text.index("\nfrom __future__ import annotations\n") < text.index("import os")
    assert "# from __future__ import annotations  (left out)" in text


# ---------------------------------------------------------------- indentation

STRINGS = "x = '''a\nb\n  c''' + \"d\\\ne\"\nif x:\n    y = f'''{x}\nz'''\n# a comment\n\n(1,\n2)"


@pytest.mark.parametrize("code", [*AS_IT_IS, STRINGS])
def test_indenting_changes_no_value(code: str) -> None:
    under = ast.parse(f"if 1:\n{indented(code)}").body[0]
    assert isinstance(under, ast.If)
    assert [ast.dump(s) for s in under.body] == [ast.dump(s) for s in ast.parse(code).body]


@given(st.text("ab\n '\"\\#", max_size=40))
def test_indenting_any_python_changes_no_value(text: str) -> None:
    code = f"x = {text!r}\ny = '''{text}'''"
    try:
        expected = ast.parse(code).body
    except (SyntaxError, ValueError):
        return
    under = ast.parse(f"if 1:\n{indented(code)}").body[0]
    assert isinstance(under, ast.If)
    assert [ast.dump(s) for s in under.body] == [ast.dump(s) for s in expected]


# ---------------------------------------------------------------- the script

STEPS = [
    (cell("x = 1\ny = 2", ranks=(0, 1)), "if rank in (0, 1):\n    x = 1\n    y = 2"),
    (cell("x = 1", ranks=(2,)), "if rank == 2:\n    x = 1"),
    (GroupStep("tp", (1, 0)), 'groups["tp"] = dist.new_group([1, 0], group_desc="tp")'),
    (MeshStep(("dp", "tp"), (2, 2)), 'mesh = dist.init_device_mesh(device.type, (2, 2), mesh_dim_names=("dp", "tp"))'),
    (MeshStep(("dp",), (4,)), 'mesh = dist.init_device_mesh(device.type, (4,), mesh_dim_names=("dp",))'),
    (ValueStep("lr", (0, 1, 2, 3), "0.1", "float"), "lr = 0.1"),
    (ValueStep("lr", (1,), "0.1", "float"), "if rank == 1:\n    lr = 0.1"),
    (
        ValueStep("b", (0, 1, 2, 3), "torch.tensor([1, 2], dtype=torch.int64)", "Tensor [2]", dim=0),
        "b = torch.tensor([1, 2], dtype=torch.int64).tensor_split(4, dim=0)[rank]",
    ),
    (
        ValueStep("b", (1, 3), "torch.tensor([1])", "Tensor [1]", dim=0),
        "if rank in (1, 3):\n    b = torch.tensor([1]).tensor_split(2, dim=0)[[1, 3].index(rank)]",
    ),
    (BroadcastStep("x", 1), "x = [x if rank == 1 else None]\ndist.broadcast_object_list(x, src=1)\nx = x[0]"),
]


@pytest.mark.parametrize(("step", "expected"), STEPS)
def test_a_step(step: Step, expected: str) -> None:
    assert body(step) == expected
    assert script(step).warnings == ()


NOT_THERE = [
    (cell("raise ValueError", state="failed", why="CellError: rank 2 failed: ValueError"), "rank 2 failed: ValueError"),
    (cell("%%bash\nls"), "%%bash works only in notebooks"),
    (cell(run_script("a.py", [])), "give that to torchrun"),
    (cell("loss = 0", is_inner=True), "it ran in the frames of a cell that was paused, or had failed"),
    (ValueStep("x", (0, 1, 2, 3), "", "Tensor [1000]"), "the value (Tensor [1000]) is not in the script"),
    (ValueStep("x", (0, 1, 2, 3), "[1, 2]", "list", dim=0), "the value (list) is not in the script"),
    (Annotation("ranks 2 removed"), "ranks 2 removed"),
]


@pytest.mark.parametrize(("step", "why"), NOT_THERE)
def test_what_cannot_be_in_a_script_is_a_comment_and_a_warning(step: Step, why: str) -> None:
    made = script(step)
    assert len(made.warnings) == 1
    assert why in made.warnings[0]
    assert not [line for line in body(step).splitlines() if not line.startswith("#")]
    if isinstance(step, CellStep):
        assert (made.cells, made.left_out) == (0, 1)
        for line in step.code.splitlines():
            assert f"# {line}" in made.text


def test_a_cell_of_magics_only_needs_no_condition() -> None:
    assert body(cell("%matplotlib inline", ranks=(2,))) == "# %matplotlib inline  (left out)"


def test_warnings_name_the_cell_as_the_user_sees_it() -> None:
    made = script(cell("%pip install einops", 9, title="In [12]: %%dist -r 0"))
    assert made.warnings == ("In [12]: %%dist -r 0 · run 9: left out, as it needs a notebook: %pip install einops",)
    assert "# %% In [12]: %%dist -r 0 · run 9\n" in made.text


def test_cells_that_are_not_over_or_had_another_world_are_there_and_told_of() -> None:
    made = script(cell("x = 1", state="running"), cell("y = 1", 2, ranks=(0, 1), world_size=2))
    assert "had not ended" in made.warnings[0]
    assert "in a world of 2, on ranks 0-1 of that" in made.warnings[1]
    assert "\nx = 1\n" in made.text
    assert "\ny = 1\n" in made.text


def test_setup_cells_come_first_with_the_groups_that_they_may_need() -> None:
    one, two = cell("a = 1", 1, is_setup=True), cell("b = 1", 3, is_setup=True)
    other, group, mesh = cell("c = 1", 2), GroupStep("g", (0,)), MeshStep(("dp",), (4,))
    assert setup_first([other, group, one, two, mesh]) == [group, one, two, other, mesh]
    assert setup_first([other, mesh]) == [other, mesh]


def test_a_world_of_another_size_is_refused_only_where_ranks_are_named() -> None:
    assert "SystemExit" not in script(cell("x = 1"), ValueStep("lr", (0, 1, 2, 3), "0.1", "float")).text
    for step in (cell("x = 1", ranks=(0,)), GroupStep("g", (0,)), MeshStep(("dp",), (4,))):
        assert "if world_size != 4:" in script(step).text


def test_the_head_has_what_the_cells_need_and_no_more() -> None:
    plain = script(cell("x = 1")).text
    assert not [w for w in ("display", "groups") if w in plain]
    assert "groups = {}" in script(cell("g = groups")).text
    assert "from IPython.display import display" in script(cell("display(x)")).text


@pytest.mark.parametrize(
    ("ranks", "members"),
    [
        (tuple(range(512)), "range(0, 512)"),
        (tuple(range(1, 512, 8)), "range(1, 506, 8)"),
        ((0, 1, 2, 3), "(0, 1, 2, 3)"),
        ((0, 1, 2, 3, 5), "(0, 1, 2, 3, 5)"),
    ],
)
def test_many_ranks_are_a_range(ranks: tuple[int, ...], members: str) -> None:
    large = ScriptWorld((8,) * 128, "gloo")
    text = script(cell("x = 1", ranks=ranks, world_size=1024), GroupStep("g", ranks), world=large).text
    assert f"\nif rank in {members}:\n" in text
    assert tuple(eval(members)) == ranks
    assert f"dist.new_group(list({members})" in text or f"dist.new_group({list(ranks)}" in text


def test_a_cell_that_gives_rank_another_meaning_changes_no_condition() -> None:
    text = script(cell("for rank in range(3): pass"), cell("x = 1", 2, ranks=(0, 2)), BroadcastStep("x", 0)).text
    assert "if dist.get_rank() in (0, 2):" in text
    assert "x = [x if dist.get_rank() == 0 else None]" in text


def test_cells_that_form_the_world_themselves_find_it_formed() -> None:
    for code in ("dist.init_process_group('gloo')", "from torch.distributed import init_process_group"):
        text = script(cell(code)).text
        assert text.index('\ndist.init_process_group("gloo")') < text.index("dist.init_process_group = ")
        assert text.endswith("\ndist.distributed_c10d.destroy_process_group()\n")


@pytest.mark.parametrize(
    ("world", "says"),
    [
        (
            ScriptWorld((4,), "gloo"),
            ["one node with 4 ranks, backend gloo", "--standalone --nproc-per-node 4 train.py"],
        ),
        (ScriptWorld((1,), "gloo"), ["one node with 1 rank,"]),
        (ScriptWorld((2, 2), "gloo"), ["2 nodes with 2 ranks each", "--nnodes 2 --nproc-per-node 2 --node-rank NODE"]),
        (ScriptWorld((2, 1), "gloo"), ["--nproc-per-node 2 --node-rank 0", "--nproc-per-node 1 --node-rank 1"]),
        (ScriptWorld((2,), "nccl"), ['device = torch.device("cuda", local_rank)', '("nccl", device_id=device)']),
        (ScriptWorld((2,), "cpu:gloo,cuda:nccl"), ['dist.init_process_group("cpu:gloo,cuda:nccl")']),
    ],
)
def test_the_head_says_how_it_is_run(world: ScriptWorld, says: list[str]) -> None:
    made = script(cell("x = 1"), world=world)
    for part in says:
        assert part in made.text
    assert ast.get_docstring(ast.parse(made.text)) is not None


def test_what_is_no_longer_remembered_is_told() -> None:
    assert "first 1,200 steps" in compose([cell("x = 1")], WORLD, forgotten=1200).warnings[0]


@given(st.lists(st.sampled_from([c for c, *_ in MAGICS] + AS_IT_IS), max_size=6), st.booleans())
def test_any_cells_make_python(codes: list[str], is_part: bool) -> None:
    ranks = (0, 2) if is_part else (0, 1, 2, 3)
    script(*(cell(code, n, ranks) for n, code in enumerate(codes, 1)))


def test_a_whole_script() -> None:
    """As a reader finds it."""
    made = compose([cell("t = torch.ones(3) * rank\ndist.all_reduce(t)\nt", 1, title="In [3]: %%dist")], WORLD, "a.py")
    assert made.text == textwrap.dedent('''\
        """The cells of a jdist session on 2 nodes with 2 ranks each, backend gloo.

        Run it on one machine, where node_rank is 0 everywhere:

            torchrun --standalone --nproc-per-node 4 a.py

        or on each node, with its number as NODE and the first one's address as HOST:

            torchrun --nnodes 2 --nproc-per-node 2 --node-rank NODE --master-addr HOST --master-port 29500 a.py
        """

        import os

        import torch
        import torch.distributed as dist

        # What every rank of the session has.
        rank = int(os.environ["RANK"])
        local_rank = int(os.environ["LOCAL_RANK"])
        node_rank = int(os.environ["GROUP_RANK"])
        world_size = int(os.environ["WORLD_SIZE"])
        device = torch.device("cpu")
        dist.init_process_group("gloo")

        # %% In [3]: %%dist · run 1
        t = torch.ones(3) * rank
        dist.all_reduce(t)
        t

        dist.destroy_process_group()
        ''')

"""The magics in a real kernel, as a front end sees them: replies, outputs, interrupts, restarts, second notebooks."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import jdist
from jdist.client import find
from jdist.client.metrics.chart import MIME as METRICS
from jdist.wire.processes import has_ended
from support import anatomy
from support.notebook import DEADLINE, Cell, Notebook
from support.waits import eventually

if TYPE_CHECKING:
    from support.leaks import Traces

NAME = "front"
SOON = 20.0
"""Seconds: far less than what a cell takes that nothing ends, and enough for a busy machine."""


@pytest.fixture(scope="module")
def session(run_traces: Traces) -> Iterator[Notebook]:
    """A notebook that has started a cluster of two ranks, and run its first cell straight after."""
    before = set(run_traces.exempt)
    notebook = Notebook()
    run_traces.exempt.add(notebook.manager.provisioner.pid)  # type: ignore[union-attr]
    try:
        started = notebook.run(f"%dist start -n 2 --backend gloo --name {NAME} --timeout 60 --idle-timeout 60")
        first = notebook.run("%%dist\nprint('first', rank)")
        assert "2 ranks on 1 node" in started.text
        assert "ready in" in started.text
        assert "[0-1] first 0 | 1" in first.text
        run_traces.note_clusters()
        watching = jdist.attach(NAME)
        run_traces.exempt |= {anatomy.controller(watching), anatomy.agent(watching, 0)}
        watching.detach()
        yield notebook
        notebook.execute(f"%dist stop {NAME}")
    finally:
        notebook.close()
        run_traces.exempt = before


@pytest.fixture
def notebook(session: Notebook) -> Notebook:
    """The same, attached to its cluster."""
    session.run(f"%dist attach {NAME}")
    return session


# ---------------------------------------------------------------- outputs and replies


def test_output_is_one_display_with_both_forms(notebook: Notebook) -> None:
    cell = notebook.run("%%dist\nprint('loss', 0.5 + rank)\nrank * 2")
    assert len(cell.displays) == 1
    assert cell.stdout == cell.stderr == ""
    assert "[0-1] loss 0.5 | 1.5" in cell.text
    assert "2 ranks" in cell.text
    assert "loss 0.5 | 1.5" in cell.html


def test_a_long_cell_is_shown_while_it_runs(notebook: Notebook, tmp_path: Path) -> None:
    seen: list[str] = []

    def look(cell: Cell) -> None:
        seen.append(cell.text)
        if "step 2" in cell.text:
            (tmp_path / "seen").touch()

    cell = notebook.execute(
        f"""%%dist
import os, time
for i in range(5):
    print('step', i)
    while i == 2 and not os.path.exists('{tmp_path / "seen"}'):
        time.sleep(0.05)""",
        look,
    )
    assert cell.status == "ok"
    assert cell.updates >= 1
    assert any("step 1" in text and "step 4" not in text for text in seen), seen
    assert len(cell.displays) == 1


_SLOW = "import time\nfor i in range(3): print('step', i); time.sleep(0.4)"


def test_captured_output_has_one_picture_of_a_run(notebook: Notebook) -> None:
    assert not notebook.run(f"%%capture taken\n%%dist\n{_SLOW}").displays
    assert notebook.value("[each.update for each in taken.outputs]") == "[False]"
    (shown,) = notebook.run("taken.show()").displays
    assert "step 2" in shown["text/plain"]
    assert "2 ranks" in shown["text/plain"]


def test_a_run_in_the_background_is_not_captured_by_another_cell(notebook: Notebook) -> None:
    cell = notebook.run(f"%%dist -b -o slow\n{_SLOW}")
    notebook.run("%%capture taken\nprint('mine')\nslow.wait(20)\nimport time\ntime.sleep(0.5)")
    assert notebook.value("(taken.stdout, taken.outputs)") == repr(("mine\n", []))
    notebook.until(cell, lambda text: "step 2" in text and "run" in text)


def test_a_widget_that_takes_output_shows_how_a_run_ended(notebook: Notebook) -> None:
    run = f"get_ipython().run_cell_magic('dist', '', {_SLOW!r})"
    cell = notebook.run(f"import ipywidgets\nwith ipywidgets.Output():\n    {run}")
    assert cell.updates == 0
    assert "step 2" in cell.displays[-1]["text/plain"]


def test_what_ranks_log_is_a_chart_and_a_table(notebook: Notebook, tmp_path: Path) -> None:
    cell = notebook.run("%%dist\nimport jdist\nfor i in range(5): jdist.log(loss=i + 0.5 + rank)\nprint('trained')")
    output, chart = cell.displays
    assert "[0-1] trained" in output["text/plain"]
    assert chart["text/plain"].startswith("metrics of run")
    assert "loss     4     5     4.5      5.5      2" in chart["text/plain"]
    assert "<svg" in chart["text/html"]
    assert chart[METRICS]["charts"][0]["mean"] == [1, 2, 3, 4, 5]
    assert notebook.run("%dist output").displays[1] == chart, "the cluster has kept them, too"
    shown = notebook.run("%dist metrics")
    assert shown.displays == [chart]
    written = notebook.run(f"%dist metrics --csv {tmp_path / 'points.csv'}")
    assert "10 points written to" in written.text
    assert (tmp_path / "points.csv").read_text().splitlines()[1].startswith("0,0,loss,0.5,")
    assert "nothing was logged in run 9999" in notebook.execute("%dist metrics --run 9999").evalue


def test_a_failing_rank_fails_the_cell(notebook: Notebook) -> None:
    cell = notebook.execute("%%dist\nx = 1\nif rank == 1:\n    1 / 0\nrank")
    assert (cell.status, cell.ename) == ("error", "CellError")
    assert "rank 1" in cell.evalue
    assert "ZeroDivisionError" in cell.evalue
    assert "1 / 0" in cell.text
    assert "jdist/" not in cell.text


def test_frames_of_packages_are_one_line_of_a_traceback(notebook: Notebook) -> None:
    cell = notebook.execute("%%dist\nm = torch.nn.Sequential(torch.nn.Linear(2, 3))\ndef step():\n    m(rank)\nstep()")
    assert cell.ename == "CellError"
    lines = [line.strip() for line in cell.text.splitlines()]
    (folded,) = [line for line in lines if "frames in torch" in line]
    assert "the last is Linear.forward, torch/nn/modules/linear.py:" in folded
    assert "--full" in folded
    assert "site-packages" not in cell.text
    assert any("step()" in line and ">" in line for line in lines)
    assert "<summary" in cell.html
    assert "F.linear" in cell.html
    whole = notebook.run("%dist output --full").text
    assert "return F.linear" in whole
    assert "frames in torch" not in whole


def test_an_error_is_its_message_although_rich_shows_errors(notebook: Notebook) -> None:
    notebook.run("import rich.traceback\nrich.traceback.install(show_locals=True);")
    try:
        for code in ("%%dist\n1 / 0", "cluster.run('1 / 0')", "%dist check no_name", "%time cluster.run('1 / 0')"):
            cell = notebook.execute(code)
            assert cell.status == "error"
            assert "╭" not in cell.text + cell.stderr
            assert cell.traceback == [f"{cell.ename}: {cell.evalue}"]
        assert "╭" in notebook.execute("1 / 0").text
    finally:
        notebook.run("shell = get_ipython()\ndel shell.showtraceback, shell._showtraceback, shell.showsyntaxerror")


def test_a_deadline(notebook: Notebook) -> None:
    notebook.run("%%dist\nkept = rank + 1")
    began = time.monotonic()
    cell = notebook.execute("%%dist -t 0.5\nif rank == 0: dist.barrier()")
    assert time.monotonic() - began < SOON
    assert (cell.status, cell.ename) == ("error", "CellTimeout")
    assert "[0-1] kept 1 | 2" in notebook.run("%%dist\nt = torch.ones(1); dist.all_reduce(t)\nprint('kept', kept)").text


@pytest.mark.parametrize(
    "code",
    [
        "import time\nprint('in it')\nwhile True: time.sleep(0.01)",
        "print('in it')\nif rank == 0: dist.barrier()\nelse: __import__('time').sleep(100)",
    ],
)
def test_the_stop_button_stops_the_ranks_and_keeps_them(notebook: Notebook, code: str) -> None:
    notebook.run("%%dist\nimport os\nkept = os.getpid()")
    pids = notebook.run("%%dist\nprint('pid', kept)").text.splitlines()[0]
    began = time.monotonic()
    cell = notebook.execute("%%dist\n" + code, notebook.interrupt_when(lambda cell: "in it" in cell.text))
    assert time.monotonic() - began < SOON
    assert (cell.status, cell.ename) == ("error", "CellInterrupted")
    after = notebook.run("%%dist\nt = torch.ones(1); dist.all_reduce(t); assert t == 2\nprint('pid', os.getpid())").text
    assert pids in after


def test_the_stop_button_on_a_plain_cell_leaves_the_ranks_alone(notebook: Notebook) -> None:
    """SIGINT reaches the kernel's whole process group; the cluster is in sessions of its own."""
    notebook.run("%%dist -b -o background\nimport time\nfor _ in range(10): time.sleep(0.1)\nrank")
    cell = notebook.execute(
        "import time\nprint('on', flush=True)\ntime.sleep(30)",
        notebook.interrupt_when(lambda cell: "on" in cell.stdout),
    )
    assert cell.ename == "KeyboardInterrupt"
    notebook.run("background.wait(20)")
    assert notebook.value("background.values") == "{0: 0, 1: 1}"


# ---------------------------------------------------------------- options


def test_out_and_pull(notebook: Notebook) -> None:
    notebook.run("%%dist -o run -p a,b\na = rank\nb = torch.full((2,), float(rank))\na")
    assert notebook.value("run.values") == "{0: 0, 1: 1}"
    assert notebook.value("a") == "{0: 0, 1: 1}"
    assert notebook.value("b[1].tolist()") == "[1.0, 1.0]"


def test_ranks_and_lead(notebook: Notebook) -> None:
    assert "only 1" in notebook.run("%%dist -r 1\nprint('only', rank)").text
    cell = notebook.run("%%dist --lead 1\nprint('from', rank)")
    assert "from 1" in cell.text
    assert "from 0" not in cell.text
    assert "from 0" in cell.html
    assert "from 1" in notebook.run("%%dist -r -1\nprint('from', rank)").text


def test_background(notebook: Notebook, tmp_path: Path) -> None:
    go = tmp_path / "go"
    waits = f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)"
    cell = notebook.run(f"%%dist -b -o slow\n{waits}\nprint('late', rank)\nrank")
    assert "late" not in cell.text
    assert notebook.value("slow.is_done") == "False", "the cell was over before its run"
    go.touch()
    waiting = notebook.run("%%dist\nprint('after', rank)")
    assert "after" in waiting.text
    assert notebook.value("slow.is_done, slow.values") == "(True, {0: 0, 1: 1})"


def test_local_runs_it_here_too(notebook: Notebook) -> None:
    notebook.run("%%dist --local\nboth = 5")
    assert notebook.value("both") == "5"
    assert "[0-1] 5" in notebook.run("%%dist\nprint(both)").text


def test_auto(notebook: Notebook) -> None:
    assert "auto is on" in notebook.run("%dist auto on").text
    try:
        assert "[0-1] plain 0 | 1" in notebook.run("print('plain', rank)").text
        assert "here" in notebook.run("!echo here").text
        assert notebook.execute("1 / 0").ename == "CellError"
    finally:
        notebook.run("%dist auto off")
    assert notebook.execute("rank").ename == "NameError"


def test_input_that_the_front_end_cannot_give(notebook: Notebook) -> None:
    cell = notebook.execute("%%dist -r 0\ninput('who? ')")
    assert cell.status == "error"
    assert "asked for input" in cell.text
    notebook.run("%%dist\nrank")


# ---------------------------------------------------------------- verbs


def test_values_between_notebook_and_ranks(notebook: Notebook) -> None:
    notebook.run("import torch\nw = torch.arange(6.0).reshape(3, 2)\n%dist push w")
    assert "[0-1] 15.0" in notebook.run("%%dist\nprint(w.sum().item())").text
    notebook.run("%dist scatter w")
    notebook.run("%%dist\nassert w.shape[0] == 2 - rank")
    notebook.run("%dist gather w -o whole")
    assert notebook.value("torch.equal(whole, torch.arange(6.0).reshape(3, 2))") == "True"
    assert "differ" in notebook.run("%dist check w").text + notebook.value("repr(_)")
    notebook.run("%dist broadcast w --src 1")
    assert "float32" in notebook.run("%dist show w").text


def test_the_table_of_variables(notebook: Notebook) -> None:
    notebook.run("%%dist\nwide = torch.zeros(2, 3 + rank)\nplain = torch.ones(4)\nif rank: lonely = 'here'")
    lines = notebook.run("%dist vars").text.strip().splitlines()
    assert lines[0].split() == ["name", "ranks", "type", "shape", "dtype", "device", "bytes", "value", "compared"]
    rows = {line.split()[0]: " ".join(line.split()) for line in lines[1:]}
    assert rows["plain"] == "plain 0-1 Tensor [4] float32 cpu 16 B same metadata"
    assert rows["wide"] == "wide 0 Tensor [2, 3] float32 cpu 24 B differs"
    assert rows["1"] == "1 Tensor [2, 4] float32 cpu 32 B"
    assert rows["lonely"] == "lonely 1 str 'here' missing on rank 0"
    checked = notebook.run("%dist vars plain --check --stats").text
    assert checked.split()[-3:] == ["1", "2", "equal"]
    assert "wide" not in checked
    by_size = notebook.run("%dist vars w*,plain* --sort size -r 1").text.strip().splitlines()
    assert by_size[1].startswith("wide")
    assert "the ranks have no variables that match nothing*" in notebook.run("%dist vars nothing*").text


def test_status_list_groups_logs(notebook: Notebook) -> None:
    notebook.run("%%dist\nprint('a last line')")
    status = notebook.run("%dist status").text
    assert "idle" in status
    assert "a last line" in status
    assert NAME in notebook.run("%dist list").text
    notebook.run("%dist group firsts 0")
    assert "firsts" in notebook.run("%dist groups").text
    assert "x 0" in notebook.run("%%dist -g firsts\nprint('x', rank)").text
    assert "a last line" in notebook.run("%dist logs -r 1").text
    assert "--existing" in notebook.run("%dist console -r 1").text


def test_restart_of_a_rank_is_said(notebook: Notebook) -> None:
    notebook.run("%%dist\nmine = rank")
    assert "fresh" in notebook.run("%dist restart -r 1").text
    assert "fresh" in notebook.run("%dist status").text
    text = notebook.run("%%dist\nprint('mine' in globals())").text
    assert "[0] True" in text
    assert "[1] False" in text


def test_output_of_an_earlier_run_and_of_another_client(notebook: Notebook) -> None:
    other = jdist.Cluster.attach("front")
    try:
        run = other.run("print('share', rank)\nif rank == 1: raise ValueError('bad shard')", check=False)
        other.run("print('newest')")
    finally:
        other.detach()
    assert "newest" in notebook.run("%dist output").displays[0]["text/plain"]
    shown = notebook.run(f"%dist output {run.number}").displays[0]["text/plain"]
    assert "[0-1] share 0 | 1" in shown
    assert "rank 1 (node 0" in shown
    assert "ValueError: bad shard" in shown
    assert f"there is no run {run.number + 900}" in notebook.execute(f"%dist output {run.number + 900}").evalue


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("%dist strat", ["strat", "start"]),
        ("%dist start --nproc 2", ["--nproc"]),
        ("%dist start -n 2", [NAME, "%dist stop"]),
        ("%dist attach fornt", ["fornt", "front"]),
        ("%dist stop fornt", ["fornt", "front"]),
        ("%dist list now", ["now"]),
        ("%dist detach now", ["now"]),
        ("%dist status -x", ["-x"]),
        ("%dist interrupt -r 7", ["7"]),
        ("%dist restart -r nod=0", ["nod", "node"]),
        ("%dist group", ["name"]),
        ("%dist group world 0", ["world"]),
        ("%dist mesh dp=3", ["3", "2"]),
        ("%dist groups x", ["x"]),
        ("%dist pull", ["names"]),
        ("%dist pull 'a b'", ["a b"]),
        ("%dist push nothere", ["nothere"]),
        ("%dist scatter nothere", ["nothere"]),
        ("%dist gather a[0]", ["-o"]),
        ("%dist broadcast a --src 9", ["9"]),
        ("%dist show a -g nogroup", ["nogroup"]),
        ("%dist check", ["expr"]),
        ("%dist run", ["SCRIPT"]),
        ("%dist auto maybe", ["maybe", "on"]),
        ("%dist logs -r 9", ["9"]),
        ("%dist console -r x", ["x"]),
        ("%%dist -r 9\n1", ["9", "1"]),
        ("%%dist -g nogroup\n1", ["nogroup"]),
        ("%%dist -t never\n1", ["never", "20s"]),
        ("%%dist --ranks\n1", ["--ranks"]),
        ("%%dist --rank 1\n1", ["--rank", "--ranks"]),
        ("%%dist --lead 5\n1", ["5"]),
        ("%%dist -o 1x\n1", ["1x"]),
    ],
)
def test_what_is_not_understood(notebook: Notebook, line: str, words: list[str]) -> None:
    cell = notebook.execute(line)
    assert (cell.status, cell.ename) == ("error", "UsageError"), cell.evalue
    assert all(w in cell.evalue for w in words), cell.evalue


def test_usage(notebook: Notebook) -> None:
    assert "scatter" in notebook.run("%dist").stdout
    assert "--backend" in notebook.run("%dist start?").text


# ---------------------------------------------------------------- life


def test_a_kernel_restart_finds_all_as_it_was(notebook: Notebook, run_traces: Traces) -> None:
    notebook.run("%%dist\nmodel = torch.nn.Linear(2, 2); total = model.weight.sum().item()")
    notebook.restart()
    run_traces.exempt.add(notebook.manager.provisioner.pid)  # type: ignore[union-attr]
    assert notebook.execute("%%dist\n1").ename == "UsageError"
    assert "2 ranks" in notebook.run("%dist attach").text
    notebook.run("%%dist\nassert total == model.weight.sum().item()")


def test_two_notebooks_at_once(notebook: Notebook) -> None:
    other = jdist.attach(NAME)
    try:
        notebook.run("%%dist\nshared = rank")
        assert other.run("shared").values == {0: 0, 1: 1}
        notebook.run("%%dist\ncluster_names = 1")
        assert other.pull("cluster_names") == {0: 1, 1: 1}
    finally:
        other.detach()
    assert "[0-1] still" in notebook.run("%%dist\nprint('still')").text


def test_detach_and_attach(notebook: Notebook) -> None:
    assert f"%dist attach {NAME}" in notebook.run("%dist detach").text
    cell = notebook.execute("%%dist\n1")
    assert "%dist attach" in cell.evalue
    assert NAME in notebook.run("%dist list").text
    assert "attached" in notebook.run("%dist attach").text


def test_stop(notebook: Notebook, run_traces: Traces) -> None:
    notebook.run("%dist detach")
    notebook.run("%dist start -n 1 --backend gloo --name brief --timeout 60 --idle-timeout 60")
    run_traces.note_clusters()
    assert "brief is stopped" in notebook.run("%dist stop").text
    assert "brief" not in find.connections()
    assert notebook.execute("%%dist\n1").ename == "UsageError"


@pytest.mark.usefixtures("session")  # with the first notebook, jupyter_client makes an event loop, which it keeps
def test_a_killed_kernel_leaves_the_cluster_which_ends_by_itself(traces: Traces) -> None:
    before = traces.snapshot()
    own = Notebook()
    try:
        own.run("%dist start -n 1 --backend gloo --name left --timeout 60 --idle-timeout 1.5")
        traces.note_clusters()
        own.run("%%dist\nkept = 7")
        other = jdist.attach("left")  # before the kill: the cluster ends soon after its last client
    finally:
        anatomy.kill(own.manager.provisioner.pid)  # type: ignore[union-attr]
        own.close()
    assert other.run("kept").values == {0: 7}
    other.detach()
    assert eventually(lambda: "left" not in find.connections())
    assert eventually(lambda: not traces.excess(before)), traces.excess(before)


def test_a_front_end_without_updates_gets_whole_lines(notebook: Notebook, tmp_path: Path) -> None:
    """``jupyter run`` prints what is displayed and ignores what replaces it: it saw the first state of a run only."""
    cells = [
        f"%load_ext jdist\n%dist attach {NAME}",
        "%%dist\nimport time\nfor i in range(4):\n    print(f'step {i} of rank {rank}'), time.sleep(0.2)\nrank * 10",
        "%dist detach",
    ]
    files = [tmp_path / f"{i}.py" for i in range(len(cells))]
    for file, cell in zip(files, cells, strict=True):
        file.write_text(cell)
    program = Path(sys.executable).parent / "jupyter"
    done = subprocess.run([program, "run", *files], capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode == 0, done
    for rank in range(2):
        steps = [f"[{rank}] step {i} of rank {rank}" for i in range(4)]
        assert [line for line in done.stdout.splitlines() if line.startswith(f"[{rank}] step")] == steps
        assert f"[{rank}] {rank * 10}" in done.stdout.splitlines()
    assert "2 ranks" in done.stdout


@pytest.mark.parametrize(
    ("code", "shows"),
    [("%%dist\nkept", "[1] 1"), ("%dist status", "idle"), ("print(cluster.pull('kept'))", "{0: 0, 1: 1}")],
)
def test_whatever_comes_next_has_a_dead_controller_started_again(
    notebook: Notebook, run_traces: Traces, code: str, shows: str
) -> None:
    """A cell, a verb and a call go on as if nothing had happened, but for one notice."""
    notebook.run("%%dist\nkept = rank")
    old = int(notebook.value("cluster.asynchronous.link.connection.pid"))
    run_traces.exempt.discard(old)
    anatomy.kill(old)
    assert eventually(lambda: has_ended(old))
    cell = notebook.run(code)
    new = int(notebook.value("cluster.asynchronous.link.connection.pid"))
    run_traces.exempt.add(new)
    assert new != old
    assert shows in cell.text
    assert cell.text.count("died and was started again") == 1
    assert "started again" not in notebook.run("%%dist\nkept").text


def test_the_cells_of_a_notebook_become_a_script(notebook: Notebook, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    notebook.run("%%dist -r 0 -o run\nprint('only here')")
    number = int(notebook.run("print(get_ipython().execution_count)").stdout) - 1
    failed = notebook.execute("%%dist\n1 / 0")
    assert failed.status == "error"
    said = notebook.run(f"%dist export {path}").text
    assert f"written to {path}: " in said
    assert re.search(r"In \[\d+\]: %%dist · run \d+: left out: it failed: .*ZeroDivisionError", said)
    text = path.read_text()
    assert f"# %% In [{number}]: %%dist -r 0 -o run · run {notebook.value('run.number')}\nif rank == 0:\n" in text
    assert "    print('only here')\n" in text
    path.write_text(text + "# mine\n")
    assert "was edited after export wrote it" in notebook.execute(f"%dist export {path}").evalue

"""All that jdist shows in a notebook can be shown by every front end: VS Code, Colab, a file on a code host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ipywidgets
import pytest

import jdist
from jdist.client.measure.columns import MIME as TRACE
from jdist.client.metrics.chart import MIME as METRICS
from jdist.notebook.output.run_json import MIME as RUN
from support import anatomy
from support.front_ends import WIDGET, breaches
from support.notebook import Cell, Notebook

if TYPE_CHECKING:
    from support.leaks import Traces

NAME = "fronts"
TEXT = {"text/plain": "x"}


class Shown:
    """A notebook, and every bundle that it was sent, by the cell that showed it."""

    def __init__(self, notebook: Notebook) -> None:
        self.notebook = notebook
        self.bundles: list[tuple[str, Mapping[str, Any]]] = []

    def execute(self, code: str) -> Cell:
        def look(cell: Cell) -> None:
            self.bundles += [(code, bundle) for bundle in cell.displays if (code, bundle) not in self.bundles]

        return self.notebook.execute(code, look)


@pytest.fixture(scope="module")
def shown(run_traces: Traces) -> Iterator[Shown]:
    """A notebook that has started two ranks, and shows what a start shows."""
    before = set(run_traces.exempt)
    notebook = Notebook()
    run_traces.exempt.add(notebook.manager.provisioner.pid)  # type: ignore[union-attr]
    found = Shown(notebook)
    try:
        found.execute(f"%dist start -n 2 --backend gloo --name {NAME} --timeout 60 --idle-timeout 60")
        run_traces.note_clusters()
        watching = jdist.attach(NAME)
        run_traces.exempt |= {anatomy.controller(watching), anatomy.agent(watching, 0)}
        watching.detach()
        yield found
        found.execute(f"%dist stop {NAME}")
    finally:
        notebook.close()
        run_traces.exempt = before


RUNS = (
    "%%dist\nimport time\nfor i in range(4): print('step', i, rank), time.sleep(0.1)\nrank",
    "%%dist\nimport sys\nprint('\\x1b[31mred\\x1b[0m \\x1b[44mon blue\\x1b[0m')\nprint('to stderr', file=sys.stderr)",
    "%%dist --lead 1\nfor i in range(200): print(i * (rank + 1))",
    "%%dist\nif rank == 1: raise ValueError('<script>alert(1)</script>')\ndist.barrier()",
    "%%dist -t 1\nif rank == 0: dist.barrier()",
    "%%dist\nimport ipywidgets\nipywidgets.IntSlider()",
    "%%dist\nfrom tqdm.auto import tqdm\nfor _ in tqdm(range(3)): pass",
    "%%dist\nimport jdist\nfor i in range(9): jdist.log(loss=i + 0.5 + rank)\nw = torch.ones(2, 3) * rank",
    "%%dist --profile\nt = torch.ones(64, 64)\nfor _ in range(3): dist.all_reduce(t @ t)",
    "%%dist\nnothere",
    "nothere = 1",
    "%%dist\nnothere",
    "%%dist -b -o held\nbreakpoint()",
    "import time\nwhile len(held.paused) < 2: time.sleep(0.01)",
    "%dist where",
    "%dist status",
    "%dist continue",
)
VERBS = (
    "status",
    "list",
    "groups",
    "logs",
    "metrics",
    "resources",
    "trace",
    "profile",
    "doctor",
    "check w",
    "show w",
    "output",
)
OTHERS = ("panel", "group firsts 0", "mesh dp=2", "pull w", "push nothere", "restart -r 1", "console -r 0", "start?")


def test_whatever_is_shown_keeps_the_rules_of_all_front_ends(shown: Shown, tmp_path: Path) -> None:
    for code in RUNS:
        shown.execute(code)
    for words in (*VERBS, *OTHERS, f"save {tmp_path / 'saved'}", f"load {tmp_path / 'saved'}"):
        shown.execute(f"%dist {words}")
    found = {code: wrong for code, bundle in shown.bundles if (wrong := breaches(bundle))}
    assert not found
    mimes = {mime for _, bundle in shown.bundles for mime in bundle}
    assert {"text/plain", "text/html", RUN, METRICS, TRACE, WIDGET} <= mimes
    silent = {f"%dist {words}" for words in VERBS} - {code for code, _ in shown.bundles}
    assert not silent
    states = {bundle[RUN]["state"] for _, bundle in shown.bundles if RUN in bundle}
    assert {"running", "done"} <= states


def test_the_panel_is_made_of_the_widgets_that_every_front_end_has(shown: Shown) -> None:
    """VS Code and Colab load ``@jupyter-widgets`` only; other modules would come from a network."""
    shown.execute("%dist panel")
    shown.notebook.run(
        "from ipywidgets.embed import embed_data\n"
        "models = embed_data(views=None)['manager_state']['state'].values()\n"
        "made = {(m['model_module'], m['model_module_version']) for m in models}"
    )
    assert int(shown.notebook.value("len(models)")) > 20
    version = ipywidgets._version
    modules = {
        ("@jupyter-widgets/base", version.__jupyter_widgets_base_version__),
        ("@jupyter-widgets/controls", version.__jupyter_widgets_controls_version__),
    }
    assert shown.notebook.value("sorted(made)") == repr(sorted(modules))


@pytest.mark.parametrize(
    ("bundle", "breach"),
    [
        ({"text/html": "<p>x</p>"}, "no text/plain"),
        (TEXT | {RUN: {}}, f"{RUN} without text/html"),
        (TEXT | {"text/html": "<script>1</script>"}, "<script>"),
        (TEXT | {"text/html": "<p onclick='f()'>x</p>"}, "p onclick="),
        (TEXT | {"text/html": "<img src='https://a.b/c.png'>"}, 'img src="https://a.b/c.png"'),
        (TEXT | {"text/html": "<style>@import 'a.css';</style>"}, "<style>: @import 'a.css'"),
        (TEXT | {"text/html": "<p style='color:#000'>x</p>"}, "p style: color:#000 is not readable on every ground"),
        (TEXT | {"text/html": "<p style='color:var(--a,#fff)'>x</p>"}, None),
        (TEXT | {"text/html": "<p style='background:#fff'>x"}, "<p> is not closed"),
        (TEXT | {"text/html": "<p style='background:#fff'>x</p>"}, "background:#fff without a colour"),
        (TEXT | {"text/html": "<a href='javascript:f()'>x</a>"}, 'a href="javascript:f()"'),
        (TEXT | {"text/html": "<svg><text fill='black'>x</text></svg>"}, "text fill=black"),
    ],
)
def test_a_breach_is_found(bundle: dict[str, Any], breach: str | None) -> None:
    found = breaches(bundle)
    assert any((breach or "is not readable") in each for each in found), found


def test_what_every_front_end_shows_is_no_breach() -> None:
    shown = (
        '<p style="color:var(--a,inherit);background:var(--b,rgba(1,2,3,.1))"><img src="data:image/png;base64,x"></p>'
    )
    assert not breaches(TEXT | {"text/html": shown, RUN: {}})

"""Long output in a real JupyterLab: its box ends at its end, and a failure can be read without scrolling it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

import jdist
from support.lab.browsing import Lab, LabNotebook

pytestmark = pytest.mark.usefixtures("traces")

ENDS = {
    "few lines at once": "for i in range(200): print('line', i, 'of', rank)",
    "many lines at once": "for i in range(1500): print('line', i, 'of rank', 'abcd'[rank])",
    "lines for a while": """import time
for i in range(150):
    print('line', i, 'of rank', 'abcd'[rank])
    time.sleep(0.005)""",
    "displays between": """from IPython.display import HTML, display
for i in range(100):
    print('line', i)
    if i % 10 == 0: display(HTML(f"<table><tr><td style='height:90px'>{i} of {rank}</td></tr></table>"))""",
    "a display at the end": """from IPython.display import HTML, display
for i in range(100): print('line', i)
display(HTML("<div style='height:250px'>tall</div>"))""",
}
FAILURE = """
if rank == 2:
    raise ValueError('bad shard')"""
SHAPES = [*ENDS.items(), *((f"{name}, then an error", code + FAILURE) for name, code in ENDS.items())]


DETACH = 1 + len(SHAPES)
AT_END = "e => e.clientHeight > 100 && e.scrollTop + e.clientHeight >= e.scrollHeight - 2"
IN_SIGHT = """([e, box]) => {
    const [a, b] = [e, box].map(node => node.getBoundingClientRect());
    return a.height > 50 && (!box.contains(e) || (a.top >= b.top && a.bottom <= b.bottom));
}"""


@pytest.fixture(scope="module")
def opened(lab: Lab) -> Iterator[LabNotebook]:
    cells = ["%load_ext jdist\n%dist attach shared", *(f"%%dist\n{code}" for _, code in SHAPES), "%dist detach"]
    with lab.open_notebook(cells, name="long.ipynb", viewport={"width": 1280, "height": 1000}) as notebook:
        yield notebook
        assert not notebook.complaints


@pytest.fixture
def notebook(opened: LabNotebook, cluster: jdist.Cluster) -> Iterator[LabNotebook]:
    """It uses the shared cluster."""
    opened.run(0)
    yield opened
    opened.run(DETACH)


@pytest.mark.parametrize("number", range(len(SHAPES)), ids=[name for name, _ in SHAPES])
def test_it_ends_at_its_end(notebook: LabNotebook, number: int) -> None:
    notebook.run(1 + number)
    output = notebook.output(1 + number)
    expect(output.locator(".jdist-RunFooter")).to_contain_text("4 ranks")
    box = output.locator(".jdist-RunBody.jdist-mod-long")
    notebook.page.wait_for_function(AT_END, arg=box.element_handle())
    if SHAPES[number][1].endswith(FAILURE):
        failure = output.locator(".jdist-RunFailure")
        expect(failure.locator("strong")).to_contain_text("rank 2 (node 1")
        expect(failure).to_contain_text("raise ValueError('bad shard')")
        assert notebook.page.evaluate(IN_SIGHT, [failure.element_handle(), box.element_handle()])
    notebook.picture(f"long-output-{number}", output)


def test_it_ends_at_its_end_if_its_notebook_was_hidden_meanwhile(notebook: LabNotebook) -> None:
    page, number = notebook.page, 1 + [name for name, _ in SHAPES].index("lines for a while")
    page.evaluate(
        """async number => {
            const { commands, shell } = window.jupyterapp;
            const panel = shell.currentWidget;
            panel.content.activeCellIndex = number;
            const over = commands.execute('notebook:run-cell');
            await commands.execute('launcher:create');
            await over;
            shell.currentWidget.close();
            shell.activateById(panel.id);
        }""",
        number,
    )
    box = notebook.output(number).locator(".jdist-RunBody.jdist-mod-long")
    expect(box).to_contain_text("line 149 of rank d")
    page.wait_for_function(AT_END, arg=box.element_handle())

"""Libraries of widgets on ranks, in a real JupyterLab: what they draw is alive in both directions.

plotly gives every trace a random id, so its figures differ by rank; the one of rank 0 is enough here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Locator, expect

import jdist
from support.lab.browsing import Lab, LabNotebook

pytestmark = pytest.mark.usefixtures("traces")

ATTACH, COUNTER, COUNT, ADD, PLOTLY, TITLE, IPYMPL, DRAW, CLICKED, DETACH = range(10)
SLOW = "[anywidget] Failed to initialize model."  # Said of models that take two seconds, as plotly's do here.
CELLS = [
    "%load_ext jdist\n%dist attach shared",
    '''%%dist
import anywidget, traitlets
class Counter(anywidget.AnyWidget):
    _esm = """
    function render({ model, el }) {
      const button = document.createElement("button");
      const show = () => { button.textContent = `count is ${model.get("count")}, taken ${model.get("taken")}`; };
      button.addEventListener("click", () => { model.set("count", model.get("count") + 1); model.save_changes(); });
      model.on("change:count change:taken", show);
      show();
      el.appendChild(button);
    }
    export default { render };
    """
    count = traitlets.Int(0).tag(sync=True)
    taken = traitlets.Int(0).tag(sync=True)
    @traitlets.observe("count")
    def _take(self, change):
        self.taken = change["new"]
counter = Counter()
counter''',
    "%%dist\ncounter.count",
    "%%dist\ncounter.count += 40",
    """%%dist -r 0
import numpy as np, plotly.graph_objects as go
figure = go.FigureWidget(go.Scatter(x=np.arange(5), y=np.arange(5.0)), layout={'height': 300})
def zoomed(layout, x):
    layout.title = 'the ranks know'
figure.layout.on_change(zoomed, 'xaxis.range')
figure""",
    """%%dist -r 0
with figure.batch_update():
    figure.layout.title = 'set by the ranks'
    figure.data[0].y = np.arange(5) * 100.0""",
    """%%dist
%matplotlib widget
import ipywidgets, matplotlib.pyplot as plt
clicks, said = [], ipywidgets.Label()
drawn, axes = plt.subplots(figsize=(4, 2))
def clicked(event):
    clicks.append((event.button, event.inaxes is axes))
    said.value = 'clicked'
drawn.canvas.mpl_connect('button_press_event', clicked)
axes.plot([1, 2, 3])
plt.show()
said""",
    "%%dist\naxes.set_title('drawn again'); drawn.canvas.draw()",
    "%%dist\nclicks",
    "%dist detach",
]


@pytest.fixture(scope="module")
def opened(lab: Lab) -> Iterator[LabNotebook]:
    with lab.open_notebook(CELLS, viewport={"width": 1280, "height": 1000}) as notebook:
        yield notebook
        assert not [each for each in notebook.complaints if each != SLOW]


@pytest.fixture
def notebook(opened: LabNotebook, cluster: jdist.Cluster) -> Iterator[LabNotebook]:
    """It uses the shared cluster."""
    opened.run(ATTACH)
    yield opened
    opened.run(DETACH)


def test_anywidget(notebook: LabNotebook) -> None:
    notebook.run(COUNTER)
    button = notebook.output(COUNTER).get_by_role("button", name=re.compile("count is"))
    expect(button).to_have_count(1)
    button.click()
    expect(button).to_have_text("count is 1, taken 1")
    assert "0-3\n1" in notebook.run(COUNT)
    notebook.run(ADD)
    expect(button).to_have_text("count is 41, taken 41")


def test_plotly(notebook: LabNotebook) -> None:
    notebook.run(PLOTLY)
    output = notebook.output(PLOTLY)
    expect(output.locator(".js-plotly-plot")).to_have_count(1)
    notebook.run(TITLE)
    expect(output).to_contain_text("set by the ranks")
    notebook.picture("widget-plotly")
    zoom(notebook, output.locator(".nsewdrag").first)
    expect(output).to_contain_text("the ranks know")


def test_ipympl(notebook: LabNotebook) -> None:
    notebook.run(IPYMPL)
    canvas = notebook.output(IPYMPL).locator("canvas").last
    expect(canvas).to_be_visible()
    canvas.click()
    expect(notebook.output(IPYMPL)).to_contain_text("clicked")
    assert "0-3\n[(<MouseButton.LEFT: 1>, True)]" in notebook.run(CLICKED)
    notebook.run(DRAW)
    notebook.picture("widget-ipympl")


def zoom(notebook: LabNotebook, plot: Locator) -> None:
    """Drag a rectangle, as a user does."""
    box = plot.bounding_box()
    assert box is not None
    mouse = notebook.page.mouse
    mouse.move(box["x"] + box["width"] * 0.25, box["y"] + box["height"] * 0.25)
    mouse.down()
    mouse.move(box["x"] + box["width"] * 0.75, box["y"] + box["height"] * 0.75, steps=5)
    mouse.up()

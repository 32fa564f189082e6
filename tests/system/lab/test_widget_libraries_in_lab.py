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

ATTACH, COUNTER, COUNT, ADD, PLOTLY, TITLE, ZOOMED, IPYMPL, DRAW, CLICKED, DETACH = range(11)
SLOW = "[anywidget] Failed to initialize model."  # Said of models that take two seconds, as plotly's do here.
CELLS = [
    "%load_ext jdist\n%dist attach shared",
    '''%%dist
import anywidget, traitlets
class Counter(anywidget.AnyWidget):
    _esm = """
    function render({ model, el }) {
      const button = document.createElement("button");
      const show = () => { button.textContent = `count is ${model.get("count")}`; };
      button.addEventListener("click", () => { model.set("count", model.get("count") + 1); model.save_changes(); });
      model.on("change:count", show);
      show();
      el.appendChild(button);
    }
    export default { render };
    """
    count = traitlets.Int(0).tag(sync=True)
counter = Counter()
counter''',
    "%%dist\ncounter.count",
    "%%dist\ncounter.count += 40",
    """%%dist -r 0
import numpy as np, plotly.graph_objects as go
figure = go.FigureWidget(go.Scatter(x=np.arange(5), y=np.arange(5.0)), layout={'height': 300})
figure""",
    """%%dist -r 0
with figure.batch_update():
    figure.layout.title = 'set by the ranks'
    figure.data[0].y = np.arange(5) * 100.0""",
    "%%dist -r 0\nfigure.layout.xaxis.range is not None",
    """%%dist
%matplotlib widget
import matplotlib.pyplot as plt
clicks = []
drawn, axes = plt.subplots(figsize=(4, 2))
drawn.canvas.mpl_connect('button_press_event', lambda event: clicks.append((event.button, event.inaxes is axes)))
axes.plot([1, 2, 3])
plt.show()""",
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
    expect(button).to_have_text("count is 1")
    assert "0-3\n1" in notebook.run(COUNT)
    notebook.run(ADD)
    expect(button).to_have_text("count is 41")


def test_plotly(notebook: LabNotebook) -> None:
    notebook.run(PLOTLY)
    output = notebook.output(PLOTLY)
    expect(output.locator(".js-plotly-plot")).to_have_count(1)
    notebook.run(TITLE)
    expect(output).to_contain_text("set by the ranks")
    notebook.picture("widget-plotly")
    assert "False" in notebook.run(ZOOMED)
    zoom(notebook, output.locator(".nsewdrag").first)
    assert "True" in notebook.run(ZOOMED)


def test_ipympl(notebook: LabNotebook) -> None:
    notebook.run(IPYMPL)
    canvas = notebook.output(IPYMPL).locator("canvas").last
    expect(canvas).to_be_visible()
    canvas.click()
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

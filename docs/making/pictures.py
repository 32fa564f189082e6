"""Pictures: makes the pictures of the README and the documentation, from a real JupyterLab with a real cluster.

``make pictures`` makes all of them in ``docs/figures``, and ``make pictures PICTURES='hang lab-panel'`` some. They need
Chromium and the built JupyterLab extension. Cells are run and buttons clicked as a person would do it.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from PIL import Image, ImageDraw
from playwright.sync_api import Locator, Page, expect

import jdist
from support.lab.browsing import Lab, LabNotebook, LabServer, chromium, extension
from support.lab.panelled import Panelled

FIGURES = Path(__file__).parents[1] / "figures"
NO_NOTIFICATIONS = ".jp-toastContainer { display: none !important; }"
"""They would cover what a picture shows."""
ATTACH = "%load_ext jdist\n%dist attach training"
MESH = "%dist mesh dp=2,tp=2"
SKIPS = """%%dist
for step in range(5):
    gradient = torch.ones(3) * rank
    if rank == 2 and step == 3:
        break                  # a bug: rank 2 leaves the loop early
    dist.all_reduce(gradient)"""
KEPT = """%%dist
steps = torch.tensor(step)     # every rank has kept its variables
dist.all_reduce(steps)         # and the group is formed again
step, steps"""
FAILS = """%%dist
if rank == 2:
    raise ValueError("bad shard")
dist.barrier()"""
STRAGGLES = """%%dist
import time
gradients = torch.ones(1024)
for step in range(6):
    time.sleep(0.15 if rank == 2 else 0.05)   # compute
    dist.all_reduce(gradients)"""
PAUSES = """%%dist
def train_step(step):
    loss = 1 / (step + 1) + rank / 10
    if loss > 0.3:
        breakpoint()
    return loss

losses = [train_step(step) for step in range(3, 6)]"""
TRAINS = """%%dist
import jdist, math, random, time
random.seed(rank)
for step in range(60):
    time.sleep(0.02)
    loss = 2 * math.exp(-step / 20) + 0.1 + random.gauss(0, 0.04) + (0.25 if rank == 2 else 0)
    jdist.log(loss=loss, lr=1e-3 * min(1, (step + 1) / 10), step=step)"""
WORKS = """%%dist
import time
held = []
for turn in range(3):
    held.append(torch.ones(8 << 20 << rank // 2))     # 32 MiB, twice as much on node 1
    until = time.time() + (1.5 if rank == 2 else 3)
    matrix = held[0][:1 << 16].view(256, 256)
    while time.time() < until:
        time.sleep(0.002 * (rank + 1))
        matrix @ matrix
    dist.barrier()
    time.sleep(1)"""
LOOKS = "%%dist\nstep, loss"
SLIDES = """%%dist
import ipywidgets as widgets, jdist, time
rate = widgets.FloatLogSlider(value=0.001, min=-4, max=0, description="rate")
stop = widgets.Button(description="stop", icon="stop")
heard = widgets.Label("the rate has not been changed yet")
is_stopped = []
rate.observe(lambda e: setattr(heard, "value", f"the rate was {e['old']:.3f}, and is now {e['new']:.3f}"), "value")
stop.on_click(is_stopped.append)
widgets.VBox([widgets.HBox([rate, stop]), heard])"""
STEERED = """%%dist
loss = 2.0 + rank / 10
while not is_stopped:
    loss *= 1 - rate.value / 10
    jdist.log(loss=loss, rate=rate.value)
    time.sleep(0.02)
    jdist.process_events()"""


@contextlib.contextmanager
def notebook_of(lab: Lab, name: str, *cells: str, width: int = 960, height: int = 700) -> Iterator[LabNotebook]:
    """A notebook that uses the cluster, and nothing beside it."""
    size = {"width": width, "height": height}
    with lab.open_notebook([ATTACH, *cells], f"{name}.ipynb", viewport=size) as notebook:
        notebook.page.add_style_tag(content=NO_NOTIFICATIONS)
        notebook.page.evaluate("() => window.jupyterapp.restored.then(() => window.jupyterapp.shell.collapseLeft())")
        notebook.run(0)
        yield notebook
        notebook.page.mouse.move(0, 0)


@contextlib.contextmanager
def hanging(notebook: LabNotebook, index: int) -> Iterator[Locator]:
    """While a cell cannot finish: its verdict. The run is interrupted afterwards, by the verdict's own button."""
    notebook.start(index)
    verdict = notebook.output(index).get_by_role("status").filter(has_text="cannot finish")
    button = verdict.get_by_role("button", name="%dist interrupt")
    expect(button).to_be_visible()
    try:
        yield verdict
    finally:
        button.click()
        notebook.until_over(index)


def save(picture: bytes, name: str) -> None:
    """With as many colours as text needs, which makes the file a third as large."""
    small = Image.open(io.BytesIO(picture)).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    small.save(FIGURES / f"{name}.png", optimize=True)


def together(*parts: Locator, margin: int = 6) -> dict[str, float]:
    """The rectangle around these parts of a page."""
    boxes = [box for part in parts if (box := part.bounding_box()) is not None]
    left, top = min(box["x"] for box in boxes) - margin, min(box["y"] for box in boxes) - margin
    right = max(box["x"] + box["width"] for box in boxes) + margin
    bottom = max(box["y"] + box["height"] for box in boxes) + margin
    return {"x": max(0, left), "y": max(0, top), "width": right - left, "height": bottom - top}


class Film:
    """Frames of a page, each shown for a while, as one animated GIF."""

    def __init__(self, page: Page, part: Callable[[], dict[str, float]]):
        self._page = page
        self._part = part
        self._frames: list[Image.Image] = []
        self._seconds: list[float] = []

    def take(self, seconds: float, click: Locator | None = None) -> None:
        """One frame, with a ring where the mouse is about to click."""
        part = self._part()
        frame = Image.open(io.BytesIO(self._page.screenshot(clip=part))).convert("RGB")  # type: ignore[arg-type]
        if click is not None and (box := click.bounding_box()) is not None:
            x, y = box["x"] - part["x"] + 60, box["y"] - part["y"] + box["height"] / 2
            ImageDraw.Draw(frame).ellipse((x - 16, y - 16, x + 16, y + 16), outline="#d32f2f", width=4)
        self._frames.append(frame)
        self._seconds.append(seconds)

    def save(self, name: str) -> None:
        """With one palette for all frames, so that nothing flickers."""
        sheet = Image.new("RGB", (self._frames[0].width, sum(frame.height for frame in self._frames)))
        top = 0
        for frame in self._frames:
            sheet.paste(frame, (0, top))
            top += frame.height
        palette = sheet.quantize(128, dither=Image.Dither.NONE)
        first, *others = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in self._frames]
        durations = [round(1000 * seconds) for seconds in self._seconds]
        first.save(FIGURES / f"{name}.gif", save_all=True, append_images=others, duration=durations, loop=0)


def hang(lab: Lab) -> None:
    """One rank skips a collective; the verdict names it; one click interrupts; the names are kept."""
    with notebook_of(lab, "hang", SKIPS, KEPT, width=900, height=620) as notebook:
        page = notebook.page
        notebook.cell(1).locator(".cm-content").click()
        page.mouse.move(0, 0)
        window = page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-WindowedPanel-outer")
        window.evaluate("(outer, cell) => outer.scrollTo(0, cell.offsetTop)", notebook.cell(1).element_handle())
        film = Film(page, lambda: together(window, margin=0))
        film.take(2.5)
        with hanging(notebook, 1) as verdict:
            film.take(5)
            save(page.screenshot(clip=together(notebook.cell(1))), "verdict")  # type: ignore[arg-type]
            film.take(1.5, click=verdict.get_by_role("button", name="%dist interrupt"))
        notebook.cell(2).scroll_into_view_if_needed()
        film.take(3.5)
        notebook.run(2)
        notebook.output(2).scroll_into_view_if_needed()
        film.take(5)
        film.save("hang")


def lab_output(lab: Lab) -> None:
    """A run's output after a failure: a tab for each rank, and the cause."""
    with notebook_of(lab, "output", FAILS) as notebook:
        notebook.run(1)
        traceback = notebook.output(1).get_by_role("button", name="traceback").first
        if traceback.get_attribute("aria-expanded") == "false":
            traceback.click()
        notebook.page.mouse.move(0, 0)
        save(notebook.page.screenshot(clip=together(notebook.cell(1))), "lab-output")  # type: ignore[arg-type]


def lab_panel(lab: Lab) -> None:
    """The panel while a run cannot finish."""
    with notebook_of(lab, "panel", MESH, SKIPS, width=1280, height=900) as notebook:
        panel = Panelled(notebook.page)
        notebook.run(1)
        panel.open()
        panel.choose("training")
        panel.widen()
        with hanging(notebook, 2):
            expect(panel.verdict).to_contain_text("rank 2")
            notebook.page.mouse.move(1000, 20)
            save(panel.panel.screenshot(), "lab-panel")
        panel.open()


def lab_window(lab: Lab) -> None:
    """The whole window while a run cannot finish: panel, notebook, status bar."""
    with notebook_of(lab, "training", MESH, SKIPS, width=1520, height=860) as notebook:
        panel = Panelled(notebook.page)
        notebook.run(1)
        panel.open()
        panel.choose("training")
        with hanging(notebook, 2):
            expect(panel.verdict).to_contain_text("rank 2")
            save(notebook.page.screenshot(), "lab-window")


def lab_start(lab: Lab) -> None:
    """The start dialog, with the fields that a Hub's launcher has in a second picture."""
    with notebook_of(lab, "start") as notebook:
        panel = Panelled(notebook.page)
        panel.open()
        panel.do("jdist:start")
        panel.dialog.get_by_label("Ranks per node").fill("4")
        save(panel.dialog.locator(".jp-Dialog-content").screenshot(), "lab-start")
        panel.dialog.get_by_label("Launcher").select_option("hub")
        panel.dialog.get_by_label("Nodes").fill("2")
        save(panel.dialog.locator(".jp-Dialog-content").screenshot(), "lab-start-hub")
        panel.dialog.get_by_role("button", name="Cancel").click()


def lab_timeline(lab: Lab) -> None:
    """The timeline of a run in which one rank is slower than the others."""
    with notebook_of(lab, "timeline", STRAGGLES) as notebook:
        notebook.run(1)
        notebook.output(1).get_by_role("button", name="Timeline").click()
        timeline = notebook.page.locator(".jp-MainAreaWidget > .jdist-Timeline")
        canvas = timeline.locator("canvas")
        expect(canvas).to_have_attribute("data-calls", "24")
        canvas.focus()
        for _ in range(3):
            notebook.page.keyboard.press("ArrowRight")
        expect(timeline.get_by_role("status")).to_contain_text("all_reduce")
        save(notebook.page.screenshot(clip=together(timeline, margin=0)), "lab-timeline")  # type: ignore[arg-type]
        notebook.page.evaluate(
            "() => [...window.jupyterapp.shell.widgets('main')]"
            ".filter(tab => tab.node.querySelector(':scope > .jdist-Timeline')).forEach(tab => tab.close())"
        )


def lab_debug(lab: Lab) -> None:
    """Paused ranks: their lines marked in the editor, their stacks as one tree, a cell in the paused frames."""
    with notebook_of(lab, "debug", PAUSES, LOOKS, "%dist interrupt", width=1520, height=860) as notebook:
        panel = Panelled(notebook.page)
        panel.open()
        panel.choose("training")
        notebook.run(1)
        expect(panel.panel.get_by_role("tree")).to_contain_text("train_step")
        notebook.run(2)
        notebook.page.mouse.move(1000, 10)
        save(notebook.page.screenshot(), "lab-debug")
        notebook.run(3)
        expect(panel.row(3)).to_contain_text("idle")


def lab_metrics(lab: Lab) -> None:
    """Charts of what the ranks log, with one rank that is far from the others."""
    with notebook_of(lab, "metrics", TRAINS, width=960, height=900) as notebook:
        notebook.run(1)
        expect(notebook.output(1).locator("canvas").first).to_be_visible()
        notebook.page.mouse.move(0, 0)
        save(notebook.page.screenshot(clip=together(notebook.cell(1))), "lab-metrics")  # type: ignore[arg-type]


def lab_resources(lab: Lab) -> None:
    """Resources of the ranks during the last minute, with a mark at each run."""
    with notebook_of(lab, "resources", WORKS, WORKS, width=1280, height=900) as notebook:
        panel = Panelled(notebook.page)
        panel.open()
        panel.choose("training")
        panel.widen()
        panel.do("jdist:show-resources")
        section = panel.panel.locator(".jdist-resources")
        section.get_by_role("combobox").last.select_option(label="last 1 min")
        notebook.run(1)
        notebook.run(2)
        for name in ("Ranks", "Groups"):
            panel.panel.get_by_role("heading", name=f"{name} Section").click()
        notebook.page.mouse.move(1000, 20)
        canvases = section.locator("canvas")
        expect(canvases.first).to_be_visible()
        part = together(section.get_by_role("combobox").first, *canvases.all())
        save(notebook.page.screenshot(clip=part), "lab-resources")  # type: ignore[arg-type]
        for name in ("Ranks", "Groups", "Resources"):
            panel.panel.get_by_role("heading", name=f"{name} Section").click()


def panel_of_widgets(lab: Lab) -> None:
    """``%dist panel`` while a run cannot finish."""
    with notebook_of(lab, "widgets", "%dist panel", SKIPS, width=1000, height=1100) as notebook:
        notebook.run(1)
        with hanging(notebook, 2):
            expect(notebook.output(1).get_by_role("alert")).to_contain_text("rank 2")
            save(notebook.output(1).screenshot(), "panel")


def lab_widgets(lab: Lab) -> None:
    """A slider that all ranks show, and a training that takes what it says."""
    with notebook_of(lab, "slider", SLIDES, STEERED, height=1200) as notebook:
        notebook.run(1)
        slider = notebook.output(1).get_by_role("slider")
        expect(slider).to_have_count(1)
        notebook.start(2)
        expect(notebook.output(2).locator("canvas")).to_have_count(2)
        slider.focus()
        for _ in range(22):
            notebook.page.keyboard.press("ArrowRight")
            notebook.page.wait_for_timeout(50)
        expect(notebook.output(1)).to_contain_text(re.compile(r"and is now 0\.[1-9]"))
        notebook.page.wait_for_timeout(1500)  # so that the loss falls
        part = together(notebook.cell(1), notebook.cell(2), margin=0)
        save(notebook.page.screenshot(clip=part), "lab-widgets")  # type: ignore[arg-type]
        notebook.output(1).get_by_role("button", name="stop").click()
        notebook.until_over(2)


PICTURES: dict[str, Callable[[Lab], None]] = {
    "hang": hang,
    "lab-output": lab_output,
    "lab-panel": lab_panel,
    "lab-window": lab_window,
    "lab-start": lab_start,
    "lab-timeline": lab_timeline,
    "lab-debug": lab_debug,
    "lab-metrics": lab_metrics,
    "lab-resources": lab_resources,
    "lab-widgets": lab_widgets,
    "panel": panel_of_widgets,
}


def main() -> None:
    """Make the pictures that the command line names, or all."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("names", nargs="*", choices=[*PICTURES, []], metavar="NAME", help=", ".join(PICTURES))
    names = parser.parse_args().names or list(PICTURES)
    with tempfile.TemporaryDirectory(prefix="jp-", dir="/tmp") as place:
        bed = Path(place)
        os.environ["JUPYTER_RUNTIME_DIR"] = str(bed)
        server = LabServer(bed, bed, [extension(bed / "extensions")])
        try:
            with jdist.start(nproc_per_node=2, nnodes=2, name="training"), chromium() as browser:
                lab = Lab(server, browser, bed)
                for name in names:
                    print(f"docs/figures: {name}", flush=True)
                    PICTURES[name](lab)
        finally:
            server.end()


if __name__ == "__main__":
    sys.exit(main())

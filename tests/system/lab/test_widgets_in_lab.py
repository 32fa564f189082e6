"""Widgets of ranks in a real JupyterLab: shown once or by rank, and alive in both directions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

import jdist
from support.lab.browsing import Lab, LabNotebook

pytestmark = pytest.mark.usefixtures("traces")

ATTACH, SLIDER, SEEN, TRAINS, BUSY, DIFFERS, INTERACT, STARTS, OWN, RESTART, STOP, DETACH, ATTACH_COUNTED, ROUNDED = (
    range(14)
)
CELLS = [
    "%load_ext jdist\n%dist attach shared",
    """%%dist
import ipywidgets as w
rate, said, seen = w.IntSlider(value=3, description='rate'), w.Label('not moved'), []
def moved(change):
    seen.append(change['new'])
    said.value = f"moved to {change['new']}"
rate.observe(moved, 'value')
w.VBox([rate, said])""",
    "%%dist\nseen",
    """%%dist
import time, jdist
used = []
for step in range(3000):  # not for a time, which would end at another step on each rank
    dist.all_reduce(torch.ones(1))
    jdist.process_events()
    used.append(rate.value)
    if rate.value != used[0]:
        break
    time.sleep(0.01)
len(used)""",
    "%%dist\nimport os\nwhile rate.value and not os.path.exists('SIGNAL'): time.sleep(0.05)",
    "%%dist\nw.Label('the odd ones' if rank % 2 else 'the even ones')",
    "%%dist\nw.interact(lambda x: print('twice is', 2 * x), x=(0, 10));",
    "%dist detach\n%dist start --nproc-per-node 2 --name own",
    "%%dist\nimport ipywidgets as w\nw.IntSlider(description='own')",
    "%dist restart -r 1",
    "%dist stop",
    "%dist detach",
    "%dist attach counted",
    """%%dist
import ipywidgets as w
rate, said = w.FloatLogSlider(value=0.05, min=-4, max=0), w.Label()
rate.observe(lambda change: setattr(said, 'value', f"now {change['new']:.4f}"), 'value')
w.VBox([rate, said])""",
]


@pytest.fixture(scope="module")
def opened(lab: Lab, signal_file: Path) -> Iterator[LabNotebook]:
    cells = [cell.replace("SIGNAL", str(signal_file)) for cell in CELLS]
    with lab.open_notebook(cells, viewport={"width": 1280, "height": 1000}) as notebook:
        yield notebook
        assert not notebook.complaints


@pytest.fixture
def notebook(opened: LabNotebook, cluster: jdist.Cluster) -> Iterator[LabNotebook]:
    """It uses the shared cluster, and shows a slider."""
    opened.run(ATTACH)
    opened.run(SLIDER)
    yield opened
    opened.run(DETACH)


def handle(output: Locator, nth: int = 0) -> Locator:
    return output.get_by_role("slider").nth(nth)


def note(output: Locator) -> Locator:
    """What is said below a widget."""
    return output.locator(".widget-html [role=status]")


def assert_alike(text: str, ranks: int) -> None:
    """A cell's value is the same number on each rank."""
    named = f"0-{ranks - 1}" if ranks > 1 else "0"
    assert re.search(rf"^{named}\n\d+$", text, re.MULTILINE), text


def move(page: Page, slider: Locator, steps: int) -> None:
    """By keyboard, as a user does."""
    slider.focus()
    for _ in range(steps):
        page.keyboard.press("ArrowRight")


def test_a_slider_that_is_the_same_everywhere_is_one_and_its_observers_run_on_every_rank(notebook: LabNotebook) -> None:
    output = notebook.output(SLIDER)
    expect(output.get_by_role("slider")).to_have_count(1)
    expect(output).to_contain_text("not moved")
    move(notebook.page, handle(output), 1)
    expect(output).to_contain_text("moved to 4")
    notebook.picture("widget")
    assert "0-3\n[4]" in notebook.run(SEEN)


def test_a_slider_steers_a_training_on_all_ranks_at_the_same_step(notebook: LabNotebook) -> None:
    notebook.start(TRAINS)
    expect(notebook.output(TRAINS)).to_contain_text(re.compile(r"run \d+"))
    move(notebook.page, handle(notebook.output(SLIDER)), 1)
    notebook.until_over(TRAINS)
    assert_alike(notebook.text(TRAINS), 4)


@pytest.mark.usefixtures("cluster")
def test_a_slider_whose_value_the_page_rounds_steers_a_training(lab: Lab) -> None:
    """It is the first widget of its page, which sends the rounded value before it has a subshell."""
    with lab.open_notebook(CELLS, "rounded.ipynb", viewport={"width": 1280, "height": 1000}) as notebook:
        notebook.run(ATTACH)
        notebook.run(ROUNDED)
        output = notebook.output(ROUNDED)
        expect(output).to_contain_text("now 0.0501")
        notebook.start(TRAINS)
        expect(notebook.output(TRAINS)).to_contain_text(re.compile(r"run \d+"))
        move(notebook.page, handle(output), 1)
        expect(output).to_contain_text("now 0.0631")
        notebook.until_over(TRAINS)
        assert_alike(notebook.text(TRAINS), 4)
        assert "3000" not in notebook.text(TRAINS), "it ended as the slider moved"
        notebook.run(DETACH)


@pytest.mark.parametrize("ranks", [1, 64])
def test_one_slider_steers_any_number_of_ranks(
    ranks: int, opened: LabNotebook, fresh_cluster: Callable[..., jdist.Cluster]
) -> None:
    fresh_cluster(ranks, name="counted")
    opened.run(ATTACH_COUNTED)
    opened.run(SLIDER)
    output = opened.output(SLIDER)
    expect(output.get_by_role("slider")).to_have_count(1)
    opened.start(TRAINS)
    expect(opened.output(TRAINS)).to_contain_text(re.compile(r"run \d+"))
    move(opened.page, handle(output), 1)
    expect(output).to_contain_text("moved to 4")
    opened.until_over(TRAINS)
    assert_alike(opened.text(TRAINS), ranks)
    opened.run(DETACH)


def test_a_widget_says_what_it_waits_for(notebook: LabNotebook, signal_file: Path) -> None:
    output = notebook.output(SLIDER)
    notebook.start(BUSY)
    expect(notebook.output(BUSY)).to_contain_text(re.compile(r"run \d+"))
    move(notebook.page, handle(output), 1)
    expect(note(output)).to_contain_text("at the next jdist.process_events()")
    notebook.picture("widget-waits")
    signal_file.touch()
    notebook.until_over(BUSY)
    expect(note(output)).to_have_count(0)
    expect(output).to_contain_text("moved to 4")


def test_widgets_that_differ_have_a_tab_for_each_set_of_ranks(notebook: LabNotebook) -> None:
    notebook.run(DIFFERS)
    output = notebook.output(DIFFERS)
    tabs = output.locator(".jupyter-widget-tab").get_by_role("tab")
    expect(tabs).to_have_text(["ranks 0,2", "ranks 1,3"])
    expect(output).to_contain_text("the even ones")
    tabs.nth(1).click()
    expect(output).to_contain_text("the odd ones")
    notebook.picture("widget-tabs")


def test_what_an_observer_prints_is_shown_where_it_is_captured(notebook: LabNotebook) -> None:
    notebook.run(INTERACT)
    output = notebook.output(INTERACT)
    expect(output).to_contain_text("twice is 10")
    move(notebook.page, handle(output), 2)
    expect(output).to_contain_text("twice is 14")


def test_a_widget_whose_rank_was_replaced_or_whose_cluster_is_gone_says_so(notebook: LabNotebook) -> None:
    notebook.run(STARTS)
    notebook.run(OWN)
    output = notebook.output(OWN)
    expect(output.get_by_role("slider")).to_have_count(1)
    notebook.run(RESTART)
    expect(note(output)).to_contain_text("rank 1 no longer has this widget; run the cell again")
    notebook.run(OWN)
    expect(note(output)).to_have_count(0)
    notebook.run(STOP)
    expect(note(output).last).to_contain_text("not connected any more: stopped")
    notebook.picture("widget-gone")

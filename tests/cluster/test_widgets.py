"""Widgets of ranks with a real cluster and a real kernel: a slider that is the same on all ranks, moved in the page."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

import jdist
from support import anatomy
from support.notebook import Notebook
from support.waits import eventually
from support.widget_page import STEERED, Page

if TYPE_CHECKING:
    from support.leaks import Traces


@pytest.fixture(scope="module")
def page(run_traces: Traces) -> Iterator[Page]:
    """A notebook with a cluster of its own, of which a rank is killed."""
    notebook = Notebook()
    before = set(run_traces.exempt)
    run_traces.exempt.add(notebook.manager.provisioner.pid)  # type: ignore[union-attr]
    with jdist.start(2, 2, backend="gloo", name="sliders", timeout=60, idle_timeout=60) as cluster:
        run_traces.note_clusters()
        run_traces.exempt |= {anatomy.controller(cluster), anatomy.agent(cluster, 0), anatomy.agent(cluster, 1)}
        notebook.run(f"%dist attach {cluster.name}")
        yield Page(notebook, cluster)
        notebook.run("%dist detach")
    notebook.close()
    run_traces.exempt = before


def test_in_a_cell_all_ranks_take_an_event_in_the_same_step(page: Page) -> None:
    """A page may send its first event before it has a subshell, as when it shows a value that it has rounded."""
    model = page.show()
    page.move(model, 3, is_early=True)
    assert eventually(lambda: "'value': 3" in page.state(model), 60)
    moved: list[int] = []

    def move(cell: Any) -> None:
        if "begun" in cell.text and not moved:
            moved.append(9)
            page.move(model, 9)

    shown = page.execute(STEERED, move)
    assert shown.status == "ok", shown.text
    assert "[0-3] begun" in shown.text
    steps = [line for line in shown.text.splitlines() if line.startswith("[0-3] ") and line[6:].strip().isdigit()]
    assert len(steps) == 1, shown.text


def test_a_slider_that_moves_as_a_cell_begins_reaches_that_cell(page: Page) -> None:
    """What moves before the cell is told to ranks that run none, and comes to them when they do."""
    model = page.show(max=2000)
    for value in range(1000, 1300):
        page.move(model, value)

    def move(cell: Any) -> None:
        if "begun" in cell.text:
            page.move(model, 9)

    shown = page.execute(STEERED, move)
    assert shown.status == "ok", shown.text
    steps = [line for line in shown.text.splitlines() if line.startswith("[0-3] ") and line[6:].strip().isdigit()]
    assert len(steps) == 1, shown.text


def test_between_cells_an_event_reaches_all_ranks_and_their_answer_the_page(page: Page) -> None:
    model = page.show(max=50)
    page.move(model, 70)  # more than the ranks allow
    assert eventually(lambda: "'value': 50" in page.state(model), 60)
    assert "[0-3] 50" in page.run("%%dist\nslider.value").text


def test_a_file_that_is_larger_than_any_message_reaches_all_ranks(page: Page) -> None:
    model = page.show("FileUpload")
    content = random.Random(7).randbytes(70 << 20)
    page.upload(model, content)
    expected = f"[0-3] {len(content)} {hashlib.sha256(content).hexdigest()}"
    received = "[(len(c), hashlib.sha256(c).hexdigest()) for c in (file.content for file in slider.value)]"
    asked = f"%%dist\nimport hashlib\nprint(*sum({received}, ()))"
    assert eventually(lambda: expected in page.run(asked).text, 60)


def test_the_slider_of_a_rank_that_was_killed_is_disabled_and_a_new_one_works(page: Page) -> None:
    cluster, model = page.cluster, page.show()
    pid = anatomy.worker(cluster, 2)
    anatomy.kill(pid)
    assert eventually(lambda: anatomy.worker(cluster, 2) not in (0, pid), 60)
    assert eventually(lambda: "rank 2 no longer has this widget" in page.notes(), 60)
    assert "'disabled': True" in page.state(model)
    model = page.show()
    page.move(model, 4)
    assert eventually(lambda: "[0-3] 4" in page.run("%%dist\nslider.value").text, 60)

"""Widgets of ranks with a real cluster and a real kernel: a slider that is the same on all ranks, moved in the page."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

import jdist
from jdist.core.outcome import WIDGET_VIEW
from support import anatomy
from support.notebook import Notebook
from support.waits import eventually

if TYPE_CHECKING:
    from support.leaks import Traces


class Page:
    """What a front end does with the widgets of a kernel."""

    def __init__(self, notebook: Notebook, cluster: jdist.Cluster):
        self.cluster = cluster
        self.run, self.execute = notebook.run, notebook.execute
        self._notebook = notebook
        client = notebook.client
        client.control_channel.send(client.session.msg("create_subshell_request", {}))
        self._subshell = client.control_channel.get_msg(timeout=60)["content"]["subshell_id"]
        self._numbers = itertools.count()

    def show(self, **state: Any) -> str:
        """Have all ranks show a slider as ``slider``; its model's id."""
        name = f"slider {next(self._numbers)}"
        options = "".join(f", {key}={value!r}" for key, value in state.items())
        code = f"import ipywidgets\nslider = ipywidgets.IntSlider(description={name!r}{options})\nslider"
        shown = self.run(f"%%dist\n{code}")
        assert WIDGET_VIEW in shown.displays[-1], "it is shown before the cell ends"
        assert shown.displays[-1]["text/plain"] == "widget of ranks 0-3"
        models = "__import__('ipywidgets').Widget.widgets.items()"
        found = self._notebook.value(f"[k for k, w in {models} if w.get_state().get('description') == {name!r}][-1]")
        return found.strip("'")

    def move(self, model: str, value: int) -> None:
        """Move the slider, also while a cell runs."""
        session = self._notebook.client.session
        data = {"method": "update", "state": {"value": value}, "buffer_paths": []}
        message = session.msg("comm_msg", {"comm_id": model, "data": data})
        message["header"]["subshell_id"] = self._subshell
        self._notebook.client.shell_channel.send(message)

    def state(self, model: str) -> str:
        return self._notebook.value(f"__import__('ipywidgets').Widget.widgets[{model!r}].get_state()")

    def notes(self) -> str:
        widgets = "__import__('ipywidgets').Widget.widgets.values()"
        return self._notebook.value(f"[w.value for w in {widgets} if type(w).__name__ == 'HTML']")


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


LOOP = """%%dist
import jdist
print("begun")
seen = []
for step in range(6000):
    ones = torch.ones(1)
    dist.all_reduce(ones)  # it would not end if one rank made another step
    jdist.process_events()
    seen.append(slider.value)
    if slider.value == 9:
        break
seen.index(9)"""


def test_in_a_cell_all_ranks_take_an_event_in_the_same_step(page: Page) -> None:
    model = page.show()
    moved: list[int] = []

    def move(cell: Any) -> None:
        if "begun" in cell.text and not moved:
            moved.append(9)
            page.move(model, 9)

    shown = page.execute(LOOP, move)
    assert shown.status == "ok", shown.text
    assert "[0-3] begun" in shown.text
    steps = [line for line in shown.text.splitlines() if line.startswith("[0-3] ") and line[6:].strip().isdigit()]
    assert len(steps) == 1, shown.text


def test_between_cells_an_event_reaches_all_ranks_and_their_answer_the_page(page: Page) -> None:
    model = page.show(max=50)
    page.move(model, 70)  # more than the ranks allow
    assert eventually(lambda: "'value': 50" in page.state(model), 60)
    assert "[0-3] 50" in page.run("%%dist\nslider.value").text


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

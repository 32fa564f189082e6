"""JupyterLab restarts a kernel: what becomes of the cluster that it has started, once the notebook is run again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from jdist.client import find
from support.lab.browsing import Lab, LabNotebook

pytestmark = pytest.mark.usefixtures("traces")
START, STEP, USED, SPARE = range(4)
CELLS = [
    "%load_ext jdist\n%dist start -n 1 --backend gloo --timeout 60 --idle-timeout 120",
    "%%dist\nsteps = globals().get('steps', 0) + 1\nprint('step', steps)",
    "print(cluster.id)",
    "",
]
LOOP = "%%dist -b\nimport time\nwhile True: time.sleep(0.01)"
WRITE = """([index, source]) =>
  window.jupyterapp.shell.currentWidget.content.widgets[index].model.sharedModel.setSource(source)"""


@pytest.fixture
def notebook(lab: Lab) -> Iterator[LabNotebook]:
    """Whatever it starts is stopped at the end."""
    before = set(find.here())
    with lab.open_notebook(CELLS, "restarted.ipynb") as opened:
        yield opened
        for name in find.here().keys() - before:
            run_spare(opened, f"%dist stop {name} --now")
        assert not [said for said in opened.complaints if "jdist" in said]


def run_spare(notebook: LabNotebook, source: str) -> None:
    """Run a cell below all others, which is empty afterwards."""
    notebook.page.evaluate(WRITE, [SPARE, source])
    notebook.run(SPARE)
    notebook.page.evaluate(WRITE, [SPARE, ""])


def restart(notebook: LabNotebook, command: str) -> None:
    """As a person does it: JupyterLab asks whether the kernel's variables may be lost."""
    notebook.page.evaluate("command => void window.jupyterapp.commands.execute(command)", command)
    notebook.page.locator(".jp-Dialog button.jp-mod-accept").click()


def test_running_all_again_replaces_an_idle_cluster(notebook: LabNotebook) -> None:
    notebook.run(START)
    assert "step 1" in notebook.run(STEP)
    assert "step 2" in notebook.run(STEP)
    first, running = notebook.run(USED), set(find.here())
    restart(notebook, "notebook:restart-run-all")
    expect(notebook.output(START)).to_contain_text("was idle and has been stopped")
    notebook.until_over(USED)
    assert "step 1" in notebook.text(STEP)
    assert notebook.text(USED) != first
    assert set(find.here()) == running, "the new one took the name of the first"
    notebook.picture("restarted-kernel")


def test_the_user_is_asked_below_the_cell_about_a_run(notebook: LabNotebook) -> None:
    notebook.run(START)
    notebook.run(STEP)
    first = notebook.run(USED)
    run_spare(notebook, LOOP)
    restart(notebook, "kernelmenu:restart")
    notebook.until_ready()
    notebook.start(START)
    answer = notebook.output(START).locator(".jp-Stdin-input")
    expect(notebook.output(START)).to_contain_text("is running on rank 0")
    notebook.picture("restarted-kernel-question")
    answer.fill("attach")
    answer.press("Enter")
    notebook.until_over(START)
    assert notebook.run(USED) == first

"""What all tests in a browser stand on: a notebook opens, its cells run, and what they show is on the screen."""

from __future__ import annotations

from playwright.sync_api import expect

from support.lab.browsing import Lab


def test_cells_run_and_are_seen(lab: Lab) -> None:
    with lab.open_notebook(["6 * 7", "import time\nprint('on', flush=True)\ntime.sleep(300)", ""]) as notebook:
        assert "42" in notebook.run(0)
        notebook.start(1)
        expect(notebook.output(1)).to_contain_text("on")
        notebook.interrupt()
        notebook.until_over(1)
        assert "KeyboardInterrupt" in notebook.text(1)
        notebook.type(2, "print('typed' +")
        notebook.page.keyboard.type(" 'in')")
        assert notebook.run(2) == "typedin"
        assert notebook.picture("notebook").stat().st_size > 10_000
        assert not notebook.complaints

"""What a cell's threads write after its end is shown in that cell's own place."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from jdist.client.cluster import Cluster
from jdist.notebook.output.display import RunDisplay
from jdist.notebook.output.screen import Update

CELL = """
import threading, time
def speak():
    time.sleep(0.3)
    print("after the end")
threading.Thread(target=speak).start()
print("before the end")
"""


class OneScreen:
    """A screen that can replace what it shows; remembers the last of it."""

    is_live = True

    def __init__(self) -> None:
        self.text = ""
        self.has_late = threading.Event()

    def show(self, bundle: Mapping[str, str]) -> Update:
        self.update(bundle)
        return self.update

    def update(self, bundle: Mapping[str, str]) -> None:
        self.text = bundle["text/plain"]
        if "after the end" in self.text:
            self.has_late.set()

    def ask(self, prompt: str, is_password: bool) -> str:
        raise NotImplementedError(prompt)


def test_late_lines_join_their_own_cell(cluster: Cluster) -> None:
    run = cluster.submit(CELL, (0, 1))
    screen = OneScreen()
    RunDisplay(cluster, run, screen).follow()
    assert run.is_done
    assert "before the end" in screen.text
    assert screen.has_late.wait(60), screen.text
    assert "[0-1] before the end" in screen.text
    assert screen.text.splitlines()[-1].startswith(f"run {run.number} · 2 ranks")

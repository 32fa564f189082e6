"""A page for tests: what a front end does with the widgets of a notebook's kernel, without a browser."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from typing import Any

import jdist
from jdist.core.outcome import WIDGET_VIEW
from support.notebook import Notebook

STEERED = """%%dist
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
"""A cell in which ranks train until the slider is at 9; its value is the step at which it was."""


class Page:
    """What a front end does with the widgets of a kernel."""

    def __init__(self, notebook: Notebook, cluster: jdist.Cluster):
        self.cluster = cluster
        self.run, self.execute = notebook.run, notebook.execute
        self._notebook = notebook
        client = notebook.client
        client.session.copy_threshold = sys.maxsize  # pyzmq's thread for memory that is not copied would not end
        client.control_channel.send(client.session.msg("create_subshell_request", {}))
        self._subshell = client.control_channel.get_msg(timeout=60)["content"]["subshell_id"]
        self._numbers = itertools.count()

    def show(self, kind: str = "IntSlider", **state: Any) -> str:
        """Have all ranks show a widget, called ``slider`` there; its model's id."""
        name = f"slider {next(self._numbers)}"
        options = "".join(f", {key}={value!r}" for key, value in state.items())
        code = f"import ipywidgets\nslider = ipywidgets.{kind}(description={name!r}{options})\nslider"
        shown = self.run(f"%%dist\n{code}")
        assert WIDGET_VIEW in shown.displays[-1], "it is shown before the cell ends"
        assert shown.displays[-1]["text/plain"] == f"widget of ranks 0-{self.cluster.world_size - 1}"
        models = "__import__('ipywidgets').Widget.widgets.items()"
        found = self._notebook.value(f"[k for k, w in {models} if w.get_state().get('description') == {name!r}][-1]")
        return found.strip("'")

    def move(self, model: str, value: int, *, is_early: bool = False) -> None:
        """Move the slider, also while a cell runs; ``is_early``: as a front end that has no subshell yet."""
        self._update(model, {"value": value}, is_early=is_early)

    def upload(self, model: str, content: bytes) -> None:
        """Choose a file with this content in a FileUpload."""
        file = {"name": "data.bin", "type": "", "size": len(content), "last_modified": 1000}
        self._update(model, {"value": [file]}, ["value", 0, "content"], content)

    def _update(
        self, model: str, state: dict[str, Any], path: Sequence[str | int] = (), *buffers: bytes, is_early: bool = False
    ) -> None:
        session = self._notebook.client.session
        data = {"method": "update", "state": state, "buffer_paths": [path] if buffers else []}
        message = session.msg("comm_msg", {"comm_id": model, "data": data})
        message["header"]["subshell_id"] = None if is_early else self._subshell
        session.send(self._notebook.client.shell_channel.socket, message, buffers=list(buffers))

    def state(self, model: str) -> str:
        return self._notebook.value(f"__import__('ipywidgets').Widget.widgets[{model!r}].get_state()")

    def notes(self) -> str:
        widgets = "__import__('ipywidgets').Widget.widgets.values()"
        return self._notebook.value(f"[w.value for w in {widgets} if type(w).__name__ == 'HTML']")

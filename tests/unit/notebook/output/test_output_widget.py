"""Whether output goes into a widget can be told while another thread imports ipywidgets."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from jdist.notebook.output import screen
from support.waits import eventually


def test_a_module_that_another_thread_imports_at_present_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go_on = threading.Event()
    monkeypatch.setattr(sys, "may_go_on", may_go_on, raising=False)
    text = "import sys\nsys.may_go_on.wait(10)\nclass Widget: widgets = {}\nclass Output: pass\n"
    (tmp_path / "ipywidgets.py").write_text(text)
    for name in [name for name in sys.modules if name.partition(".")[0] == "ipywidgets"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    shell: Any = type("Shell", (), {"get_parent": staticmethod(dict)})
    importing = threading.Thread(target=__import__, args=("ipywidgets",))
    importing.start()
    found: list[bool] = []
    try:
        assert eventually(lambda: "ipywidgets" in sys.modules, 10)
        asking = threading.Thread(target=lambda: found.append(screen._is_output_widget(shell)))
        asking.start()
        may_go_on.set()
        asking.join(10)
    finally:
        may_go_on.set()
        importing.join(10)
        sys.modules.pop("ipywidgets", None)
    assert found == [False]

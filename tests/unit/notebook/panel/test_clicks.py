"""Whether clicks arrive while a cell runs, and how widgets are written so that they do."""

from __future__ import annotations

import contextvars
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from jdist.notebook.panel import ClickDelivery, ParentlessContext


def kernel(subshells: list[str] | None) -> Any:
    """None: one that knows of none."""
    if subshells is None:
        return SimpleNamespace()
    manager = SimpleNamespace(list_subshell=lambda: subshells)
    return SimpleNamespace(_supports_kernel_subshells=True, shell_channel_thread=SimpleNamespace(manager=manager))


@pytest.mark.parametrize(("subshells", "is_late"), [(None, True), ([], True), (["s"], False)])
def test_before_the_first_click_the_kernels_subshells_tell(subshells: list[str] | None, is_late: bool) -> None:
    assert ClickDelivery(kernel(subshells)).is_late is is_late


def test_a_kernel_without_threads_for_its_channels_hands_clicks_on_late() -> None:
    assert ClickDelivery(SimpleNamespace(_supports_kernel_subshells=True, shell_channel_thread=None)).is_late


def test_a_click_tells_better() -> None:
    delivery = ClickDelivery(kernel(["s"]))
    delivery.record_click()
    assert delivery.is_late
    thread = threading.Thread(target=delivery.record_click)
    thread.start()
    thread.join()
    assert not delivery.is_late


def test_what_is_done_apart_has_no_parent_and_leaves_the_callers_alone() -> None:
    parent: contextvars.ContextVar[dict[str, Any]] = contextvars.ContextVar("parent")
    parent.set({"header": "a cell"})
    apart = ParentlessContext(SimpleNamespace(_shell_parent=parent))
    found: list[dict[str, Any]] = [apart.run(parent.get), apart.wrap(parent.get)()]
    thread = threading.Thread(target=lambda: found.append(apart.run(parent.get)))
    thread.start()
    thread.join()
    assert found == [{}, {}, {}]
    assert parent.get() == {"header": "a cell"}
    assert apart.run(lambda: apart.run(parent.get)) == {}


def test_a_kernel_that_keeps_no_parent_is_left_as_it_is() -> None:
    assert ParentlessContext(SimpleNamespace()).run(len, "abc") == 3

"""Models of ranks' widgets: what messages of comms make of them, and which are the same."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from jdist.core.messages.runs import Clear, Display, Text
from jdist.core.messages.widgets import CommContent
from jdist.core.outcome import WIDGET_VIEW
from jdist.notebook.widgets.models import TARGET, RankModels, references, renamed


def opened(state: dict[str, Any], *buffers: bytes, paths: Any = (), target: str = TARGET) -> CommContent:
    data = {"state": state, "buffer_paths": paths}
    return CommContent("open", target, msgspec.json.encode(data), buffers)


def said(method: str, **data: Any) -> CommContent:
    return CommContent("msg", "", msgspec.json.encode({"method": method, **data}))


def slider(value: int, name: str = "IntSliderModel") -> dict[str, Any]:
    return {"_model_name": name, "_view_name": "View", "value": value, "layout": "IPY_MODEL_layout"}


def boxed(models: RankModels, rank: int, prefix: str, value: int, name: str = "IntSliderModel") -> tuple[int, str]:
    """A box with a slider, made with ids of its own; the box's name."""
    box = {"_model_name": "VBoxModel", "_view_name": "View", "children": [f"IPY_MODEL_{prefix}s"]}
    models.feed(rank, f"{prefix}s", opened({**slider(value, name), "layout": f"IPY_MODEL_{prefix}l"}))
    models.feed(rank, f"{prefix}l", opened({"_model_name": "LayoutModel"}))
    models.feed(rank, f"{prefix}b", opened(box))
    return rank, f"{prefix}b"


def test_equal_trees_have_equal_fingerprints_whatever_the_ids_of_their_comms() -> None:
    models = RankModels()
    first, second, third = boxed(models, 0, "a", 3), boxed(models, 1, "zz", 3), boxed(models, 2, "a", 4)
    prints = [models.fingerprint(name) for name in (first, second, third)]
    assert prints[0] == prints[1] != prints[2]
    assert len({models.fingerprint(name, has_values=False) for name in (first, second, third)}) == 1
    other = boxed(models, 3, "a", 3, "FloatSliderModel")
    assert models.fingerprint(other, has_values=False) != models.fingerprint(first, has_values=False)
    models.feed(2, "as", said("update", state={"value": 3}))
    assert models.fingerprint(third) == prints[0]


def test_a_tree_has_each_widget_once_also_where_they_refer_to_each_other() -> None:
    models = RankModels()
    models.feed(0, "a", opened({"other": "IPY_MODEL_b"}))
    models.feed(0, "b", opened({"others": ["IPY_MODEL_a", "IPY_MODEL_c", "IPY_MODEL_b"]}))
    assert models.tree((0, "a")) == [(0, "a"), (0, "b"), (0, "c")]
    assert models.fingerprint((0, "a"))


def test_buffers_stand_in_their_places() -> None:
    models = RankModels()
    models.feed(0, "a", opened({"shown": {"array": None}}, b"one", paths=[["shown", "array"]]))
    assert models.state((0, "a")) == {"shown": {"array": b"one"}}
    same = RankModels()
    same.feed(0, "a", opened({"shown": {"array": None}}, b"two", paths=[["shown", "array"]]))
    assert models.fingerprint((0, "a")) != same.fingerprint((0, "a"))


def test_what_is_no_widgets_is_left_alone() -> None:
    models = RankModels()
    assert models.feed(0, "a", opened({}, target="bokeh")) is None
    assert models.feed(0, "a", said("update", state={"value": 1})) is None
    assert models.feed(0, "a", CommContent("close", "", b"{}")) is None
    assert (0, "a") not in models


def test_a_custom_message_and_an_echo_are_told_apart_from_an_update() -> None:
    models = RankModels()
    models.feed(0, "a", opened(slider(3)))
    custom = models.feed(0, "a", said("custom", content={"event": "click"}))
    assert custom is not None
    assert custom.custom == ({"event": "click"}, ())
    echo = models.feed(0, "a", said("echo_update", state={"value": 5}))
    assert echo is not None
    assert echo.is_echo
    assert models.state((0, "a"))["value"] == 5


def test_a_link_belongs_to_the_sliders_that_it_refers_to() -> None:
    models = RankModels()
    for name in "ab":
        models.feed(0, name, opened({**slider(1), "layout": None}))
    models.feed(0, "link", opened({"_view_name": None, "source": ["IPY_MODEL_a", "value"]}))
    models.feed(0, "other", opened({"_view_name": None, "source": ["IPY_MODEL_x", "value"]}))
    models.feed(1, "link", opened({"_view_name": None, "source": ["IPY_MODEL_a", "value"]}))
    assert models.attached_to(models.tree((0, "a"))) == [(0, "link")]


@pytest.mark.parametrize("waits", [False, True])
def test_captured_output_is_that_of_the_output_widget(waits: bool) -> None:
    models = RankModels()
    models.feed(0, "o", opened({"outputs": []}))
    assert models.capture(0, Text((0,), "stdout", "lost", area="unknown")) is None
    for text in ("one\n", "two\n"):
        models.capture(0, Text((0,), "stdout", text, area="o"))
    models.capture(0, Display((0,), {"text/plain": "3"}, area="o"))
    shown = models.state((0, "o"))["outputs"]
    assert [each.get("text") for each in shown] == ["one\ntwo\n", None]
    models.capture(0, Clear((0,), wait=waits, area="o"))
    assert models.state((0, "o"))["outputs"] == (shown if waits else ())
    models.capture(0, Text((0,), "stdout", "new", area="o"))
    assert [each["text"] for each in models.state((0, "o"))["outputs"]] == ["new"]


def test_references_are_found_and_renamed_also_in_what_was_displayed() -> None:
    state = {"children": ["IPY_MODEL_a", "text"], "shown": {"data": {WIDGET_VIEW: {"model_id": "b"}}}}
    assert list(references(state)) == ["a", "b"]
    made = renamed(state, {"a": "A", "b": "B"}.get)
    assert made == {"children": ["IPY_MODEL_A", "text"], "shown": {"data": {WIDGET_VIEW: {"model_id": "B"}}}}
    assert renamed(state, {}.get) == state

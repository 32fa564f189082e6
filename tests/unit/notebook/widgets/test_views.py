"""Views: one widget for ranks that have the same, tabs for those that differ, and what a page does goes to them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from jdist.client.comms import CommReceived, EventOutput, EventsPending
from jdist.core.messages.runs import Clear, Display, Text
from jdist.core.messages.status import ClusterFacts, Stopped
from jdist.core.messages.widgets import CommContent
from jdist.core.outcome import WIDGET_VIEW
from jdist.notebook.widgets import rank_widgets, twin_set
from jdist.notebook.widgets.models import TARGET
from jdist.notebook.widgets.rank_widgets import RankWidgets
from jdist.notebook.widgets.views import View
from support.waits import eventually


class Ranks:
    """A cluster whose ranks' messages the test makes, and which notes what is sent to them."""

    def __init__(self) -> None:
        self.asynchronous = self
        self.sent: list[tuple[dict[int, str], Any]] = []
        self.sending: set[tuple[int, ...]] = set()
        self.pids = {0: 100, 1: 101}
        self.world_size = 2
        self.hear: Callable[[Any], None] = lambda _heard: None

    def part(self, _kind: type) -> Ranks:
        return self

    def listen(self, listener: Callable[[Any], None]) -> None:
        self.hear = listener

    def watch(self, watcher: Callable[[Any], None]) -> None:
        self.tell = watcher

    def is_sending(self, ranks: tuple[int, ...]) -> bool:
        return ranks in self.sending

    def send(self, comm_ids: dict[int, str], event: Any, _buffers: object) -> None:
        self.sent.append((dict(comm_ids), event))

    def status(self) -> Any:
        rows = [type("Row", (), {"rank": rank, "pid": pid}) for rank, pid in self.pids.items()]
        return type("Report", (), {"ranks": rows})

    # ------------------------------------------------------------ what ranks do

    def open(self, rank: int, comm_id: str, **state: Any) -> None:
        state = {"_model_name": "LabelModel", "_view_name": "LabelView", **state}
        content = CommContent("open", TARGET, msgspec.json.encode({"state": state}))
        self.hear(CommReceived((rank,), comm_id, content))

    def close(self, rank: int, comm_id: str) -> None:
        self.hear(CommReceived((rank,), comm_id, CommContent("close", "", b"{}")))

    def update(self, rank: int, comm_id: str, **state: Any) -> None:
        data = msgspec.json.encode({"method": "update", "state": state})
        self.hear(CommReceived((rank,), comm_id, CommContent("msg", "", data)))


class Kernel:
    """What views use of a kernel; it notes what cells have caused."""

    iopub_socket = None

    def __init__(self) -> None:
        self.session = self
        self.caused: dict[str, dict[str, Any]] = {}

    def get_parent(self) -> str:
        return "cell"

    def send(self, _socket: object, kind: str, content: Any, *, parent: str, buffers: object) -> None:
        assert (kind, parent, buffers) == ("comm_msg", "cell", [])
        self.caused.setdefault(content["comm_id"], {}).update(content["data"]["state"])


class Place:
    """A cell's output."""

    is_live = True

    def __init__(self) -> None:
        self.shown: list[Any] = []

    def show(self, bundle: Any) -> Callable[[Any], None]:
        self.shown.append(bundle)
        place = len(self.shown) - 1
        return lambda bundle: self.shown.__setitem__(place, bundle)


class Bench:
    """The widgets of two ranks and the output of a cell."""

    def __init__(self, ranks: Ranks, widgets: RankWidgets):
        self.ranks = ranks
        self.widgets = widgets
        self.place = Place()

    def display(self, run: int = 1, *, of: str = "", update: bool = False, **by_rank: str) -> None:
        for rank, model in by_rank.items():
            data = {"text/plain": "Label", WIDGET_VIEW: {"model_id": model}}
            display = Display((int(rank[1:]),), data, display_id=of, is_update=update)
            self.widgets.show(run, display, self.place)

    @property
    def views(self) -> list[View]:
        return self.widgets._views

    def groups(self, nth: int = 0) -> list[list[int]]:
        """The ranks of each twin of a view, once it is drawn."""
        assert eventually(lambda: len(self.place.shown) > nth, 10)
        return [[rank for rank, _ in each] for each in self.views[nth].classes]

    def twins(self, nth: int = 0) -> list[Any]:
        content = self.views[nth].box.children[0]
        return list(content.children) if hasattr(content, "titles") else [content]

    def note(self, nth: int = 0) -> str:
        words = self.views[nth].words
        return "" if words is None else str(words.value)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(rank_widgets, "_REST", 0.1)
    monkeypatch.setattr(twin_set, "bridge", lambda: Loop)
    ranks: Any = Ranks()
    widgets = RankWidgets(ranks, Kernel())
    yield Bench(ranks, widgets)
    ranks.hear(Stopped("over"))
    thread = widgets._thread
    assert thread is None or eventually(lambda: not thread.is_alive(), 10)


class Loop:
    """The client's loop, which calls at once."""

    @staticmethod
    def call_soon_threadsafe(function: Callable[..., None], *args: Any) -> None:
        function(*args)


Loop.loop = Loop  # type: ignore[attr-defined]


def both(bench: Bench, first: str = "same", second: str = "same") -> None:
    bench.ranks.open(0, "a", value=first)
    bench.ranks.open(1, "b", value=second)
    bench.display(r0="a", r1="b")


def test_a_widget_that_is_the_same_is_shown_once_and_its_events_go_to_all(bench: Bench) -> None:
    both(bench)
    assert bench.groups() == [[0, 1]]
    (twin,) = bench.twins()
    assert bench.place.shown[0][WIDGET_VIEW]["model_id"] == bench.views[0].box.model_id
    twin._handle_msg({"content": {"data": {"method": "update", "state": {"value": "typed"}}}, "buffers": []})
    assert [ids for ids, _ in bench.ranks.sent] == [{0: "a", 1: "b"}]
    assert bench.ranks.sent[0][1]["state"] == {"value": "typed"}
    bench.ranks.update(0, "a", value="answered")
    assert eventually(lambda: twin.get_state("value") == {"value": "answered"}, 10)


def test_widgets_that_differ_have_tabs(bench: Bench) -> None:
    both(bench, "one", "two")
    assert bench.groups() == [[0], [1]]
    assert eventually(lambda: bench.views[0].box.children[0].titles == ("rank 0", "rank 1"), 10)
    bench.twins()[1]._handle_msg({"content": {"data": {"method": "custom", "content": "click"}}, "buffers": []})
    assert bench.ranks.sent == [({1: "b"}, {"method": "custom", "content": "click"})]


def test_ranks_that_come_to_differ_are_divided_at_rest_and_joined_again(bench: Bench) -> None:
    both(bench)
    assert bench.groups() == [[0, 1]]
    until = time.monotonic() + 0.3
    while time.monotonic() < until:  # one is ahead of the other all the time
        bench.ranks.update(0, "a", value="new")
        assert bench.groups() == [[0, 1]]
    assert eventually(lambda: bench.groups() == [[0], [1]], 10)
    apart = bench.twins()
    bench.ranks.update(1, "b", value="new")
    assert eventually(lambda: bench.groups() == [[0, 1]], 10)
    assert eventually(lambda: all(twin.comm is None for twin in apart), 10)  # closed: no view has them
    assert len(bench.widgets._twins._twins) == 1


def test_a_widget_whose_state_is_not_known_says_so(bench: Bench) -> None:
    bench.display(r0="never opened")
    assert bench.groups() == [[0]]
    assert "run the cell again that shows it" in bench.note()


def test_a_widget_that_is_new_in_a_view_is_shown_before_what_refers_to_it(bench: Bench) -> None:
    for rank, name in ((0, "a"), (1, "b")):
        bench.ranks.open(rank, name, children=[])
    bench.display(r0="a", r1="b")
    assert bench.groups() == [[0, 1]]
    (box,) = bench.twins()
    for rank, name in ((0, "a"), (1, "b")):
        bench.ranks.open(rank, f"{name}2", value="inner")
        bench.ranks.update(rank, name, children=[f"IPY_MODEL_{name}2"])
    assert eventually(lambda: box.get_state("children")["children"] not in ([], ()), 10)
    assert bench.groups() == [[0, 1]]
    (reference,) = box.get_state("children")["children"]
    inner = bench.widgets._twins.of([(0, "a2")])[0]
    assert reference == f"IPY_MODEL_{inner.model_id}"
    assert inner.comm_ids == {0: "a2", 1: "b2"}


def test_what_a_rank_displays_besides_does_not_move_the_others(bench: Bench) -> None:
    bench.ranks.open(0, "x", value="of rank 0 only")
    bench.display(r0="x")
    assert bench.groups() == [[0]]
    bench.ranks.open(0, "a", value="same")
    bench.display(r0="a")
    assert bench.groups(1) == [[0]]
    bench.ranks.open(1, "b", value="same")
    bench.display(r1="b")
    assert eventually(lambda: bench.groups(1) == [[0, 1]], 10)
    assert bench.groups() == [[0]]


def test_captured_output_is_taken_only_where_its_widget_is_known(bench: Bench) -> None:
    assert not bench.widgets.capture(Text((0,), "stdout", "kept", area="o"))
    bench.ranks.open(0, "o", outputs=[])
    bench.display(r0="o")
    assert bench.groups() == [[0]]
    assert bench.widgets.capture(Text((0,), "stdout", "shown", area="o"))
    (twin,) = bench.twins()
    assert eventually(lambda: [each["text"] for each in twin.get_state("outputs")["outputs"]] == ["shown"], 10)


def test_a_display_that_is_updated_stays_in_its_place(bench: Bench) -> None:
    bench.ranks.open(0, "a", value="first")
    bench.ranks.open(0, "b", value="second")
    bench.display(of="handle", r0="a")
    assert bench.groups() == [[0]]
    bench.display(run=2, of="handle", update=True, r0="b")
    assert eventually(lambda: bench.twins()[0].get_state("value") == {"value": "second"}, 10)
    assert len(bench.place.shown) == len(bench.views) == 1


def test_cleared_output_has_no_widget(bench: Bench) -> None:
    both(bench)
    bench.groups()
    bench.widgets.clear(1, Clear((0, 1)))
    assert eventually(lambda: WIDGET_VIEW not in bench.place.shown[0], 10)


def test_a_view_says_what_it_waits_for_and_what_its_observers_write(bench: Bench) -> None:
    both(bench)
    bench.groups()
    bench.ranks.hear(EventsPending((0, 1), "waits for <rank 1>"))
    assert eventually(lambda: "waits for &lt;rank 1&gt;" in bench.note(), 10)
    bench.ranks.hear(EventsPending((0, 1), ""))
    assert eventually(lambda: bench.note() == "", 10)
    bench.ranks.hear(EventOutput(Text((1,), "stderr", "ValueError: no\n")))
    assert eventually(lambda: "[1] ValueError: no" in bench.note(), 10)
    bench.ranks.hear(EventsPending((0, 1), ""))
    bench.ranks.hear(EventOutput(Text((0, 1), "stdout", "later\n")))
    assert eventually(lambda: "later" in bench.note() and "ValueError" not in bench.note(), 10)
    bench.ranks.hear(EventsPending((0, 1), ""))
    bench.ranks.hear(EventsPending((0, 1), ""))  # of events at which nothing was written
    assert eventually(lambda: bench.note() == "", 10)


@pytest.mark.parametrize("is_heard", [True, False])
def test_a_view_whose_rank_was_replaced_is_disabled(bench: Bench, is_heard: bool) -> None:
    bench.ranks.open(0, "a", value=1, disabled=False)
    bench.ranks.open(1, "b", value=1, disabled=False)
    bench.display(r0="a", r1="b")
    bench.groups()
    if is_heard:
        bench.ranks.hear(EventsPending((0, 1), "", ((1, "b"),)))
    else:
        bench.ranks.pids[1] = 999
        bench.ranks.tell(ClusterFacts("c", "ready", 2, "gloo", 1, (2,), ("h",), 2))
    assert eventually(lambda: "rank 1 no longer has this widget" in bench.note(), 10)
    (twin,) = bench.twins()
    assert twin.get_state("disabled") == {"disabled": True}
    twin._handle_msg({"content": {"data": {"method": "update", "state": {"value": 2}}}, "buffers": []})
    assert bench.ranks.sent == []


def test_a_view_of_a_cluster_that_is_gone_says_so(bench: Bench) -> None:
    both(bench)
    bench.groups()
    bench.ranks.hear(Stopped("its node was shut down"))
    assert eventually(lambda: "not connected any more: its node was shut down" in bench.note(), 10)


def test_at_the_end_of_a_run_its_widgets_are_shown_and_the_cell_has_caused_their_state(bench: Bench) -> None:
    both(bench)
    bench.widgets.finish([0, 1])
    assert bench.place.shown[0]["text/plain"] == "widget of ranks 0-1"
    (twin,) = bench.twins()
    caused = bench.widgets._kernel.caused
    assert caused[twin.model_id]["value"] == "same"
    assert caused[bench.views[0].box.model_id]["children"] == [f"IPY_MODEL_{twin.model_id}"]
    caused.clear()
    bench.ranks.update(0, "a", value="of a later cell")
    bench.ranks.update(1, "b", value="of a later cell")
    bench.widgets.finish([0, 1])
    assert caused[twin.model_id]["value"] == "of a later cell"
    caused.clear()
    bench.widgets.finish([0, 1])
    assert caused == {}


def test_a_widget_that_its_rank_closes_leaves_the_page(bench: Bench) -> None:
    for rank in (0, 1):
        bench.ranks.open(rank, "inner", value=1)
        bench.ranks.open(rank, "outer", children=["IPY_MODEL_inner"])
    bench.display(r0="outer", r1="outer")
    bench.groups()
    (inner,) = bench.widgets._twins.of([(0, "inner")])
    for rank in (0, 1):
        bench.ranks.close(rank, "inner")
    assert eventually(lambda: inner.comm is None, 10)
    bench.ranks.hear(EventsPending((0, 1), "", ((0, "inner"), (1, "inner"))))  # an event was on its way
    bench.widgets.finish([0, 1])
    assert not bench.views[0].is_gone
    for rank in (0, 1):
        bench.ranks.close(rank, "outer")
    assert eventually(lambda: WIDGET_VIEW not in bench.place.shown[0], 10)
    assert bench.views == []


def test_a_link_is_made_once_both_of_its_widgets_are_shown(bench: Bench) -> None:
    bench.ranks.open(0, "a", value=1)
    bench.ranks.open(0, "b", value=2)
    ends = {"source": ["IPY_MODEL_a", "value"], "target": ["IPY_MODEL_b", "value"]}
    bench.ranks.open(0, "l", _view_name=None, **ends)
    bench.display(r0="a")
    bench.groups()
    assert bench.widgets._twins.of([(0, "l")]) == []
    bench.display(r0="b")
    bench.groups(1)
    (link,) = bench.widgets._twins.of([(0, "l")])
    a, b = bench.widgets._twins.of([(0, "a"), (0, "b")])
    assert link.get_state("source")["source"] == [f"IPY_MODEL_{a.model_id}", "value"]
    assert link.get_state("target")["target"] == [f"IPY_MODEL_{b.model_id}", "value"]


def test_what_a_page_has_set_stays_until_the_ranks_have_taken_it(bench: Bench) -> None:
    both(bench)
    bench.groups()
    (twin,) = bench.twins()
    bench.ranks.sending.add((0, 1))
    twin._handle_msg({"content": {"data": {"method": "update", "state": {"value": "typed"}}}, "buffers": []})
    bench.ranks.update(0, "a", other=1)
    bench.ranks.update(1, "b", other=1)
    bench.widgets.finish([0, 1])  # draws the view again
    assert twin.get_state("value") == {"value": "typed"}
    bench.ranks.sending.clear()
    bench.ranks.hear(EventsPending((0, 1), ""))
    assert eventually(lambda: twin.get_state("value") == {"value": "same"}, 10)  # the ranks did not take it


def test_of_many_changes_the_page_gets_the_newest_and_of_commands_all(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_widgets, "_REST", 100.0)  # the first rank is far ahead
    both(bench)
    bench.groups()
    (twin,) = bench.twins()
    sent: list[Any] = []
    twin.send_state = lambda names: sent.append(twin.get_state(names))
    for value in range(2000):
        bench.ranks.update(0, "a", value=value)
    bench.ranks.update(1, "b", value=value)
    bench.widgets.finish([0, 1])
    assert sent[-1] == {"value": 1999}
    assert len(sent) < 1000
    commands = [{"restyle": 1}, None, {"restyle": 2}, None]
    for command in commands:
        bench.ranks.update(0, "a", command=command)
        bench.ranks.update(1, "b", command=command)
    bench.widgets.finish([0, 1])
    assert [state["command"] for state in sent if "command" in state] == commands


def test_the_text_of_a_view_names_the_ranks_that_have_come_later(bench: Bench) -> None:
    bench.ranks.open(0, "a", value=1)
    bench.ranks.open(1, "b", value=1)
    bench.display(r0="a")
    assert eventually(lambda: any(e["text/plain"] == "widget of rank 0" for e in bench.place.shown), 10)
    bench.display(r1="b")
    assert eventually(lambda: any(e["text/plain"] == "widget of ranks 0-1" for e in bench.place.shown), 10)

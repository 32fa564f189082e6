"""The output relay: nothing a rank says is lost or misplaced, however it is cut, capped and merged on its way."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from jupyter_client.session import Session

from jdist.agent.processes.kernel import KernelMessage, parse
from jdist.agent.relay import iopub
from jdist.agent.relay.iopub import OutputRelay, RankLogs, merge
from jdist.core.messages.base import Message
from jdist.core.messages.runs import Clear, Display, Output, OutputItem, Tail, Text
from jdist.core.messages.widgets import CommContent
from jdist.core.outcome import WIDGET_VIEW
from jdist.wire.values.frames import MAX_MESSAGE, pack

Make = Callable[..., Any]
STREAMS = ["stdout", "stderr"]
pieces = st.text(alphabet="ab\n\r\x0b\u2028é", max_size=12)


def stream(text: str, name: str = "stdout", run: int = 1) -> KernelMessage:
    return KernelMessage("stream", run, msgspec.Raw(msgspec.json.encode({"name": name, "text": text})), ())


def display(data: dict[str, Any], kind: str = "display_data", run: int = 1, **more: Any) -> KernelMessage:
    content = {"data": data, "metadata": {}, **more}
    return KernelMessage(kind, run, msgspec.Raw(msgspec.json.encode(content)), ())


def lasting(text: str) -> str:
    """What is not written over by the text itself."""
    return re.sub(r"[^\n]*\r(?!\n|\Z)", "", text)


class Sent:
    """Collects what a relay sends."""

    def __init__(self) -> None:
        self.outputs: list[Output] = []

    def __call__(self, message: Message) -> None:
        assert isinstance(message, Output)
        self.outputs.append(message)

    def items(self, run: int = 1) -> list[OutputItem]:
        return [i for o in self.outputs if o.run == run for i in o.items]

    def text(self, rank: int, name: str = "stdout", run: int = 1) -> str:
        """What passed of a rank's stream."""
        return "".join(i.text for i in self.items(run) if isinstance(i, Text) and i.stream == name and rank in i.ranks)

    def tail(self, rank: int, name: str = "stdout", run: int = 1) -> Tail | None:
        tails = [i for i in self.items(run) if isinstance(i, Tail) and (i.rank, i.stream) == (rank, name)]
        return tails[-1] if tails else None


def relay_at(path: Path, limit: int = 2000) -> tuple[OutputRelay, Sent]:
    sent = Sent()
    r = OutputRelay(sent, RankLogs(path))
    r.line_limit = limit
    return r, sent


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., tuple[OutputRelay, Sent]]:
    """Makes relays, with a limit of lines."""
    return functools.partial(relay_at, tmp_path)


# ---------------------------------------------------------------- Jupyter's frames


def frames(kind: str, content: dict[str, Any], parent: str | None, *buffers: bytes) -> list[bytes]:
    """As a real kernel's session writes them to iopub."""
    session = Session(key=b"secret", username="u")
    header = None if parent is None else {"msg_id": parent, "msg_type": "execute_request", "session": "s"}
    message = session.msg(kind, content, parent=None if header is None else {"header": header})
    return [b"kernel.abc.stream", *session.serialize(message), *buffers]


@pytest.mark.parametrize(
    ("parent", "run"),
    [("jdist-7", 7), ("jdist-12345", 12345), ("jdist-", 0), ("jdist-x", 0), ("7", 0), ("jdist--1", 0), (None, 0)],
)
def test_a_kernels_message_is_read_with_its_run(parent: str | None, run: int) -> None:
    message = parse(frames("stream", {"name": "stdout", "text": "é\n"}, parent, b"one", b"two"))
    assert (message.kind, message.run, message.buffers) == ("stream", run, (b"one", b"two"))
    assert json.loads(bytes(message.content)) == {"name": "stdout", "text": "é\n"}


def test_what_is_no_output_is_not_taken(made: Make) -> None:
    r, sent = made()
    for kind in ("status", "execute_input", "error"):
        assert not r.record(0, KernelMessage(kind, 1, msgspec.Raw(b"{}"), ()))
    r.flush()
    assert sent.outputs == []


# ---------------------------------------------------------------- caps


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(pieces), st.integers(0, 5), st.integers(1, 4), st.lists(st.booleans(), max_size=30))
@example(["x" * 5000], 1, 1, [])
@example(["x" * 300, "\n", "y" * 20000, "z\n"], 2, 1, [])
@example(["a\r" * 500], 1, 3, [True])
def test_passed_and_left_out_are_everything(
    tmp_path_factory: pytest.TempPathFactory, chunks: list[str], limit: int, repeat: int, flushes: list[bool]
) -> None:
    said = chunks * repeat
    r, sent = relay_at(tmp_path_factory.mktemp("relay"), limit)
    for chunk, flush in zip(said, flushes + [False] * len(said), strict=False):
        r.record(0, stream(chunk))
        if flush:
            r.flush()
    r.flush()
    whole = "".join(said)
    passed, tail = sent.text(0), sent.tail(0)
    assert whole.startswith(passed)
    if tail is None:
        assert passed == whole
        return
    assert whole.endswith(tail.text)
    assert tail.chars + len(lasting(tail.text)) == len(lasting(whole[len(passed) :]))
    assert passed.count("\n") + tail.lines + tail.text.count("\n") == whole.count("\n")
    assert tail.lines >= 0
    assert tail.chars >= 0
    assert passed.count("\n") <= limit
    assert len(lasting(passed)) <= limit * iopub._CHARS_PER_LINE
    assert len(passed) <= limit * iopub._CHARS_PER_LINE * iopub._REWRITES
    assert len(tail.text) <= iopub._TAIL_CHARS
    assert tail.text or not whole[len(passed) :]


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(alphabet="ab\n\r", max_size=60), st.integers(0, 6), st.data())
def test_what_passes_does_not_depend_on_how_it_was_cut(
    tmp_path_factory: pytest.TempPathFactory, text: str, limit: int, data: st.DataObject
) -> None:
    ends = []
    for _ in range(2):
        cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
        r, sent = relay_at(tmp_path_factory.mktemp("relay"), limit)
        for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True):
            r.record(0, stream(text[a:b]))
        r.flush()
        ends.append((sent.text(0), sent.tail(0)))
    assert ends[0] == ends[1]


def test_a_stream_within_its_limit_has_no_tail(made: Make) -> None:
    r, sent = made(3)
    r.record(0, stream("1\n2\n3\n"))
    r.flush()
    assert sent.items() == [Text((0,), "stdout", "1\n2\n3\n")]


def test_past_the_limit_the_newest_lines_go_on_travelling(made: Make) -> None:
    r, sent = made(3)
    for n in range(1000):
        r.record(0, stream(f"line {n}\n"))
        if n % 100 == 99:
            r.flush()
    tails = [i for i in sent.items() if isinstance(i, Tail)]
    assert len(tails) == 10
    assert sent.text(0) == "line 0\nline 1\nline 2\n"
    assert tails[-1].text.splitlines() == [f"line {n}" for n in range(960, 1000)]
    assert tails[-1].lines == 957


def test_a_tail_that_has_not_changed_does_not_travel_again(made: Make) -> None:
    r, sent = made(1)
    r.record(0, stream("1\n2\n"))
    r.flush()
    r.record(0, stream("x\n", "stderr"))
    r.flush()
    assert len([i for i in sent.items() if isinstance(i, Tail)]) == 1


def test_each_rank_stream_and_run_has_its_own_limit(made: Make) -> None:
    r, sent = made(1)
    for rank in (0, 1):
        for name in STREAMS:
            for run in (1, 2):
                r.record(rank, stream(f"{rank}{name}\nmore\n", name, run))
    r.flush()
    for rank in (0, 1):
        for name in STREAMS:
            for run in (1, 2):
                assert sent.text(rank, name, run) == f"{rank}{name}\n"
                assert sent.tail(rank, name, run) == Tail(rank, name, 0, 0, "more\n")


def test_a_run_that_was_forgotten_starts_anew(made: Make) -> None:
    r, sent = made(1)
    r.record(0, stream("1\n2\n"))
    r.flush()
    r.end_rank(1, 0)
    r.end_rank(1, 0)
    r.record(0, stream("late\n"))
    r.flush()
    assert sent.items()[-1] == Text((0,), "stdout", "late\n")


# ---------------------------------------------------------------- merging


texts = st.builds(Text, st.just((0,)), st.sampled_from(STREAMS), st.sampled_from(["a\n", "b\n"]))
displays = st.builds(Display, st.just((0,)), st.just({"text/plain": "x"}))
items = st.lists(st.one_of(texts, displays, st.builds(Clear, st.just((0,)))), max_size=4)


def own(item: OutputItem, rank: int) -> OutputItem:
    return item if isinstance(item, Tail) else msgspec.structs.replace(item, ranks=(rank,))


@given(st.dictionaries(st.integers(0, 5), items))
def test_merging_keeps_every_ranks_items_in_order(by_rank: dict[int, list[OutputItem]]) -> None:
    by_rank = {rank: [own(i, rank) for i in said] for rank, said in by_rank.items()}
    merged = merge({rank: [(i * 10 + rank, item) for i, item in enumerate(said)] for rank, said in by_rank.items()})
    for rank, said in by_rank.items():
        assert [own(i, rank) for i in merged if not isinstance(i, Tail) and rank in i.ranks] == said
    assert sum(len(i.ranks) for i in merged if not isinstance(i, Tail)) == sum(map(len, by_rank.values()))
    distinct = {tuple(map(repr, (own(i, 0) for i in said))) for said in by_rank.values() if said}
    assert len(merged) == sum(map(len, distinct)), "what is alike travels once"


def test_tails_are_never_merged() -> None:
    tails = {r: Tail(r, "stdout", 1, 2, "same") for r in (0, 1)}
    assert merge({rank: [(0.0, tail)] for rank, tail in tails.items()}) == [*tails.values()]


def test_ranks_that_write_by_turns_are_passed_on_in_the_order_of_arrival(made: Make) -> None:
    r, sent = made()
    for step in range(3):
        for rank in (2, 0, 1):
            r.record(rank, stream(f"{step} {rank}\n"))
            r.record(rank, display({"text/plain": f"{step} {rank}"}))
    r.flush()
    said = [(i.ranks, i.text if isinstance(i, Text) else i.data["text/plain"] + "\n") for i in sent.items()]
    assert said == [((rank,), f"{step} {rank}\n") for step in range(3) for rank in (2, 0, 1) for _ in range(2)]


def test_streams_and_displays_keep_their_order_within_a_rank(made: Make) -> None:
    r, sent = made()
    r.record(0, stream("a"))
    r.record(0, stream("b\n"))
    r.record(0, stream("e\n", "stderr"))
    r.record(0, display({"text/plain": "x"}, transient={"display_id": "d1"}))
    r.record(0, stream("c\n"))
    r.record(0, display({"text/plain": "y"}, "update_display_data", transient={"display_id": "d1"}))
    r.record(0, display({"text/plain": "6"}, "execute_result", execution_count=3))
    r.flush()
    assert sent.items() == [
        Text((0,), "stdout", "ab\n"),
        Text((0,), "stderr", "e\n"),
        Display((0,), {"text/plain": "x"}, display_id="d1"),
        Text((0,), "stdout", "c\n"),
        Display((0,), {"text/plain": "y"}, display_id="d1", is_update=True),
        Display((0,), {"text/plain": "6"}, is_result=True),
    ]


def test_a_flush_of_one_run_leaves_the_others(made: Make) -> None:
    r, sent = made()
    r.record(0, stream("one\n", run=1))
    r.record(0, stream("two\n", run=2))
    r.flush(1)
    r.flush(9)
    assert [o.run for o in sent.outputs] == [1]
    r.flush()
    assert [o.run for o in sent.outputs] == [1, 2]


# ---------------------------------------------------------------- displays


def shown_of(sent: Sent, rank: int) -> list[dict[str, Any]]:
    return [i.data for i in sent.items() if isinstance(i, Display) and rank in i.ranks]


def picture(size: int) -> dict[str, Any]:
    return {"text/plain": "p", "image/png": "x" * size}


def test_displays_past_the_limit_say_what_was_left_out(made: Make) -> None:
    r, sent = made()
    large = picture(3 << 20)
    for rank in (0, 0, 1):
        r.record(rank, display(large))
    r.flush()
    first, second = shown_of(sent, 0)
    assert first == large
    assert shown_of(sent, 1) == [large]
    assert set(second) == {"text/plain"}
    assert re.search(r"3,\d{3},\d{3} bytes was left out", second["text/plain"])


@pytest.mark.parametrize("sizes", [[5 << 20], [3 << 20, 900 << 10, 900 << 10], [9 << 20] * 3])
def test_large_displays_leave_room_for_small_ones(made: Make, sizes: list[int]) -> None:
    r, sent = made()
    small = [{"text/plain": f"small {number}"} for number in range(20)]
    for data in (*map(picture, sizes), *small):
        r.record(0, display(data, metadata={"image/png": {"width": 8}}))
    r.flush()
    items = [i for i in sent.items() if isinstance(i, Display)]
    assert [i.data for i in items][len(sizes) :] == small
    assert "left out" in items[len(sizes) - 1].data["text/plain"]
    assert items[len(sizes) - 1].metadata == {}


def test_displays_and_what_is_said_of_those_left_out_are_bounded(made: Make) -> None:
    r, sent = made()
    for number in range(90_000):
        r.record(0, display({"text/plain": "x" * 100, "n": number}))
    for _ in range(100):
        r.record(0, display(picture(100 << 10)))
    r.flush()
    shown = shown_of(sent, 0)
    assert sum(len(data["text/plain"]) for data in shown) < 6 << 20
    assert len(shown) < 90_000
    assert "all later" in shown[-1]["text/plain"]


def test_what_a_display_is_replaced_by_takes_its_room(made: Make) -> None:
    r, sent = made()
    same = {"display_id": "a"}
    r.record(0, display(picture(3 << 20), transient=same))
    for _ in range(5):
        r.flush()
        r.record(0, display(picture(3 << 20), "update_display_data", transient=same))
    r.flush()
    r.record(0, display(picture(5 << 20), "update_display_data", transient=same))
    r.record(0, display(picture(3 << 20)))
    r.flush()
    assert ["image/png" in data for data in shown_of(sent, 0)] == [True] * 6 + [False, True]


# ---------------------------------------------------------------- other bytes


def test_bytes_that_are_no_text_pass_with_a_mark(made: Make) -> None:
    r, sent = made()
    session = Session(key=b"secret", username="u")
    message = session.msg(
        "stream", {"name": "stdout", "text": "name \udcff!\n"}, parent={"header": {"msg_id": "jdist-1"}}
    )
    assert r.record(0, parse([b"topic", *session.serialize(message)]))
    r.flush()
    assert sent.text(0) == "name \ufffd!\n"


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        ({"text/plain": "IntSlider(value=3)"}, {"text/plain": "IntSlider"}),
        ({"text/plain": "<a widget of mine>"}, {"text/plain": "widget"}),
        ({}, {"text/plain": "widget"}),
        ({"text/plain": "Output()"}, {"text/plain": "Output()"}),
        ({"text/plain": "Output(outputs=({'name': 'stdout'},))"}, {"text/plain": "Output"}),
        ({"text/plain": "Canvas()", "image/png": "iVBO"}, {"text/plain": "Canvas()", "image/png": "iVBO"}),
    ],
)
def test_a_widget_travels_with_its_picture_or_its_name(made: Make, data: dict[str, Any], shown: dict[str, Any]) -> None:
    r, sent = made()
    view = {WIDGET_VIEW: {"model_id": "1.0"}}
    for rank in range(2):
        r.record(rank, display({**data, **view}))
    r.flush()
    assert [(item.ranks, item.data) for item in sent.items()] == [((0, 1), {**shown, **view})]


def comm(kind: str, data: dict[str, Any], *buffers: bytes, comm_id: str = "1.0", target: str = "") -> KernelMessage:
    content = {"comm_id": comm_id, "target_name": target, "data": data}
    return KernelMessage(f"comm_{kind}", 1, msgspec.Raw(msgspec.json.encode(content)), buffers)


def test_what_comms_of_ranks_say_alike_travels_once(made: Make) -> None:
    r, sent = made()
    for rank in range(3):
        assert r.record(rank, comm("open", {"state": {"value": 1}}, b"bytes", target="jupyter.widget"))
    r.flush()
    (item,) = sent.items()
    content = msgspec.msgpack.decode(item.content, type=CommContent)
    assert (item.ranks, item.comm_id, item.replaces, item.has_more) == ((0, 1, 2), "1.0", "", False)
    assert (content.kind, content.target, content.buffers) == ("open", "jupyter.widget", (b"bytes",))
    assert json.loads(content.data) == {"state": {"value": 1}}


def test_of_many_updates_of_a_widget_the_newest_travels(made: Make) -> None:
    r, sent = made()
    for value in range(1000):
        r.record(0, comm("msg", {"method": "update", "state": {"value": value}}))
        r.record(
            0, comm("msg", {"method": "custom", "content": value}) if value < 3 else comm("close", {}, comm_id="2")
        )
    r.record(0, comm("msg", {"method": "update", "state": {"value": 0, "max": 9}}))
    for command in ({"restyle": 1}, None, {"restyle": 2}, None):
        r.record(0, comm("msg", {"method": "update", "state": {"command": command}}))
    r.flush()
    said = [json.loads(msgspec.msgpack.decode(item.content, type=CommContent).data) for item in sent.items()]
    assert [each["content"] for each in said if each.get("method") == "custom"] == [0, 1, 2]
    states = [each["state"] for each in said if each.get("method") == "update"]
    assert states[:2] == [{"value": 999}, {"value": 0, "max": 9}]
    assert [state["command"] for state in states[2:]] == [{"restyle": 1}, None, {"restyle": 2}, None]


def test_a_large_buffer_travels_in_parts_small_enough_for_others_to_come_between(made: Make) -> None:
    r, sent = made()
    r.record(0, comm("msg", {"method": "update", "state": {"value": 1}}, bytes(10_000_000)))
    r.flush()
    items = [*sent.items()]
    assert [item.has_more for item in items] == [True] * (len(items) - 1) + [False]
    assert max(len(pack(output)) for output in sent.outputs) < 6 << 20
    content = msgspec.msgpack.decode(b"".join(item.content for item in items), type=CommContent)
    assert content.buffers == (bytes(10_000_000),)


def test_what_is_put_into_an_output_widget_without_capture_is_noted(made: Make) -> None:
    r, sent = made()
    for state in ({"msg_id": ""}, {"outputs": []}, {"outputs": [{"output_type": "stream", "text": "x"}]}):
        content = {"comm_id": "a", "data": {"method": "update", "state": state}}
        r.record(0, KernelMessage("comm_msg", 1, msgspec.Raw(msgspec.json.encode(content)), ()))
    r.flush()
    shown = [item.data for item in sent.items() if isinstance(item, Display)]
    assert shown == [{WIDGET_VIEW: {}, "text/plain": "Output"}]


# ---------------------------------------------------------------- what one message carries


def largest(sent: Sent) -> int:
    return max(len(pack(output)) for output in sent.outputs)


def test_what_many_ranks_write_at_once_travels_in_messages_that_the_other_end_takes(made: Make) -> None:
    r, sent = made(10_000)
    texts = [f"{rank:02} ".ljust(1_100_000, "é") for rank in range(64)]
    for rank, text in enumerate(texts):
        r.record(rank, stream(text))
    r.flush()
    assert largest(sent) < MAX_MESSAGE / 2
    assert all(sent.text(rank) == text for rank, text in enumerate(texts))


def test_messages_are_numbered_but_for_those_of_tails_alone(made: Make) -> None:
    r, sent = made(limit=2)
    for run in (1, 2, 1, 1):
        r.record(0, stream("one\n", run=run))
        r.flush()
    numbers = [o.number for o in sent.outputs]
    assert [(n.value, n.previous) for n in numbers if n is not None] == [(1, 0), (2, 0), (3, 1)]
    assert numbers[3] is None
    assert sent.outputs[3].items == (sent.tail(0),)
    assert len({n.agent for n in numbers if n is not None}) == 1


def test_displays_that_are_cleared_or_updated_before_they_are_sent_do_not_travel(made: Make) -> None:
    r, sent = made()
    for n in range(50):
        r.record(0, stream(f"{n}\n"))
        r.record(0, KernelMessage("clear_output", 1, msgspec.Raw(b'{"wait": true}'), ()))
        r.record(0, display({"text/html": f"<i>{n}</i>" + "x" * 2_000_000}))
        r.record(0, display({"text/plain": f"bar {n}"}, "update_display_data", transient={"display_id": "d"}))
    r.flush()
    shown = [i.data for i in sent.items() if isinstance(i, Display)]
    assert [data.get("text/html", "")[:9] for data in shown] == ["<i>49</i>", ""]
    assert shown[1] == {"text/plain": "bar 49"}
    assert largest(sent) < 3_000_000
    assert sent.text(0) == "".join(f"{n}\n" for n in range(50)), "text is kept, for the outcome"


def test_an_update_stays_behind_the_display_that_it_updates(made: Make) -> None:
    r, sent = made()
    x = {"display_id": "x"}
    r.record(0, display({"text/plain": "1"}, "update_display_data", transient=x))
    r.record(0, KernelMessage("clear_output", 1, msgspec.Raw(b'{"wait": false}'), ()))
    r.record(0, display({"text/plain": "2"}, transient=x))
    r.record(0, display({"text/plain": "3"}, "update_display_data", transient=x))
    r.record(0, display({"text/plain": "4"}, "update_display_data", transient=x))
    r.flush()
    shown = [(i.data["text/plain"], i.is_update) for i in sent.items() if isinstance(i, Display)]
    assert shown == [("1", True), ("2", False), ("4", True)]


def test_an_update_does_not_clear(made: Make) -> None:
    r, sent = made()
    r.record(0, display({"text/plain": "a"}, transient={"display_id": "x"}))
    r.record(0, KernelMessage("clear_output", 1, msgspec.Raw(b'{"wait": true}'), ()))
    r.record(0, display({"text/plain": "b"}, "update_display_data", transient={"display_id": "x"}))
    r.flush()
    assert [type(item) for item in sent.items()] == [Display, Clear, Display]


def test_a_clear_at_once_takes_what_waits_and_several_clears_are_one(made: Make) -> None:
    r, sent = made()
    r.record(0, display({"text/plain": "a"}))
    for wait in (True, False, True):
        r.record(0, KernelMessage("clear_output", 1, msgspec.Raw(msgspec.json.encode({"wait": wait})), ()))
    r.record(0, display({"text/plain": "b"}))
    r.flush()
    assert sent.items() == [Clear((0,), wait=False), Display((0,), {"text/plain": "b"})]


def test_a_display_with_numbers_that_no_message_carries_is_shown_with_others(made: Make) -> None:
    r, sent = made()
    content = json.dumps({"data": {"application/json": {"n": 2**70, "m": -(2**63)}}, "metadata": {}})
    r.record(0, KernelMessage("display_data", 1, msgspec.Raw(content.encode()), ()))
    deep: Any = "leaf"
    for _ in range(700):
        deep = [deep]
    r.record(0, display({"application/json": deep}))
    r.flush()
    first, second = sent.items()
    assert first == Display((0,), {"application/json": {"n": float(2**70), "m": -(2**63)}})
    assert "nested too deeply" in second.data["text/plain"]
    assert pack(sent.outputs[0])

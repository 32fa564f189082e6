"""Merging logged calls with the flight recorder's entries."""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.distributed as dist

from jdist.core.messages.observation import ANY, Call
from jdist.worker.observe.call_log import GroupName, LoggedCall, _kept, _recorded_names
from jdist.worker.observe.calls import CallMerger, outermost
from jdist.worker.observe.flight_recorder import RecorderEntry

MAIN, OTHER = 1, 2
TENSOR = (torch.Size([4]), torch.float32)


def logged(op: str, started: int, ended: int, thread: int = MAIN, **given: Any) -> LoggedCall:
    parameters = inspect.signature(getattr(dist, op)).parameters
    args = (given.get(name, _kept(parameters[name].default)) for name in _recorded_names(op))
    return LoggedCall(op, None, 0, thread, started, tuple(args), ended)


def entry(number: int, created: int, thread: int = MAIN, *, is_done: bool = True) -> RecorderEntry:
    call = Call("all_reduce", "0", number, ((4,),), ("float32",), started=created / 1e9, is_done=is_done)
    return RecorderEntry(call, thread, created, True)


MERGER = CallMerger("0", {"0": (0, 1, 2), "tp": (2, 0)})


def test_an_entry_belongs_to_the_call_of_its_own_thread_during_which_it_was_made() -> None:
    calls = [logged("all_reduce", 10, 20, tensor=TENSOR), logged("barrier", 12, 40, OTHER)]
    merged = MERGER.merge(calls, [entry(1, 15), entry(2, 30, OTHER)])
    assert [(c.op, c.number, c.shapes) for c in merged] == [("all_reduce", 1, ((4,),)), ("barrier", 2, ())]


def test_of_several_entries_the_last_number_counts() -> None:
    (call,) = MERGER.merge([logged("all_gather_object", 10, 50)], [entry(4, 20), entry(5, 30)])
    assert (call.op, call.number) == ("all_gather_object", 5)


def test_an_entry_alone_has_the_line_of_its_backward_pass() -> None:
    code = compile("1\n2", "cell", "exec")
    backward = LoggedCall("backward", code, 0, MAIN, 10, (), 40)
    line = backward.line
    merger = CallMerger("0", {}, [backward])
    within, after = merger.merge([], [entry(1, 20), entry(2, 50)])
    assert (within.op, within.line, after.line) == ("all_reduce", line, None)


def test_a_call_within_another_is_a_part_of_it() -> None:
    outer, inner = logged("broadcast_object_list", 10, 50), logged("broadcast", 20, 30)
    other = logged("barrier", 25, 35, OTHER)
    assert outermost([outer, inner, other]) == [outer, other]


def test_the_last_calls_of_each_group() -> None:
    calls = [logged("barrier", t, t + 1, group=GroupName(g)) for t, g in ((1, "0"), (2, "0"), (3, "tp"), (4, "0"))]
    assert [(c.group, c.started) for c in MERGER.merge(calls, [], most=1)] == [("tp", 3e-9), ("0", 4e-9)]


def test_a_call_of_a_rank_outside_the_group_did_nothing() -> None:
    assert MERGER.of_logged(logged("barrier", 1, 2, group=-100)) is None


def test_ranks_in_a_group_become_global() -> None:
    call = MERGER.of_logged(logged("broadcast", 1, 2, tensor=TENSOR, group=GroupName("tp"), group_src=0))
    assert call is not None
    assert call.detail == "src=2"
    send = MERGER.of_logged(logged("send", 1, 0, tensor=TENSOR, dst=1, tag=7))
    assert send is not None
    assert (send.peer, send.tag, send.number, send.is_done) == (1, 7, 0, False)
    receive = MERGER.of_logged(logged("recv", 1, 0, tensor=TENSOR))
    assert receive is not None
    assert receive.peer == ANY

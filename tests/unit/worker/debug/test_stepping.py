"""Steps through small programs: where each one stops, and that nothing is traced afterwards."""

from __future__ import annotations

import ast
import sys
import textwrap
import threading
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

import pytest
import torch
import torch.distributed as dist

from jdist.core.messages.observation import Call
from jdist.worker.debug.stepping import Stepper, Stop
from jdist.worker.observe.call_log import CallLog, LoggedCall

CELL = "<a cell>"


class Program:
    """A program that calls ``pause()``; from there on each stop takes the next of ``orders``, then it continues.

    An order is the kind of step. "up" chooses the frame's caller before; a line may follow.
    """

    def __init__(self, text: str, *orders: str, **names: Any):
        self.log = CallLog()
        self.stepper = Stepper(self.log, lambda frame: frame.f_code.co_filename == CELL, self.describe)
        self.orders = iter(orders)
        self.stops: list[str] = []
        self.calls: list[Call] = []
        self.names: dict[str, Any] = {"pause": lambda: self.stop(Stop(sys._getframe(1))), **names}
        self.code = compile(textwrap.dedent(text), CELL, "exec")

    def run(self) -> list[str]:
        before = sys.gettrace()
        exec(self.code, self.names)
        self.stepper.end()
        assert sys.gettrace() is before
        return self.stops

    def stop(self, stop: Stop) -> None:
        frame = stop.frame
        if stop.call is not None:
            self.calls.append(stop.call)
            while frame.f_code.co_filename != CELL:
                assert frame.f_back is not None
                frame = frame.f_back
        value = "".join(f" returns {value!r}" for value in stop.returned)
        self.stops.append(f"{frame.f_code.co_name.strip('<>')}:{frame.f_lineno}{value}")
        kind: Any
        kind, *rest = next(self.orders, "continue").split()
        if "up" in rest:
            assert frame.f_back is not None
            frame = frame.f_back
        self.stepper.begin(kind, frame, int(rest[-1]) if rest and rest[-1] != "up" else 0, self.stop)

    @staticmethod
    def describe(logged: LoggedCall, is_in_cpp: bool) -> Call | None:
        return Call(logged.op, "cpp" if is_in_cpp else "0")


def stops(text: str, *orders: str, **names: Any) -> list[str]:
    return Program(text, *orders, **names).run()


LOOP = """\
def scaled(x):
    y = x * 2
    return y

def train(n):
    total = 0
    for i in range(n):
        pause() if i == 1 else None
        total += scaled(i)
    return total

result = train(4)
after = result
"""


@pytest.mark.parametrize(
    ("orders", "expected"),
    [
        (["step"] * 6, ["train:9", "scaled:2", "scaled:3", "scaled:3 returns 2", "train:7", "train:8"]),
        (["next"] * 3, ["train:9", "train:7", "train:8"]),
        (["return"] * 3, ["train:10 returns 12", "module:13"]),
        (["next up"] * 2, ["module:13"]),
        (["step", "step", "return", "next"], ["train:9", "scaled:2", "scaled:3 returns 2", "train:7"]),
        (["step", "step", "next", "next"], ["train:9", "scaled:2", "scaled:3", "scaled:3 returns 2"]),
        (["until 10", "step", "step"], ["train:10", "train:10 returns 12", "module:13"]),
        (["until 99", "next", "next"], ["train:10 returns 12", "module:13"]),
        (["step", "step up"], ["train:9", "scaled:2"]),  # the next line anywhere, whichever frame is chosen
        (["next_call", "next"], []),
        ([], []),
    ],
)
def test_where_a_step_stops(orders: list[str], expected: list[str]) -> None:
    program = Program(LOOP, *orders)
    assert program.run() == ["train:8", *expected]
    assert program.names["after"] == 12


def test_an_exception_is_followed_to_where_it_is_handled() -> None:
    text = """\
    def fails():
        pause()
        raise KeyError('x')

    def train():
        try:
            fails()
        except KeyError:
            handled = 1
        finally:
            done = 1

    train()
    """
    assert stops(text, *["next"] * 4) == ["fails:2", "fails:3", "train:8", "train:9", "train:11"]
    assert stops(text, "return") == ["fails:2", "train:8"]
    assert stops(text, "until 90") == ["fails:2", "train:8"]


def test_an_exception_that_nobody_handles_ends_the_program_and_the_tracing() -> None:
    program = Program("def f():\n    pause()\n    1 / 0\nf()", *["next"] * 5)
    with pytest.raises(ZeroDivisionError):
        program.run()
    assert program.stops == ["f:2", "f:3"]
    program.stepper.end()
    assert sys.gettrace() is None


STATEMENTS = """\
def f():
    pause()
    return 1
f()
x = 2
for i in range(2):
    x += 1
y = x
"""


@pytest.mark.parametrize(
    ("orders", "expected"),
    [
        (["next"] * 5, ["f:3", "f:3 returns 1", "module:5", "module:6", "module:7"]),
        (["step"] * 4, ["f:3", "f:3 returns 1", "module:5", "module:6"]),
        (["return", "next", "next"], ["f:3 returns 1", "module:5", "module:6"]),
        (["next up", "until 7", "return"], ["module:5", "module:7"]),
        (["until up 9", "return"], []),
        (["next up", "until 8", "next"], ["module:5", "module:8"]),
        (["return up"], []),
    ],
)
def test_statements_of_a_cell_that_run_one_by_one(orders: list[str], expected: list[str]) -> None:
    program = Program(STATEMENTS, *orders)
    statements = ast.parse(STATEMENTS).body

    def run_code(code: CodeType) -> None:
        exec(code, program.names)

    for statement in statements:
        run_code(compile(ast.Module([statement], []), CELL, "exec"))
    program.stepper.end()
    assert program.stops == ["f:2", *expected]


def test_calls_that_no_line_follows_stop_where_they_return() -> None:
    text = """\
    def f(n):
        if n == 0:
            pause()
            return 'end'
        return f(n - 1)
    f(2)
    """
    returns = ["f:5 returns 'end'"] * 2
    assert stops(text, "return", "next", "return", "next") == ["f:3", "f:4 returns 'end'", *returns]
    assert stops(text, "next", "step", "step", "step") == ["f:3", "f:4", "f:4 returns 'end'", *returns]
    assert stops(text, "return up", "return") == ["f:3", "f:5 returns 'end'", "f:5 returns 'end'"]


def test_a_frame_that_raises_or_yields_does_not_return() -> None:
    text = """\
    def numbers():
        for i in range(2):
            pause() if i == 0 else None
            yield i

    def fails():
        for _ in numbers():
            pass
        return 1 / 0

    try:
        fails()
    except ZeroDivisionError:
        handled = 1
    """
    assert stops(text, "return", "return") == ["numbers:3", "fails:8", "module:13"]
    assert stops(text, "next up", "next", "next") == ["numbers:3", "fails:8", "fails:7", "fails:8"]


def test_generators_stop_in_their_callers_and_where_they_go_on() -> None:
    text = """\
    def batches():
        for i in range(3):
            pause() if i == 0 else None
            yield i
            seen.append(i)

    seen = []
    for batch in batches():
        seen.append(-batch)
    """
    assert stops(text, *["next"] * 4) == ["batches:3", "batches:4", "module:9", "module:8", "module:9"]
    assert stops(text, "return", "next", "next") == ["batches:3", "module:9", "module:8", "module:9"]
    assert stops(text, "next up", "next") == ["batches:3", "module:9", "module:8"]


def test_coroutines_are_followed_through_their_waits() -> None:
    text = """\
    import asyncio

    async def waits():
        pause()
        await asyncio.sleep(0)
        return 1

    async def main():
        await asyncio.gather(waits(), other())
        after = 1

    async def other():
        x = 1

    asyncio.run(main())
    """
    assert stops(text, *["next"] * 3) == ["waits:4", "waits:5", "waits:6", "waits:6 returns 1"]
    assert stops(text, "return") == ["waits:4", "waits:6 returns 1"]
    followed = ["waits:4", "waits:5", "other:13", "other:13 returns None", "waits:6"]
    assert stops(text, *["step"] * 4) == followed


def test_frames_of_libraries_are_stepped_over_and_what_they_call_is_not() -> None:
    text = """\
    from functools import reduce
    def add(a, b):
        return a + b
    pause()
    textwrap.dedent('x')
    reduce(add, [1, 2])
    run(add)
    """

    def run(function: Any) -> None:
        function(1, 2)

    program = Program(text, *["step"] * 6, run=run, textwrap=textwrap)
    added = ["add:3", "add:3 returns 3"]
    assert program.run() == ["module:4", "module:5", "module:6", *added, "module:7", "add:3"]


def test_names_are_changed_where_it_has_stopped_and_interrupts_leave_the_frame() -> None:
    text = """\
    def f():
        try:
            pause()
            x = 1
            y = 2
        except KeyboardInterrupt:
            return 'interrupted'
    result = f()
    """
    program = Program(text, "next")
    served = program.stop

    def stop(stop: Stop) -> None:
        served(stop)
        if len(program.stops) == 2:
            raise KeyboardInterrupt

    program.stop = stop  # type: ignore[method-assign]
    assert program.run() == ["f:3", "f:4"]
    assert program.names["result"] == "interrupted"


def test_what_runs_where_it_has_stopped_can_be_traced() -> None:
    program = Program("pause()\nx = 1\ny = 2", "next", "next")
    served, seen = program.stop, []

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        seen.append(f"{event} {frame.f_code.co_name}")
        return None

    def stop(stop: Stop) -> None:
        sys.settrace(trace)
        program.log.all()
        sys.settrace(None)
        served(stop)

    program.stop = stop  # type: ignore[method-assign]
    assert program.run() == ["module:1", "module:2", "module:3"]
    assert seen.count("call all") == 3


@pytest.fixture
def traced() -> Iterator[list[str]]:
    """The events of a trace function that is active before the program begins, as that of a coverage tool."""
    events: list[str] = []

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename != CELL:
            return None
        events.append(f"{frame.f_code.co_name.strip('<>')}:{frame.f_lineno} {event}")
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    yield events
    sys.settrace(before)


def test_an_earlier_trace_function_has_its_turn_before_and_after(traced: list[str]) -> None:
    text = "def f():\n    pause()\n    x = 1\n    y = 2\n    z = 3\nf()\nafter = 1"
    assert stops(text, "next", "next") == ["f:2", "f:3", "f:4"]
    assert "f:2 line" in traced
    assert "f:3 line" not in traced
    assert traced[-3:] == ["f:5 return", "module:7 line", "module:7 return"]


def test_an_interrupt_that_takes_over_the_tracing_keeps_it() -> None:
    text = "def f():\n    pause()\n    take_over()\n    x = 1\nf()\ny = 1"
    seen: list[int] = []

    def taken(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            seen.append(frame.f_lineno)
            sys.settrace(None)
        return taken

    def take_over() -> None:
        sys._getframe(1).f_trace = taken
        sys.settrace(taken)

    program = Program(text, "until 9", take_over=take_over)
    assert program.run() == ["f:2"]
    assert seen == [4]


def test_a_step_in_one_thread_is_ended_from_another() -> None:
    text = "import threading\ndef f():\n    pause()\n    ended()\n    x = 1\n    left.append(sys.gettrace())\nf()"
    left: list[Any] = []
    program = Program(text, "until 5", left=left, sys=sys)

    def ended() -> None:
        thread = threading.Thread(target=program.stepper.end)
        thread.start()
        thread.join()

    program.names["ended"] = ended
    assert program.run() == ["f:3"]
    assert left == [None]


def test_a_step_is_of_its_own_thread() -> None:
    text = """\
    import threading
    def other():
        x = 1
    def f():
        pause()
        thread = threading.Thread(target=other)
        thread.start(); thread.join()
        x = 1
    worker = threading.Thread(target=f)
    worker.start(); worker.join()
    """
    assert stops(text, *["step"] * 3) == ["f:5", "f:6", "f:7", "f:8"]


def test_the_next_call_is_stopped_at_before_it_begins_and_its_arguments_are_read_after() -> None:
    text = """\
    def f(t):
        pause()
        x = 1
        dist_all_reduce(t)
        backward()
        library()
    f(tensor)
    """
    tensor = torch.ones(3)
    program = Program(text, *["next_call"] * 3, tensor=tensor)
    reached: list[str] = []

    def logged(op: str, ring: Any) -> Any:
        return program.log._logged(lambda *_, **__: reached.append(op), op, ring)

    def library() -> None:
        logged("barrier", program.log._calls)()

    served = program.stop

    def stop(stop: Stop) -> None:
        assert len(reached) == len(program.calls)
        tensor.resize_(2)
        served(stop)

    program.stop = stop  # type: ignore[method-assign]
    program.names.update(
        dist_all_reduce=logged("all_reduce", program.log._calls),
        backward=logged("backward", program.log._callers),
        library=library,
    )
    assert program.run() == ["f:2", "f:4", "f:5", "f:6"]
    assert [(c.op, c.group) for c in program.calls] == [("all_reduce", "0"), ("backward", "cpp"), ("barrier", "0")]
    assert program.log.all()[0].arguments["tensor"] == (torch.Size([2]), torch.float32)
    assert program.log.on_call is None
    assert program.log.all()[0].arguments["op"] == dist.ReduceOp.SUM


def test_calls_of_other_threads_and_of_no_cell_are_no_next_call() -> None:
    program = Program("pause()\nrun_thread()\ncall()", "next_call")
    barrier = program.log._logged(lambda *_: None, "barrier", program.log._calls)

    def run_thread() -> None:
        thread = threading.Thread(target=barrier)
        thread.start()
        thread.join()

    program.names.update(run_thread=run_thread, call=barrier)
    assert program.run() == ["module:1", "module:3"]
    assert len(program.log.all()) == 2

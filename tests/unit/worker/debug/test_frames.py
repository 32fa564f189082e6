"""Names of suspended frames are read, and what a cell assigns is written back."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from traceback import walk_tb
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from jdist.core.messages.debug import ReadStack
from jdist.worker.debug.frames import FrameNames, FrameStack, UserCode

SESSION = {"rank": 3, "shown": "of the session", "_oh": {}}


def names_of(frame: FrameType) -> FrameNames:
    return FrameNames(frame, SESSION)


def run(code: str, frame: FrameType) -> dict[str, Any]:
    """Run a cell's code in a suspended frame; all the names there at its end."""
    with names_of(frame).used() as names:
        exec(code, names)
        return dict(names)


def module(code: str, pause: Callable[[FrameType], object]) -> dict[str, Any]:
    """Run a script, whose ``here()`` suspends its caller."""
    namespace = {"__name__": "__main__", "here": lambda: pause(sys._getframe(1))}
    exec(compile(code, "/home/me/script.py", "exec"), namespace)
    return namespace


VARIABLES = """
total = 1
def outer(argument):
    shared, enclosed = [1], 2
    def inner(own, *rest, key=3, **more):
        local = enclosed + own
        def innermost():
            return shared, key
        here()
        return own, rest, more, local, enclosed, innermost(), total
    return inner(4, 5, key=6, word=7), argument, enclosed, shared
found = outer("a")
"""


def test_variables_of_every_kind_are_read_and_written() -> None:
    seen: dict[str, Any] = {}

    def pause(frame: FrameType) -> None:
        seen.update(run("", frame))
        run(
            "own, rest, key, more, local, enclosed, shared, total, new = 40, (50,), 60, {}, 70, 20, ['x'], 10, 9\n"
            "assert (lambda: own + new)() == 49 and [own for _ in 'ab'] == [40, 40]",
            frame,
        )

    found = module(VARIABLES, pause)
    expected = {"own": 4, "rest": (5,), "key": 6, "more": {"word": 7}, "local": 6, "enclosed": 2, "shared": [1]}
    assert {name: seen[name] for name in expected} == expected
    assert (seen["total"], seen["rank"], seen["shown"]) == (1, 3, "of the session")
    assert "argument" not in seen, "which the inner function does not use"
    assert found["found"] == ((40, (50,), {}, 70, 20, (["x"], 60), 10), "a", 20, ["x"])
    assert found["total"] == 10
    assert "new" not in found


def test_new_names_live_as_long_as_the_pause_and_functions_see_them() -> None:
    def pause(frame: FrameType) -> None:
        names = names_of(frame)
        with names.used() as found:
            exec("new = [1]\ndef grow(): new.append(x)", found)
        with names.used() as found:
            exec("x = 5\ngrow()\nlength = len(new)", found)
        assert names.read()["length"] == 2

    assert module("def f(x):\n    here()\n    return x\nfound = f(1)", pause)["found"] == 5


def test_a_step_later_the_names_are_the_new_ones() -> None:
    kept: list[FrameNames] = []

    def pause(frame: FrameType) -> None:
        kept.append(kept[0] if kept else names_of(frame))
        seen.append(kept[0].read().get("x", "unbound"))

    seen: list[object] = []
    module("def f():\n    x = 1\n    here()\n    x = 2\n    here()\n    del x\n    here()\nf()", pause)
    assert seen == [1, 2, "unbound"]


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="from 3.12 on, Python cannot unbind another frame's variable")
def test_a_variable_is_unbound() -> None:
    code = (
        "def f(x):\n    here()\n    try:\n        return x\n    except UnboundLocalError:\n        return 'unbound'\n"
    )
    assert module(f"{code}found = f(1)", lambda frame: run("del x", frame))["found"] == "unbound"


def test_what_changes_in_place_needs_no_assignment() -> None:
    found = module("def f(x):\n    here()\n    return x\nfound = f([1])", lambda frame: run("x.append(2)", frame))
    assert found["found"] == [1, 2]


def test_names_of_a_script_are_its_own() -> None:
    """Whatever is assigned becomes a name of it, but for what IPython binds; the session's names are seen behind."""
    found = module("x = 1\nhere()\ny = x", lambda frame: run("assert rank == 3\nx, z, _i, _3 = 2, 4, '', 5", frame))
    assert (found["x"], found["y"], found["z"]) == (2, 2, 4)
    assert not {"rank", "_i", "_3", "_oh"} & found.keys()


def test_names_of_a_class_that_is_being_made() -> None:
    found = module("class C:\n    x = 1\n    here()\n    y = x", lambda frame: run("x, z = 2, 3", frame))
    assert (found["C"].x, found["C"].y, found["C"].z) == (2, 2, 3)


def test_names_of_a_generator_and_a_comprehension() -> None:
    generator = "def g(n):\n    for i in range(n):\n        here()\n        yield i\nfound = list(g(3))"
    assert module(generator, lambda frame: run("i = i * 10", frame))["found"] == [0, 10, 20]
    seen: list[int] = []
    module("def f():\n    return [here() for i in range(3)]\nf()", lambda frame: seen.append(run("", frame)["i"]))
    assert seen == [0, 1, 2]


def test_the_frame_of_a_cell_has_the_session_itself() -> None:
    namespace: dict[str, Any] = {"x": 1}

    def pause(frame: FrameType) -> None:
        with FrameNames(frame, namespace).used() as names:
            assert names is namespace
            exec("x = 2", names)

    namespace["here"] = lambda: pause(sys._getframe(1))
    exec("here()\ny = x", namespace)
    assert namespace["y"] == 2


def test_a_stack_starts_where_user_code_is_innermost() -> None:
    stacks: list[FrameStack] = []
    user = UserCode(SimpleNamespace(compile=SimpleNamespace(_filename_map={"/home/me/script.py": 7})), {7: 12}.get)

    def pause(frame: FrameType) -> None:
        stacks.append(FrameStack.of(frame, user, SESSION))
        stack = stacks[0]
        assert stack.at.place == "f, line 4"
        stack.choose(ReadStack(1))
        assert (stack.at.function, stack.at.file, stack.at.line, stack.at.run) == ("<cell>", "", 5, 12)
        stack.choose(ReadStack(-99))
        assert stack.chosen == len(stack.describe()) - 1

    module("import functools\n\ndef f(a, b):\n    here()\nfunctools.reduce(f, [1, 2])", pause)
    assert stacks


def test_moves_are_among_the_frames_of_user_code_and_what_the_innermost_calls() -> None:
    user = UserCode(SimpleNamespace(compile=SimpleNamespace(_filename_map={"/home/me/script.py": 7})), {7: 12}.get)
    code = "import copy, json\nclass A:\n    def __deepcopy__(self, _):\n        json.loads('{')\ncopy.deepcopy(A())"
    with pytest.raises(ValueError, match="line 1") as error:
        module(code, lambda _: None)
    tb = error.value.__traceback__
    frames = [(frame, line) for frame, line in walk_tb(tb) if frame.f_code.co_filename != __file__]
    stack = FrameStack(frames, user, SESSION)
    functions = ["<cell>", "deepcopy", "A.__deepcopy__", "loads", "JSONDecoder.decode", "JSONDecoder.raw_decode"]
    assert [frame.function for frame in stack.describe()] == functions
    moves = [(0, 2), (1, 0), (1, 0), (-1, 2), (-1, 3), (-99, 5), (1, 4), (2, 2), (-2, 4), (99, 0)]
    for move, chosen in moves:
        stack.choose(ReadStack(move))
        assert stack.chosen == chosen, move
    for move, chosen in ((1, 0), (-1, 2)):
        stack.choose(ReadStack(index=1))
        assert stack.at.function == "deepcopy"
        stack.choose(ReadStack(move))
        assert stack.chosen == chosen
    stack.choose(ReadStack(index=99))
    assert stack.chosen == 5


class SlowSession(dict[str, Any]):
    """A session's names, the first reading of which lasts until something was assigned, or a moment."""

    def __init__(self) -> None:
        self.is_read, self.is_assigned = threading.Event(), threading.Event()

    def keys(self) -> Any:
        if not self.is_read.is_set():
            self.is_read.set()
            self.is_assigned.wait(0.3)
        return super().keys()

    __iter__ = None  # A dictionary that is merged is asked for its keys() only if it iterates in its own way.


def test_what_a_cell_assigns_survives_a_query_that_began_before_it() -> None:
    session = SlowSession()

    def pause(frame: FrameType) -> None:
        names = FrameNames(frame, session)
        query = threading.Thread(target=names.read)
        query.start()
        assert session.is_read.wait(10)
        with names.used() as found:
            exec("x, new = 2, 3", found)
            session.is_assigned.set()
            query.join(10)
        assert names.read()["new"] == 3

    assert module("def f(x):\n    here()\n    return x\nfound = f(1)", pause)["found"] == 2


def test_what_a_cell_assigns_survives_the_end_of_a_query_that_binds_names() -> None:
    def pause(frame: FrameType) -> None:
        names = names_of(frame)
        binding = names.used()
        binding.__enter__()["pushed"] = 1
        with names.used() as found:
            binding.__exit__(None, None, None)
            names.read()
            exec("x, new = 2, 3", found)
            names.read()
        assert (names.read()["new"], names.read()["pushed"]) == (3, 1)

    assert module("def f(x):\n    here()\n    return x\nfound = f(1)", pause)["found"] == 2


def test_a_frame_is_chosen_while_the_names_of_another_are_read() -> None:
    """Every thread gets the same names of a frame."""

    def pause(frame: FrameType) -> None:
        assert frame.f_back is not None
        frames = [(frame.f_back, 1), (frame, 1)]
        stack = FrameStack(frames, lambda _: True, SESSION)  # type: ignore[arg-type]
        found: set[int] = set()

        def read() -> None:
            for n in range(2000):
                stack.choose(ReadStack(index=n % 2))
                found.add(id(stack.names))

        readers = [threading.Thread(target=read) for _ in range(3)]
        for each in readers:
            each.start()
        for each in readers:
            each.join()
        assert len(found) == 2

    module("def f(x):\n    here()\nf(1)", pause)

"""Recorded calls: what is kept of the arguments, and that the function behind gets all of them."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
import torch.distributed as dist

from jdist.worker.observe.call_log import _RECORDED, CallLog, LoggedCall


def calling(op: str, /, *args: Any, **kwargs: Any) -> tuple[LoggedCall, dict[str, Any]]:
    """The record of a call, and the arguments that reached the function."""
    log = CallLog()
    log.cells = {__file__}
    reached = []

    def original(*args: Any, **kwargs: Any) -> None:
        reached.append(inspect.signature(getattr(dist, op)).bind(*args, **kwargs).arguments)

    original.__qualname__ = op
    log._logged(original, op, log._calls)(*args, **kwargs)
    return log.all()[-1], reached[0]


@pytest.mark.parametrize("op", sorted(_RECORDED))
def test_every_argument_and_default_reaches_the_function(op: str) -> None:
    parameters = inspect.signature(getattr(dist, op)).parameters
    required = {name: object() for name, p in parameters.items() if p.default is p.empty}
    defaults = {name: p.default for name, p in parameters.items() if p.default is not p.empty}
    assert calling(op, **required)[1] == required | defaults
    assert calling(op, *required.values())[1] == required | defaults
    given = {name: object() for name in parameters}
    assert calling(op, **given)[1] == given


def test_a_call_that_the_function_would_not_take_is_refused_in_the_same_words() -> None:
    with pytest.raises(TypeError, match=r"^all_reduce\(\) missing 1 required positional argument: 'tensor'$"):
        calling("all_reduce")
    with pytest.raises(TypeError, match=r"^barrier\(\) got an unexpected keyword argument 'tensor'$"):
        calling("barrier", tensor=1)


def test_position_keyword_and_default_are_recorded_alike() -> None:
    meta = (torch.Size([2, 3]), torch.float32)
    t = torch.ones(2, 3)
    expected = {"tensor": meta, "op": dist.ReduceOp.SUM, "group": None}
    for args, kwargs in (
        ((t,), {}),
        ((), {"tensor": t}),
        ((t, dist.ReduceOp.SUM, None), {}),
        ((t,), {"async_op": True}),
    ):
        call, _ = calling("all_reduce", *args, **kwargs)
        assert call.arguments == expected
        assert next(iter(call.arguments)) == "tensor"


def test_only_what_describes_the_call_is_recorded() -> None:
    call, _ = calling("all_gather", [torch.ones(1) for _ in range(3)], torch.ones(5))
    assert call.arguments == {"tensor": (torch.Size([5]), torch.float32), "group": None}
    call, _ = calling("gather_object", "a large object", None, 1)
    assert "a large object" not in call.arguments.values()
    assert call.arguments["dst"] == 1
    call, _ = calling("broadcast", "no tensor", {"src": "nonsense"})
    assert call.arguments["src"] is None


def test_a_call_has_its_line_and_its_times() -> None:
    call, _ = calling("barrier")
    assert call.line == calling.__code__.co_firstlineno + 10
    assert 0 < call.started <= call.ended
    assert call.is_done
    assert not call.has_failed


def test_a_call_that_raises_is_recorded_as_failed() -> None:
    log = CallLog()

    def original(tensor: Any, *_: Any) -> None:
        raise ValueError(tensor)

    with pytest.raises(ValueError, match="7"):
        log._logged(original, "all_reduce", log._calls)(7)
    (call,) = log.all()
    assert (call.has_failed, call.is_done, call.line) == (True, True, None)


def test_an_open_call_is_the_threads_outermost() -> None:
    log = CallLog()
    seen: list[LoggedCall | None] = []
    inner = log._logged(lambda *_: seen.append(log.open(log.all()[0].thread)), "barrier", log._calls)
    log._logged(lambda *_: inner(), "all_reduce", log._calls)(torch.ones(1))
    assert [call and call.op for call in seen] == ["all_reduce"]
    assert log.open(log.all()[0].thread) is None


def test_calls_since_a_moment_are_none_when_some_are_not_kept() -> None:
    log = CallLog()
    logged = log._logged(lambda *_: None, "barrier", log._calls)
    logged()
    first = log.all()[0].started
    assert log.since(first) == log.all()
    assert log.since(log.all()[-1].started + 1) == []
    log._calls.added += 1
    assert log.since(first) is None

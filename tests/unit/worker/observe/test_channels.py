"""Channels: which sends and receives count, and under which number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from jdist.core.messages.observation import ANY, Channel
from jdist.worker.observe.call_log import CallLog

T = torch.ones(2)


class Ops:
    """The functions as the call log has them; what they call inside is logged, too, as in torch."""

    def __init__(self) -> None:
        self.log = CallLog()
        self.isend = self._logged("isend", lambda *_, **__: "work")
        self.irecv = self._logged("irecv", lambda *_, **__: "work")
        self.send = self._logged("send", self.isend)

    def recv(self, source: int, tensor: torch.Tensor, src: int | None = None) -> None:
        """A recv whose message turns out to be from ``source``."""

        def inside(*args: Any, **kwargs: Any) -> int:
            self.irecv(*args, **kwargs)
            return source

        self._logged("recv", inside)(tensor, src)

    def _logged(self, op: str, original: Callable[..., Any]) -> Callable[..., Any]:
        return self.log._logged(original, op, self.log._calls)

    @property
    def numbers(self) -> list[tuple[str, int]]:
        return [(c.op, c.nth) for c in self.log.all()]

    @property
    def channels(self) -> set[Channel]:
        return set(self.log.read_channels())


def test_messages_are_numbered_by_channel_however_it_is_written() -> None:
    ops = Ops()
    ops.isend(T, 1)
    ops.isend(T, dst=1)
    ops.isend(tensor=torch.ones(5), dst=1, tag=0)
    ops.isend(T, 1, tag=7)
    ops.isend(T, 2)
    ops.irecv(T, 1)
    assert ops.numbers == [("isend", 1), ("isend", 2), ("isend", 3), ("isend", 1), ("isend", 1), ("irecv", 1)]
    assert ops.channels == {
        Channel("", True, 1, 0, 3),
        Channel("", True, 1, 7, 1),
        Channel("", True, 2, 0, 1),
        Channel("", False, 1, 0, 1),
    }


def test_a_call_around_messages_has_the_number_of_its_last() -> None:
    ops = Ops()
    ops.send(T, 1)
    ops.send(T, 1)
    assert ops.numbers == [("send", 1), ("isend", 1), ("send", 2), ("isend", 2)]
    assert ops.channels == {Channel("", True, 1, 0, 2)}


def test_it_is_remembered_from_whom_a_receive_from_any_rank_got_its_message() -> None:
    ops = Ops()
    ops.recv(2, T)
    ops.recv(1, T)
    ops.recv(2, T)
    ops.recv(1, T, 1)
    ops.irecv(T)
    assert ops.channels == {Channel("", False, ANY, 0, 4, taken=((1, 1), (2, 2))), Channel("", False, 1, 0, 1)}


def test_what_failed_or_did_nothing_does_not_count() -> None:
    ops = Ops()

    def refuse(*_: Any, **__: Any) -> None:
        raise ValueError("no such rank")

    with pytest.raises(ValueError, match="no such rank"):
        ops._logged("isend", refuse)(T, 9)
    ops._logged("isend", lambda *_, **__: None)(T, 1)
    ops.isend(T, 1, group=-100)  # a group in which this rank is not
    assert {c.begun for c in ops.channels} == {0}


def test_an_earlier_world_does_not_count() -> None:
    ops = Ops()
    ops.send(T, 1)
    ops.log.world_formed()
    ops.isend(T, 1)
    assert ops.channels == {Channel("", True, 1, 0, 1)}

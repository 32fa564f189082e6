"""Launch conflicts: whichever sign there is, and wherever it is written, the user is told once what to do instead."""

from __future__ import annotations

import pytest

from jdist.controller.model.model import FromAgent
from jdist.core.messages.runs import Output, RankDone, Text
from jdist.core.messages.status import Notice
from jdist.core.outcome import FORKED, ErrorInfo
from support.driver import Driver

IN_USE = (
    "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
    "port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use\n"
)
REFUSED = (
    "To launch a multi-device training from your notebook, the `Accelerator` should only be initialized inside your "
    "training function. Restart your notebook and make sure no cells initializes an `Accelerator`."
)


def told(d: Driver, run: int) -> list[Notice]:
    return [notice for notice in d.told(Notice) if notice.run == run]


@pytest.mark.parametrize("sign", [IN_USE, f"barrier {FORKED}\n", REFUSED])
def test_what_ranks_write_or_raise_is_explained_once(sign: str) -> None:
    d = Driver().ready()
    run = d.run((0, 1))
    d.step(FromAgent("a-0", Output(run, (Text((0,), "stdout", "begin\n"),))))
    assert told(d, run) == []
    d.step(FromAgent("a-0", Output(run, (Text((1,), "stderr", "Traceback …\n" + sign), Text((0,), "stderr", sign)))))
    d.step(FromAgent("a-0", Output(run, (Text((0,), "stderr", sign),))))
    [notice] = told(d, run)
    assert [str(remedy) for remedy in notice.remedies] == ["run SCRIPT.py"]
    for rank in (0, 1):
        d.finish(rank)
    again = d.run((0, 1))
    agent = d.agent_of(0)
    agent.cells.pop(d.worker(0))
    error = ErrorInfo("ProcessRaisedException", f"\n\n-- Process 0 terminated with the following error:\n{sign}")
    d.step(FromAgent("a-0", RankDone(again, d.worker(0), "error", error=error)))
    assert len(told(d, again)) == 1


@pytest.mark.parametrize(("sign", "notices"), [(IN_USE, 0), (REFUSED, 0), (f"barrier {FORKED}", 1)])
def test_a_single_rank_may_launch_processes(sign: str, notices: int) -> None:
    d = Driver().ready()
    run = d.run((1,))
    d.step(FromAgent("a-0", Output(run, (Text((1,), "stderr", sign),))))
    assert len(told(d, run)) == notices

"""The order in which a rank begins a cell."""

import asyncio
from types import SimpleNamespace
from typing import Any

from jdist.core.messages.base import MESSAGE_ID
from jdist.core.messages.runs import CellSpec, ExecuteCell
from jdist.worker.cells.runner import CellRunner


class Kernel:
    """As much of a kernel as a cell needs that is never executed."""

    def __init__(self) -> None:
        self.shell = SimpleNamespace(
            events=SimpleNamespace(register=lambda *_: None),
            execution_count=1,
            display_pub=None,
            run_code=None,
            transform_cell=None,
        )
        self.session = SimpleNamespace(msg=lambda *_: {"header": {}, "msg_id": ""}, send=lambda *_, **__: None)
        self.iopub_socket = self.eventloop = None
        self.iopub_thread = SimpleNamespace(schedule=lambda action: action())
        self.pre_handler_hook = self.post_handler_hook = lambda: None
        self._main_asyncio_lock = asyncio.Lock()
        self.parent: dict[str, Any] = {"msg_id": "none"}

    def set_parent(self, _: object, parent: dict[str, Any]) -> None:
        self.parent = parent

    def get_parent(self, _: str) -> dict[str, Any]:
        return self.parent

    async def do_execute(self, *_: object) -> None:
        """Nothing runs."""


async def _cells(count: int) -> list[str]:
    """Whose output it was when the text of children was passed on."""
    kernel, caught_up = Kernel(), list[str]()
    streams: Any = SimpleNamespace(restore=lambda **_: None, catch_up=lambda: caught_up.append(kernel.parent["msg_id"]))
    runner = CellRunner(kernel, 0, streams)
    for number in range(1, count + 1):
        runner.submit(ExecuteCell(number, (0,), CellSpec("pass")))
        async with asyncio.timeout(30):
            while kernel.parent["msg_id"] != f"{MESSAGE_ID}{number}" or not runner.idle.is_set():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    return caught_up


def test_what_children_wrote_between_two_cells_is_the_first_ones() -> None:
    assert asyncio.run(_cells(2)) == ["none", f"{MESSAGE_ID}1"]

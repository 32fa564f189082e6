"""A rank is a Jupyter kernel: a console that attaches, a toolkit's event loop, and what one cell leaves to the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.blocking.client import BlockingKernelClient

import jdist
from support.waits import eventually


class Console:
    """What ``jupyter console --existing`` is to a rank."""

    def __init__(self, cluster: jdist.Cluster, rank: int):
        self.client = BlockingKernelClient(connection_file=cluster.console(rank).connection_file)
        self.client.load_connection_file()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=20)

    def close(self) -> None:
        self.client.stop_channels()
        self.client.context.destroy(linger=0)

    def run(self, code: str, ask: Callable[[str], str] | None = None) -> str:
        """What the cell wrote; raises on an error."""
        written: list[str] = []

        def hear(message: dict[str, Any]) -> None:
            written.append(message["content"].get("text", ""))

        def answer(message: dict[str, Any]) -> None:
            assert ask is not None
            self.client.input(ask(message["content"]["prompt"]))

        reply = self.client.execute_interactive(
            code, allow_stdin=ask is not None, output_hook=hear, stdin_hook=answer, timeout=20
        )
        assert reply["content"]["status"] == "ok", reply
        return "".join(written)

    def send(self, code: str) -> str:
        return str(self.client.execute(code))

    def reply(self, name: str) -> dict[str, Any]:
        """The reply to what was sent."""
        while True:
            message = self.client.get_shell_msg(timeout=20)
            if message["parent_header"].get("msg_id") == name:
                content: dict[str, Any] = message["content"]
                return content

    def wait_for_control(self) -> None:
        """Until the kernel has read what was sent before."""
        message = self.client.session.msg("kernel_info_request")
        self.client.control_channel.send(message)
        self.client.get_control_msg(timeout=20)


@pytest.fixture(scope="module")
def console(shared: Any) -> Iterator[Console]:
    """At rank 1 of the shared cluster; made before the leak check looks, since jupyter_client keeps an event loop."""
    made = Console(shared.get(), 1)
    assert made.run("print()") == "\n"
    yield made
    made.close()


def test_a_console_shares_the_rank(console: Console, cluster: jdist.Cluster) -> None:
    cluster.run("shared = 40 + rank")
    assert console.run("print(shared)") == "41\n"
    assert console.run("shared += int(input('more? '))", lambda prompt: "9" if prompt == "more? " else "") == ""
    assert cluster.run("print('cell'); shared").values == {0: 40, 1: 50, 2: 42, 3: 43}
    assert console.run("print('here')") == "here\n"
    assert cluster.run("print('after')").outcomes[1].stdout == "after\n"


@pytest.mark.parametrize("word", ["exit", "quit()"])
def test_leaving_a_console_leaves_the_rank(console: Console, cluster: jdist.Cluster, word: str) -> None:
    cluster.run("kept = rank")
    reply = console.reply(console.send(word))
    assert reply["payload"] == [{"source": "ask_exit", "keepkernel": True}], "else the console ends the rank"
    assert not cluster.run("get_ipython().exit_now", ranks=[1]).values[1], "nor does the rank end itself"
    assert cluster.run("kept").values == {r: r for r in range(4)}


def test_a_console_waits_for_a_cell_that_awaits(console: Console, cluster: jdist.Cluster, tmp_path: Path) -> None:
    go = tmp_path / "go"
    begun = tmp_path / "begun"
    run = cluster.run(
        "import asyncio, os\n"
        "order = ['begun']\n"
        f"open({str(begun)!r}, 'w').close()\n"
        f"while not os.path.exists({str(go)!r}): await asyncio.sleep(0.01)\n"
        "for _ in range(20): await asyncio.sleep(0.01)\n"
        "order.append('cell')",
        ranks=[1],
        timeout=60,
        background=True,
    )
    assert eventually(begun.exists)
    name = console.send("order.append('console')")
    console.wait_for_control()
    go.touch()
    assert run.wait(60)
    run.check()
    assert console.reply(name)["status"] == "ok"
    assert cluster.run("order", ranks=[1]).values == {1: ["begun", "cell", "console"]}


LOOP = """
import zmq, select
from ipykernel.eventloops import get_shell_stream, register_integration

entered = 0

@register_integration("jdist-test")
def loop(kernel):
    # As a toolkit's does: it holds the main thread until something lies on ipykernel's queue.
    global entered
    entered += 1
    stream = get_shell_stream(kernel)
    while not stream.flush(limit=1):
        select.select([stream.getsockopt(zmq.FD)], [], [], 30)

get_ipython().enable_gui("jdist-test")
"""


def test_a_toolkits_event_loop_gives_way_to_cells(fresh_cluster: Callable[..., jdist.Cluster]) -> None:
    cluster = fresh_cluster(2)
    cluster.run(LOOP)
    for _ in range(3):
        assert cluster.run("rank", timeout=20).values == {0: 0, 1: 1}
    assert all(times > 0 for times in cluster.run("entered", timeout=20).values.values())
    cluster.run("get_ipython().kernel.eventloop = None", timeout=20)


def test_a_context_variable_is_kept_from_cell_to_cell(cluster: jdist.Cluster) -> None:
    cluster.run("import contextvars\nwho = contextvars.ContextVar('who', default='nobody')\nwho.set(f'rank {rank}')")
    assert cluster.run("who.get()").values == {r: f"rank {r}" for r in range(4)}


def test_a_cell_that_ends_outside_user_code_is_answered(cluster: jdist.Cluster) -> None:
    cluster.run(
        "def stopped(*args, **kwargs):\n"
        "    del get_ipython().run_cell\n"
        "    raise KeyboardInterrupt\n"
        "get_ipython().run_cell = stopped"
    )
    with pytest.raises(jdist.CellError, match="before it could report how it ended"):
        cluster.run("1", timeout=20)
    assert cluster.run("rank").values == {r: r for r in range(4)}

"""Frames: what the main thread waits in, and waits at a store that end."""

from __future__ import annotations

from support.ranks import SOON, Ranks

WAITS = {
    "dist.all_reduce(torch.ones(4))": "at.op == 'all_reduce' and not at.in_store_wait",
    "\n\ndist.recv(torch.ones(4))": "at.op == 'recv' and at.line == 3",
    "dist.recv(torch.ones(4), 0)": "at.op == 'recv'",
    "dist.new_group([0, 1])": "at.op == 'new_group' and at.in_store_wait and at.line == 1",
    "dist.all_gather_object([None] * 2, 1)": "at.op == 'all_gather_object'",
    "while True: pass": "at.op is None and at.line == 1",
}


def test_frames_name_what_the_main_thread_waits_in() -> None:
    world = Ranks(2)
    try:
        for code, claim in WAITS.items():
            world.form()
            world.ask(1, "run", code)
            world.until(1, claim)
            assert world.interrupt() < SOON
            world.answer(1, "done")
        world.form()
        port = "_ = G.store_client.port"
        world.ask(1, "run", "import torch.distributed as d\nd.distributed_c10d._get_default_store().wait(['never'])")
        world.until(1, f"at.in_store_wait and at.op == 'store.wait' and at.store_port == {world.side(1, port)}")
        assert world.interrupt() < SOON
        world.until(1, "at.line is None")
    finally:
        world.close()


def test_a_store_of_the_cells_own_is_shut_down() -> None:
    world = Ranks(1)
    try:
        world.form()
        world.run("mine = dist.TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False)")
        world.ask(0, "run", "mine.wait(['never'])")
        world.until(0, "at.in_store_wait")
        assert world.interrupt() < SOON  # torch looks the peer's name up for its message; a name server may time out
        assert world.answer(0, "done")[0] in {"KeyboardInterrupt", "DistNetworkError", "DistStoreError"}
        world.form()
        assert world.run("t = torch.ones(1)\ndist.all_reduce(t)\n_ = t.item()") == [1.0]
    finally:
        world.close()


def test_a_stack_leaves_out_jdists_functions_around_torchs() -> None:
    world = Ranks(2)
    try:
        world.form()
        world.ask(1, "run", "dist.new_group([0, 1])")
        world.until(1, "at.op == 'new_group' and at.in_store_wait")
        stack = world.side(1, "_ = O.stack()")
        assert "dist.new_group([0, 1])" in stack
        assert "distributed_c10d.py" in stack
        assert "jdist/worker" not in stack
        assert world.interrupt() < SOON
    finally:
        world.close()

"""What 1,000 events of a slider a second cost a training that takes them, against the same without an event."""

from __future__ import annotations

import threading
import time

from measuring.frontend import IDLE, private_runtime
from measuring.table import SECONDS, Pairs, Table

import jdist
from jdist.client.comms import RankComms
from jdist.client.threads import bridge

RATE = 1000
AT_ONCE = 10
TURNS = 9
STEPS = 150
AIM = 1.01

Seconds = tuple[float, float]
"""By the clock, and of CPU time."""

SLIDER = "import ipywidgets\nslider = ipywidgets.IntSlider(max=10**9)\nslider.comm.comm_id"
TRAIN = f"""
import time, jdist

def work(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass

before = slider.value
dist.barrier()
began, cpu_began = time.perf_counter(), time.process_time()
for step in range({STEPS}):
    work(0.02)
    dist.all_reduce(torch.ones(1))
    jdist.process_events()
dist.barrier()
time.perf_counter() - began, time.process_time() - cpu_began, slider.value != before
"""


class SliderMover:
    """Moves the slider, as a page that sends ``RATE`` events a second would."""

    def __init__(self, cluster: jdist.Cluster):
        self.is_moving = threading.Event()
        self._comms = cluster.asynchronous.part(RankComms)
        self._ids = cluster.run(SLIDER).values
        self._sent = 0
        self._thread = threading.Thread(target=self._move, daemon=True)
        self._thread.start()

    def _move(self) -> None:
        while True:
            self.is_moving.wait()
            bridge().loop.call_soon_threadsafe(self._send)
            time.sleep(AT_ONCE / RATE)

    def _send(self) -> None:
        for _ in range(AT_ONCE):
            self._sent += 1
            self._comms.send(self._ids, {"method": "update", "state": {"value": self._sent}, "buffer_paths": []})


def trained(cluster: jdist.Cluster, mover: SliderMover, *, moves: bool) -> Seconds:
    """Seconds of the loop, as rank 0 measured them."""
    if moves:
        mover.is_moving.set()
    try:
        seconds, cpu_seconds, has_moved = cluster.run(TRAIN).values[0]
    finally:
        mover.is_moving.clear()
        time.sleep(1.0)  # so that the last event has been taken
    if moves and not has_moved:
        raise RuntimeError("the ranks have taken no event")
    return seconds, cpu_seconds


def main() -> None:
    table = Table(f"a training that takes {RATE} events of a slider a second; floor: the same without an event")
    for ranks in (1, 2):
        turns: list[tuple[Seconds, Seconds]] = []
        with jdist.start(nproc_per_node=ranks, idle_timeout=IDLE) as cluster:
            mover = SliderMover(cluster)
            trained(cluster, mover, moves=True)
            for turn in range(TURNS):
                if turn % 2:
                    floor = trained(cluster, mover, moves=False)
                    turns.append((trained(cluster, mover, moves=True), floor))
                else:
                    figure = trained(cluster, mover, moves=True)
                    turns.append((figure, trained(cluster, mover, moves=False)))
        for which, what in enumerate(("by the clock", "CPU time of rank 0")):
            measured = Pairs(tuple(t[0][which] for t in turns), tuple(t[1][which] for t in turns))
            table.row(f"{ranks} rank{'s'[: ranks - 1]}, {what}", measured, SECONDS, most=AIM)


if __name__ == "__main__":
    with private_runtime():
        main()

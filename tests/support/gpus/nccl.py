"""An imitation of NCCL's flight recorder, for ranks without a GPU: calls are queued, and finish when they are told.

Its dumps have the form of torch 2.13's. A rank that runs `source()` has it as ``nccl``.
"""

from __future__ import annotations

import pickle
import threading
import time
from pathlib import Path
from typing import Any


def source() -> str:
    return f"{Path(__file__).read_text()}\nnccl = ImitatedNccl()\n"


class ImitatedNccl:
    def __init__(self) -> None:
        from torch._C import _distributed_c10d as bindings

        from jdist.worker.compat import torch as compat

        self.entries: list[dict[str, Any]] = []
        self.dumps = 0
        self.world = compat.world_name()
        compat.has_nccl = lambda: True
        bindings._dump_nccl_trace = self.dump

    def queue(self, op: str = "all_reduce", *, is_done: bool = False, is_p2p: bool = False) -> None:
        number = sum(not e["is_p2p"] for e in self.entries) + (not is_p2p)
        self.entries.append(
            {
                "record_id": len(self.entries),
                "pg_id": 0,
                "process_group": (self.world, "default_pg"),
                "thread_name": "python",
                "thread_id": str(threading.get_ident()),
                "collective_seq_id": number,
                "p2p_seq_id": sum(e["is_p2p"] for e in self.entries) + is_p2p,
                "op_id": len(self.entries) + 1,
                "profiling_name": f"nccl:{op}",
                "time_created_ns": time.time_ns(),
                "input_sizes": [[4]],
                "input_dtypes": ["Float"],
                "output_sizes": [[4]],
                "output_dtypes": ["Float"],
                "state": "completed" if is_done else "scheduled",
                "retired": False,
                "timeout_ms": 600000,
                "is_p2p": is_p2p,
            }
        )

    def finish(self) -> None:
        for e in self.entries:
            e["state"] = "completed"

    def dump(self, with_entries: bool, _with_stacks: bool, _only_active: bool) -> bytes:
        def last(entries: list[dict[str, Any]]) -> int:
            number = "p2p_seq_id" if entries and entries[-1]["is_p2p"] else "collective_seq_id"
            return entries[-1][number] if entries else -1

        self.dumps += with_entries
        status = {
            "last_enqueued_collective": last(self.entries),
            "last_started_collective": -1,
            "last_completed_collective": last([e for e in self.entries if e["state"] == "completed"]),
        }
        found: dict[str, Any] = {"version": "2.10", "pg_status": {"0": status} if self.entries else {}}
        return pickle.dumps({**found, "entries": self.entries} if with_entries else found)

"""DDP: wrapping a module on one rank as it is wrapped on others, and starting all of their reducers anew.

A reducer sorts the parameters into buckets, and into others after its first backward, all ranks at once. One that is
made later on one rank would sum other parameters than those it meets, so every rank makes its own anew then. Neither
needs a collective.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel

from jdist.core.errors import UsageError


def options_of(name: str, ddp: Any, rank: int) -> tuple[dict[str, Any], str]:
    """What :func:`wrap` needs to wrap as ``ddp`` does on ``rank``: options, and the name of the process group.

    Raises UsageError when ``rank`` is not in that group, or what ``ddp`` does could not be told to another rank.
    """
    members = dist.get_process_group_ranks(ddp.process_group)
    if rank not in members:
        raise UsageError(f"{name} is trained by ranks {members}: rank {rank} is none of its replicas")
    if getattr(ddp, "_comm_hooks", None) or getattr(ddp, "mixed_precision", None) is not None:
        raise UsageError(
            f"{name} has a communication hook or mixed precision of DDP's own: restore its .module under another name, "
            "then build DDP anew on all ranks"
        )
    options = {
        "broadcast_buffers": ddp.broadcast_buffers,
        "find_unused_parameters": ddp.find_unused_parameters,
        "gradient_as_bucket_view": ddp.gradient_as_bucket_view,
        "static_graph": ddp.static_graph,
        "bucket_cap_mb": max(1, ddp.bucket_bytes_cap >> 20),
    }
    return options, str(ddp.process_group.group_name)


def wrap(module: Any, options: dict[str, Any], group_name: str) -> Any:
    """DDP around a module, on this rank alone: the others have theirs."""
    on = next((p.device for p in module.parameters()), torch.device("cpu"))
    if on.type != "cpu":
        options = {**options, "device_ids": [on.index]}
    group = c10d._resolve_process_group(group_name)  # type: ignore[arg-type,unused-ignore]
    return DistributedDataParallel(module, process_group=group, init_sync=False, **options)


def renew(ddp: Any) -> None:
    """Give a DDP module a new reducer, with the buckets of its first iteration."""
    parameters, expect_sparse = ddp._build_params_for_reducer()
    names = ddp._build_debug_param_to_name_mapping(parameters)
    ddp._ddp_init_helper(parameters, expect_sparse, names, ddp.static_graph)
    ddp._has_rebuilt_buckets = False
    if ddp.static_graph:
        ddp.reducer._set_static_graph()
        ddp.logger._set_static_graph()

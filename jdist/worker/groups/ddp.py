"""DDP: wrapping a module on one rank as it is wrapped on others. Needs no collective.

A reducer sorts the parameters into buckets, and into others after its first backward, all ranks at once. One that is
made later on one rank would sum other parameters than its peers', so every rank makes a new one then.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from jdist.core.errors import UsageError
from jdist.worker.compat.torch import has_comm_hook, resolve_group


def options_of(name: str, ddp: Any, rank: int) -> tuple[dict[str, Any], str]:
    """The options and the group name with which :func:`wrap` wraps as ``ddp`` does.

    Raises UsageError when ``rank`` is not in that group, or the options of ``ddp`` cannot be sent to another rank.
    """
    members = dist.get_process_group_ranks(ddp.process_group)
    if rank not in members:
        raise UsageError(f"{name} is trained by ranks {members}: rank {rank} is none of its replicas")
    if has_comm_hook(ddp) or getattr(ddp, "mixed_precision", None) is not None:
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
    return DistributedDataParallel(module, process_group=resolve_group(group_name), init_sync=False, **options)

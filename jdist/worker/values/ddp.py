"""DistributedDataParallel is no state: its module is moved between processes, and wrapped again as it was.

A reducer sorts the parameters into buckets, and into others after its first backward, all ranks at once. One that is
made later on one rank would sum other parameters than its peers', so every rank makes a new one then.
"""

from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from jdist.worker.compat.torch import has_comm_hook, resolve_group

_OPTIONS = ("broadcast_buffers", "find_unused_parameters", "gradient_as_bucket_view", "static_graph")


def is_special(ddp: Any) -> bool:
    """Whether it has what another process cannot be given: a communication hook, or mixed precision of DDP's own."""
    return has_comm_hook(ddp) or getattr(ddp, "mixed_precision", None) is not None


def options_of(ddp: Any) -> dict[str, Any]:
    """The options with which :func:`wrap` wraps as ``ddp`` does; the process group by torch's name."""
    return {
        **{name: getattr(ddp, name) for name in _OPTIONS},
        "process_group": str(ddp.process_group.group_name),
        "bucket_cap_mb": max(1, ddp.bucket_bytes_cap >> 20),
    }


def wrap(module: Any, options: dict[str, Any]) -> Any:
    """DDP around a module, on this rank alone: the others have theirs."""
    options = {**options, "process_group": resolve_group(options["process_group"])}
    on = next((p.device for p in module.parameters()), torch.device("cpu"))
    if on.type != "cpu":
        options["device_ids"] = [on.index]
    return DistributedDataParallel(module, init_sync=False, **options)

"""Resets what FSDP1 and pipeline schedules keep in private attributes of a training step that was cut off.

FullyShardedDataParallel (FSDP1) records where it is in a step, and resets that only at the end of a backward. A flat
parameter whose all_gather was cut off counts as gathered, so that its rank would leave out the next one and train on
uninitialized memory. A pipeline's schedule keeps the losses of microbatches. Checked on torch 2.13.0.
"""

import gc
import sys
from typing import Any

from jdist.worker.compat.features import Feature

_FSDP1 = Feature(
    "FullyShardedDataParallel after a step that was interrupted",
    {
        "torch.distributed.fsdp._flat_param:FlatParamHandle": "reshard post_reshard",
        "torch.distributed.fsdp._common_utils": "HandleTrainingState TrainingState",
    },
)
_PIPELINES = Feature(
    "a pipeline after a step that was interrupted", {"torch.distributed.pipelining.schedules": "_PipelineSchedule"}
)


def end_steps() -> None:
    """Set every FSDP module (sharded, and in no pass) and pipeline back to the beginning of a step."""
    sharding = sys.modules.get("torch.distributed.fsdp.fully_sharded_data_parallel")
    pipelining = sys.modules.get("torch.distributed.pipelining.schedules")
    wrapper: Any = sharding.FullyShardedDataParallel if sharding is not None else ()
    schedule: Any = getattr(pipelining, "_PipelineSchedule", ())
    classes = tuple(c for c in (wrapper, schedule) if c != ())
    for found in [each for each in gc.get_objects() if issubclass(type(each), classes)] if classes else []:
        if not issubclass(type(found), wrapper):
            found._internal_losses.clear()
        elif getattr(found, "_is_root", None) is not None:  # it has been in a step
            _end_step(found)


@_FSDP1.skips
def _end_step(state: Any) -> None:
    from torch.distributed.fsdp._common_utils import HandleTrainingState, TrainingState

    state.training_state = TrainingState.IDLE
    if state._is_root:
        state._post_backward_callback_queued = False
        state._exec_order_data.next_iter()
    handle = state._handle
    if handle is None:
        return
    handle._training_state = HandleTrainingState.IDLE
    handle._ran_pre_backward_hook = handle._needs_pre_backward_unshard = handle._prefetched = False
    handle._post_forward_index = None
    parameter = handle.flat_param
    hooked = parameter.__dict__.pop("_post_backward_hook_state", None)
    if hooked is not None:
        hooked[-1].remove()
    parameter._post_backward_called = False
    handle.reshard(handle.uses_sharded_strategy)
    handle.post_reshard()
    if "_saved_grad_shard" in parameter.__dict__:
        parameter.grad = parameter.__dict__.pop("_saved_grad_shard")
    elif parameter.grad is not None and parameter.grad.shape != parameter.shape:
        parameter.grad = None  # of the whole parameter, not reduced

"""Reads what FSDP2 and device meshes keep in private attributes, so that they can be made again in another world.

Checked on torch 2.13.0.
"""

import re
from collections.abc import Sequence
from typing import Any

from torch.distributed.tensor import Placement, Replicate, Shard, placement_types

from jdist.worker.compat.features import Feature

_PLACEMENTS = Feature(
    "saving DTensors",
    {
        "torch.distributed.tensor._utils": "compute_local_shape_and_global_offset",
        "torch.distributed.tensor.placement_types": "_StridedShard",
    },
)
_MESHES = Feature("saving parts of device meshes", {"torch.distributed.device_mesh:DeviceMesh": "_get_root_mesh"})
_FSDP2 = Feature("saving modules that are fully sharded", {"torch.distributed.fsdp:FSDPModule": "_get_fsdp_state"})

_MARKS = ("_is_fsdp_managed_module", "_fsdp_use_orig_params")
_STATE_KEY = "__composable_api_state_key"


@_MESHES.needed_by
def root_mesh(mesh: Any) -> Any:
    """The mesh of which a mesh is a part; the mesh itself if it is no part of another."""
    return mesh._get_root_mesh()


@_FSDP2.needed_by
def fsdp_options(module: Any) -> dict[str, Any] | None:
    """The options with which ``fully_shard`` was called for a module; None if it is in another module's group.

    Of a module without parameters of its own, the mesh is None: it was not kept.
    ``placements`` are ``{(module, name): dimension}`` of the parameters in its group, and ``tensor_parallel`` are mesh
    and placements that they had before, if they were DTensors. Raises TypeError for what cannot be made again.
    """
    state = module._get_fsdp_state()
    if state._modules[0] is not module:
        return None
    groups = state._fsdp_param_groups
    if len(groups) > 1 or len(state._modules) != 1:
        raise TypeError("it was fully sharded in groups of several modules or meshes")
    if not groups:
        own = None if state._auto_reshard_after_forward else True
        bare: dict[str, Any] = {"placements": {}, "tensor_parallel": {}}
        return {"mesh": None, "reshard_after_forward": own, "mp_policy": state._mp_policy, **bare}
    (group,) = groups
    before = {
        (p._module_info.module, p._module_info.param_name): p._unsharded_dtensor_spec
        for p in group.fsdp_params
        if p.is_dtensor
    }
    return {
        "mesh": group.mesh_info.mesh,
        "reshard_after_forward": _reshard_after_forward(state, group),
        "mp_policy": group.mp_policy,
        "offload_policy": group.offload_policy,
        "placements": {
            (p._module_info.module, p._module_info.param_name): p.fsdp_placement.dim for p in group.fsdp_params
        },
        "tensor_parallel": {place: (spec.mesh, spec.placements) for place, spec in before.items()},
    }


def _reshard_after_forward(state: Any, group: Any) -> bool | int | None:
    if state._auto_reshard_after_forward:
        return None
    after = group.post_forward_mesh_info
    if after is None:
        return False
    return True if after is group.mesh_info else int(after.shard_mesh_size)


def without_fsdp(state: dict[str, Any]) -> dict[str, Any]:
    """A module's attributes without those that fully_shard has added: its hooks and marks."""
    kept = {name: value for name, value in state.items() if name not in _MARKS and not name.startswith(_STATE_KEY)}
    for name, hooks in state.items():
        if name.endswith("_hooks") and isinstance(hooks, dict):
            kept[name] = type(hooks)((key, hook) for key, hook in hooks.items() if not _is_fsdp_hook(hook))
    flags = ("_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks_with_kwargs")
    for name in flags:
        hooks = kept.get(name.replace("_with_kwargs", "").replace("_always_called", ""), {})
        kept[name] = type(state[name])((key, flag) for key, flag in state[name].items() if key in hooks)
    return kept


def _is_fsdp_hook(hook: Any) -> bool:
    function = getattr(hook, "hook", hook)  # as torch wraps it
    owner = type(function.__self__) if hasattr(function, "__self__") else function
    return str(getattr(owner, "__module__", "")).startswith("torch.distributed.fsdp")


def parameters_of(module: Any) -> dict[str, Any]:
    """A module's own parameters by name, which can be replaced by anything."""
    found: dict[str, Any] = module._parameters
    return found


@_PLACEMENTS.needed_by
def placement_text(placement: Placement) -> str:
    """``"Shard(0)"``, ``"Replicate"``, or ``"StridedShard(0, 2)"``. Raises TypeError for placements of other kinds."""
    if isinstance(placement, Replicate):
        return "Replicate"
    if isinstance(placement, placement_types._StridedShard):
        return f"StridedShard({placement.dim}, {placement.split_factor})"
    if type(placement) is Shard:
        return f"Shard({placement.dim})"
    raise TypeError(f"a DTensor placed by {placement} cannot be saved; redistribute it first")


@_PLACEMENTS.needed_by
def placement_of(text: str) -> Placement:
    """The placement that :func:`placement_text` has written."""
    numbers = [int(number) for number in re.findall(r"\d+", text)]
    if text == "Replicate":
        return Replicate()
    return (
        Shard(numbers[0]) if len(numbers) == 1 else placement_types._StridedShard(numbers[0], split_factor=numbers[1])
    )


@_PLACEMENTS.needed_by
def local_shape(shape: Sequence[int], mesh: Any, placements: Sequence[Placement]) -> tuple[int, ...]:
    """The shape of this rank's part of a DTensor of that shape."""
    from torch.distributed.tensor import _utils

    found, _ = _utils.compute_local_shape_and_global_offset(tuple(shape), mesh, tuple(placements))
    return tuple(found)

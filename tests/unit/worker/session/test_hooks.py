"""Hooks of modules have the same numbers on all ranks in a save, however many hooks each rank has registered."""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from typing import Any

import torch
from torch import nn

from jdist.worker.session import rebuild
from jdist.worker.session.entries import Entries
from jdist.worker.session.sharding import MeshTable
from jdist.worker.session.units import Collection, Unit


class Table(nn.Module):
    """With an attribute that looks like a dict of hooks."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.by_number = OrderedDict({7: "seven", 3: "three"})


def noted(module: nn.Module, args: Any, output: Any) -> None:
    """A hook."""


def hooked() -> dict[str, Any]:
    torch.manual_seed(0)
    model = Table()
    handles = [model.linear.register_forward_hook(noted, always_call=True), model.register_forward_hook(noted)]
    model.linear.register_forward_pre_hook(lambda module, args: None)
    return {"handles": handles, "model": model}


def collected(values: dict[str, Any]) -> tuple[Unit, Entries]:
    meshes = MeshTable(1)
    entries = Entries(torch.device("cpu"), meshes)
    collection = Collection(values, {**values, "__name__": "__main__"}, entries, meshes)
    (unit,) = collection.collect("id")
    assert collection.losses == {}
    return unit, entries


def test_equal_modules_have_equal_pickles_on_a_rank_that_has_registered_more_hooks() -> None:
    first, _ = collected(hooked())
    for _ in range(5):
        nn.Linear(1, 1).register_forward_hook(noted)
    second, _ = collected(hooked())
    assert first == second


def test_modules_with_other_hooks_have_other_pickles() -> None:
    values = hooked()
    first, _ = collected(values)
    values["handles"][1].remove()
    assert collected(values)[0] != first


def test_loaded_hooks_are_called_and_removed_by_their_handles() -> None:
    values = hooked()
    unit, entries = collected(values)
    with rebuild.loading_save(entries.tensors, {}, ()):
        loader = pickle.Unpickler(io.BytesIO(unit.pickle))
        loaded = dict(zip(unit.names, (loader.load() for _ in unit.names), strict=True))
    model = loaded["model"]
    assert model.by_number == OrderedDict({7: "seven", 3: "three"})
    assert list(model.linear._forward_hooks.values()) == [noted]
    assert model.linear._forward_hooks_always_called.keys() == model.linear._forward_hooks.keys()
    for handle in loaded["handles"]:
        handle.remove()
    assert not model.linear._forward_hooks
    assert not model.linear._forward_hooks_always_called
    assert not model._forward_hooks
    assert len(model.linear._forward_pre_hooks) == 1

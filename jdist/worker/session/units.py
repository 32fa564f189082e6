"""Units: names that share objects or memory, such as a model and its optimizer, are saved and loaded as one."""

import contextlib
import io
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from msgspec import Struct
from torch.nn.parallel import DistributedDataParallel

from jdist.worker.session.entries import Entries, Entry
from jdist.worker.session.names_pickler import NotCarried
from jdist.worker.session.rebuild import LostValue
from jdist.worker.session.saved_pickler import ClassIds, Survey, UnitPickler
from jdist.worker.session.sharding import MeshTable, ShardedRoots
from jdist.worker.session.to_memory import path_to, reason_for


class Unit(Struct, frozen=True):
    """The names of a unit, a pickle that has their values one after the other, and the entries that it refers to."""

    names: tuple[str, ...]
    pickle: bytes
    entries: tuple[Entry, ...]
    meshes: tuple[int, ...] = ()  # Numbers of the meshes that it needs.
    has_training_state: bool = False  # Modules, optimizers, or tensors that several ranks hold together.


class Collection:
    """The units of one rank. ``values`` are the names to be saved, ``namespace`` the rank's session."""

    def __init__(self, values: Mapping[str, Any], namespace: dict[str, Any], entries: Entries, meshes: MeshTable):
        self.losses: dict[str, str] = {}
        self._values = dict(values)
        self._namespace = namespace
        self._entries = entries
        self._meshes = meshes

    def collect(self, save: str) -> list[Unit]:
        """Pickle everything; what cannot be pickled is in ``losses``, by name or by its place in a name."""
        surveys = {name: found for name in list(self._values) if (found := self._survey(name)) is not None}
        views: dict[int, set[int]] = {}
        for survey in surveys.values():
            for memory, users in survey.views.items():
                views.setdefault(memory, set()).update(users)
        shared = {memory for memory, users in views.items() if len(users) > 1}
        roots = ShardedRoots(module for survey in surveys.values() for module in survey.sharded)
        labels = labels_of({name: self._values[name] for name in surveys})
        class_ids = ClassIds(save)

        def make(file: Any) -> UnitPickler:
            return UnitPickler(file, self._namespace, self._meshes, self._entries, roots, shared, labels, class_ids)

        units = []
        for names in _tied({name: survey.parts for name, survey in surveys.items()}):
            has_training_state = any(surveys[name].has_training_state for name in names)
            unit = self._pickle(names, make, has_training_state)
            if unit.names:
                units.append(unit)
        return units

    def _survey(self, name: str) -> Survey | None:
        survey = Survey(name, self._namespace, self._meshes)
        try:
            survey.dump(self._values[name])
        except Exception as e:  # any class's own code, or a structure that is too deep
            self.losses[name] = reason_for(self._values[name], str(e))
            return None
        if any(loss.part is self._values[name] for loss in survey.losses):
            why = next(loss.why for loss in survey.losses if loss.part is self._values[name])
            self.losses[name] = reason_for(self._values[name], why)
            return None
        return survey

    def _pickle(self, names: list[str], make: Callable[[Any], UnitPickler], has_training_state: bool) -> Unit:
        """Pickle a unit, without the names of it that turn out to be useless."""
        kept = list(names)
        while True:
            self._meshes.used.clear()
            file = io.BytesIO()
            pickler = make(file)
            failed = self._dump(pickler, kept)
            if failed is None:
                break
            for label in pickler.labels_used:
                self._entries.forget(label)
            kept.remove(failed)
        for loss in pickler.losses:
            if type(loss.part) is not LostValue:  # isinstance asks a proxy
                path = loss.name + path_to(loss.part, self._values[loss.name])
                self.losses[path] = reason_for(loss.part, loss.why)
        entries = tuple(self._entries.notes[label] for label in pickler.labels_used)
        return Unit(tuple(kept), file.getvalue(), entries, tuple(sorted(self._meshes.used)), has_training_state)

    def _dump(self, pickler: UnitPickler, names: list[str]) -> str | None:
        """Pickle names one after the other; the one that cannot be saved, if there is one."""
        for name in names:
            pickler.name = name
            value = self._values[name]
            try:
                pickler.dump(value)
            except Exception as e:  # NotCarried, and any class's own code
                self.losses[name] = str(e) if isinstance(e, NotCarried) else reason_for(value, str(e))
                return name
            if any(loss.part is value for loss in pickler.losses):
                why = next(loss.why for loss in pickler.losses if loss.part is value)
                self.losses[name] = reason_for(value, why)
                return name
        return None


def _tied(parts: Mapping[str, set[Any]]) -> list[list[str]]:
    """The names in sets of those that have parts in common, directly or through others; all in their order."""
    first: dict[Any, str] = {}
    parent = {name: name for name in parts}

    def root(name: str) -> str:
        while parent[name] != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    for name, found in parts.items():
        for part in found:
            parent[root(name)] = root(first.setdefault(part, name))
    tied: dict[str, list[str]] = {}
    for name in parts:
        tied.setdefault(root(name), []).append(name)
    return list(tied.values())


def labels_of(values: Mapping[str, Any]) -> dict[int, str]:
    """Names for tensors and modules by their ids: as in the state_dict of a module or optimizer, behind its name."""
    labels: dict[int, str] = {}

    def add(key: Iterable[object], part: Any) -> None:
        labels.setdefault(id(part), ".".join(str(k) for k in key if k != ""))

    for name, value in values.items():
        module = value.module if isinstance(value, DistributedDataParallel) else value
        if isinstance(module, torch.Tensor):
            add([name], module)
        elif isinstance(module, torch.nn.Module):
            for path, part in (*module.named_modules(), *module.named_parameters(), *module.named_buffers()):
                add([name, path], part)
        elif isinstance(module, dict | list | tuple):
            with contextlib.suppress(RuntimeError):  # another thread changes it
                for key, part in module.items() if isinstance(module, dict) else enumerate(module):
                    if isinstance(part, torch.Tensor):
                        add([name, key], part)
    for name, value in values.items():
        if isinstance(value, torch.optim.Optimizer):
            for number, (parameter, state) in enumerate(value.state.items()):
                for key, part in state.items() if isinstance(state, dict) else ():
                    add([name, "state", labels.get(id(parameter), number), key], part)
    return labels

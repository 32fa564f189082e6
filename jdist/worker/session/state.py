"""A rank's session besides its names: directories, random numbers, torch's defaults, the history of its cells."""

import linecache
import os
import random
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from jdist.worker.compat.ipykernel import cell_files
from jdist.worker.groups import on_reform


def take(shell: Any, namespace: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Callable[[], Any]]:
    """What can be carried, by a key for :func:`restore`; each is asked for by itself, as the process is failing.

    ``environment`` is the one that the process began with.
    """
    files = cell_files(shell)
    return {
        "path": lambda: list(sys.path),
        "directory": os.getcwd,
        "environment": lambda: {k: v for k, v in os.environ.items() if environment.get(k) != v},
        "random": random.getstate,
        "numpy": lambda: sys.modules["numpy"].random.get_state() if "numpy" in sys.modules else None,
        "torch": torch.get_rng_state,
        "cuda": lambda: torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None,
        "dtype": torch.get_default_dtype,
        "deterministic": torch.are_deterministic_algorithms_enabled,
        "count": lambda: shell.execution_count,
        "inputs": lambda: list(namespace.get("In", ())),
        "files": lambda: dict(files),
        "sources": lambda: {name: linecache.cache[name] for name in files if name in linecache.cache},
        "on_reform": on_reform.functions,
        "hooks": next_hook,
    }


def restore(shell: Any, key: str, value: Any, environment: Mapping[str, str]) -> None:
    """Put one of them in place; ``environment`` is the one that this process began with."""
    if value is None:
        return
    match key:
        case "path":
            sys.path[:] = [*value, *(p for p in sys.path if p not in value)]
        case "directory":
            os.chdir(value)
        case "environment":  # without what the forming of the world sets
            os.environ.update({k: v for k, v in value.items() if os.environ.get(k) == environment.get(k)})
        case "random" | "numpy" | "torch" | "cuda":
            _restore_random(key, value)
        case "dtype":
            torch.set_default_dtype(value)
        case "deterministic" if value != torch.are_deterministic_algorithms_enabled():  # which imports much
            torch.use_deterministic_algorithms(value)
        case "count":
            shell.execution_count = value
        case "inputs":
            shell.user_ns["In"][:] = value
        case "files":
            cell_files(shell).update(value)
        case "sources":
            linecache.cache.update(value)
        case "hooks":
            reserve_hooks(value)
        case "on_reform":
            on_reform.adopt(value)


def _restore_random(key: str, value: Any) -> None:
    match key:
        case "random":
            random.setstate(value)
        case "numpy":
            sys.modules["numpy"].random.set_state(value)
        case "torch":
            torch.set_rng_state(value)
        case "cuda":
            torch.cuda.set_rng_state_all(value)


def next_hook() -> int:
    """The number of the next hook that a module or tensor is given: torch counts them in each process."""
    return RemovableHandle.next_id


def reserve_hooks(number: int) -> None:
    """Number hooks from there on: else one that is added to a loaded module would replace one that it has."""
    RemovableHandle.next_id = max(RemovableHandle.next_id, number)

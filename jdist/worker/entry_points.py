"""Entry points: the worker's functions that cells written by :mod:`jdist.core.rank_code` call, by their names there."""

import importlib
from typing import Any

_FUNCTIONS = {
    "run_script": "jdist.worker.process:run_script",
    "full_values": "jdist.worker.variables.restore:full_values",
    "broadcast": "jdist.worker.variables.restore:broadcast",
    "restore": "jdist.worker.variables.restore:restore",
    "save": "jdist.worker.session.to_folder:save",
    "load": "jdist.worker.session.from_folder:load",
    "read_manifest": "jdist.worker.session.from_folder:read_manifest_of",
    "delete_names": "jdist.worker.variables.listing:delete_names",
    "cause_fault": "jdist.worker.faults:cause_fault",
    "take_events": "jdist.worker.widgets:take_events",
    "call_on_reform": "jdist.worker.groups.on_reform:call",
}


def __getattr__(name: str) -> Any:
    """The function itself, so that a traceback has no frame of this module."""
    if name not in _FUNCTIONS:
        raise AttributeError(f"jdist has no entry point {name!r}")
    module, _, function = _FUNCTIONS[name].partition(":")
    return getattr(importlib.import_module(module), function)
